//! A booted VM of a cluster is told to stop: its pods end in order, the API server knows, the receipt says so, and the
//! next boot has nothing left to clean up. Also when it does not come about, and when it is cut short.

mod bus;
mod cut_short;
mod elsewhere;
mod five;
mod hung;
mod interrupted;
mod kept;
mod next_kernel;
mod watchdog;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_event, await_pod_gone, await_pod_ready, await_ready};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::cluster::vm_node::{LABEL, READY_LIMIT_S, VmNode};
use orlop_harness::say;
use serde::Deserialize;
use serde_json::{Value, json};

use kept::await_settled;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: Some("shutdown") };

/// Cases of this file, in the order in which they follow each other in the group.
pub const CASES: &[Case] = &[
    HERE.case(
        "shutdown/bus-restart",
        115,
        "the bus is restarted, and killed twice: logind and the lock are back within a bound, and systemctl reboot ends \
         pods of three priorities that need 1, 20 and 600 s in order",
        bus::restart,
    ),
    HERE.case(
        "shutdown/bus-away",
        100,
        "systemctl reboot without bus and logind: the same pods end in order while the agent's unit stops, told and \
         written",
        bus::away,
    ),
    HERE.case(
        "shutdown/kexec",
        100,
        "systemctl kexec: pods end as for a reboot, the next kernel starts without the firmware and knows how it was",
        next_kernel::kexec,
    ),
    HERE.case(
        "shutdown/called-off",
        105,
        "shutdown -c, a shutdown that cannot come about, and a logind that restarts: static pods run again, the node \
         takes pods",
        interrupted::called_off,
    ),
    HERE.case(
        "shutdown/soft-reboot",
        105,
        "systemctl soft-reboot: pods end as for a reboot, and the same kernel is the same node again",
        interrupted::soft_reboot,
    ),
    HERE.case(
        "shutdown/cut-short",
        400,
        "a kernel that dies while the first pods end, power cut while those of the second and the third priority end, \
         while the API server is to be told, and when all is written (halt): the next boot mends it and says why",
        cut_short::cut_short,
    ),
    HERE.case(
        "shutdown/power-button",
        120,
        "pressed: the pods end in order, the API server shows it, logind's limit was raised for it, the next boot finds \
         the receipt",
        power_button,
    ),
    HERE.case(
        "shutdown/reboot-unreachable",
        90,
        "systemctl reboot without an API server: within the budget; what was not told, and what was to be deleted, is \
         told and deleted by the next boot",
        reboot_unreachable,
    ),
    HERE.case(
        "shutdown/hung",
        90,
        "a pod whose shim hangs and a unit that never stops: the machine starts again within its time, and the next boot \
         says who was left",
        hung::hung,
    ),
    HERE.case(
        "shutdown/watchdog",
        150,
        "PID 1 hangs: the hardware watchdog starts the machine again in its time, and the next boot says that it did",
        watchdog::watchdog,
    ),
    Case {
        name: "shutdown/elsewhere",
        level: Level::L4v,
        expected_s: 190,
        about: "a Deployment and a StatefulSet go on on another node: after systemctl poweroff, and by the taint \
                out-of-service after a power cut",
        group: None,
        run: elsewhere::elsewhere,
    },
];

/// What pods and the Node say, in upstream's words.
const POD_MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
const NODE_MESSAGE: &str = "node is shutting down";
/// Name of the VM's node.
const VM: &str = "vm";
/// What some cases give all pods together, critical ones included, and what may be spent beyond it on telling and writing,
/// seconds. The critical ones need little of it: the rest is for a busy machine, on which the end of the others takes longer.
const PERIODS_S: (i64, i64) = (30, 12);
/// The other way to say it: priority and seconds. The last one needs no more than a moment of what it may have; it is what
/// logind's limit of 300 s has to be raised for.
const BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";
const GROUPS: [(i32, i64); 3] = [(0, 24), (1_000, 6), (2_000_000_000, 300)];
const BEYOND_S: i64 = 2;
/// What a busy machine under TCG may add to either, seconds: there a container's end alone can take ten. What must not be is
/// that the last group's 300 s are waited for.
const LATE_S: i64 = 120;
/// How long the rest of a stop may take under TCG on a busy machine, seconds.
const OFF_LIMIT_S: u64 = 120;

