//! Static managers in a VM with two sockets, each a NUMA node: processors and memory of one node for a pod, or a refusal.
//!
//! In: a machine of two sockets with two cores of two threads; siblings have adjacent numbers. Out: `Cpus_allowed_list` and
//! `Mems_allowed_list` read inside the pods, statuses, the state files over a kill of the agent and a boot.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_pod_gone, await_pod_ready, await_ready, await_serving};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::say;
use orlop_image::qemu::Topology;
use serde_json::{Value, json};

use crate::cases::join::vm::tools::{PROGRAMS, disk, unpack};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "resources/numa",
    200,
    "pods have processors and memory of one NUMA node or are refused; the agent is killed, the machine boots: the same",
    numa,
)];

const VM: &str = "numa";
const TOPOLOGY: Topology = Topology { sockets: 2, cores: 2, threads: 2 };
/// Reserved on the first node: for Kubernetes and for hard eviction together.
const RESERVED_MIB: u32 = 128;
const EVICTION_MIB: u32 = 100;
const NAMES: [&str; 5] = ["sh", "cat", "grep", "sleep", "touch"];
const STATES: &str = "cat /var/lib/kubelet/cpu_manager_state /var/lib/kubelet/memory_manager_state";

/// A pod that stays; with an amount it is Guaranteed. It is bound to the node: the scheduler knows nothing of NUMA nodes.
fn pod(name: &str, cpus: Option<u32>) -> Value {
    let amounts = json!({"cpu": cpus, "memory": "64Mi"});
    let resources = if cpus.is_some() { json!({"requests": amounts, "limits": amounts}) } else { json!({}) };
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": VM, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
        "volumes": [{"name": "bin", "hostPath": {"path": PROGRAMS}}],
        "containers": [{
            "name": "c", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"],
            "securityContext": {"runAsUser": 0}, "resources": resources,
            "volumeMounts": [{"name": "bin", "mountPath": "/bin"}],
        }],
    }})
}

/// The container's processors, memory nodes and quota, as it reads them.
fn place(cluster: &Cluster, name: &str) -> Result<(String, String, String)> {
    let read = |args: &[&str]| cluster.kubectl(&[&["exec", name, "--"], args].concat());
    let status = read(&["grep", "_allowed_list", "/proc/self/status"])?;
    let list = |key: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(key));
        found.map(|list| list.trim().to_owned()).with_context(|| format!("no {key} in {status:?}"))
    };
    let quota = read(&["cat", "/sys/fs/cgroup/cpu.max"])?;
    let quota = quota.split_whitespace().next().unwrap_or_default().to_owned();
    Ok((list("Cpus_allowed_list:")?, list("Mems_allowed_list:")?, quota))
}

/// Waits until the container is there. A node that has just started answers nothing, and its pods start one after another.
fn expect(cluster: &Cluster, name: &str, cpus: &str, mems: &str) -> Result<()> {
    let wanted = (cpus.to_owned(), mems.to_owned(), "max".to_owned());
    let client = cluster.client();
    let found = client.wait::<Pod, _>(&client.of("default"), 120, &format!("{name} to answer"), |_| {
        place(cluster, name).ok()
    })?;
    ensure!(found == wanted, "{name} has {found:?}, expected {wanted:?}");
    say::line(format!("  {name}: processors {cpus}, memory of node {mems}, no quota"));
    Ok(())
}

/// Waits until the container, which shares its processors, is on these.
fn await_shared(cluster: &Cluster, name: &str, cpus: &str) -> Result<()> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, &format!("{name} to run on {cpus}"), |_| {
        place(cluster, name).is_ok_and(|(has, ..)| has == cpus).then_some(())
    })
}

