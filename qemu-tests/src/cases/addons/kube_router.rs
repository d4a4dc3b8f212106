//! kube-router as the pod network: routes by BGP instead of an overlay, and NetworkPolicies.
//!
//! Cases: `addons/kube-router`, `addons/kube-router-vm`.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, skip};
use orlop_harness::cluster::addons::{
    AddOns, Cni, NATIVE_LIMIT_S, NodeKind, ProxyMode, kube_router, make_room,
};
use orlop_harness::cluster::fixture::{Joined, STAYS, api_pod, await_pod_ready, await_ready};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use serde_json::json;

use super::pod_network::{
    MIXED, MTU, NODES, WEB, WebPod, await_answers, await_not_ready, ensure_connected, install, route_pods,
    serve, web_pods,
};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };
const IN_VM: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "addons/kube-router",
        150,
        "kube-router is the pod network of two nodes: pods reach each other and a Service, the MTU inside is that of the \
         nodes, and a NetworkPolicy keeps other pods out, on the same node and on another one",
        native,
    ),
    IN_VM.case("addons/kube-router-vm", 400, "the same between a VM and a native node", vm),
];

/// The policy, and the pods that ask: the policy lets the first one in.
const POLICY: &str = "only-friends";
const FRIEND: &str = "friend";
const STRANGER: &str = "stranger";
/// Limit for a pod of the case to be Ready.
const POD_LIMIT_S: u64 = 120;

/// Why this machine cannot have the native nodes of the cases.
pub(super) fn missing() -> Option<String> {
    let module = ProxyMode::Iptables.missing_module().or_else(kube_router::missing_module)?;
    Some(format!("the machine's kernel lacks {module}"))
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
    ensure_connected(cluster, &pods, &service, MTU)?;
    ensure_policy(cluster, &pods, NODES[0])?;
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
    let pods = web_pods(&cluster, MIXED, Some(&kube_router::image()?))?;
    let service = serve(&cluster)?;
    ensure_connected(&cluster, &pods, &service, MTU)?;
    ensure_policy(&cluster, &pods, other)?;
    cluster.ensure_nothing_forbidden()
}

/// kube-proxy of the kind for native nodes works in a VM too.
fn make(cluster: &Cluster) -> Result<AddOns> {
    let mut addons = AddOns::make(cluster, ProxyMode::Iptables, NodeKind::Native)?;
    addons.add_network(cluster, Cni::KubeRouter)?;
    Ok(addons)
}

/// A policy of the pods lets one of two clients in, at both pods, and the kubelets' probes; without the policy both clients
/// have answers. `node` is that of the clients, a native one.
fn ensure_policy(cluster: &Cluster, pods: &[WebPod], node: &str) -> Result<()> {
    let client = cluster.client();
    for name in [FRIEND, STRANGER] {
        client.create::<Pod>(&client.of("default"), api_pod(name, node, STAYS, 1))?;
    }
    for name in [FRIEND, STRANGER] {
        await_pod_ready(cluster, name, POD_LIMIT_S)?;
    }
    let await_at_both = |name: &str, expected: bool| -> Result<()> {
        pods.iter().try_for_each(|pod| await_answers(cluster, name, &pod.address, expected))
    };
    await_at_both(STRANGER, true).context("without a policy")?;
    client.create::<NetworkPolicy>(
        &client.of("default"),
        json!({"metadata": {"name": POLICY}, "spec": {
            "podSelector": {"matchLabels": {"app": WEB}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": FRIEND}}}]}],
        }}),
    )?;
    await_at_both(STRANGER, false).context("with a policy that keeps the pod out")?;
    await_at_both(FRIEND, true).context("with a policy that lets the pod in")?;
    for pod in pods {
        let now = client.get::<Pod>(&client.of("default"), &pod.name)?;
        ensure!(now.as_ref().is_some_and(ready::pod), "the policy keeps the probes of {} out", pod.name);
    }
    client.delete::<NetworkPolicy>(&client.of("default"), POLICY, None)?;
    await_at_both(STRANGER, true).context("after the policy was deleted")
}