/// How long its kubelet gives pods to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Periods {
    /// [`GROUPS`].
    ByPriority,
    /// [`PERIODS_S`].
    Short,
}

impl Periods {
    /// Tells the VM, from its next boot on.
    fn configure(self, vm: &mut VmNode) {
        vm.unset(BY_PRIORITY);
        let (all, critical) = if self == Periods::Short { PERIODS_S } else { (0, 0) };
        vm.configure("shutdownGracePeriod", format!("{all}s"));
        vm.configure("shutdownGracePeriodCriticalPods", format!("{critical}s"));
        if self == Periods::ByPriority {
            let entry =
                |(priority, seconds)| json!({"priority": priority, "shutdownGracePeriodSeconds": seconds});
            vm.configure(BY_PRIORITY, GROUPS.map(entry).to_vec());
        }
    }
}

/// The cluster and its VM. Dropped in this order: QEMU holds the cluster's network namespace.
struct Fixture {
    vm: VmNode,
    cluster: Cluster,
    /// With the kernel that is started without the firmware.
    disk: SecondDisk,
    periods: Periods,
}

impl Fixture {
    /// Switches it on again, with these periods.
    fn boot(&mut self, periods: Periods) -> Result<()> {
        let before = boot_id(&self.cluster)?;
        periods.configure(&mut self.vm);
        self.periods = periods;
        self.vm.boot(None)?;
        await_boot(&self.cluster, &mut self.vm, &before)
    }
}

/// The group's cluster and VM, which has these periods.
fn fixture<'a>(cx: &'a mut CaseContext<'_>, periods: Periods) -> Result<&'a mut Fixture> {
    let fixture = cx.shared_or(|run, artefacts| {
        let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
        let mut vm = VmNode::plug(&mut cluster, artefacts, VM)?;
        vm.keep_last_words();
        vm.give_watchdog();
        let disk = next_kernel::disk(artefacts)?;
        vm.add_disk(disk.file());
        periods.configure(&mut vm);
        vm.boot(Some(cluster.token()))?;
        vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
        vm.give_range(&cluster)?;
        await_ready(&cluster, VM, READY_LIMIT_S)?;
        five::create_class(&cluster)?;
        kept::create(&cluster)?;
        Ok(Fixture { vm, cluster, disk, periods })
    })?;
    if fixture.periods != periods {
        fixture.vm.vm()?.shell()?.tell("systemctl poweroff")?;
        fixture.vm.await_off(OFF_LIMIT_S)?;
        fixture.boot(periods)?;
        await_settled(&fixture.cluster)?;
    }
    Ok(fixture)
}