fn ensure_refused(cluster: &Cluster, name: &str) -> Result<()> {
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    client.create::<Pod>(&pods, pod(name, Some(2)))?;
    let status: PodStatus = client.wait::<Pod, _>(&pods, 60, &format!("{name} to be refused"), |all| {
        let status = all.get(name)?.status.clone()?;
        (status.phase.as_deref() == Some("Failed")).then_some(status)
    })?;
    let words = "Pod was rejected: Resources cannot be allocated with Topology locality";
    let is = (status.reason.as_deref(), status.message.as_deref());
    ensure!(is == (Some("TopologyAffinityError"), Some(words)), "{is:?}");
    Ok(())
}

fn await_up(vm: &mut VmNode, cluster: &Cluster) -> Result<()> {
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    await_ready(cluster, VM, READY_LIMIT_S)?;
    await_serving(cluster, VM, READY_LIMIT_S)
}

/// A VM with static managers, Ready.
fn start(cx: &CaseContext<'_>, cluster: &mut Cluster) -> Result<VmNode> {
    let mut vm = VmNode::plug(cluster, &cx.artefacts, VM)?;
    vm.give_topology(TOPOLOGY);
    vm.configure("cpuManagerPolicy", "static");
    vm.configure("memoryManagerPolicy", "Static");
    vm.configure("topologyManagerPolicy", "single-numa-node");
    let kubernetes = format!("{}Mi", RESERVED_MIB - EVICTION_MIB);
    vm.configure("kubeReserved", json!({"cpu": "500m", "memory": kubernetes}));
    vm.configure("evictionHard", json!({"memory.available": format!("{EVICTION_MIB}Mi")}));
    let reserved = json!({"numaNode": 0, "limits": {"memory": format!("{RESERVED_MIB}Mi")}});
    vm.configure("reservedMemory", json!([reserved]));
    vm.add_disk(disk(&cx.artefacts)?);
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(cluster)?;
    await_up(&mut vm, cluster)?;
    unpack(&mut vm, &NAMES)?;
    Ok(vm)
}

fn numa(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = start(cx, &mut cluster)?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    let run = |name: &str, cpus: Option<u32>| -> Result<()> {
        client.create::<Pod>(&pods, pod(name, cpus))?;
        await_pod_ready(&cluster, name, 120).map(drop)
    };
    run("shares", None)?;
    expect(&cluster, "shares", "0-7", "0-1")?;
    // Processor 0 is reserved, so the other core of the first node is the only free one there.
    run("two", Some(2))?;
    expect(&cluster, "two", "2-3", "0")?;
    run("four", Some(4))?;
    expect(&cluster, "four", "4-7", "1")?;
    await_shared(&cluster, "shares", "0-1")?;
    ensure_refused(&cluster, "refused")?;

    let before = vm.vm()?.shell()?.must(STATES)?;
    vm.vm()?.shell()?.must("systemctl kill --signal=KILL kubelet.service")?;
    await_up(&mut vm, &cluster)?;
    for (name, cpus, mems) in [("two", "2-3", "0"), ("four", "4-7", "1"), ("shares", "0-1", "0-1")] {
        expect(&cluster, name, cpus, mems)?;
    }
    let after = vm.vm()?.shell()?.must(STATES)?;
    ensure!(after == before, "after the agent was killed: {after}, before: {before}");
    // An orderly reboot would end the pods for good: the machine is switched off and on. Programs of the pods are on the disk first.
    vm.vm()?.shell()?.must("sync")?;
    vm.vm()?.reset()?;
    await_up(&mut vm, &cluster)?;
    expect(&cluster, "two", "2-3", "0")?;
    expect(&cluster, "four", "4-7", "1")?;
    client.delete::<Pod>(&pods, "four", Some(1))?;
    await_pod_gone(&cluster, "four", 60)?;
    await_shared(&cluster, "shares", "0-1,4-7")?;
    for name in ["two", "shares", "refused"] {
        client.delete::<Pod>(&pods, name, Some(1))?;
        await_pod_gone(&cluster, name, 60)?;
    }
    cluster.ensure_nothing_forbidden()?;
    drop(vm);
    Ok(())
}
