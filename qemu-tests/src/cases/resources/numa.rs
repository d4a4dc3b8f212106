//! Static managers in a VM with two sockets, each a NUMA node: processors, memory and huge pages of one node for a pod, or a refusal.
//!
//! In: a machine of two sockets with two cores of two threads; siblings have adjacent numbers; a kernel with more huge pages on the second
//! node. Out: `Cpus_allowed_list` and `Mems_allowed_list` read inside the pods, the nodes' free huge pages, statuses, the state files over
//! a kill of the agent and a boot.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_pod_gone, await_pod_ready};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::say;
use orlop_image::qemu::Topology;
use serde_json::{Value, json};

use crate::cases::join::vm::tools::{disk, unpack};
use crate::cases::resources::{await_up, look_until, mount, vm_pod};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "resources/numa",
    230,
    "pods have processors, memory and huge pages of one NUMA node or are refused; the agent is killed, the machine boots: the same",
    numa,
)];

const VM: &str = "numa";
const TOPOLOGY: Topology = Topology { sockets: 2, cores: 2, threads: 2 };
/// Reserved on the first node: for Kubernetes and for hard eviction together.
const RESERVED_MIB: u32 = 128;
const EVICTION_MIB: u32 = 100;
const NAMES: [&str; 6] = ["sh", "cat", "fallocate", "grep", "sleep", "touch"];
/// Huge pages of 2 MiB on the two NUMA nodes.
const HUGE_PAGES: [u64; 2] = [4, 12];
/// Amount that a pod wants of them, MiB: the first node has less.
const WANTED_MIB: u64 = 16;
/// Amount that only both nodes have together, MiB.
const BOTH_MIB: u64 = 28;
/// Amount that the pod uses, MiB.
const USED_MIB: u64 = 8;
const CPU_STATE: &str = "/var/lib/kubelet/cpu_manager_state";
const MEMORY_STATE: &str = "/var/lib/kubelet/memory_manager_state";
/// The reason and words of a refusal for want of a NUMA node that has all.
const NO_NODE: (&str, &str) =
    ("TopologyAffinityError", "Pod was rejected: Resources cannot be allocated with Topology locality");
/// Those for want of memory where other pods use the nodes one by one: the memory manager has no hint then.
const NO_MEMORY: (&str, &str) = (
    "UnexpectedAdmissionError",
    "Pod was rejected: Allocate failed due to [memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory \
     is available, which is unexpected",
);
/// Quota of a container with processors of its own, and of one without a limit.
const NO_QUOTA: &str = "max";
/// Quota of a tenth of a processor, in 100 ms.
const TENTH: &str = "10000";

/// A pod that stays. It is bound to the node: the scheduler knows nothing of NUMA nodes.
fn pod(name: &str, resources: &Value) -> Value {
    let mut pod = vm_pod(name, resources);
    pod["spec"]["nodeName"] = json!(VM);
    pod
}

/// A Guaranteed pod with processors of its own.
fn exclusive(name: &str, cpus: u32) -> Value {
    let amounts = json!({"cpu": cpus, "memory": "64Mi"});
    pod(name, &json!({"requests": amounts, "limits": amounts}))
}