/// A pod of the VM that takes so long to end, seconds.
fn pod(name: &str, class: Option<&str>, ends_after_s: u32, grace_s: u32) -> Value {
    let mut container =
        json!({"name": "hello", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never"});
    if ends_after_s > 0 {
        container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": ends_after_s}}});
    }
    let mut spec = json!({"nodeSelector": {LABEL.0: LABEL.1}, "terminationGracePeriodSeconds": grace_s,
        "automountServiceAccountToken": false, "containers": [container]});
    if let Some(class) = class {
        spec["priorityClassName"] = class.into();
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn run_pods(cluster: &Cluster, pods: Vec<Value>) -> Result<()> {
    let client = cluster.client();
    let names: Vec<String> =
        pods.iter().map(|p| p["metadata"]["name"].as_str().unwrap_or("").to_owned()).collect();
    for pod in pods {
        client.create::<Pod>(&client.of("default"), pod)?;
    }
    names.iter().try_for_each(|name| await_pod_ready(cluster, name, 120).map(drop))
}

/// The pod was ended for the shutdown; answers when its container did, in seconds of the epoch.
fn ensure_terminated(pod: &Pod) -> Result<i64> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref().context("a pod without a status")?;
    let said = (status.phase.as_deref(), status.reason.as_deref(), status.message.as_deref());
    ensure!(said == (Some("Failed"), Some("Terminated"), Some(POD_MESSAGE)), "{name}: {said:?}");
    let disrupted = status.conditions.iter().flatten().find(|c| c.type_ == "DisruptionTarget");
    let by = disrupted.map(|c| (c.status.as_str(), c.reason.as_deref(), c.message.as_deref()));
    ensure!(by == Some(("True", Some("TerminationByKubelet"), Some(POD_MESSAGE))), "{name}: {by:?}");
    let container = status.container_statuses.iter().flatten().next().context("no container's status")?;
    let ended = container.state.as_ref().and_then(|s| s.terminated.as_ref()?.finished_at.as_ref());
    Ok(ended.with_context(|| format!("{name}: its container did not end"))?.0.as_second())
}

fn terminated(cluster: &Cluster, name: &str) -> Result<i64> {
    let client = cluster.client();
    ensure_terminated(&client.get::<Pod>(&client.of("default"), name)?.context("the pod is gone")?)
}

/// What the VM has on disk about its last shutdown.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Receipt {
    start_time: Time,
    end_time: Option<Time>,
    boot_id: String,
    kind: String,
    pods: Vec<PodReceipt>,
}

#[derive(Clone, Debug, Deserialize)]
struct PodReceipt {
    name: String,
    ended: bool,
    told: bool,
}

/// What a receipt says of pods.
struct ReceiptFile {
    pods: Vec<PodReceipt>,
    /// When their end began, seconds of the epoch.
    began: i64,
    /// How long they took, seconds.
    took: i64,
}

/// The receipt says that the boot `before` ended in this way.
fn whole_receipt(vm: &mut VmNode, before: &str, kind: &str) -> Result<ReceiptFile> {
    let text = vm.vm()?.shell()?.must("cat /var/lib/kubelet/graceful_node_shutdown_state")?;
    let of: Receipt =
        serde_json::from_str(text.trim()).with_context(|| format!("the receipt is {text:?}"))?;
    ensure!(of.boot_id == before && of.kind == kind, "not of {before}, {kind}: {text}");
    let end = of.end_time.with_context(|| format!("it has no end: {text}"))?;
    let began = of.start_time.0.as_second();
    let took = end.0.as_second() - began;
    say::line(format!("  {kind}: pods ended and all written after {took} s"));
    Ok(ReceiptFile { pods: of.pods, began, took })
}

/// The same, of the pods that are not there all the time: those have ended.
fn receipt(vm: &mut VmNode, before: &str, kind: &str) -> Result<ReceiptFile> {
    let written = whole_receipt(vm, before, kind)?;
    let (kept, pods): (Vec<_>, Vec<_>) = written.pods.into_iter().partition(|pod| kept::is(&pod.name));
    ensure!(kept.len() == 2 && kept.iter().all(|pod| pod.ended), "the kept ones did not end: {kept:?}");
    Ok(ReceiptFile { pods, ..written })
}

/// It tells that this boot ended without order.
fn is_unclean(event: &Event, boot: &str) -> bool {
    event.reason.as_deref() == Some("UncleanShutdown")
        && event.message.as_deref().unwrap_or("").contains(boot)
}

fn ensure_no_unclean_shutdown(cluster: &Cluster, boot: &str) -> Result<()> {
    let client = cluster.client();
    // The Node is Ready again, and what a start tells is told before that.
    let told = |all: &BTreeMap<String, Event>| all.values().find(|event| is_unclean(event, boot)).cloned();
    let unclean = client.wait(&client.of("default"), 5, "the events", |all| Some(told(all)))?;
    ensure!(unclean.is_none(), "the boot before did not end well? {unclean:?}");
    Ok(())
}

fn await_boot(cluster: &Cluster, vm: &mut VmNode, before: &str) -> Result<()> {
    vm.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    let client = cluster.client();
    client.wait::<Node, _>(&client.all(), READY_LIMIT_S, "the Node of the next boot", |all| {
        let node = all.get(VM)?;
        let info = node.status.as_ref()?.node_info.as_ref()?;
        (info.boot_id != before && orlop_harness::cluster::ready::node(node)).then_some(())
    })
}

fn boot_id(cluster: &Cluster) -> Result<String> {
    let client = cluster.client();
    let node = client.get::<Node>(&client.all(), VM)?.context("the Node")?;
    Ok(node.status.and_then(|s| s.node_info).context("no nodeInfo")?.boot_id)
}

/// What journald wrote to the disk of this boot (`-b 0`) or an earlier one: all was told and written, then the agent
/// stopped, then containerd, then the network.
fn ensure_order_of_units(vm: &mut VmNode, boot: &str) -> Result<()> {
    const ORDER: [&str; 6] = [
        "the machine may stop",
        "Stopping kubelet.service",
        "Stopped kubelet.service",
        "Stopping containerd",
        "Stopped containerd",
        "Stopping systemd-networkd.service",
    ];
    let wanted = ORDER.join("|");
    let journal = format!("journalctl -D /var/log/journal -b {boot} -o cat --no-pager | grep -E '{wanted}'");
    let journal = vm.vm()?.shell()?.must(&journal)?;
    let at = |what: &str| journal.lines().position(|line| line.contains(what));
    let places: Option<Vec<usize>> = ORDER.into_iter().map(at).collect();
    ensure!(places.is_some_and(|places| places.is_sorted()), "not {ORDER:?}:\n{journal}");
    Ok(())
}

/// The agent holds its delay lock: it asks for it when the node is ready, so a moment after that it has it.
fn await_lock(vm: &mut VmNode) -> Result<()> {
    let lock = "busctl call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager \
                ListInhibitors | grep -q 'shutdown.*kubelet.*delay'";
    vm.vm()?.shell()?.must(&format!("timeout 60 sh -c \"until {lock}; do sleep 0.5; done\""))?;
    Ok(())
}

/// logind waits longer than the image has it wait, and lists the lock.
fn ensure_limit_raised(vm: &mut VmNode) -> Result<()> {
    let periods: i64 = GROUPS.iter().map(|(_, seconds)| seconds).sum();
    // What the agent needs beside the periods.
    let needed = periods + 5;
    let shell = vm.vm()?.shell()?;
    let limit = shell.must(
        "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager \
         InhibitDelayMaxUSec",
    )?;
    ensure!(limit.trim() == format!("t {}000000", needed), "{limit}, not {needed} s");
    let said = shell.must("cat /run/systemd/logind.conf.d/99-kubelet.conf")?;
    ensure!(said.contains(&format!("InhibitDelayMaxSec={needed}")), "{said}");
    let listed = shell.must("systemd-inhibit --list --no-pager --no-legend")?;
    // The reason does not fit the width.
    let ours =
        |line: &str| ["kubelet", "orlop-agent", "shutdown", "delay"].iter().all(|word| line.contains(word));
    ensure!(listed.lines().any(ours), "{listed}");
    Ok(())
}

/// Both metrics of the last shutdown, seconds of the epoch.
fn ensure_metrics(cluster: &Cluster, took: i64) -> Result<()> {
    let text = cluster.client().raw(&format!("/api/v1/nodes/{VM}/proxy/metrics"))?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse::<f64>().ok()).with_context(|| format!("no {name}"))
    };
    let start = value("kubelet_graceful_shutdown_start_time_seconds")?;
    let end = value("kubelet_graceful_shutdown_end_time_seconds")?;
    #[allow(clippy::cast_precision_loss)]
    let expected = took as f64;
    ensure!(start > 0.0 && (end - start - expected).abs() < 1.5, "{start} to {end}, not {took} s");
    Ok(())
}

