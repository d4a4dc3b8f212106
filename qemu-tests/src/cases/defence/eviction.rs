//! A node that runs out of disk, and pods that exceed their limits.
//!
//! The full node keeps its pods on its own tmpfs, so that only a pod of the test crosses thresholds just below the free
//! space, independent of the build machine's disk.
//!
//! Cases: `defence/storage-limits`, `defence/disk-pressure`, `defence/eviction-restart`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node, Pod, PodStatus};
use nix::sys::statvfs::statvfs;
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_event, await_pod_gone, await_ready, named_container,
};
use orlop_harness::cluster::join::{
    JoinMethod, flags, kubelet_configuration, kubelet_configuration_with, write,
};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;
use serde_json::{Value, json};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "defence/storage-limits",
        60,
        "pods beyond their emptyDir's size, their writable layer's, logs' and last words' limit go, those within stay",
        storage_limits,
    ),
    HERE.case(
        "defence/disk-pressure",
        120,
        "a full disk, then one without inodes: who filled it goes, nobody else; newcomers are kept away; Ready stays",
        disk_pressure,
    ),
    HERE.case(
        "defence/eviction-restart",
        90,
        "the agent, then containerd are killed while a pod goes: its grace goes on, it is told once, and nobody else goes",
        eviction_restart,
    ),
];

/// The status of a pod that failed.
pub(crate) fn await_failed(cluster: &Cluster, name: &str, limit_s: u64) -> Result<PodStatus> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), limit_s, &format!("pod {name} to have failed"), |all| {
        let status = all.get(name)?.status.clone()?;
        (status.phase.as_deref() == Some("Failed")).then_some(status)
    })
}

pub(crate) fn ensure_evicted(status: &PodStatus, words: &str) -> Result<()> {
    let (reason, message) = (status.reason.as_deref(), status.message.as_deref().unwrap_or_default());
    ensure!(reason == Some("Evicted") && message.contains(words), "{reason:?}: {message:?}, not {words:?}");
    say::line(format!("  {message}"));
    Ok(())
}

fn is_ready(cluster: &Cluster, name: &str) -> Result<bool> {
    let client = cluster.client();
    let pod = client.get::<Pod>(&client.of("default"), name)?;
    Ok(pod.is_some_and(|pod| ready::pod(&pod)))
}

fn limited(name: &str, script: &str, limit: &str) -> Value {
    let mut container = named_container(name, script);
    container["resources"] = json!({"limits": {"ephemeral-storage": limit}});
    container
}

/// Amounts of volumes and layers are a minute old at most (docs/reference/stats.md), the next look at them comes after ten seconds, and six
/// pods start at once on a busy machine: 16 s were seen.
const AMOUNTS_LIMIT_S: u64 = 150;

fn storage_limits(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let (cluster, client) = (&joined.cluster, joined.cluster.client());
    let write_to = |path: &str, mebi: u32| format!("head -c {mebi}m /dev/zero > {path}; {STAYS}");
    let mut pods = Vec::new();
    for (name, mebi) in [("sized", 3), ("sized-within", 1)] {
        let mut pod = api_pod(name, "first", &write_to("/data/file", mebi), 1);
        pod["spec"]["volumes"] = json!([{"name": "scratch", "emptyDir": {"sizeLimit": "2Mi"}}]);
        pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/data"}]);
        pods.push(pod);
    }
    let of = |name: &str, containers: Value| {
        let mut pod = api_pod(name, "first", STAYS, 1);
        pod["spec"]["containers"] = containers;
        pod
    };
    let roomy = || limited("roomy", STAYS, "1Gi");
    let logs = format!("head -c 6m /dev/zero | tr '\\0' x | fold -w 1000; {STAYS}");
    pods.push(of("whole", json!([limited("c", &write_to("/file", 6), "2Mi")])));
    pods.push(of("layer", json!([limited("c", &write_to("/file", 6), "2Mi"), roomy()])));
    pods.push(of("logs", json!([limited("c", &logs, "2Mi"), roomy()])));
    // The file is on the node's disk, outside of layers, logs and volumes.
    let last_words = write_to("/dev/termination-log", 6);
    pods.push(of("last-words", json!([limited("c", &last_words, "2Mi")])));
    pods.push(of("within", json!([limited("c", &write_to("/file", 1), "20Mi"), roomy()])));
    for pod in pods {
        client.create::<Pod>(&client.of("default"), pod)?;
    }
    let container = "Container c exceeded its local ephemeral storage limit \"2Mi\". ";
    for (name, words) in [
        ("sized", "Usage of EmptyDir volume \"scratch\" exceeds the limit \"2Mi\". "),
        ("whole", "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "),
        ("last-words", "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "),
        ("layer", container),
        ("logs", container),
    ] {
        let status = await_failed(cluster, name, AMOUNTS_LIMIT_S)?;
        ensure_evicted(&status, words)?;
        let conditions = status.conditions.unwrap_or_default();
        ensure!(conditions.iter().all(|c| c.type_ != "DisruptionTarget"), "{name} went for its own fault");
        let event = await_event(cluster, "Evicted", name, 30)?;
        ensure!(event.message.as_deref() == Some(words), "{event:?}");
    }
    for name in ["sized-within", "within"] {
        ensure!(is_ready(cluster, name)?, "{name} is not beyond its limit and does not run");
    }
    for name in ["sized", "sized-within", "whole", "last-words", "layer", "logs", "within"] {
        client.delete::<Pod>(&client.of("default"), name, None)?;
        await_pod_gone(cluster, name, 60)?;
    }
    cluster.ensure_nothing_forbidden()
}

