//! `cargo e2e cluster`: a cluster for a person to play with, until Ctrl-C.
//!
//! In: number and kind of nodes, the kubelet, add-ons or none. Out: the commands to use the cluster. The run's
//! own cleaning removes everything after the signal.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;

use super::addons::{AddOns, Cni, NodeKind, ProxyMode, make_room};
use super::fixture::await_ready;
use super::flags::Settings;
use super::join::{self, JoinMethod};
use super::plane::Cluster;
use super::programs::{self, More};
use super::vm_node::{READY_LIMIT_S, VmNode};
use crate::built;
use crate::native::node::NativeNode;
use crate::run::Run;
use crate::say;

/// Kind of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Native nodes with the agent.
    Agent,
    /// Native nodes with the upstream kubelet.
    Upstream,
    /// Booted VMs.
    Vm,
}

/// Add-ons of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddOnChoice {
    /// The part of the kernel that kube-proxy uses.
    pub mode: ProxyMode,
    /// The add-on that brings the pod network; `None`: the harness's own.
    pub cni: Option<Cni>,
}

/// Starts a cluster, perhaps with add-ons, prints how to reach it, and waits.
///
/// # Errors
/// The part that did not start, and the path of its log.
pub fn run(run: &Arc<Run>, nodes: u8, kind: Kind, choice: Option<AddOnChoice>) -> Result<()> {
    let artefacts = run.dir().join("cluster");
    std::fs::create_dir_all(&artefacts)?;
    if let Some(choice) = choice {
        anyhow::ensure!(nodes > 0, "add-ons need a node");
        let network = choice.cni.map(Cni::programs);
        // Together with the control plane, which consists of the same packages.
        let more: Vec<More> = [More::AddOns, More::MetricsServer].into_iter().chain(network).collect();
        programs::prepare(run, &more)?;
    }
    let settings = Settings { aggregator_routing: choice.is_some(), ..Settings::default() };
    let mut cluster = Cluster::start(run, &artefacts, settings)?;
    let node_kind = if kind == Kind::Vm { NodeKind::Vm } else { NodeKind::Native };
    let addons = choice.map(|choice| make(&cluster, choice, node_kind)).transpose()?;
    let names: Vec<String> = (1..=nodes).map(|n| format!("node{n}")).collect();
    // The nodes live as long as this function, which only a signal ends.
    let (mut native, mut vms) = (Vec::new(), Vec::new());
    if kind == Kind::Vm {
        vms.extend(boot(&mut cluster, &artefacts, &names, addons.as_ref())?);
    } else {
        let agent = if kind == Kind::Upstream { programs::kubelet(run)? } else { built::agent(run, true)? };
        for name in &names {
            native.push(start_node(&mut cluster, &artefacts, name, &agent)?);
        }
    }
    if let Some(addons) = &addons {
        native.iter().try_for_each(|node| addons.offer(node))?;
        if addons.brings_network() {
            native.iter().try_for_each(|node| make_room(&cluster, node))?;
        }
        addons.install(&cluster, nodes, addons.limit_s(nodes))?;
        say::line(addons.describe());
    }
    say::line("");
    say::line(format!("export KUBECONFIG={}", cluster.kubeconfig().display()));
    say::line(format!("{} get nodes -o wide", cluster.kubectl_path().display()));
    if kind == Kind::Vm {
        say::line(
            "pods on these nodes: image localhost/orlop/hello:1 with imagePullPolicy Never, they reach no registry",
        );
    }
    say::line(format!("logs are in {}; Ctrl-C ends and removes everything", artefacts.display()));
    loop {
        std::thread::park();
    }
}

fn make(cluster: &Cluster, choice: AddOnChoice, kind: NodeKind) -> Result<AddOns> {
    let mut addons = AddOns::make(cluster, choice.mode, kind)?;
    if let Some(cni) = choice.cni {
        addons.add_network(cluster, cni)?;
    }
    addons.add_metrics_server(cluster)?;
    Ok(addons)
}

/// Boots all of them side by side.
fn boot(
    cluster: &mut Cluster,
    artefacts: &Path,
    names: &[String],
    addons: Option<&AddOns>,
) -> Result<Vec<VmNode>> {
    let start = Instant::now();
    let mut vms = Vec::new();
    if let Some(addons) = addons {
        addons.serve(cluster)?;
    }
    for name in names {
        let mut vm = VmNode::plug(cluster, artefacts, name)?;
        if let Some(addons) = addons {
            addons.prepare(&mut vm);
        }
        vm.boot(Some(cluster.token()))?;
        vms.push(vm);
    }
    // The VMs share the processors.
    let limit_s = READY_LIMIT_S * names.len() as u64;
    for (name, vm) in names.iter().zip(&vms) {
        vm.give_range(cluster)?;
        if addons.is_some_and(AddOns::brings_network) {
            continue;
        }
        await_ready(cluster, name, limit_s)?;
        say::line(format!("{name} is Ready after {:.1} s", start.elapsed().as_secs_f64()));
    }
    Ok(vms)
}

fn start_node(cluster: &mut Cluster, artefacts: &Path, name: &str, agent: &Path) -> Result<NativeNode> {
    let mut node = cluster.start_node(artefacts, name, agent.to_owned())?;
    let start = Instant::now();
    join::start_kubelet(&mut node, JoinMethod::BootstrapKubeconfig)?;
    await_ready(cluster, name, 120)?;
    say::line(format!("{name} is Ready after {:.1} s", start.elapsed().as_secs_f64()));
    Ok(node)
}