fn power_button(cx: &mut CaseContext<'_>) -> Result<()> {
    let fixture = fixture(cx, Periods::ByPriority)?;
    let Fixture { cluster, vm, .. } = fixture;
    await_lock(vm)?;
    ensure_limit_raised(vm)?;
    let before = boot_id(cluster)?;
    five::run(cluster, five::SOON)?;
    let pressed = Instant::now();
    vm.vm()?.press_power_button()?;
    let off = vm.await_off(OFF_LIMIT_S);
    off.with_context(|| format!("pressed {:.0} s ago", pressed.elapsed().as_secs_f64()))?;
    say::line(format!("  off {:.1} s after the power button was pressed", pressed.elapsed().as_secs_f64()));

    // All of this is what the API server was told before the power went.
    five::ensure_in_order(cluster)?;
    let client = cluster.client();
    let node = client.get::<Node>(&client.all(), VM)?.context("the Node")?;
    let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
    let ready = conditions.iter().find(|c| c.type_ == "Ready").context("no condition Ready")?;
    let said = ready.message.as_deref().unwrap_or_default();
    ensure!(ready.status == "False" && said.contains(NODE_MESSAGE), "{ready:?}");
    await_event(cluster, "Shutdown", VM, 5)?;

    // With what the cases after this one have.
    fixture.boot(Periods::Short)?;
    let Fixture { cluster, vm, .. } = fixture;
    let written = receipt(vm, &before, "poweroff")?;
    five::ensure_written(cluster, &written)?;
    ensure_no_unclean_shutdown(cluster, &before)?;
    ensure_order_of_units(vm, "-1")?;
    ensure_metrics(cluster, written.took)?;
    // What ended stays ended, and can be deleted; new pods run.
    five::ensure_in_order(cluster)?;
    run_pods(cluster, vec![pod("afterwards", None, 0, 2)])?;
    interrupted::delete(cluster, &["afterwards"])?;
    five::clear(cluster)?;
    await_settled(cluster)?;
    cluster.ensure_nothing_forbidden()
}