/// The node whose disk is full.
pub(crate) const FULL: &str = "full";
/// The kubelet's directory, on the node's own tmpfs.
const ROOT_DIR: &str = "/run/kubelet";

/// Distance of the thresholds below the free space.
pub(crate) const ROOM_MIB: u64 = 100;
const ROOM_INODES: u64 = 2000;

/// The node, whose agent is not started yet. `configured` makes the configuration from the thresholds of bytes and
/// inodes.
pub(crate) fn lay_full(
    cx: &mut CaseContext<'_>,
    configured: impl Fn(u64, u64) -> String,
) -> Result<NativeNode> {
    let (agent, artefacts) = (built::agent(&cx.run, false)?, cx.artefacts.clone());
    let joined = Joined::shared(cx)?;
    let node = joined.cluster.start_node(&artefacts, FULL, agent)?;
    let disk = statvfs(&node.inside("/run")).context("the node's tmpfs")?;
    let available = (disk.blocks_available() * disk.fragment_size()).saturating_sub(ROOM_MIB << 20);
    let inodes = disk.files_free().saturating_sub(ROOM_INODES);
    let configuration = configured(available, inodes);
    write(
        &node,
        "/run/e2e/kubelet.yaml",
        &format!("{configuration}evictionPressureTransitionPeriod: 20s\n"),
    )?;
    Ok(node)
}

/// The same with its agent, Ready.
fn start_full(cx: &mut CaseContext<'_>, configured: impl Fn(u64, u64) -> String) -> Result<NativeNode> {
    let mut node = lay_full(cx, configured)?;
    start_agent(&mut node)?;
    await_ready(&Joined::shared(cx)?.cluster, FULL, 90)?;
    Ok(node)
}

