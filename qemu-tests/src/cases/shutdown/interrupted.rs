//! Shutdowns that are cancelled, and soft reboots, which keep the kernel.
//!
//! Cases: `shutdown/called-off`, `shutdown/soft-reboot`.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::cluster::fixture::{await_event, await_pod_gone, await_pod_ready};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use serde_json::json;

use super::{
    Fixture, HERE, Periods, VM, await_lock, await_settled, boot_id, ensure_no_unclean_shutdown,
    ensure_order_of_units, ensure_terminated, five, fixture, is_unclean, pod, receipt, run_pods,
};

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "shutdown/called-off",
        105,
        "shutdown -c, a shutdown that cannot come about, and a logind that restarts: static pods run again, the node \
         takes pods",
        called_off,
    ),
    HERE.case(
        "shutdown/soft-reboot",
        105,
        "systemctl soft-reboot: pods end as for a reboot, and the same kernel is the same node again",
        soft_reboot,
    ),
];

/// A static pod, its manifest, and its mirror.
const STATIC: &str = "stays";
const MANIFEST: &str = "/etc/kubernetes/manifests/stays.yaml";
const MIRROR: &str = "stays-vm";
const LOGIND: &str =
    "busctl call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager";

pub(super) fn await_terminated(cluster: &Cluster, name: &str, limit_s: u64) -> Result<()> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), limit_s, &format!("{name} to end"), |all| {
        ensure_terminated(all.get(name)?).ok().map(drop)
    })
}

pub(super) fn delete(cluster: &Cluster, names: &[&str]) -> Result<()> {
    names.iter().try_for_each(|name| {
        cluster.kubectl(&["delete", "pod", name, "--wait=false"])?;
        await_pod_gone(cluster, name, 60)
    })
}

/// Makes the static pod; returns which container of it runs.
fn run_static(cluster: &Cluster, vm: &mut VmNode) -> Result<String> {
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": STATIC, "namespace": "default"},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": [
            {"name": "hello", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never"}]}});
    vm.vm()?.shell()?.must(&format!("printf '%s' '{manifest}' > {MANIFEST}"))?;
    container_id(&await_pod_ready(cluster, MIRROR, 60)?)
}

fn remove_static(cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    vm.vm()?.shell()?.must(&format!("rm {MANIFEST}"))?;
    await_pod_gone(cluster, MIRROR, 60)
}

fn container_id(pod: &Pod) -> Result<String> {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    statuses.and_then(|all| all.first()?.container_id.clone()).context("no container's id")
}

/// The static pod runs in another container than `before`.
fn await_begun_anew(cluster: &Cluster, before: &str) -> Result<()> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), READY_LIMIT_S, "the static pod to begin anew", |all| {
        let mirror = all.get(MIRROR).filter(|p| ready::pod(p))?;
        (container_id(mirror).ok()? != before).then_some(())
    })
}

fn await_node_ready(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    client.wait::<Node, _>(&client.all(), READY_LIMIT_S, "the Node to be Ready", |all| {
        ready::node(all.get(VM)?).then_some(())
    })
}

/// The Node's condition about the end of the last boot; returns its message.
pub(super) fn ensure_last_end(cluster: &Cluster, status: &str, reason: &str) -> Result<String> {
    let client = cluster.client();
    let node = client.get::<Node>(&client.all(), VM)?.context("the Node")?;
    let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
    let found = conditions.into_iter().find(|c| c.type_ == "UncleanShutdown");
    let found = found.context("no condition UncleanShutdown")?;
    let said = (found.status.as_str(), found.reason.as_deref());
    ensure!(said == (status, Some(reason)), "{found:?}");
    Ok(found.message.unwrap_or_default())
}

/// The event about the unclean end of `boot`.
pub(super) fn unclean(cluster: &Cluster, boot: &str) -> Result<String> {
    let client = cluster.client();
    let event = client.wait::<Event, _>(&client.of("default"), 30, "the event UncleanShutdown", |all| {
        all.values().find(|event| is_unclean(event, boot)).cloned()
    })?;
    Ok(event.message.unwrap_or_default())
}

fn called_off(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx, Periods::ByPriority)?;
    let before = run_static(cluster, vm)?;
    five::run(cluster, five::SOON)?;
    // A scheduled shutdown that is cancelled: no pod is ended.
    let shell = vm.vm()?.shell()?;
    shell.must("shutdown -r +60 && test -e /run/systemd/shutdown/scheduled")?;
    shell.must("shutdown -c && test ! -e /run/systemd/shutdown/scheduled")?;
    // logind restarts: the agent takes the lock again.
    shell.must("systemctl restart systemd-logind")?;
    await_lock(vm)?;
    five::ensure_ready(cluster)?;
    let shell = vm.vm()?.shell()?;
    // A shutdown in progress that fails: logind reports this after the agent has released its lock.
    shell.must(&format!("{LOGIND} Reboot b false && systemctl mask --runtime reboot.target"))?;
    await_terminated(cluster, "critical", 90)?;
    await_event(cluster, "Shutdown", VM, 30)?;
    await_begun_anew(cluster, &before)?;
    await_node_ready(cluster)?;
    let client = cluster.client();
    client.wait::<Event, _>(&client.of("default"), 30, "the cancellation to be told", |all| {
        let told = |e: &&Event| e.message.as_deref().unwrap_or("").contains("shutdown cancellation");
        all.values().find(told).map(drop)
    })?;
    let shell = vm.vm()?.shell()?;
    shell.must("systemctl unmask --runtime reboot.target")?;
    await_lock(vm)?;
    run_pods(cluster, vec![pod("next", None, 0, 2)])?;
    // The statuses of the API's pods stay terminated.
    five::ensure_in_order(cluster)?;
    five::clear(cluster)?;
    delete(cluster, &["next"])?;
    remove_static(cluster, vm)?;
    await_settled(cluster)
}

fn soft_reboot(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx, Periods::ByPriority)?;
    let before = run_static(cluster, vm)?;
    five::run(cluster, five::SOON)?;
    let boot = boot_id(cluster)?;
    vm.vm()?.soft_reboot()?;
    await_terminated(cluster, "critical", 90)?;
    await_begun_anew(cluster, &before)?;
    await_node_ready(cluster)?;
    ensure!(boot_id(cluster)? == boot, "another kernel");
    let mut written = receipt(vm, &boot, "soft-reboot")?;
    written.pods.retain(|pod| pod.name != MIRROR);
    five::ensure_written(cluster, &written)?;
    ensure_no_unclean_shutdown(cluster, &boot)?;
    ensure_order_of_units(vm, "0")?;
    // The journal of the new userspace is on the disk, too, not in memory.
    vm.vm()?.shell()?.must(
        "journalctl -D /var/log/journal -q --no-pager _PID=$(systemctl show -P MainPID kubelet.service) | grep -q .",
    )?;
    run_pods(cluster, vec![pod("next", None, 0, 2)])?;
    five::ensure_in_order(cluster)?;
    five::clear(cluster)?;
    delete(cluster, &["next"])?;
    remove_static(cluster, vm)?;
    await_settled(cluster)?;
    cluster.ensure_nothing_forbidden()
}
