//! `bench node --vm`: the appliance in a booted VM with its own agent, then the upstream kubelet in the agent's place, then
//! a stock Debian 13 in the same QEMU.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_config::ledger::HostMessage;
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::programs;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::vm::lab::Image;
use orlop_harness::vm::machine::Vm;
use orlop_harness::vm::shell::Shell;
use serde_json::json;

use super::on_stock;
use super::sample::{GATHER, NodeSample, parse};
use super::table::NamedUsage;
use super::usage::NodeUsage;
use super::{NODE, Options, SETTLE, set_pods};
use crate::bench::peer::forget_ready;
use crate::bench::peer_vm::{FORGET_IDENTITY, PROGRAM, UNIT, disk_of_kubelets, start_command};
use crate::bench::scrape::{Kubelet, both};
use crate::cases::boot::shared_vm::render;

/// A VM's pods have a range of 256 addresses; the bridge and pods that end need some.
const PODS_MAX: u32 = 220;
/// Processors of both machines.
pub(super) const PROCESSORS: u32 = 2;
/// A sample of 300 processes under emulation.
const SAMPLE_LIMIT: Duration = Duration::from_secs(180);

/// Adds a column for each kubelet and each number of pods, and one for the stock Debian.
pub(super) fn measure(
    run: &Arc<Run>,
    artefacts: &Path,
    options: &Options,
    columns: &mut Vec<NamedUsage>,
) -> Result<()> {
    let most = options.sizes().last().copied().unwrap_or(0);
    ensure!(
        most <= PODS_MAX,
        "a VM takes {PODS_MAX} pods at most here, not {most}; a native node takes more"
    );
    on_appliance(run, artefacts, options, columns)?;
    if options.no_stock {
        return Ok(());
    }
    let usage = on_stock::measure(run, artefacts, options)?;
    columns.push(("stock Debian".to_owned(), usage));
    Ok(())
}

fn on_appliance(
    run: &Arc<Run>,
    artefacts: &Path,
    options: &Options,
    columns: &mut Vec<NamedUsage>,
) -> Result<()> {
    Image::as_released()?;
    let kubelets: Vec<Kubelet> = both(options.only).collect();
    let upstream = if kubelets.contains(&Kubelet::Upstream) { Some(programs::kubelet(run)?) } else { None };
    let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
    let others: Vec<(&Path, &str)> = upstream.iter().map(|program| (program.as_path(), PROGRAM)).collect();
    let disk = disk_of_kubelets(artefacts, &cluster, &others)?;
    let mut node = VmNode::plug(&mut cluster, artefacts, NODE)?;
    node.add_disk(disk.file());
    node.give_memory(options.memory);
    node.give_processors(PROCESSORS);
    node.configure("maxPods", options.pods_max());
    node.share_shims(options.pods_per_shim);
    node.boot(Some(cluster.token()))?;
    node.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    node.give_range(&cluster)?;
    node.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    ledger(node.vm()?);
    let shell = node.vm()?.shell()?;
    disk.unpack(shell)?;
    for kubelet in kubelets {
        let name = match kubelet {
            Kubelet::Agent => "agent",
            Kubelet::Upstream => {
                replace_agent(&cluster, shell)?;
                "upstream"
            }
        };
        for pods in options.sizes() {
            set_pods(cluster.client(), pods, &hello())?;
            let before = settled(shell)?;
            rest(shell, options.window())?;
            let usage = NodeUsage::between(&before, &sample(shell)?, Some(options.memory));
            say::line(format!("measured: {name}, {pods} pods, in a VM"));
            columns.push((format!("{name}, {pods} pods"), usage));
        }
    }
    drop(node);
    drop(cluster);
    Ok(())
}

/// The boot's phases.
fn ledger(vm: &Vm) {
    let entries: Vec<_> = vm
        .messages()
        .into_iter()
        .filter_map(|message| match message {
            HostMessage::Ledger(entry) => Some(entry),
            _ => None,
        })
        .collect();
    say::line("boot, from the kernel's start to a Ready node:");
    render(&entries).iter().for_each(|line| say::line(format!("  {line}")));
}

/// The upstream kubelet takes the agent's place on a node without pods: it would restart each of them.
fn replace_agent(cluster: &Cluster, shell: &mut Shell) -> Result<()> {
    set_pods(cluster.client(), 0, &hello())?;
    shell.must("systemctl stop kubelet")?;
    shell.must(FORGET_IDENTITY)?;
    forget_ready(cluster)?;
    let start = start_command(shell, PROGRAM)?;
    shell.must(&start)?;
    await_ready(cluster, NODE, READY_LIMIT_S)
        .with_context(|| format!("the upstream kubelet ({UNIT})"))
        .map(drop)
}

/// The image has it; the VM reaches no registry.
fn hello() -> serde_json::Value {
    json!({"name": "hello", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never"})
}

fn settled(shell: &mut Shell) -> Result<NodeSample> {
    rest(shell, SETTLE)?;
    sample(shell)
}

fn rest(shell: &mut Shell, moment: Duration) -> Result<()> {
    let limit = moment + Duration::from_secs(60);
    shell.run(&format!("sleep {}", moment.as_secs()), limit).context("let time pass").map(drop)
}

fn sample(shell: &mut Shell) -> Result<NodeSample> {
    let output = shell.run(GATHER, SAMPLE_LIMIT)?;
    ensure!(output.status == 0, "the guest's /proc cannot be read: {}", output.text);
    Ok(parse(&output.text))
}
