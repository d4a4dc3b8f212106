//! A booted VM that runs out of memory: the victims, their order and their delay; and OOM kills of the kernel.
//!
//! Then process ids and swap, in the same VM.
//!
//! Pods hold memory in a tmpfs of their own. The rest of the memory is used outside of any pod, so that the node alone
//! decides.
//!
//! Cases: `defence/memory-hog`, `defence/oom`, `defence/pid-pressure`, `defence/swap`.

pub(crate) mod filling;
mod pids;
mod swap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Node, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_event, await_pod_gone, await_pod_ready, await_ready, event};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::cluster::{asking, ready};
use orlop_harness::say;
use serde_json::json;

use self::filling::{Crossing, cross, empty, fill, holder, left, scripted};
use crate::cases::join::vm::tools::{disk, unpack};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: Some("defence-memory") };

/// Cases of this file, in the order in which they follow each other in the group.
pub const CASES: &[Case] = &[
    HERE.case(
        "defence/memory-hog",
        180,
        "memory runs out: pods go in upstream's order, one at a time, the node stays Ready; from crossing to kill",
        memory_hog,
    ),
    HERE.case(
        "defence/oom",
        90,
        "a container beyond its limit, of either class that has one, is OOMKilled and nobody else; a kill of the machine's is an event SystemOOM",
        oom,
    ),
    HERE.case(
        "defence/pid-pressure",
        60,
        "process ids run out: the pod with the most goes, the others and the node's readiness stay",
        pids::pressure,
    ),
    HERE.case(
        "defence/swap",
        120,
        "with LimitedSwap a Burstable pod swaps its share, nobody else any; swapped memory is not resized",
        swap::limited,
    ),
];

const VM: &str = "vm";
/// `memory.available`, MiB.
const THRESHOLD: i64 = 330;
/// Memory that is used beyond the threshold, MiB: 50 more than `over` has, and 80 less than both victims have.
const BEYOND: i64 = 230;
/// `pid.available`, per cent.
const PIDS_PERCENT: u64 = 60;
const NAMES: [&str; 10] =
    ["sh", "dd", "cat", "sleep", "touch", "yes", "fallocate", "mkswap", "swapon", "swapoff"];

/// The cluster and its VM. Dropped in this order: QEMU holds the cluster's network namespace.
struct Fixture {
    vm: VmNode,
    cluster: Cluster,
}

fn fixture<'a>(cx: &'a mut CaseContext<'_>) -> Result<&'a mut Fixture> {
    cx.shared_or(|run, artefacts| {
        let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
        let mut vm = VmNode::plug(&mut cluster, artefacts, VM)?;
        // With one emulated processor there is no time for the lease while process ids run out.
        vm.give_processors(2);
        vm.configure(
            "evictionHard",
            json!({"memory.available": format!("{THRESHOLD}Mi"), "pid.available": format!("{PIDS_PERCENT}%")}),
        );
        vm.configure("failSwapOn", false);
        vm.configure("memorySwap", json!({"swapBehavior": "LimitedSwap"}));
        vm.configure("evictionPressureTransitionPeriod", "10s");
        vm.add_disk(disk(artefacts)?);
        vm.boot(Some(cluster.token()))?;
        vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
        vm.give_range(&cluster)?;
        await_ready(&cluster, VM, READY_LIMIT_S)?;
        unpack(&mut vm, &NAMES)?;
        Ok(Fixture { vm, cluster })
    })
}