fn reboot_unreachable(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { cluster, vm, .. } = fixture(cx, Periods::Short)?;
    run_pods(cluster, vec![pod("untold", None, 1, 5), pod("unwanted", None, 600, 600)])?;
    let before = boot_id(cluster)?;
    // Only the node can say that this one is gone.
    cluster.kubectl(&["delete", "pod", "unwanted", "--wait=false"])?;
    await_event(cluster, "Killing", "unwanted", 60)?;
    cluster.kill_apiserver()?;
    let asked = Instant::now();
    vm.vm()?.reboot(OFF_LIMIT_S)?;
    let gone = asked.elapsed().as_secs_f64();
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    let ReceiptFile { pods, took, .. } = receipt(vm, &before, "reboot")?;
    let untold = pods.iter().any(|pod| pod.name == "untold" && pod.ended && !pod.told);
    ensure!(untold, "{pods:?}");
    ensure!(pods.iter().any(|pod| pod.name == "unwanted" && pod.ended), "{pods:?}");
    ensure!(took <= PERIODS_S.0 + BEYOND_S, "the pods' part took {took} s");
    say::line(format!("  pods done after {took} s, the machine started again after {gone:.1} s"));
    cluster.restart_apiserver()?;
    await_boot(cluster, vm, &before)?;
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, "the end of the pod that was not told", |all| {
        ensure_terminated(all.get("untold")?).ok()
    })?;
    ensure_no_unclean_shutdown(cluster, &before)?;
    await_pod_gone(cluster, "unwanted", 60)?;
    cluster.kubectl(&["delete", "pod", "untold", "--wait=false"])?;
    await_pod_gone(cluster, "untold", 60)?;
    await_settled(cluster)
}
