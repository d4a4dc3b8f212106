//! A machine of 512 MB boots, joins a cluster, runs ten pods of busybox, and evicts the one that eats. The case prints what is left
//! at each stage.
//!
//! Nothing is configured for the machine's size: thresholds and reservations are the defaults. `bench node --vm --memory 512`
//! prints who has the memory.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{await_event, await_pod_ready, await_ready, event};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::say;
use orlop_harness::vm::shell::Shell;
use serde_json::{Value, json};

use crate::cases::defence::eviction::{await_failed, ensure_evicted};
use crate::cases::defence::memory::filling::{holder, left, scripted};
use crate::cases::join::vm::tools::{PROGRAMS, disk, unpack};

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "lean/small-machine",
    level: Level::L4v,
    expected_s: 240,
    about: "a VM of 512 MB boots, joins, runs ten pods of busybox, and evicts the one that eats and nobody else",
    group: None,
    run: small_machine,
}];

const VM: &str = "small";
const MEMORY_MIB: u32 = 512;
/// Pods beside the eater.
const CALM: usize = 9;
const EATER: &str = "eater";
/// Once this file is in the directory of busybox, the eater eats.
const GO: &str = "go";
/// MiB that it eats in a second: a node that is slow under emulation must be faster than it.
const BITE: u32 = 16;
/// More than the machine has.
const BITES: u32 = 32;
const NAMES: [&str; 5] = ["sh", "dd", "cat", "sleep", "touch"];

fn small_machine(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, VM)?;
    vm.give_memory(MEMORY_MIB);
    vm.give_processors(2);
    // Only so that the end of the shortage is seen soon.
    vm.configure("evictionPressureTransitionPeriod", "10s");
    vm.add_disk(disk(&cx.artefacts)?);
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(&cluster)?;
    await_ready(&cluster, VM, READY_LIMIT_S)?;
    unpack(&mut vm, &NAMES)?;
    say_left(vm.vm()?.shell()?, "without pods")?;

    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    let calm: Vec<String> = (0..CALM).map(|n| format!("calm-{n}")).collect();
    for name in &calm {
        client.create::<Pod>(&pods, holder(name, 1, &json!({})))?;
    }
    client.create::<Pod>(&pods, eater())?;
    for name in calm.iter().map(String::as_str).chain([EATER]) {
        await_pod_ready(&cluster, name, 240)?;
    }
    say_left(vm.vm()?.shell()?, "with ten pods")?;
    ensure!(event(&cluster, "EvictionThresholdMet")?.is_none(), "ten pods that rest are too many");

    vm.vm()?.shell()?.must(&format!("true > {PROGRAMS}/{GO}"))?;
    let status = await_failed(&cluster, EATER, 180)?;
    ensure_evicted(&status, "The node was low on resource: memory. Threshold quantity: 100Mi, ")?;
    await_event(&cluster, "NodeHasSufficientMemory", VM, 90)?;
    say_left(vm.vm()?.shell()?, "after the eviction")?;
    for name in &calm {
        let pod = client.get::<Pod>(&pods, name)?.with_context(|| format!("pod {name}"))?;
        let restarts: i32 =
            pod.status.iter().flat_map(|s| &s.container_statuses).flatten().map(|c| c.restart_count).sum();
        ensure!(ready::pod(&pod) && restarts == 0, "{name} had to suffer for it: {:?}", pod.status);
    }
    let node = client.get::<Node>(&client.all(), VM)?.context("the Node")?;
    ensure!(ready::node(&node), "not Ready: {node:?}");
    ensure!(event(&cluster, "NodeNotReady")?.is_none(), "the node lost Ready");
    ensure!(event(&cluster, "SystemOOM")?.is_none(), "the kernel was faster");
    cluster.ensure_nothing_forbidden()
}

/// A pod like the others, until it is told to eat.
fn eater() -> Value {
    let script = format!(
        ": eats; trap 'exit 0' TERM; touch /hold/ready; while [ ! -e /bin/{GO} ]; do sleep 1; done; n=0; \
         while [ $n -lt {BITES} ]; do dd if=/dev/zero of=/hold/$n bs=1M count={BITE}; n=$((n + 1)); sleep 1; done; \
         while :; do sleep 1000 & wait $!; done"
    );
    scripted(EATER, &script, &json!({}))
}

/// Prints the memory that is left by the agent's rule, and who has the rest.
fn say_left(shell: &mut Shell, when: &str) -> Result<()> {
    let mebi = left(shell)?;
    let total =
        shell.must("while read k v u; do [ $k != MemTotal: ] || echo $((v / 1024)); done < /proc/meminfo")?;
    let groups = shell.must(
        "for g in init.scope system.slice kubepods.slice; do if read n < /sys/fs/cgroup/$g/memory.current; \
         then echo $g $((n >> 20)) MiB; fi; done 2>/dev/null",
    )?;
    let groups: Vec<&str> = groups.lines().map(str::trim).collect();
    say::line(format!("  {when}: {mebi} of {} MiB are left; {}", total.trim(), groups.join(", ")));
    Ok(())
}
