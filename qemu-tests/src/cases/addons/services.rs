//! Services of a cluster with kube-proxy and CoreDNS.
//!
//! Cases: `addons/services`, `addons/services-nftables`, `addons/services-ipvs`.

mod kills;
mod policies;
mod udp;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, skip};
use orlop_harness::cluster::addons::{AddOns, NATIVE_LIMIT_S, NodeKind, ProxyMode};
use orlop_harness::cluster::fixture::{Joined, STAYS, api_pod, container};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;
use serde_json::{Value, json};

use super::asking::{
    ANSWERS, PORT, ServiceAddresses, address_of, answers, answers_outside, await_named, ensure_all_answer,
    serve, words,
};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "addons/services",
        180,
        "kube-proxy and CoreDNS run as in any cluster; a Service is reached by its name, its address and a port of a \
         node, by its own pods too, over UDP too; its affinity and its traffic policies hold, as do host ports; \
         kube-proxy, the agent and containerd, killed, are back within seconds",
        iptables,
    ),
    HERE.case("addons/services-nftables", 180, "the same with kube-proxy's mode nftables", nftables),
    HERE.case("addons/services-ipvs", 180, "the same with kube-proxy's mode ipvs", ipvs),
];

/// Nodes of the cluster.
pub(super) const NODES: [&str; 2] = ["first", "second"];
/// The Deployment, its pods' label and their Service.
pub(super) const WEB: &str = "web";
/// The pod that asks, on the first node.
pub(super) const CLIENT: &str = "client";
/// Port at which kube-proxy reports its mode, on a node's loopback.
const PROXY_METRICS_PORT: u16 = 10249;

fn iptables(cx: &mut CaseContext<'_>) -> Result<()> {
    services(cx, ProxyMode::Iptables)
}

fn nftables(cx: &mut CaseContext<'_>) -> Result<()> {
    services(cx, ProxyMode::Nftables)
}

fn ipvs(cx: &mut CaseContext<'_>) -> Result<()> {
    services(cx, ProxyMode::Ipvs)
}

fn services(cx: &mut CaseContext<'_>, mode: ProxyMode) -> Result<()> {
    if let Some(module) = mode.missing_module() {
        return skip(format!("the machine's kernel lacks {module}"));
    }
    let mut joined = Joined::start(&cx.run, &cx.artefacts, Settings::default(), &NODES)?;
    joined.nodes.iter().try_for_each(NativeNode::map_host_ports)?;
    let start = Instant::now();
    let addons = AddOns::make(&joined.cluster, mode, NodeKind::Native)?;
    joined.nodes.iter().try_for_each(|node| addons.offer(node))?;
    addons.install(&joined.cluster, u8::try_from(NODES.len())?, NATIVE_LIMIT_S)?;
    say::line(format!("  kube-proxy and CoreDNS are Ready after {:.1} s", start.elapsed().as_secs_f64()));
    let pods = web_pods(&joined.cluster)?;
    let service = serve(&joined.cluster, WEB, WEB, json!({"type": "NodePort"}))?;
    joined.run_pod(api_pod(CLIENT, NODES[0], STAYS, 1))?;
    ensure_reached(&joined.cluster, &pods, &service)?;
    for node in &joined.nodes {
        let told = node.http_get(PROXY_METRICS_PORT, "/proxyMode")?;
        ensure!(told.trim() == mode.name(), "kube-proxy of {} has the mode {told:?}", node.name());
    }
    ensure_named(&joined.cluster, &service)?;
    policies::ensure(&joined, mode, &pods, &service)?;
    kills::ensure(&mut joined, &pods, &service)?;
    // Last: it takes the cluster's DNS away.
    udp::ensure(&joined, &service)?;
    joined.cluster.ensure_nothing_forbidden()
}

/// The Service is reached by its name, its address and a port of each node.
fn ensure_reached(cluster: &Cluster, pods: &BTreeSet<String>, service: &ServiceAddresses) -> Result<()> {
    await_named(cluster, CLIENT, WEB, &BTreeSet::from([service.address]))?;
    let at = service.at();
    ensure_all_answer(pods, &answers(cluster, CLIENT, &at)?, "by name and address")?;
    // kube-proxy must give such a request another source: the pod would get its own packet back.
    for pod in pods {
        ensure_all_answer(pods, &answers(cluster, pod, &at)?, "from a pod of the Service")?;
    }
    for node in NODES {
        let port = words(service.at_node(address_of(cluster, node)?)?);
        ensure_all_answer(pods, &answers(cluster, CLIENT, &port)?, "at a node's port, from a pod")?;
        ensure_all_answer(pods, &answers_outside(cluster, &port)?, "at a node's port, from outside")?;
    }
    Ok(())
}

/// A headless Service's name has the addresses of its pods, an ExternalName's those of the other name.
fn ensure_named(cluster: &Cluster, service: &ServiceAddresses) -> Result<()> {
    let client = cluster.client();
    for (name, spec) in [
        ("headless", json!({"clusterIP": "None", "selector": {"app": WEB}, "ports": [{"port": PORT}]})),
        ("alias", json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"})),
    ] {
        client.create::<Service>(&client.of("default"), json!({"metadata": {"name": name}, "spec": spec}))?;
    }
    let own: BTreeSet<IpAddr> =
        client.wait::<Pod, _>(&client.of("default"), 10, "the addresses of the pods", |all| {
            let pods = all.iter().filter(|(name, _)| name.starts_with(WEB));
            pods.map(|(_, pod)| pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()).collect()
        })?;
    await_named(cluster, CLIENT, "headless", &own).context("a headless Service")?;
    await_named(cluster, CLIENT, "alias", &BTreeSet::from([service.address])).context("an ExternalName")
}

/// Makes a pod on each node; returns the names.
pub(super) fn web_pods(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let client = cluster.client();
    client.create::<Deployment>(&client.of("default"), deployment())?;
    await_web_pods(cluster, |_| true)
}

/// Waits until the Deployment has a Ready pod on each node, and `accepts` their names.
fn await_web_pods(
    cluster: &Cluster,
    accepts: impl Fn(&BTreeSet<String>) -> bool,
) -> Result<BTreeSet<String>> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, "both pods of the Deployment to be Ready", |all| {
        let ready: BTreeSet<String> = all
            .iter()
            .filter(|(name, pod)| name.starts_with(WEB) && ready::pod(pod))
            .map(|(name, _)| name.clone())
            .collect();
        (ready.len() == NODES.len() && accepts(&ready)).then_some(ready)
    })
}

fn deployment() -> Value {
    let labels = json!({"app": WEB});
    let mut web = container(ANSWERS);
    web["readinessProbe"] = json!({"tcpSocket": {"port": PORT}, "periodSeconds": 1});
    json!({"metadata": {"name": WEB}, "spec": {
        "replicas": NODES.len(),
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {
            "terminationGracePeriodSeconds": 1,
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"},
            ]}},
            "containers": [web],
        }},
    }})
}

/// The pod of the Deployment on a node.
fn web_pod_on(cluster: &Cluster, node: &str) -> Result<String> {
    let client = cluster.client();
    let all = client.wait::<Pod, _>(&client.of("default"), 10, "the pods", |all| Some(all.clone()))?;
    let here = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    let found = all.into_iter().find(|(name, pod)| name.starts_with(WEB) && here(pod) && ready::pod(pod));
    Ok(found.with_context(|| format!("no pod of the Deployment on {node}"))?.0)
}