/// A Guaranteed pod with so many MiB of huge pages at `/pages` that shares its processors.
fn with_pages(name: &str, mebi: u64) -> Value {
    let amounts = json!({"cpu": "100m", "memory": "64Mi", "hugepages-2Mi": format!("{mebi}Mi")});
    let mut pod = pod(name, &json!({"requests": amounts, "limits": amounts}));
    mount(&mut pod, json!({"name": "pages", "emptyDir": {"medium": "HugePages"}}), "/pages");
    pod
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

/// The place of a container: name of the pod, processors, memory nodes, quota.
type ContainerPlace<'a> = (&'a str, &'a str, &'a str, &'a str);

/// Waits until the container is there. A node that has just started answers nothing, and its pods start one after another.
fn expect(cluster: &Cluster, (name, cpus, mems, quota): ContainerPlace<'_>) -> Result<()> {
    let wanted = (cpus.to_owned(), mems.to_owned(), quota.to_owned());
    let found = look_until(cluster, 120, &format!("{name} to answer"), || place(cluster, name))?;
    ensure!(found == wanted, "{name} has {found:?}, expected {wanted:?}");
    say::line(format!("  {name}: processors {cpus}, memory of node {mems}, quota {quota}"));
    Ok(())
}

/// Waits until the container, which shares its processors, is on these.
fn await_shared(cluster: &Cluster, name: &str, cpus: &str) -> Result<()> {
    look_until(cluster, 60, &format!("{name} to run on {cpus}"), || {
        let (has, ..) = place(cluster, name)?;
        ensure!(has == cpus, "it runs on {has}");
        Ok(())
    })
}

fn ensure_refused(cluster: &Cluster, pod: Value, (reason, words): (&str, &str)) -> Result<()> {
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    let name = client.create::<Pod>(&pods, pod)?.metadata.name.unwrap_or_default();
    let status: PodStatus = client.wait::<Pod, _>(&pods, 60, &format!("{name} to be refused"), |all| {
        let status = all.get(&name)?.status.clone()?;
        (status.phase.as_deref() == Some("Failed")).then_some(status)
    })?;
    let is = (status.reason.as_deref(), status.message.as_deref());
    ensure!(is == (Some(reason), Some(words)), "{name} is refused with {is:?}");
    Ok(())
}

/// A VM with static managers, Ready.
fn start(cx: &CaseContext<'_>, cluster: &mut Cluster) -> Result<VmNode> {
    let mut vm = VmNode::plug(cluster, &cx.artefacts, VM)?;
    vm.give_topology(TOPOLOGY);
    let [first, second] = HUGE_PAGES;
    vm.tell_kernel(&format!("hugepagesz=2M hugepages=0:{first},1:{second}"));
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
    await_up(&mut vm, cluster, VM)?;
    unpack(&mut vm, &NAMES)?;
    Ok(vm)
}

/// Waits until the NUMA nodes have these numbers of huge pages that are not in use.
fn await_free_pages(vm: &mut VmNode, pages: [u64; 2]) -> Result<()> {
    let files = "/sys/devices/system/node/node[01]/hugepages/hugepages-2048kB/free_hugepages";
    let wanted = pages.map(|number| number.to_string()).join(" ");
    let command = format!(
        "timeout 30 sh -c 'until [ \"$(echo $(cat {files}))\" = \"{wanted}\" ]; do sleep 0.2; done' || grep . {files}"
    );
    let said = vm.vm()?.shell()?.must(&command)?;
    ensure!(said.trim().is_empty(), "expected {wanted} free huge pages: {said}");
    Ok(())
}

/// The Node has the huge pages of both nodes together.
fn ensure_counted(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    let node = client.get::<Node>(&client.all(), VM)?.context("no Node")?;
    let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
    let (is, wanted) =
        (allocatable.get("hugepages-2Mi"), format!("{}Mi", 2 * HUGE_PAGES.iter().sum::<u64>()));
    ensure!(is.is_some_and(|amount| amount.0 == wanted), "the Node has {is:?} of huge pages, not {wanted}");
    Ok(())
}

/// The memory manager's state has the reservation and the pod's huge pages on their nodes.
fn ensure_recorded(state: &str) -> Result<()> {
    let state: Value = serde_json::from_str(state).with_context(|| format!("the state {state:?}"))?;
    for (node, resource, what, wanted) in [
        ("0", "memory", "systemReserved", u64::from(RESERVED_MIB) << 20),
        ("1", "memory", "systemReserved", 0),
        ("0", "hugepages-2Mi", "reserved", 0),
        ("1", "hugepages-2Mi", "reserved", WANTED_MIB << 20),
        ("1", "hugepages-2Mi", "allocatable", HUGE_PAGES[1] << 21),
    ] {
        let is = &state["machineState"][node]["memoryMap"][resource][what];
        ensure!(is.as_u64() == Some(wanted), "{what} of {resource} on node {node} is {is}, not {wanted}");
    }
    Ok(())
}

/// Both state files.
fn states(vm: &mut VmNode) -> Result<[String; 2]> {
    let shell = vm.vm()?.shell()?;
    Ok([shell.must(&format!("cat {CPU_STATE}"))?, shell.must(&format!("cat {MEMORY_STATE}"))?])
}

fn numa(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = start(cx, &mut cluster)?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    let run = |name: &str, pod: Value| -> Result<()> {
        client.create::<Pod>(&pods, pod)?;
        await_pod_ready(&cluster, name, 120).map(drop)
    };
    ensure_counted(&cluster)?;
    run("shares", pod("shares", &json!({})))?;
    expect(&cluster, ("shares", "0-7", "0-1", NO_QUOTA))?;
    ensure_refused(&cluster, with_pages("spread", BOTH_MIB), NO_NODE)?;
    // The first node would be chosen for the memory alone, but has too few huge pages.
    run("pages", with_pages("pages", WANTED_MIB))?;
    expect(&cluster, ("pages", "0-7", "1", TENTH))?;
    let file = format!("{}", USED_MIB << 20);
    cluster.kubectl(&["exec", "pages", "--", "fallocate", "-l", &file, "/pages/file"])?;
    let [first, second] = HUGE_PAGES;
    await_free_pages(&mut vm, [first, second - USED_MIB / 2])?;
    ensure_refused(&cluster, with_pages("late", WANTED_MIB), NO_MEMORY)?;
    // Processor 0 is reserved, so the other core of the first node is the only free one there.
    run("two", exclusive("two", 2))?;
    expect(&cluster, ("two", "2-3", "0", NO_QUOTA))?;
    run("four", exclusive("four", 4))?;
    expect(&cluster, ("four", "4-7", "1", NO_QUOTA))?;
    for name in ["shares", "pages"] {
        await_shared(&cluster, name, "0-1")?;
    }
    ensure_refused(&cluster, exclusive("refused", 2), NO_NODE)?;

    let before = states(&mut vm)?;
    ensure_recorded(&before[1])?;
    vm.vm()?.shell()?.must("systemctl kill --signal=KILL kubelet.service")?;
    await_up(&mut vm, &cluster, VM)?;
    let own = [("two", "2-3", "0", NO_QUOTA), ("four", "4-7", "1", NO_QUOTA), ("pages", "0-1", "1", TENTH)];
    for place in own.into_iter().chain([("shares", "0-1", "0-1", NO_QUOTA)]) {
        expect(&cluster, place)?;
    }
    let after = states(&mut vm)?;
    ensure!(after == before, "after the agent was killed: {after:?}, before: {before:?}");
    // An orderly reboot would end the pods for good: the machine is switched off and on. Programs of the pods are on the disk first.
    vm.vm()?.shell()?.must("sync")?;
    vm.vm()?.reset()?;
    await_up(&mut vm, &cluster, VM)?;
    for place in own {
        expect(&cluster, place)?;
    }
    ensure_recorded(&states(&mut vm)?[1])?;
    client.delete::<Pod>(&pods, "four", Some(1))?;
    await_pod_gone(&cluster, "four", 60)?;
    await_shared(&cluster, "shares", "0-1,4-7")?;
    for name in ["two", "pages", "shares", "spread", "late", "refused"] {
        client.delete::<Pod>(&pods, name, Some(1))?;
        await_pod_gone(&cluster, name, 60)?;
    }
    await_free_pages(&mut vm, HUGE_PAGES)?;
    cluster.ensure_nothing_forbidden()?;
    drop(vm);
    Ok(())
}
