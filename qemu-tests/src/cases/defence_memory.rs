//! A booted VM that runs out of memory: who goes, in which order, how soon; and what the kernel does by itself.
//!
//! Then process ids, and swap, in the same VM.
//!
//! Pods hold memory in a tmpfs of their own. What takes the rest belongs to no pod, so that the node alone decides.

mod pids;
mod swap;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Event, Node, Pod};
use serde_json::{Value, json};

use crate::case::{Case, CaseContext, Level, Place};
use crate::cases::join_vm::tools::{PROGRAMS, disk, unpack};
use crate::cluster::fixture::{await_event, await_pod_gone, await_pod_ready, await_ready};
use crate::cluster::flags::Settings;
use crate::cluster::plane::Cluster;
use crate::cluster::ready;
use crate::cluster::vm_node::{LABEL, READY_LIMIT_S, VmNode};
use crate::say;

const HERE: Place = Place { level: Level::L4v, group: Some("defence-memory") };

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
        "a container beyond its limit is OOMKilled and nobody else; a kill of the machine's is an event SystemOOM",
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
/// What is written beyond it, MiB: more than `over` has, by 50, and less than both that go, by 80.
const BEYOND: i64 = 230;
/// Memory that a guest touches first is its host's to find, which may take as long as a disk.
const FILLING: Duration = Duration::from_secs(180);
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

/// A pod that holds so many MiB and is ready then.
fn holder(name: &str, mebi: u32, resources: &Value) -> Value {
    let script = format!(
        ": holds-{name}; trap 'exit 0' TERM; dd if=/dev/zero of=/hold/x bs=1M count={mebi}; touch /hold/ready; \
         while :; do sleep 1000 & wait $!; done"
    );
    scripted(name, &script, resources)
}

/// A pod that runs this and is ready when it has made `/hold/ready`.
fn scripted(name: &str, script: &str, resources: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeSelector": {LABEL.0: LABEL.1}, "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": false,
        "volumes": [
            {"name": "bin", "hostPath": {"path": PROGRAMS}},
            {"name": "hold", "emptyDir": {"medium": "Memory"}},
        ],
        "containers": [{
            "name": "c", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script], "securityContext": {"runAsUser": 0},
            "resources": resources,
            "volumeMounts": [{"name": "bin", "mountPath": "/bin"}, {"name": "hold", "mountPath": "/hold"}],
            // Ends with its success: a command each second in each of these pods would be most of what the VM does.
            "startupProbe": {
                "exec": {"command": ["/bin/cat", "/hold/ready"]}, "periodSeconds": 2, "failureThreshold": 100,
            },
        }],
    }})
}

/// Takes so many MiB for nobody's pod.
fn fill(vm: &mut VmNode, name: &str, mebi: i64) -> Result<()> {
    let shell = vm.vm()?.shell()?;
    shell.must("mkdir -p /run/fill; [ -e /run/fill/on ] || mount -t tmpfs -o size=90% fill /run/fill; true > /run/fill/on")?;
    let start = Instant::now();
    let written = shell.run(&format!("dd if=/dev/zero of=/run/fill/{name} bs=1M count={mebi}"), FILLING)?;
    ensure!(written.status == 0, "{}", written.text);
    say::line(format!("  {mebi} MiB written in {:.1} s", start.elapsed().as_secs_f64()));
    Ok(())
}

/// What the node counts as left, MiB.
fn left(vm: &mut VmNode) -> Result<i64> {
    let text = vm.vm()?.shell()?.must(
        "while read k v u; do case $k in MemFree:) f=$v;; 'Inactive(file):') i=$v;; esac; done < /proc/meminfo; \
         echo $(( (f + i) / 1024 ))",
    )?;
    text.trim().parse().with_context(|| format!("MiB left: {text:?}"))
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
    let before = left(vm)?;
    ensure!(before > THRESHOLD + 60, "only {before} MiB are left before it begins");
    fill(vm, "a", before - THRESHOLD - 30)?;
    let shell = vm.vm()?.shell()?;
    let crossing = "for d in /proc/[0-9]*; do mapfile -d '' -t of < $d/cmdline; \
         case ${of[*]} in *holds-over*) p=$d;; esac; done 2>/dev/null; [ -n \"$p\" ] || exit 1; \
         dd if=/dev/zero of=/run/fill/b bs=1M count=30 2>/dev/null; read t1 rest < /proc/uptime; \
         dd if=/dev/zero of=/run/fill/c bs=1M count=$beyond 2>/dev/null; read t2 rest < /proc/uptime; \
         while [ -d $p ]; do sleep 0.02; done; read t3 rest < /proc/uptime; echo $t1 $t2 $t3";
    let took = shell.run(&format!("(beyond={BEYOND}; {crossing})"), FILLING)?;
    let times: Vec<f64> = took.text.split_whitespace().filter_map(|t| t.parse().ok()).collect();
    let [crossed, filled, ended] = times[..] else { anyhow::bail!("times: {took:?}") };
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
    let left_then = left(vm)?;
    say::line(format!("  {left_then} MiB are left then"));
    vm.vm()?.shell()?.must("umount /run/fill")?;
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

/// An event of this reason, if there is one.
fn event(cluster: &Cluster, reason: &str) -> Result<Option<Event>> {
    let client = cluster.client();
    client.wait::<Event, _>(&client.of("default"), 10, "the events", |all| {
        Some(all.values().find(|event| event.reason.as_deref() == Some(reason)).cloned())
    })
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
    vm.vm()?.shell()?.must("[ ! -e /run/fill/on ] || umount /run/fill")?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    client.create::<Pod>(&pods, holder("beyond", 60, &json!({"limits": {"memory": "32Mi"}})))?;
    let ended = await_killed(cluster, "beyond")?;
    ensure!((ended.reason.as_deref(), ended.exit_code) == (Some("OOMKilled"), 137), "{ended:?}");
    client.delete::<Pod>(&pods, "beyond", Some(1))?;
    await_pod_gone(cluster, "beyond", 60)?;
    ensure!(event(cluster, "SystemOOM")?.is_none(), "a container's own limit is not the machine's");
    client.create::<Pod>(&pods, holder("unlucky", 60, &json!({})))?;
    await_pod_ready(cluster, "unlucky", 120)?;
    // What the kernel does when nothing is left, at once.
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