fn memory_hog(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { vm, cluster } = fixture(cx)?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    let memory = |request: &str| json!({"requests": {"memory": request}});
    let full = json!({"cpu": "50m", "memory": "64Mi"});
    let guaranteed = json!({"requests": full, "limits": full});
    let mut critical = holder("critical", 10, &json!({}));
    critical["spec"]["priorityClassName"] = json!("system-node-critical");
    let all = [
        critical,
        holder("guaranteed", 10, &guaranteed),
        holder("within", 10, &memory("100Mi")),
        holder("over", 180, &memory("10Mi")),
        holder("best-effort", 130, &json!({})),
    ];
    for pod in all {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        client.create::<Pod>(&pods, pod)?;
        await_pod_ready(cluster, &name, 120)?;
    }
    let shell = vm.vm()?.shell()?;
    let before = left(shell)?;
    ensure!(before > THRESHOLD + 60, "only {before} MiB are left before it begins");
    fill(shell, "a", before - THRESHOLD - 30)?;
    // The node's API answers meanwhile, both requests that need memory and others.
    let paths = ["healthz", "pods", "stats/summary"].map(|path| format!("/api/v1/nodes/{VM}/proxy/{path}"));
    let (Crossing { crossed, filled, ended }, answers) =
        asking::during(client, &paths, || cross(shell, "over", 30, BEYOND))?;
    let answers = answers.all()?;
    say::line(format!(
        "  asked {} times meanwhile: the slowest answer took {:.2} s",
        answers.count,
        answers.slowest.as_secs_f64()
    ));
    say::line(format!(
        "  from crossing the threshold to the victim's end: {:.2} s, {:.2} s of them until all was written",
        ended - crossed,
        filled - crossed
    ));
    let mut ends = Vec::new();
    for name in ["over", "best-effort"] {
        let status = client.wait::<Pod, _>(&pods, 60, &format!("{name} to have failed"), |all| {
            let status = all.get(name)?.status.clone()?;
            (status.phase.as_deref() == Some("Failed")).then_some(status)
        })?;
        let message = status.message.unwrap_or_default();
        ensure!(status.reason.as_deref() == Some("Evicted"), "{name}: {:?}: {message}", status.reason);
        ensure!(
            message.contains("The node was low on resource: memory. Threshold quantity: 330Mi, "),
            "{message}"
        );
        ensure!(message.contains("has larger consumption of memory. "), "{message}");
        say::line(format!("  {name}: {message}"));
        let state = status.container_statuses.unwrap_or_default().pop().and_then(|c| c.state);
        let ended = state.and_then(|s| s.terminated?.finished_at).with_context(|| format!("{name}'s end"))?;
        ends.push(ended.0);
    }
    ensure!(ends.is_sorted(), "the second went first: {ends:?}");
    let left_then = left(vm.vm()?.shell()?)?;
    say::line(format!("  {left_then} MiB are left then"));
    empty(vm.vm()?.shell()?)?;
    await_event(cluster, "NodeHasInsufficientMemory", VM, 30)?;
    await_event(cluster, "EvictionThresholdMet", VM, 30)?;
    await_event(cluster, "NodeHasSufficientMemory", VM, 60)?;
    for name in ["critical", "guaranteed", "within"] {
        let pod = client.get::<Pod>(&pods, name)?.with_context(|| format!("pod {name}"))?;
        let restarts: i32 =
            pod.status.iter().flat_map(|s| &s.container_statuses).flatten().map(|c| c.restart_count).sum();
        ensure!(ready::pod(&pod) && restarts == 0, "{name} had to suffer for it");
    }
    let node = client.get::<Node>(&client.all(), VM)?.context("the Node")?;
    ensure!(ready::node(&node), "not Ready: {node:?}");
    ensure!(event(cluster, "NodeNotReady")?.is_none(), "the node lost Ready");
    ensure!(event(cluster, "SystemOOM")?.is_none(), "the kernel was faster");
    for name in ["critical", "guaranteed", "within", "over", "best-effort"] {
        client.delete::<Pod>(&pods, name, Some(1))?;
        await_pod_gone(cluster, name, 60)?;
    }
    Ok(())
}

fn await_killed(cluster: &Cluster, name: &str) -> Result<ContainerStateTerminated> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 90, &format!("a container of {name} to be killed"), |all| {
        let status = all.get(name)?.status.as_ref()?.container_statuses.as_ref()?.first()?.clone();
        let states = [status.state, status.last_state];
        states.into_iter().flatten().find_map(|state| state.terminated)
    })
}

fn oom(cx: &mut CaseContext<'_>) -> Result<()> {
    let Fixture { vm, cluster } = fixture(cx)?;
    empty(vm.vm()?.shell()?)?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    // A Guaranteed pod beyond its limit is OOM-killed alone, like a Burstable one.
    for (class, resources) in [
        ("Guaranteed", json!({"limits": {"memory": "32Mi", "cpu": "500m"}})),
        ("Burstable", json!({"requests": {"memory": "16Mi"}, "limits": {"memory": "32Mi"}})),
    ] {
        client.create::<Pod>(&pods, holder("beyond", 60, &resources))?;
        let ended = await_killed(cluster, "beyond")?;
        ensure!((ended.reason.as_deref(), ended.exit_code) == (Some("OOMKilled"), 137), "{class}: {ended:?}");
        let pod = client.get::<Pod>(&pods, "beyond")?.context("pod beyond")?;
        let is = pod.status.and_then(|s| s.qos_class);
        ensure!(is.as_deref() == Some(class), "{is:?} in place of {class}");
        client.delete::<Pod>(&pods, "beyond", Some(1))?;
        await_pod_gone(cluster, "beyond", 60)?;
    }
    ensure!(event(cluster, "SystemOOM")?.is_none(), "a container's own limit is not the machine's");
    client.create::<Pod>(&pods, holder("unlucky", 60, &json!({})))?;
    await_pod_ready(cluster, "unlucky", 120)?;
    // Triggers the kernel's OOM killer at once.
    vm.vm()?.shell()?.must("echo f > /proc/sysrq-trigger")?;
    let told = await_event(cluster, "SystemOOM", VM, 60)?;
    let message = told.message.unwrap_or_default();
    say::line(format!("  {message}"));
    ensure!(message.starts_with("System OOM encountered, victim process: "), "{message}");
    let ended = await_killed(cluster, "unlucky")?;
    ensure!(ended.exit_code == 137, "{ended:?}");
    say::line(format!("  its container: {:?}", ended.reason));
    client.delete::<Pod>(&pods, "unlucky", Some(1))?;
    await_pod_gone(cluster, "unlucky", 60)
}
