//! A VM whose state partition has project quotas: the file system counts the emptyDir volumes of pods with user
//! namespaces, including deleted files that no walk can find.
//!
//! ```text
//! NodeConfig: storage.projectQuotas, the gate ─► pods with and without hostUsers ─► open files without a name
//!     ─► summary, an eviction, a killed agent, a power cut, the next pod
//! ```

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_pod_gone, await_pod_ready, await_ready, await_started_anew};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::say;
use serde_json::{Value, json};

use crate::cases::defence::memory::filling::scripted;
use crate::cases::join::vm::tools::{disk, unpack};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "volumes/quota",
    240,
    "the file system counts emptyDir volumes of pods with user namespaces, files without a name too, over a kill and a power cut, and the next pod begins at nothing",
    quota,
)];

const VM: &str = "vm";
const GATE: &str = "LocalStorageCapacityIsolationFSQuotaMonitoring";
const NAMES: [&str; 7] = ["sh", "dd", "cat", "sleep", "touch", "rm", "sync"];
const MIB: u64 = 1 << 20;
/// Sizes of an open file without a name and of a named file, MiB.
const NAMELESS: u64 = 30;
const NAMED: u64 = 10;
/// Size of the probe's directories and file.
const SMALL: u64 = MIB;
/// Limit of a step under TCG on a busy machine, seconds.
const LIMIT_S: u64 = 120;

/// A pod with an emptyDir on disk in which it holds so many MiB of each kind.
fn pod(name: &str, host_users: bool, nameless: u64, limit: Option<&str>) -> Value {
    let script = format!(
        "trap 'exit 0' TERM; exec 3>/hold/x; rm /hold/x; dd if=/dev/zero bs=1M count={nameless} >&3; \
         dd if=/dev/zero of=/hold/named bs=1M count={NAMED}; sync; touch /hold/ready; \
         while :; do sleep 1000 & wait $!; done"
    );
    let mut pod = scripted(name, &script, &json!({}));
    pod["spec"]["hostUsers"] = host_users.into();
    pod["spec"]["volumes"][1] = json!({"name": "hold", "emptyDir": {"sizeLimit": limit}});
    pod
}

fn run(cluster: &Cluster, pod: Value) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    cluster.client().create::<Pod>(&cluster.client().of("default"), pod)?;
    await_pod_ready(cluster, &name, LIMIT_S).map(drop)
}

/// Bytes and inodes of the pod's volume, as the summary has them.
fn volume_usage(cluster: &Cluster, pod: &str) -> Result<(u64, u64)> {
    let text = cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{VM}/proxy/stats/summary")])?;
    let summary: Value = serde_json::from_str(&text).context("the summary")?;
    let pods = summary["pods"].as_array().context("no pods")?;
    let of = pods.iter().find(|p| p["podRef"]["name"] == pod).with_context(|| format!("no {pod}: {text}"))?;
    let volumes = of["volume"].as_array().with_context(|| format!("{pod} has no volumes: {of}"))?;
    let hold = volumes.iter().find(|v| v["name"] == "hold").with_context(|| format!("no volume: {of}"))?;
    let number = |key: &str| hold[key].as_u64().with_context(|| format!("no {key}: {hold}"));
    Ok((number("usedBytes")?, number("inodesUsed")?))
}

/// Waits until the summary has this many MiB, and a little, and these inodes.
fn await_told(cluster: &Cluster, vm: &mut VmNode, pod: &str, mebi: u64, inodes: u64) -> Result<()> {
    let mut last = None;
    for _ in 0..LIMIT_S / 4 {
        let found = volume_usage(cluster, pod);
        if let Ok((bytes, found)) = found
            && (mebi * MIB..mebi * MIB + SMALL).contains(&bytes)
            && found == inodes
        {
            say::line(format!("  {pod}: {bytes} bytes, {inodes} inodes"));
            return Ok(());
        }
        last = Some(found);
        // In the guest, which has a clock of its own.
        vm.vm()?.shell()?.must("sleep 3")?;
    }
    bail!("{pod} should have {mebi} MiB in {inodes} inodes, and the summary says {last:?}")
}

fn boot(cx: &CaseContext<'_>) -> Result<(VmNode, Cluster)> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    vm.count_by_projects();
    vm.configure("featureGates", json!({GATE: true}));
    vm.configure("volumeStatsAggPeriod", "1s");
    vm.add_disk(disk(&cx.artefacts)?);
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(&cluster)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    unpack(&mut vm, &NAMES)?;
    Ok((vm, cluster))
}

fn quota(cx: &mut CaseContext<'_>) -> Result<()> {
    let (mut vm, cluster) = boot(cx)?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    // The directory, the file without a name, the one with a name, the probe's.
    let all = (NAMELESS + NAMED, 4);
    run(&cluster, pod("counted", false, NAMELESS, None))?;
    run(&cluster, pod("walked", true, NAMELESS, None))?;
    await_told(&cluster, &mut vm, "counted", all.0, all.1)?;
    await_told(&cluster, &mut vm, "walked", NAMED, all.1 - 1)?;

    // The account holds for limits, too: its names alone are within.
    client.create::<Pod>(&pods, pod("over", false, 2 * NAMELESS, Some("40Mi")))?;
    let status = client.wait::<Pod, _>(&pods, LIMIT_S, "over to have failed", |all| {
        let status = all.get("over")?.status.clone()?;
        (status.phase.as_deref() == Some("Failed")).then_some(status)
    })?;
    let message = status.message.unwrap_or_default();
    ensure!(message.contains("Usage of EmptyDir volume \"hold\" exceeds the limit \"40Mi\""), "{message}");
    client.delete::<Pod>(&pods, "over", Some(1))?;
    await_pod_gone(&cluster, "over", 60)?;

    vm.vm()?.shell()?.must("systemctl kill -s KILL kubelet")?;
    run(&cluster, pod("other", false, 0, None))?;
    await_told(&cluster, &mut vm, "other", NAMED, all.1)?;
    await_told(&cluster, &mut vm, "counted", all.0, all.1)?;

    // The deleted file vanishes with the power cut; the next instance's files are counted again.
    vm.cut_power();
    vm.boot(None)?;
    vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    await_started_anew(&cluster, "counted", LIMIT_S)?;
    await_told(&cluster, &mut vm, "counted", all.0, all.1)?;

    for name in ["counted", "walked", "other"] {
        client.delete::<Pod>(&pods, name, Some(1))?;
        await_pod_gone(&cluster, name, 60)?;
    }
    run(&cluster, pod("next", false, 0, None))?;
    await_told(&cluster, &mut vm, "next", NAMED, all.1)?;
    let said = vm
        .vm()?
        .shell()?
        .must("journalctl -b -u kubelet --no-pager | grep -c 'counted by its file system' || true")?;
    ensure!(said.trim() == "0", "volumes are not counted: {said}");
    cluster.ensure_nothing_forbidden()
}
