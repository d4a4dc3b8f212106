//! A document from afar takes the node away from its cluster: no administrator can confirm it from there, and at its deadline, or after a
//! power cut, the node is in touch again by itself.
//!
//! Cases: `config/confirm-server`, `config/confirm-ca`, `config/confirm-cut`, `config/confirm-vlan`. They share a VM in a cluster and run
//! in this order; each can also run alone. Contact is the node's lease: it is renewed, or it is not.
//!
//! The node has its identity from a kubeconfig among `files`: a node that has joined by a token keeps the server and the authority that
//! it has found, whatever `join` says later.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::flags::{ADDRESS, Settings};
use orlop_harness::cluster::kubeconfig::render;
use orlop_harness::cluster::plane::{Cluster, server_url};
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::vm::machine::Vm;
use serde_json::{Value, json};

use super::managed::{KEY, ManagedVm, PROGRAM};
use crate::cases::manage::status::administrator;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: Some("confirm") };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "config/confirm-server",
        420,
        "a wrong API server, applied from afar: at the deadline the node is in touch with its cluster again",
        server,
    ),
    HERE.case(
        "config/confirm-ca",
        360,
        "a wrong authority of the API server, applied from afar: at the deadline the node is in touch with its cluster again",
        authority,
    ),
    HERE.case(
        "config/confirm-cut",
        360,
        "the power is cut while a wrong API server is tried: the next boot is in touch with its cluster",
        power_cut,
    ),
    HERE.case(
        "config/confirm-vlan",
        600,
        "a wrong VLAN, which acts at a boot: at the deadline the node reboots, and is in touch with its cluster again",
        vlan,
    ),
];

/// Name of the node.
const VM: &str = "vm";
/// The kubeconfig, in the guest.
const KUBECONFIG: &str = "/var/lib/orlop/files/kubeconfig";
/// Candidates, in the guest.
const WRONG_SERVER: &str = "/var/server.yaml";
const WRONG_CA: &str = "/var/ca.yaml";
const WRONG_VLAN: &str = "/var/vlan.yaml";
/// An address of the cluster's network without a host.
const NO_HOST: &str = "https://172.30.0.250:6443";
/// How long a change may be tried that is not confirmed, seconds. The loss is looked for in this time.
const WINDOW_S: u64 = 240;
/// The same of one that acts at a boot, seconds: it counts from the boot.
const BOOT_WINDOW_S: u64 = 360;
/// A lease that is renewed every ten seconds is renewed within this, seconds; an agent that starts again under TCG needs some of it.
const PAUSE_S: u64 = 40;
/// Looks for a device of a card whose driver may not be loaded yet.
const CARD_LOOKS: u32 = 60;
/// The agent starts again, and the machine is busy, seconds.
const LATE_S: u64 = 180;

/// A node of a cluster, and the way to change it.
struct ManagedNode {
    // Dropped first: its QEMU holds the cluster's network namespace.
    node: VmNode,
    config: Value,
    cluster: Cluster,
}

/// A document of these keys.
fn document(mut keys: Value) -> String {
    keys["apiVersion"] = "orlop/v1alpha1".into();
    keys["kind"] = "NodeConfig".into();
    format!("{keys}\n")
}

impl ManagedNode {
    fn start(run: &Arc<Run>, artefacts: &Path) -> Result<ManagedNode> {
        let program = built::ctl(run)?;
        let (key, admin) = administrator(&program, artefacts)?;
        let public = admin.split("key: \"").nth(1).and_then(|rest| rest.split('"').next());
        let public = public.with_context(|| format!("no key in {admin:?}"))?;
        let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
        let mut node = VmNode::plug(&mut cluster, artefacts, VM)?;
        let pki = cluster.pki();
        let user = format!("system:node:{VM}");
        let credentials = pki.client("confirm-vm", &user, Some("system:nodes"))?.credentials()?;
        let files = |server: &str, ca: &str| json!([{"path": KUBECONFIG, "content": render(server, ca, &credentials)}]);
        let right = files(&server_url(), &pki.ca.pem);
        let of_server = document(json!({"files": files(NO_HOST, &pki.ca.pem)}));
        let of_ca = document(json!({"files": files(&server_url(), &pki.other_ca.pem)}));
        let texts = [(key.as_str(), KEY), (of_server.as_str(), WRONG_SERVER), (of_ca.as_str(), WRONG_CA)];
        let disk = SecondDisk::make(artefacts, &[(program.as_path(), PROGRAM)], &texts)?;
        node.add_disk(disk.file());
        let mut config = node.configuration(None);
        config["join"] = json!({"kubeconfig": KUBECONFIG});
        config["files"] = right;
        config["api"] = json!({"admins": [{"name": "ops-1", "key": public}]});
        node.boot_as(&config)?;
        node.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
        node.give_range(&cluster)?;
        await_ready(&cluster, VM, READY_LIMIT_S)?;
        let shell = node.vm()?.shell()?;
        disk.unpack(shell)?;
        // The power is going to be cut.
        shell.must("sync")?;
        Ok(ManagedNode { node, config, cluster })
    }

