//! Shutdowns that do not come about, that keep the kernel, and that are cut short.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use serde_json::json;

use super::{
    BEYOND_S, Fixture, OFF_LIMIT_S, PERIODS_S, VM, await_boot, await_lock, boot_id,
    ensure_no_unclean_shutdown, ensure_terminated, fixture, is_unclean, kept, pod, receipt, run_pods,
    terminated,
};
use crate::case::CaseContext;
use crate::cluster::fixture::{await_event, await_pod_gone, await_pod_ready};
use crate::cluster::plane::Cluster;
use crate::cluster::ready;
use crate::cluster::vm_node::{READY_LIMIT_S, VmNode};

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

/// The machine ended under the pod's containers, and they run again. Until then the API server shows how it was before.
pub(super) fn await_started_anew(cluster: &Cluster, name: &str) -> Result<()> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 120, &format!("{name} to have been started anew"), |all| {
        let pod = all.get(name)?;
        let mut statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
        (ready::pod(pod) && statuses.all(|c| c.restart_count > 0)).then_some(())
    })
}

pub(super) fn delete(cluster: &Cluster, names: &[&str]) -> Result<()> {
    names.iter().try_for_each(|name| {
        cluster.kubectl(&["delete", "pod", name, "--wait=false"])?;
        await_pod_gone(cluster, name, 60)
    })
}

/// Makes the static pod; answers which container of it runs.
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

/// The Node's condition about the end of the last boot; answers its message.
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

/// What the node tells of the end of `boot`, which was not in order.
pub(super) fn unclean(cluster: &Cluster, boot: &str) -> Result<String> {
    let client = cluster.client();
    let event = client.wait::<Event, _>(&client.of("default"), 30, "the event UncleanShutdown", |all| {
        all.values().find(|event| is_unclean(event, boot)).cloned()
    })?;
    Ok(event.message.unwrap_or_default())
}

pub(super) fn called_off(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx)?;
    let before = run_static(cluster, vm)?;
    run_pods(cluster, vec![pod("leaves", None, 5, 30)])?;
    // One that is planned for later and called off before: nobody is told to stop.
    let shell = vm.vm()?.shell()?;
    shell.must("shutdown -r +60 && test -e /run/systemd/shutdown/scheduled")?;
    shell.must("shutdown -c && test ! -e /run/systemd/shutdown/scheduled")?;
    // logind restarts: the lock is taken anew.
    shell.must("systemctl restart systemd-logind")?;
    await_lock(vm)?;
    let client = cluster.client();
    let leaves = client.get::<Pod>(&client.of("default"), "leaves")?.context("the pod is gone")?;
    ensure!(ready::pod(&leaves), "it was ended: {:?}", leaves.status);
    let shell = vm.vm()?.shell()?;
    // One that is under way when it turns out that it cannot be: logind says so when its locks are given back.
    shell.must(&format!("{LOGIND} Reboot b false && systemctl mask --runtime reboot.target"))?;
    await_terminated(cluster, "leaves", 60)?;
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
    // What the API's pods were told stays true.
    terminated(cluster, "leaves")?;
    delete(cluster, &["leaves", "next"])?;
    remove_static(cluster, vm)?;
    kept::await_settled(cluster)
}

pub(super) fn soft_reboot(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx)?;
    let before = run_static(cluster, vm)?;
    run_pods(cluster, vec![pod("over", None, 2, 30)])?;
    let boot = boot_id(cluster)?;
    vm.vm()?.soft_reboot()?;
    await_terminated(cluster, "over", 60)?;
    await_begun_anew(cluster, &before)?;
    await_node_ready(cluster)?;
    ensure!(boot_id(cluster)? == boot, "another kernel");
    let (pods, took) = receipt(vm, &boot, "soft-reboot")?;
    ensure!(took <= PERIODS_S.0 + BEYOND_S, "the pods' part took {took} s");
    let over = pods.iter().find(|pod| pod.name == "over").context("the receipt has no pod `over`")?;
    ensure!(over.ended && over.told, "{over:?}");
    ensure_no_unclean_shutdown(cluster, &boot)?;
    run_pods(cluster, vec![pod("next", None, 0, 2)])?;
    terminated(cluster, "over")?;
    delete(cluster, &["over", "next"])?;
    remove_static(cluster, vm)?;
    kept::await_settled(cluster)?;
    cluster.ensure_nothing_forbidden()
}

/// Cuts the power and boots; answers the id of the boot that was cut.
fn cut(cluster: &Cluster, vm: &mut VmNode) -> Result<String> {
    let boot = boot_id(cluster)?;
    vm.cut_power();
    vm.boot(None)?;
    await_boot(cluster, vm, &boot)?;
    Ok(boot)
}

/// The node tells that `boot` ended in the middle of its shutdown.
fn ensure_told_unclean(cluster: &Cluster, boot: &str) -> Result<()> {
    let said = unclean(cluster, boot)?;
    ensure!(said.contains("in the middle of its shutdown"), "{said}");
    ensure_last_end(cluster, "True", "ShutdownCutShort").map(drop)
}

