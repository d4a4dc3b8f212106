//! flannel as the pod network, in the place of the harness's own one.
//!
//! Cases: `addons/flannel`, `addons/flannel-vm`.

use anyhow::Result;
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, skip};
use orlop_harness::cluster::addons::flannel::{self, OVERHEAD};
use orlop_harness::cluster::addons::{AddOns, Cni, NATIVE_LIMIT_S, NodeKind, ProxyMode, make_room};
use orlop_harness::cluster::fixture::{Joined, await_ready};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::native::node::NativeNode;

use super::pod_network::{
    MIXED, MTU, NETWORK_LIMIT_S, NODES, WEB, await_not_ready, ensure_connected, install, route_pods,
    scale_names, serve, web_pods,
};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };
const IN_VM: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "addons/flannel",
        150,
        "flannel (VXLAN) is the pod network of two nodes: pods reach each other and a Service, the MTU inside is right; it \
         goes, and the node's own network takes its place without another start of the node",
        native,
    ),
    IN_VM.case(
        "addons/flannel-vm",
        400,
        "flannel (VXLAN) between a VM and a native node: pods reach each other and a Service, the MTU inside is right",
        vm,
    ),
];

/// Why this machine cannot have the native node of the cases.
fn missing() -> Option<String> {
    if let Some(module) = ProxyMode::Iptables.missing_module() {
        return Some(format!("the machine's kernel lacks {module}"));
    }
    (!flannel::is_possible_here()).then(|| "the machine's kernel has no VXLAN".to_owned())
}

fn native(cx: &mut CaseContext<'_>) -> Result<()> {
    if let Some(why) = missing() {
        return skip(why);
    }
    let joined = Joined::start(&cx.run, &cx.artefacts, Settings::default(), &NODES)?;
    let cluster = &joined.cluster;
    let addons = make(cluster)?;
    for node in &joined.nodes {
        addons.offer(node)?;
        make_room(cluster, node)?;
    }
    route_pods(cluster, false)?;
    NODES.iter().try_for_each(|node| await_not_ready(cluster, node))?;
    install(cluster, &addons, NODES, NATIVE_LIMIT_S)?;
    let pods = web_pods(cluster, NODES, None)?;
    let service = serve(cluster)?;
    ensure_connected(cluster, &pods, &service, MTU - OVERHEAD)?;
    replace(&joined)?;
    let pods = web_pods(cluster, NODES, None)?;
    ensure_connected(cluster, &pods, &service, MTU)?;
    scale_names(cluster, 2)?;
    cluster.ensure_nothing_forbidden()
}

fn vm(cx: &mut CaseContext<'_>) -> Result<()> {
    if let Some(why) = missing() {
        return skip(why);
    }
    let agent = built::agent(&cx.run, false)?;
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let addons = make(&cluster)?;
    addons.serve(&cluster)?;
    let [name, other] = MIXED;
    let mut vm = VmNode::plug(&mut cluster, &cx.artefacts, name)?;
    addons.prepare(&mut vm);
    vm.boot(Some(cluster.token()))?;
    // A native node joins while the VM boots.
    let mut node = cluster.start_node(&cx.artefacts, other, agent)?;
    start_kubelet(&mut node, JoinMethod::JoinFile)?;
    addons.offer(&node)?;
    await_ready(&cluster, other, 120)?;
    make_room(&cluster, &node)?;
    vm.give_range(&cluster)?;
    route_pods(&cluster, false)?;
    install(&cluster, &addons, MIXED, READY_LIMIT_S * 2)?;
    let pods = web_pods(&cluster, MIXED, Some(&flannel::image()?))?;
    let service = serve(&cluster)?;
    ensure_connected(&cluster, &pods, &service, MTU - OVERHEAD)?;
    cluster.ensure_nothing_forbidden()
}

/// kube-proxy of the kind for native nodes works in a VM too.
fn make(cluster: &Cluster) -> Result<AddOns> {
    let mut addons = AddOns::make(cluster, ProxyMode::Iptables, NodeKind::Native)?;
    addons.add_network(cluster, Cni::Flannel)?;
    Ok(addons)
}

/// flannel and its pods go; the nodes get their own pod network again. Nothing of the nodes is started again.
fn replace(joined: &Joined) -> Result<()> {
    let cluster = &joined.cluster;
    cluster.kubectl(&["delete", "pod", "--selector", &format!("app={WEB}"), "--timeout=60s"])?;
    scale_names(cluster, 0)?;
    flannel::remove(cluster)?;
    joined.nodes.iter().try_for_each(flannel::clean)?;
    NODES.iter().try_for_each(|node| await_not_ready(cluster, node))?;
    joined.nodes.iter().try_for_each(NativeNode::restore_network)?;
    NODES.iter().try_for_each(|node| await_ready(cluster, node, NETWORK_LIMIT_S).map(drop))?;
    route_pods(cluster, true)
}
