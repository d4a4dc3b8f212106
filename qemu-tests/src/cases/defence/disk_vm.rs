//! A booted VM whose disk fills up: by images, by a log at full speed, by an emptyDir, by small files, by a hostPath.
//!
//! Images come from a registry in the control plane's network, which is a mirror of a host that does not exist.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_event, await_pod_gone, await_pod_ready, await_ready, event};
use orlop_harness::cluster::flags::{ADDRESS, Settings};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::native::blobs::Blobs;
use orlop_harness::native::registry;
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::vm::shell::Shell;
use serde_json::{Value, json};

use crate::cases::defence::memory::filling::{scripted, start};
use crate::cases::join::vm::tools::{PROGRAMS, disk, unpack};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "defence/disk-vm",
    240,
    "a disk filled by images, a log, an emptyDir, small files, a hostPath: what is not used is freed, who filled it goes, nobody else",
    fillers,
)];

const VM: &str = "vm";
/// The host of the images' names.
const HOST: &str = "images.test";
/// Port of its mirror, in the control plane's network.
const PORT: u16 = 5002;
/// The size that an image adds to its layers' content, MiB; on disk it takes twice that, packed and unpacked.
const IMAGE: usize = 100;
/// `imagefs.available` and `nodefs.available`, MiB: one image leaves more, two do not.
const THRESHOLD: u64 = 2300;
/// `nodefs.inodesFree`, per cent, and how many files are too many then.
const INODES_PERCENT: u64 = 85;
const FILES: u32 = 40_000;
/// The size that a pod writes to fill the disk, MiB.
const WRITES: u32 = 300;
/// The agent does not remove an image that a pod used within this time.
const ASKED: Duration = Duration::from_secs(125);
/// One log file, and how many of them there may be.
const LOG: (&str, u32) = ("5Mi", 3);
const NAMES: [&str; 9] = ["sh", "dd", "cat", "sleep", "touch", "yes", "rm", "du", "stat"];

/// Two images that have nothing in common.
fn make_images(run: &Arc<Run>, dir: &Path) -> Result<()> {
    let blobs = Blobs::at(dir)?;
    for name in ["one", "two"] {
        let tree = dir.join("tree");
        // Pods put their own programs there.
        fs::create_dir_all(tree.join("bin"))?;
        fs::write(tree.join("content"), name.repeat((IMAGE << 20) / name.len()))?;
        let layer = blobs.layer(run, &tree)?;
        fs::remove_dir_all(&tree)?;
        blobs.image(name, "1", &json!({"Cmd": ["/bin/sh"]}), &[layer])?;
    }
    Ok(())
}

struct Fixture {
    vm: VmNode,
    cluster: Cluster,
}

fn boot(cx: &CaseContext<'_>) -> Result<Fixture> {
    let images = cx.artefacts.join("images");
    make_images(&cx.run, &images)?;
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    registry::serve_in(cluster.pid()?, PORT, &images)?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    vm.mirror(HOST, &format!("http://{ADDRESS}:{PORT}"));
    let least = format!("{THRESHOLD}Mi");
    vm.configure(
        "evictionHard",
        json!({"imagefs.available": least, "nodefs.available": least,
            "nodefs.inodesFree": format!("{INODES_PERCENT}%")}),
    );
    vm.configure("evictionPressureTransitionPeriod", "5s");
    vm.configure("imageGCHighThresholdPercent", 100);
    vm.configure("containerLogMaxSize", LOG.0);
    vm.configure("containerLogMaxFiles", LOG.1);
    vm.configure("containerLogMonitorInterval", "3s");
    // A log at full speed leaves the harness' shell little of one.
    vm.give_processors(2);
    vm.add_disk(disk(&cx.artefacts)?);
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(&cluster)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    unpack(&mut vm, &NAMES)?;
    Ok(Fixture { vm, cluster })
}

/// A pod of an image; its emptyDir is on the disk.
fn pod(name: &str, image: &str, script: &str, resources: &Value) -> Value {
    let mut pod = scripted(name, script, resources);
    pod["spec"]["volumes"][1] = json!({"name": "hold", "emptyDir": {}});
    if image != "hello" {
        pod["spec"]["containers"][0]["image"] = format!("{HOST}/{image}:1").into();
        pod["spec"]["containers"][0]["imagePullPolicy"] = "IfNotPresent".into();
    }
    pod
}

/// MiB that are left on the node's disk.
fn left(shell: &mut Shell) -> Result<u64> {
    let text = shell.must(&format!("{PROGRAMS}/stat -f -c '%a %S' /var/lib/kubelet"))?;
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let [blocks, size] = numbers[..] else { anyhow::bail!("what is left: {text:?}") };
    Ok((blocks * size) >> 20)
}

const STAYS: &str = "trap 'exit 0' TERM; touch /hold/ready; while :; do sleep 1000 & wait $!; done";

