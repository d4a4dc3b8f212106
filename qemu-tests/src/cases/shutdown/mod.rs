//! A booted VM of a cluster stops: its pods end in order, the API server gets their ends, the receipt records them, and
//! the next boot has nothing left to clean up. Also shutdowns that are cancelled or cut short.
//!
//! This file has the group's fixture and checks that the cases share.

pub mod bus;
pub mod cut_short;
pub mod elsewhere;
mod five;
pub mod hung;
pub mod interrupted;
mod kept;
pub mod kexec;
pub mod power_button;
pub mod reboot_unreachable;
pub mod watchdog;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use orlop_harness::case::{CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_pod_ready, await_ready};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::cluster::vm_node::{LABEL, READY_LIMIT_S, VmNode};
use orlop_harness::say;
use serde::Deserialize;
use serde_json::{Value, json};

use kept::await_settled;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: Some("shutdown") };

/// Messages of pods and of the Node, in upstream's words.
const POD_MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
const NODE_MESSAGE: &str = "node is shutting down";
/// Name of the VM's node.
const VM: &str = "vm";
/// Grace periods of some cases, seconds: of all pods together, critical ones included, and the further time for status
/// updates and the receipt. Critical pods need little of it: the rest is for a busy machine, on which the end of the
/// other pods takes longer.
const PERIODS_S: (i64, i64) = (30, 12);
/// The other setting: priority and seconds. The last group needs only a moment of its period; because of this period
/// the agent has to raise logind's limit of 300 s.
const BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";
const GROUPS: [(i32, i64); 3] = [(0, 24), (1_000, 6), (2_000_000_000, 300)];
const BEYOND_S: i64 = 2;
/// What a busy machine under TCG may add to either, seconds: there a container's end alone can take ten. The limit
/// shows that the shutdown does not wait for the 300 s of the last group.
const LATE_S: i64 = 120;
/// How long the rest of a stop may take under TCG on a busy machine, seconds.
const OFF_LIMIT_S: u64 = 120;

/// Grace periods of the VM's kubelet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Periods {
    /// [`GROUPS`].
    ByPriority,
    /// [`PERIODS_S`].
    Short,
}

impl Periods {
    /// Configures the VM, from its next boot on.
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
    /// The disk has the kernel for kexec.
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
        let disk = kexec::disk(artefacts)?;
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

/// A pod of the VM whose end takes `ends_after_s` seconds.
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

/// The pod was ended for the shutdown; returns when its container did, in seconds of the epoch.
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

/// The VM's receipt of its last shutdown.
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

/// The part of a receipt about pods.
struct ReceiptFile {
    pods: Vec<PodReceipt>,
    /// When their end began, seconds of the epoch.
    began: i64,
    /// Duration of the pods' end, seconds.
    took: i64,
}

/// Checks that the receipt names the boot `before` and this kind of end.
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

/// The same, without the pods that always run, which must have ended.
fn receipt(vm: &mut VmNode, before: &str, kind: &str) -> Result<ReceiptFile> {
    let written = whole_receipt(vm, before, kind)?;
    let (kept, pods): (Vec<_>, Vec<_>) = written.pods.into_iter().partition(|pod| kept::is(&pod.name));
    ensure!(kept.len() == 2 && kept.iter().all(|pod| pod.ended), "the kept ones did not end: {kept:?}");
    Ok(ReceiptFile { pods, ..written })
}

/// True if the event reports an unclean end of this boot.
fn is_unclean(event: &Event, boot: &str) -> bool {
    event.reason.as_deref() == Some("UncleanShutdown")
        && event.message.as_deref().unwrap_or("").contains(boot)
}

fn ensure_no_unclean_shutdown(cluster: &Cluster, boot: &str) -> Result<()> {
    let client = cluster.client();
    // The Node is Ready again, and a start sends its events before that.
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

/// Checks the journal on disk of this boot (`-b 0`) or an earlier one: the agent sent all updates and wrote the
/// receipt, then the agent stopped, then containerd, then the network.
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

/// Waits until the agent holds its delay lock: it takes the lock a moment after the node is ready.
fn await_lock(vm: &mut VmNode) -> Result<()> {
    let lock = "busctl call org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager \
                ListInhibitors | grep -q 'shutdown.*kubelet.*delay'";
    vm.vm()?.shell()?.must(&format!("timeout 60 sh -c \"until {lock}; do sleep 0.5; done\""))?;
    Ok(())
}