    /// When the node has renewed its lease; none before it has made one.
    fn renewal(&self) -> Result<Option<String>> {
        let client = self.cluster.client();
        let lease = client.get::<Lease>(&client.of("kube-node-lease"), VM)?;
        let renewed = lease.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time);
        Ok(renewed.map(|time| format!("{time:?}")))
    }

    /// Waits until the node does not renew its lease any more; returns the last renewal.
    fn await_lost(&mut self, limit_s: u64) -> Result<Option<String>> {
        for _ in 0..limit_s.div_ceil(PAUSE_S) {
            let before = self.renewal()?;
            let pause = Duration::from_secs(2 * PAUSE_S + 60);
            self.node.vm()?.shell()?.run(&format!("sleep {PAUSE_S}"), pause)?;
            if self.renewal()? == before {
                return Ok(before);
            }
        }
        bail!("the node still renews its lease: the change does not act")
    }

    /// Waits until the lease is renewed after that.
    fn await_contact(&self, last: Option<&str>, limit_s: u64) -> Result<()> {
        let client = self.cluster.client();
        client.wait::<Lease, _>(
            &client.of("kube-node-lease"),
            limit_s,
            "the lease to be renewed",
            |all| {
                let renewed = all.get(VM)?.spec.as_ref()?.renew_time.as_ref().map(|time| format!("{time:?}"));
                (renewed.as_deref() != last).then_some(())
            },
        )?;
        await_ready(&self.cluster, VM, limit_s).map(drop)
    }

    fn managed(&mut self) -> Result<ManagedVm<'_>> {
        ManagedVm::find(self.node.vm()?)
    }

    /// The document is tried, takes the contact away, and is taken back at its deadline.
    fn lose_and_return(&mut self, document: &str) -> Result<()> {
        let why = format!("it was not confirmed within {WINDOW_S} s");
        let mut managed = self.managed()?;
        let before = managed.reverted("files", &why)?;
        managed.apply(document, "files", &format!("--confirm {WINDOW_S}s"), "confirm it within")?;
        let last = self.await_lost(WINDOW_S)?;
        say::line(format!("  no contact since {}", last.as_deref().unwrap_or("ever")));
        self.await_contact(last.as_deref(), WINDOW_S + LATE_S)?;
        self.managed()?.await_reverted("files", &why, before + 1)?;
        self.cluster.ensure_nothing_forbidden()
    }
}

fn node<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut ManagedNode> {
    cx.shared_or(ManagedNode::start)
}

fn server(cx: &mut CaseContext<'_>) -> Result<()> {
    node(cx)?.lose_and_return(WRONG_SERVER)
}

fn authority(cx: &mut CaseContext<'_>) -> Result<()> {
    node(cx)?.lose_and_return(WRONG_CA)
}

fn power_cut(cx: &mut CaseContext<'_>) -> Result<()> {
    let this = node(cx)?;
    // The kubeconfig of `join` is a way to the node: it asks for a confirmation by itself.
    this.managed()?.apply(WRONG_SERVER, "files", "", "confirm it within")?;
    let last = this.await_lost(WINDOW_S)?;
    this.node.cut_power();
    this.node.boot_as(&this.config)?;
    this.node.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    this.await_contact(last.as_deref(), READY_LIMIT_S)?;
    let why = "the node started again before it was confirmed";
    this.managed()?.await_reverted("files", why, 1)?;
    this.cluster.ensure_nothing_forbidden()
}

/// Is the node's VLAN there, at most so many looks later, a second apart? The card's driver is loaded after the agent is ready.
fn has_vlan(vm: &mut Vm, looks: u32) -> Result<bool> {
    let is_there = "test -e /sys/class/net/lan7";
    let asked = format!("(for n in $(seq {looks}); do {is_there} && exit 0; sleep 1; done; exit 1)");
    // Under emulation a look takes longer than its pause.
    Ok(vm.shell()?.run(&asked, Duration::from_secs(30 + 3 * u64::from(looks)))?.status == 0)
}

fn vlan(cx: &mut CaseContext<'_>) -> Result<()> {
    let this = node(cx)?;
    let address = format!("{}/24", this.node.wire().address());
    let mut managed = this.managed()?;
    let card = managed.card.clone();
    // The cluster's bridge has no such VLAN.
    let lan = json!({"name": "lan7", "id": 7, "parent": card, "addresses": [address], "gateway": ADDRESS});
    let text = document(json!({"network": {"interfaces": [{"name": card}], "vlans": [lan]}}));
    managed.vm.shell()?.must(&format!("printf '%s' '{}' > {WRONG_VLAN}", text.trim_end()))?;
    let options = format!("--confirm {BOOT_WINDOW_S}s");
    managed.apply(WRONG_VLAN, "network.vlans", &options, "it is tried in the next boot")?;
    let vm = this.node.vm()?;
    vm.reboot(LATE_S)?;
    vm.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.expect_restart()?;
    ensure!(has_vlan(vm, CARD_LOOKS)?, "the change does not act in its boot");
    let last = this.await_lost(BOOT_WINDOW_S)?;
    let vm = this.node.vm()?;
    vm.restarted(BOOT_WINDOW_S + LATE_S).context("the node does not reboot at the deadline")?;
    vm.await_phase("agent.ready", READY_LIMIT_S)?;
    this.await_contact(last.as_deref(), READY_LIMIT_S)?;
    ensure!(!has_vlan(this.node.vm()?, 1)?, "the VLAN is still there after the deadline");
    let why = format!("it was not confirmed within {BOOT_WINDOW_S} s");
    this.managed()?.await_reverted("network", &why, 1)?;
    this.cluster.ensure_nothing_forbidden()
}