/// The pod's containers are being stopped: this pod's, not those of one that had its name in a case before.
fn await_killing(cluster: &Cluster, name: &str, limit_s: u64) -> Result<()> {
    let client = cluster.client();
    let pod = client.get::<Pod>(&client.of("default"), name)?.with_context(|| format!("{name} is gone"))?;
    let is = |e: &Event| e.reason.as_deref() == Some("Killing") && e.involved_object.uid == pod.metadata.uid;
    client.wait::<Event, _>(&client.of("default"), limit_s, &format!("{name} to be killed"), |all| {
        all.values().any(is).then_some(())
    })
}

/// Has the kernel die; answers the id of the boot that ended so.
fn panic(cluster: &Cluster, vm: &mut VmNode) -> Result<String> {
    let boot = boot_id(cluster)?;
    let machine = vm.vm()?;
    machine.shell()?.must("sysctl -qw kernel.panic=1 || echo 1 > /proc/sys/kernel/panic")?;
    machine.restarts("echo c > /proc/sysrq-trigger", OFF_LIMIT_S)?;
    await_boot(cluster, vm, &boot)?;
    Ok(boot)
}

/// It died in the middle of its shutdown, its words are told, and its log is kept.
fn ensure_told_panic(cluster: &Cluster, vm: &mut VmNode, boot: &str) -> Result<()> {
    let said = unclean(cluster, boot)?;
    let words = "its kernel died (Kernel panic - not syncing: sysrq triggered crash)";
    ensure!(said.contains(words) && said.contains("in the middle of its shutdown"), "{said}");
    ensure_last_end(cluster, "True", "KernelPanic")?;
    // The log is the node's to show, and the firmware has its place back.
    let logs = cluster.client().raw(&format!("/api/v1/nodes/{VM}/proxy/logs/pstore/{boot}/"))?;
    ensure!(logs.contains("dmesg-"), "{logs}");
    vm.vm()?.shell()?.must("test -z \"$(ls /sys/fs/pstore)\"").map(drop)
}

pub(super) fn cut_short(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx)?;
    let class = Some("system-node-critical");
    run_pods(
        cluster,
        vec![pod("quick", None, 0, 30), pod("slow", None, 600, 600), pod("vital", class, 600, 600)],
    )?;

    // While `slow` ends: what had its end coming ends, what had not goes on.
    vm.vm()?.shell()?.tell("systemctl reboot")?;
    await_terminated(cluster, "quick", 60)?;
    let boot = panic(cluster, vm)?;
    ensure_told_panic(cluster, vm, &boot)?;
    await_terminated(cluster, "slow", 60)?;
    terminated(cluster, "quick")?;
    await_started_anew(cluster, "vital")?;
    delete(cluster, &["quick", "slow"])?;
    kept::await_settled(cluster)?;

    // While `vital` ends.
    run_pods(cluster, vec![pod("quick", None, 0, 30)])?;
    vm.vm()?.shell()?.tell("systemctl reboot")?;
    await_terminated(cluster, "quick", 60)?;
    // Its group is next when nothing of the others is left, volumes included.
    await_killing(cluster, "vital", 60)?;
    let boot = cut(cluster, vm)?;
    ensure_told_unclean(cluster, &boot)?;
    await_terminated(cluster, "vital", 60)?;
    terminated(cluster, "quick")?;
    delete(cluster, &["quick", "vital"])?;
    kept::await_settled(cluster)?;

    cut_while_telling(cluster, vm)?;
    cut_when_written(cluster, vm)?;
    cluster.ensure_nothing_forbidden()
}

/// All pods have ended, and the API server, which is away, is waited for.
fn cut_while_telling(cluster: &mut Cluster, vm: &mut VmNode) -> Result<()> {
    run_pods(cluster, vec![pod("quick", None, 0, 30)])?;
    let boot = boot_id(cluster)?;
    cluster.kill_apiserver()?;
    let shell = vm.vm()?.shell()?;
    shell.tell("systemctl reboot")?;
    let ended = "until ! ctr -n k8s.io tasks ls | grep -q RUNNING; do sleep 0.2; done; \
                 grep -v endTime /var/lib/kubelet/graceful_node_shutdown_state";
    let begun = shell.must(ended)?;
    ensure!(begun.contains(&boot), "no shutdown is under way: {begun}");
    vm.cut_power();
    cluster.restart_apiserver()?;
    vm.boot(None)?;
    await_boot(cluster, vm, &boot)?;
    ensure_told_unclean(cluster, &boot)?;
    await_terminated(cluster, "quick", 60)?;
    delete(cluster, &["quick"])?;
    kept::await_settled(cluster)
}

/// All is written, and units stop: that was an end in order.
fn cut_when_written(cluster: &Cluster, vm: &mut VmNode) -> Result<()> {
    run_pods(cluster, vec![pod("quick", None, 0, 30)])?;
    let shell = vm.vm()?.shell()?;
    shell.tell("systemctl halt")?;
    await_terminated(cluster, "quick", 60)?;
    // The shell is stopped about then, too: no answer is one.
    let written = "until grep -q endTime /var/lib/kubelet/graceful_node_shutdown_state; do :; done";
    let _ = vm.vm()?.shell()?.run(written, Duration::from_secs(1));
    let boot = cut(cluster, vm)?;
    receipt(vm, &boot, "halt")?;
    ensure_no_unclean_shutdown(cluster, &boot)?;
    ensure_last_end(cluster, "False", "ShutdownInOrder")?;
    terminated(cluster, "quick")?;
    delete(cluster, &["quick"])?;
    kept::await_settled(cluster)
}
