//! `bench eviction`: the agent, then the upstream kubelet in its place, in the same booted VM: the time from the
//! crossing of the memory threshold to the end of the evicted pod.
//!
//! The memory is used outside of any pod. Each kubelet is measured by its own rule for available memory. Rounds begin
//! at different moments of ten seconds, the period of upstream's checks.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::built;
use orlop_harness::cluster::fixture::{await_pod_gone, await_ready};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::programs;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::native::images::host_busybox;
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::vm::shell::Shell;
use serde_json::json;

use super::peer::forget_ready;
use super::peer_vm::{FORGET_IDENTITY, PROGRAM, UNIT, disk_of_kubelets, start_command};
use crate::cases::defence::memory::filling::{cross, empty, fill, holder, left, left_of_upstream, start};
use crate::cases::join::vm::tools::{PROGRAMS, link};

/// `forget_ready` knows it.
const NODE: &str = "peer";
/// Path of the tree's agent; the image has one of its own.
const AGENT: &str = "/var/lib/kubelet/agent";
/// `memory.available`, MiB.
const THRESHOLD: i64 = 250;
/// Memory above the threshold before the measurement, MiB.
const MARGIN: i64 = 30;
/// Memory that is used then, MiB: less than the victim has.
const BEYOND: i64 = 60;
const VICTIM_HOLDS: u32 = 120;
/// Parts of ten seconds by which a round begins later than the one before.
const LATER_MS: u32 = 2300;

/// Measures both, `rounds` rounds each.
///
/// # Errors
/// If the VM does not become Ready with either, or no pod is evicted.
pub fn run(run: &Arc<Run>, rounds: u32) -> Result<()> {
    let (agent, kubelet) = (built::agent(run, true)?, programs::kubelet(run)?);
    let artefacts = run.dir().join("bench-eviction");
    fs::create_dir_all(&artefacts)?;
    let mut cluster = Cluster::start(run, &artefacts, Settings::default())?;
    let (busybox, to) = (host_busybox()?, format!("{PROGRAMS}/busybox"));
    let programs = [(agent.as_path(), AGENT), (kubelet.as_path(), PROGRAM), (busybox.as_path(), to.as_str())];
    let disk = disk_of_kubelets(&artefacts, &cluster, &programs)?;
    let mut node = VmNode::plug(&mut cluster, &artefacts, NODE)?;
    node.configure("evictionHard", json!({"memory.available": format!("{THRESHOLD}Mi")}));
    node.configure("evictionPressureTransitionPeriod", "1s");
    node.give_processors(2);
    node.add_disk(disk.file());
    node.boot(Some(cluster.token()))?;
    node.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    node.give_range(&cluster)?;
    node.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    node.vm()?.shell()?.must(&format!("mkdir -p {PROGRAMS}"))?;
    disk.unpack(node.vm()?.shell()?)?;
    link(node.vm()?.shell()?, &["sh", "dd", "sleep", "touch", "cat"])?;
    node.vm()?.shell()?.must("systemctl stop kubelet")?;
    let kubelets: [(&str, &str, MemoryLeft); 2] =
        [("agent", AGENT, left), ("upstream", PROGRAM, left_of_upstream)];
    for (name, program, left) in kubelets {
        let shell = node.vm()?.shell()?;
        shell.must(FORGET_IDENTITY)?;
        forget_ready(&cluster)?;
        let start = start_command(shell, program)?;
        shell.must(&start)?;
        await_ready(&cluster, NODE, READY_LIMIT_S)?;
        let mut times = Vec::new();
        for n in 0..rounds {
            times.push(round(&cluster, &mut node, &format!("{name}-{n}"), n, left)?);
        }
        let each: Vec<String> = times.iter().map(|s| format!("{s:.2}")).collect();
        times.sort_by(f64::total_cmp);
        say::line(format!(
            "{name}, from crossing the threshold to the victim's end: median {:.2} s of {} s",
            times.get(times.len() / 2).copied().unwrap_or_default(),
            each.join(", "),
        ));
        node.vm()?.shell()?.must(&format!("systemctl stop {UNIT}"))?;
    }
    drop(node);
    drop(cluster);
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

/// MiB that a kubelet counts as left.
type MemoryLeft = fn(&mut Shell) -> Result<i64>;

/// Seconds from crossing the threshold to the victim's end.
fn round(cluster: &Cluster, node: &mut VmNode, victim: &str, n: u32, left: MemoryLeft) -> Result<f64> {
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    let mut pod = holder(victim, VICTIM_HOLDS, &json!({}));
    // Without the scheduler, which minds taints of a moment ago.
    pod["spec"]["nodeName"] = NODE.into();
    start(cluster, &pod, "MemoryPressure")?;
    let shell = node.vm()?.shell()?;
    let before = left(shell)?;
    let first = before - THRESHOLD - MARGIN;
    ensure!(first > 0, "only {before} MiB are left before it begins");
    fill(shell, "a", first)?;
    let later = Duration::from_millis(u64::from(n * LATER_MS % 10_000));
    shell.run(&format!("sleep {:.1}", later.as_secs_f64()), later + Duration::from_secs(60))?;
    let times = cross(shell, victim, MARGIN, BEYOND)?;
    empty(shell)?;
    // Upstream reports `Succeeded` for most victims whose processes end with 0, and has their message in the condition
    // only.
    let message = client.wait::<Pod, _>(&pods, 60, &format!("{victim} to be over"), |all| {
        let status = all.get(victim)?.status.clone()?;
        let disrupted = status.conditions?.into_iter().find(|c| c.type_ == "DisruptionTarget")?;
        matches!(status.phase.as_deref()?, "Failed" | "Succeeded")
            .then_some(disrupted.message.unwrap_or_default())
    })?;
    ensure!(message.contains("low on resource: memory"), "{victim} went for something else: {message}");
    client.delete::<Pod>(&pods, victim, Some(1))?;
    await_pod_gone(cluster, victim, 60)?;
    say::line(format!("  {victim}: {:.2} s", times.ended - times.crossed));
    Ok(times.ended - times.crossed)
}
