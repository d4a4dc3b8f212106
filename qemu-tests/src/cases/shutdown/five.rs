//! Five pods that the cases of this group share: three priorities, and 1, 20 and 600 s to end.
//!
//! In: a VM with the grace periods [`GROUPS`]. Out: checks that the pods ended in order, and that the receipt
//! records them.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::cluster::fixture::await_pod_gone;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::vm_node::VmNode;

use super::{
    BEYOND_S, GROUPS, LATE_S, ReceiptFile, await_settled, ensure_no_unclean_shutdown, pod, receipt, run_pods,
    terminated,
};

/// Name of the class of the second group.
const MIDDLE: &str = "middle";
/// Names of the pods, in the order of a sorted receipt.
pub(super) const NAMES: [&str; 5] = ["critical", "middle", "one", "six-hundred", "twenty"];
/// Names of the first group.
pub(super) const FIRST: [&str; 3] = ["one", "twenty", "six-hundred"];

/// Makes the class of the second group.
pub(super) fn create_class(cluster: &Cluster) -> Result<()> {
    let value = format!("--value={}", GROUPS[1].0);
    cluster.kubectl(&["create", "priorityclass", MIDDLE, &value]).map(drop)
}

/// How long the pods of the second and the third group take to end, seconds.
#[derive(Clone, Copy)]
pub(super) struct StopDurations {
    pub(super) middle: u32,
    pub(super) critical: u32,
}

/// Nearly at once: the first group takes long.
pub(super) const SOON: StopDurations = StopDurations { middle: 1, critical: 1 };

/// Runs the pods on the VM.
pub(super) fn run(cluster: &Cluster, later: StopDurations) -> Result<()> {
    run_pods(
        cluster,
        vec![
            pod("one", None, 1, 30),
            pod("twenty", None, 20, 600),
            // The group's period cuts this grace period.
            pod("six-hundred", None, 600, 600),
            pod("middle", Some(MIDDLE), later.middle, 600),
            pod("critical", Some("system-node-critical"), later.critical, 600),
        ],
    )
}

/// No pod was ended.
pub(super) fn ensure_ready(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    NAMES.into_iter().try_for_each(|name| {
        let pod = client.get::<Pod>(&client.of("default"), name)?.context("the pod is gone")?;
        ensure!(ready::pod(&pod), "{name}: {:?}", pod.status);
        Ok(())
    })
}

/// The API server shows that the pods ended [`SOON`], for a shutdown, group by group and each group within its time.
pub(super) fn ensure_in_order(cluster: &Cluster) -> Result<()> {
    let ended = |name| terminated(cluster, name);
    let (one, twenty, longest) = (ended("one")?, ended("twenty")?, ended("six-hundred")?);
    let (middle, critical) = (ended("middle")?, ended("critical")?);
    let ends = (one, twenty, longest, middle, critical);
    ensure!(one < twenty && twenty <= longest && longest <= middle && middle <= critical, "{ends:?}");
    // A busy machine sees either end late: that makes the time between them shorter or longer.
    ensure!((10..=19 + LATE_S).contains(&(twenty - one)), "19 s were to be between them: {ends:?}");
    let (given, took) = (GROUPS[0].1, longest - one + 1);
    ensure!((given - 10..=given + LATE_S).contains(&took), "group 0 has {given} s, it took {took}");
    Ok(())
}

/// The receipt lists exactly these pods as ended and reported [`SOON`]; the first group had all of its time.
pub(super) fn ensure_written(cluster: &Cluster, written: &ReceiptFile) -> Result<()> {
    let ReceiptFile { pods, began, took } = written;
    let (given, had) = (GROUPS[0].1, terminated(cluster, "six-hundred")? - began);
    // Both are whole seconds. A busy machine can only make it longer.
    ensure!(had >= given - 1, "group 0 has {given} s, and was cut after {had}");
    // The last group has a pod of one second.
    let most = GROUPS[0].1 + GROUPS[1].1 + GROUPS[1].1 + BEYOND_S + LATE_S;
    ensure!(*took <= most, "{took} s, not {most}");
    let mut pods: Vec<_> = pods.iter().map(|p| (p.name.as_str(), p.ended, p.told)).collect();
    pods.sort_unstable();
    ensure!(pods == NAMES.map(|name| (name, true, true)), "{pods:?}");
    Ok(())
}

/// The boot `before` ended them in order for this kind of end, reported and recorded it; deletes them.
pub(super) fn ensure_ended(cluster: &Cluster, vm: &mut VmNode, before: &str, kind: &str) -> Result<()> {
    ensure_in_order(cluster)?;
    ensure_written(cluster, &receipt(vm, before, kind)?)?;
    ensure_no_unclean_shutdown(cluster, before)?;
    clear(cluster)?;
    await_settled(cluster)?;
    cluster.ensure_nothing_forbidden()
}

/// Deletes those that are there, and waits until they are gone.
pub(super) fn clear(cluster: &Cluster) -> Result<()> {
    cluster.kubectl(&[&["delete", "pod", "--wait=false", "--ignore-not-found"], &NAMES[..]].concat())?;
    NAMES.into_iter().try_for_each(|name| await_pod_gone(cluster, name, 60))
}