pub(crate) fn start_agent(node: &mut NativeNode) -> Result<()> {
    let mut flags = flags(JoinMethod::BootstrapKubeconfig);
    flags.push(format!("--root-dir={ROOT_DIR}"));
    node.start_agent_with(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(crate) fn hard(available: u64, inodes: u64) -> String {
    kubelet_configuration_with([&available.to_string(), &inodes.to_string()])
}

/// A pod with a volume on the node's disk.
pub(crate) fn filler(name: &str, script: &str) -> Value {
    let mut pod = api_pod(name, FULL, &format!("{script}; {STAYS}"), 30);
    pod["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    pod
}

fn condition(node: &Node, kind: &str) -> Option<String> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == kind).map(|c| c.status.clone())
}

fn await_disk_pressure(cluster: &Cluster, status: &str, limit_s: u64) -> Result<()> {
    let client = cluster.client();
    let what = format!("DiskPressure to be {status}");
    client.wait::<Node, _>(&client.all(), limit_s, &what, |all| {
        (condition(all.get(FULL)?, "DiskPressure").as_deref() == Some(status)).then_some(())
    })
}

fn disk_pressure(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut node = start_full(cx, hard)?;
    let joined = Joined::shared(cx)?;
    let (cluster, client) = (&joined.cluster, joined.cluster.client());
    let pods = client.of::<Pod>("default");
    let mut critical = filler("critical", "head -c 20m /dev/zero > /data/file");
    critical["spec"]["priorityClassName"] = json!("system-node-critical");
    joined.run_pod(critical)?;
    joined.run_pod(filler("bystander", "true"))?;
    let script = format!("sleep 1; head -c {}m /dev/zero > /data/file", ROOM_MIB + 50);
    client.create::<Pod>(&pods, filler("filler", &script))?;
    await_disk_pressure(cluster, "True", 60)?;
    // Past the scheduler, which the taint keeps away.
    let mut late = api_pod("late", FULL, STAYS, 1);
    late["spec"]["nodeName"] = json!(FULL);
    client.create::<Pod>(&pods, late)?;
    let status = await_failed(cluster, "filler", 60)?;
    ensure_evicted(&status, "The node was low on resource: ephemeral-storage. Threshold quantity: ")?;
    let disrupted = status.conditions.unwrap_or_default().into_iter().find(|c| c.type_ == "DisruptionTarget");
    let disrupted = disrupted.context("a condition says so")?;
    ensure!(disrupted.reason.as_deref() == Some("TerminationByKubelet"), "{disrupted:?}");
    let event = await_event(cluster, "Evicted", "filler", 30)?;
    let starved = event.metadata.annotations.clone().unwrap_or_default();
    ensure!(starved.get("starved_resource").is_some_and(|r| r == "ephemeral-storage"), "{event:?}");
    let met = await_event(cluster, "EvictionThresholdMet", FULL, 30)?;
    ensure!(met.message.as_deref() == Some("Attempting to reclaim ephemeral-storage"), "{met:?}");
    await_event(cluster, "NodeHasDiskPressure", FULL, 30)?;
    let refused = await_failed(cluster, "late", 60)?;
    ensure_evicted(&refused, "Pod was rejected: The node had condition: [DiskPressure]. ")?;
    // Evicted pods stay gone, also for the next agent; the other pods are not affected.
    let restarts = |name: &str| -> Result<Vec<i32>> {
        let pod = client.get::<Pod>(&pods, name)?.with_context(|| format!("pod {name}"))?;
        let statuses = pod.status.and_then(|s| s.container_statuses).unwrap_or_default();
        Ok(statuses.iter().map(|s| s.restart_count).collect())
    };
    node.kill_agent()?;
    start_agent(&mut node)?;
    await_disk_pressure(cluster, "False", 90)?;
    ensure_evicted(&await_failed(cluster, "filler", 5)?, "ephemeral-storage")?;
    let many = format!("sleep 1; cd /data; for n in $(busybox seq 1 {}); do : > $n; done", ROOM_INODES + 500);
    client.create::<Pod>(&pods, filler("many-files", &many))?;
    let status = await_failed(cluster, "many-files", 90)?;
    ensure_evicted(&status, "The node was low on resource: inodes. Threshold quantity: ")?;
    for name in ["critical", "bystander"] {
        ensure!(is_ready(cluster, name)? && restarts(name)? == [0], "{name} had to suffer for it");
    }
    let now = client.get::<Node>(&client.all(), FULL)?.context("the Node")?;
    ensure!(condition(&now, "Ready").as_deref() == Some("True"), "not Ready: {now:?}");
    let fell = client.wait::<Event, _>(&client.of("default"), 10, "the events", |all| {
        let is = |e: &&Event| {
            e.reason.as_deref() == Some("NodeNotReady") && e.involved_object.name.as_deref() == Some(FULL)
        };
        Some(all.values().find(is).cloned())
    })?;
    ensure!(fell.is_none(), "the node lost Ready: {fell:?}");
    for name in ["filler", "late", "many-files", "critical", "bystander"] {
        client.delete::<Pod>(&pods, name, Some(1))?;
        await_pod_gone(cluster, name, 60)?;
    }
    cluster.ensure_nothing_forbidden()?;
    drop(node);
    client.delete::<Node>(&client.all(), FULL, None)
}

/// Grace period of a pod that is evicted for a soft threshold, seconds.
const SOFT_GRACE_S: i64 = 15;

fn soft(available: u64, _inodes: u64) -> String {
    let configuration = kubelet_configuration();
    format!(
        "{configuration}evictionSoft: {{nodefs.available: \"{available}\"}}\n\
         evictionSoftGracePeriod: {{nodefs.available: 1s}}\nevictionMaxPodGracePeriod: {SOFT_GRACE_S}\n"
    )
}

fn eviction_restart(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut node = start_full(cx, soft)?;
    let joined = Joined::shared(cx)?;
    let (cluster, client) = (&joined.cluster, joined.cluster.client());
    let pods = client.of::<Pod>("default");
    let write = |mebi: u64| format!("head -c {mebi}m /dev/zero > /data/file");
    joined.run_pod(filler("lesser", &write(ROOM_MIB * 6 / 10)))?;
    // The container ignores TERM, so that the whole grace period passes.
    let deaf = format!("{}; trap '' TERM; while :; do sleep 3600 & wait; done", write(ROOM_MIB * 9 / 10));
    client.create::<Pod>(&pods, filler("greater", &deaf))?;
    await_event(cluster, "Evicted", "greater", 60)?;
    node.kill_agent()?;
    let killed = Instant::now();
    start_agent(&mut node)?;
    // The call that lasts as long as the grace period is cut off at its other end, too.
    node.pass(Duration::from_secs(3))?;
    node.kill_containerd()?;
    node.start_containerd()?;
    let status = await_failed(cluster, "greater", 60)?;
    say::line(format!("  gone {:.1} s after the agent was killed", killed.elapsed().as_secs_f64()));
    ensure!(killed.elapsed() < Duration::from_secs(SOFT_GRACE_S.unsigned_abs() + 10), "its grace began anew");
    ensure_evicted(&status, "The node was low on resource: ephemeral-storage. ")?;
    await_disk_pressure(cluster, "False", 90)?;
    let told = await_event(cluster, "Evicted", "greater", 5)?;
    ensure!(told.count.unwrap_or(1) == 1, "it was told to go twice: {told:?}");
    ensure!(is_ready(cluster, "lesser")?, "lesser had to go, too");
    for name in ["greater", "lesser"] {
        client.delete::<Pod>(&pods, name, Some(1))?;
        await_pod_gone(cluster, name, 60)?;
    }
    cluster.ensure_nothing_forbidden()?;
    drop(node);
    client.delete::<Node>(&client.all(), FULL, None)
}