fn fillers(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { mut vm, cluster } = boot(cx)?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    let asks = json!({"requests": {"ephemeral-storage": "100Mi"}});
    let first = left(vm.vm()?.shell()?)?;
    let image = u64::try_from(2 * IMAGE)?;
    ensure!(
        first > THRESHOLD + image + 20 && first < THRESHOLD + 2 * image - 20,
        "{first} MiB are left, and the images do not fit to that"
    );

    // An image that no pod uses any more.
    run(&cluster, pod("once", "one", STAYS, &asks))?;
    let pulled = Instant::now();
    client.delete::<Pod>(&pods, "once", Some(1))?;
    await_pod_gone(&cluster, "once", 60)?;

    loud(&cluster, &mut vm)?;

    vm.vm()?
        .shell()?
        .run(&format!("sleep {}", ASKED.saturating_sub(pulled.elapsed()).as_secs()), ASKED * 2)?;
    let with_one = left(vm.vm()?.shell()?)?;
    ensure!(with_one > THRESHOLD, "{with_one} MiB are left too early");
    run(&cluster, pod("stays", "two", STAYS, &asks))?;
    await_event(&cluster, "NodeHasDiskPressure", VM, 60)?;
    await_room(&cluster)?;
    let with_other = left(vm.vm()?.shell()?)?;
    say::line(format!(
        "  {first} MiB left, {with_one} with an image, {with_other} with another in its place"
    ));
    ensure!(with_other > THRESHOLD, "nothing was freed");
    ensure!(event(&cluster, "Evicted")?.is_none(), "somebody went although an image was enough");

    // All pods use one image; unused images are gone by now.
    let free = json!({});
    let writes = |to: &str| {
        format!(
            "touch /hold/ready; sleep 1; echo writes; dd if=/dev/zero of={to}/x bs=1M count={WRITES}; \
             while :; do sleep 1000 & wait $!; done"
        )
    };
    goes(&cluster, pod("fills", "two", &writes("/hold"), &free), "ephemeral-storage")?;
    let small = format!(
        "touch /hold/ready; sleep 1; i=0; while [ $i -lt {FILES} ]; do : > /hold/$i; i=$((i+1)); done; \
         while :; do sleep 1000 & wait $!; done"
    );
    goes(&cluster, pod("small", "two", &small, &free), "inodes")?;
    // Its file outlives the pod, unless the pod removes it.
    let tidy = format!("trap 'rm -f /dump/x; exit 0' TERM; {}", writes("/dump"));
    let mut dumps = pod("dumps", "two", &tidy, &free);
    let host =
        json!({"name": "dump", "hostPath": {"path": "/var/lib/e2e-dump", "type": "DirectoryOrCreate"}});
    let spec = &mut dumps["spec"];
    spec["volumes"].as_array_mut().context("volumes")?.push(host);
    let mounts = spec["containers"][0]["volumeMounts"].as_array_mut().context("mounts")?;
    mounts.push(json!({"name": "dump", "mountPath": "/dump"}));
    goes(&cluster, dumps, "ephemeral-storage")?;
    await_room(&cluster)?;

    let stays = client.get::<Pod>(&pods, "stays")?.context("pod stays")?;
    let restarts: i32 = stays
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten())
        .map(|c| c.restart_count)
        .sum();
    ensure!(ready::pod(&stays) && restarts == 0, "who used less than it asked for had to suffer");
    let node = client.get::<Node>(&client.all(), VM)?.context("the Node")?;
    ensure!(ready::node(&node), "not Ready: {node:?}");
    ensure!(event(&cluster, "NodeNotReady")?.is_none(), "the node lost Ready");
    cluster.ensure_nothing_forbidden()
}

fn run(cluster: &Cluster, pod: Value) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    cluster.client().create::<Pod>(&cluster.client().of("default"), pod)?;
    await_pod_ready(cluster, &name, 180).map(drop)
}

/// A log at full speed uses the size limit of its files, and no pod is evicted.
fn loud(cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    run(cluster, pod("loud", "hello", "touch /hold/ready; sleep 1; yes 'as fast as it can'", &json!({})))?;
    let sizes = format!(
        "i=0; while [ $i -lt 10 ]; do sleep 2; {PROGRAMS}/du -m -s /var/log/pods/default_loud_*; i=$((i+1)); done"
    );
    let text = vm.vm()?.shell()?.run(&sizes, Duration::from_secs(120))?.text;
    let sizes: Vec<u64> = text.lines().filter_map(|l| l.split_whitespace().next()?.parse().ok()).collect();
    say::line(format!("  a log at full speed takes, every two seconds: {sizes:?} MiB"));
    let rotated = vm.vm()?.shell()?.must("ls /var/log/pods/default_loud_*/c | wc -l")?;
    ensure!(rotated.trim().parse::<u32>()? > 1, "it was not rotated");
    let said = cluster.kubectl(&["logs", "loud", "--tail=1"])?;
    ensure!(said.trim() == "as fast as it can", "{said:?}");
    ensure!(event(cluster, "Evicted")?.is_none(), "somebody went for a log");
    cluster.client().delete::<Pod>(&cluster.client().of("default"), "loud", Some(1))?;
    await_pod_gone(cluster, "loud", 60)
}

/// The pod starts as soon as there is room again, fills the disk and is evicted.
fn goes(cluster: &Cluster, pod: Value, resource: &str) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    start(cluster, &pod, "DiskPressure")?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    let status = client.wait::<Pod, _>(&pods, 120, &format!("{name} to have failed"), |all| {
        let status = all.get(&name)?.status.clone()?;
        (status.phase.as_deref() == Some("Failed")).then_some(status)
    })?;
    let message = status.message.unwrap_or_default();
    say::line(format!("  {name}: {message}"));
    ensure!(status.reason.as_deref() == Some("Evicted"), "{name}: {:?}", status.reason);
    ensure!(message.starts_with(&format!("The node was low on resource: {resource}. ")), "{message}");
    // The node still has no room.
    cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{VM}/proxy/healthz")])?;
    client.delete::<Pod>(&pods, &name, Some(1))?;
    await_pod_gone(cluster, &name, 60)
}

/// Waits until the Node has no DiskPressure.
fn await_room(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    client.wait::<Node, _>(&client.all(), 60, "the disk not to be full", |all| {
        let conditions = all.get(VM)?.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().any(|c| c.type_ == "DiskPressure" && c.status == "False").then_some(())
    })
}
