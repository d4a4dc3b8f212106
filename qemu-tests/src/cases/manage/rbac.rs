//! Users of a cluster at the management API of a VM: a role with logs alone reads logs and reboots nothing, a token of another audience is
//! none, and while the API server is away a key of an administrator works.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_event, await_ready};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::vm::shell::Output;
use serde_json::json;

use super::status::administrator;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "manage/rbac",
    240,
    "a ServiceAccount with nodes/logs alone: logs yes, reboot no, another audience no; without the API server a key works",
    rbac,
)];

const VM: &str = "vm";
/// Where the program, the key of the administrator and the tokens are in the guest.
const PROGRAM: &str = "/var/orlopctl";
const KEY: &str = "/var/ops-1.key";
const TOKEN: &str = "/var/token";
const OTHER_TOKEN: &str = "/var/other-token";
const LATE_TOKEN: &str = "/var/late-token";
/// Characters of a token that are typed at once.
const TYPED: usize = 800;
/// An answer under TCG, with the start of the server, or the restart of a service.
const ANSWER: Duration = Duration::from_secs(120);

/// The VM, and what its Node says of its key.
struct ManagedVm {
    vm: VmNode,
    pin: String,
}

impl ManagedVm {
    fn ask(&mut self, credential: &str, words: &str) -> Result<Output> {
        let line =
            format!("{PROGRAM} --timeout 50 --tcp 127.0.0.1 --node-key {} {credential} {words}", self.pin);
        self.vm.vm()?.shell()?.run(&line, ANSWER)
    }

    fn must(&mut self, credential: &str, words: &str) -> Result<String> {
        let output = self.ask(credential, words)?;
        ensure!(
            output.status == 0,
            "`{words}` with {credential} ended with {}: {}",
            output.status,
            output.text
        );
        Ok(output.text)
    }

    fn refused(&mut self, credential: &str, words: &str, status: i32, reason: &str) -> Result<()> {
        let output = self.ask(credential, words)?;
        ensure!(
            output.status == status && output.text.contains(reason),
            "`{words}` with {credential} ended with {}, not {status} and {reason}: {}",
            output.status,
            output.text
        );
        Ok(())
    }

    fn keep(&mut self, file: &str, token: &str) -> Result<()> {
        let shell = self.vm.vm()?.shell()?;
        shell.must(&format!("(umask 077 && : > {file})"))?;
        for part in token.trim().as_bytes().chunks(TYPED) {
            shell.must(&format!("printf %s '{}' >> {file}", std::str::from_utf8(part)?))?;
        }
        Ok(())
    }
}

fn rbac(cx: &mut CaseContext<'_>) -> Result<()> {
    let program = built::ctl(&cx.run)?;
    let (key, admin) = administrator(&program, &cx.artefacts)?;
    let disk = SecondDisk::make(&cx.artefacts, &[(program.as_path(), PROGRAM)], &[(key.as_str(), KEY)])?;
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    vm.add_disk(disk.file());
    let mut config = vm.configuration(Some(cluster.token()));
    config["api"] = json!({"clusterIdentities": true, "admins": [{"name": "ops-1", "key": key_of(&admin)?}]});
    vm.boot_as(&config)?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(&cluster)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    disk.unpack(vm.vm()?.shell()?)?;
    let pin = await_pin(&cluster)?;
    let mut managed = ManagedVm { vm, pin };
    let shown = managed.vm.vm()?.shell()?.must(&format!("{PROGRAM} --timeout 50 version"))?;
    ensure!(shown.contains(&managed.pin), "the Node has another key than the server: {shown}");
    bind(cx, &cluster)?;
    let by_audience = ["create", "token", "reader", "--audience", "orlop.dev/node-api"];
    managed.keep(TOKEN, &cluster.kubectl(&by_audience)?)?;
    managed.keep(OTHER_TOKEN, &cluster.kubectl(&["create", "token", "reader"])?)?;
    let (reader, other) = (format!("--token-file {TOKEN}"), format!("--token-file {OTHER_TOKEN}"));
    let by_key = format!("--key {KEY}");

    let logs = managed.must(&reader, "logs kubelet.service --lines 3")?;
    ensure!(logs.contains("kubelet.service: "), "{logs}");
    managed.refused(&reader, "get node", 4, "NOT_ALLOWED")?;
    managed.refused(&reader, "reboot --no-wait", 4, "NOT_ALLOWED")?;
    managed.refused(&other, "logs --lines 3", 4, "UNKNOWN_TOKEN")?;
    let audit = managed.must(&by_key, "logs orlop-node-api.service --grep Logs.Read")?;
    ensure!(audit.contains("system:serviceaccount:default:reader") && audit.contains("cluster"), "{audit}");

    managed.must(&by_key, "restart systemd-udevd")?;
    let event = await_event(&cluster, "NodeOperation", VM, 60)?;
    let message = event.message.unwrap_or_default();
    ensure!(message.contains("ops-1 (admin, tcp)"), "{message}");

    // An answer holds for two minutes: that to the first token may be over.
    managed.keep(LATE_TOKEN, &cluster.kubectl(&by_audience)?)?;
    let late = format!("--token-file {LATE_TOKEN}");
    managed.must(&late, "logs kubelet.service --lines 3")?;
    cluster.kill_apiserver()?;
    managed.must(&late, "logs kubelet.service --lines 3").context("an answer that holds")?;
    managed.refused(&other, "get node", 1, "CANNOT_ASK")?;
    let answer = managed.must(&by_key, "get time -o name")?;
    ensure!(answer.contains("time/clock"), "{answer}");
    cluster.restart_apiserver()
}

/// The key in the line that `orlopctl key show` prints.
fn key_of(line: &str) -> Result<String> {
    let (_, rest) = line.split_once("key: \"").with_context(|| format!("no key in {line}"))?;
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}

/// The annotation of the Node.
fn await_pin(cluster: &Cluster) -> Result<String> {
    let client = cluster.client();
    let what = "the key of the management API in the Node";
    client.wait::<Node, _>(&client.all::<Node>(), READY_LIMIT_S, what, |all| {
        all.get(VM)?.metadata.annotations.as_ref()?.get("node.orlop.dev/api-key").cloned()
    })
}

/// A ServiceAccount that may read the logs of every node.
fn bind(cx: &CaseContext<'_>, cluster: &Cluster) -> Result<()> {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "node-logs"},
        "rules": [{"apiGroups": ["node.orlop.dev"], "resources": ["nodes/logs"], "verbs": ["get"]}],
    });
    let file = cx.artefacts.join("role.json");
    std::fs::write(&file, role.to_string()).with_context(|| format!("write {}", file.display()))?;
    cluster.kubectl(&["create", "serviceaccount", "reader"])?;
    cluster.kubectl(&["create", "-f", &file.display().to_string()])?;
    let account = "--serviceaccount=default:reader";
    cluster.kubectl(&["create", "clusterrolebinding", "node-logs", "--clusterrole=node-logs", account])?;
    Ok(())
}
