//! Services of a cluster whose nodes, pods and Services have addresses of both families.
//!
//! Cases: `addons/dual-stack`, `addons/dual-stack-nftables`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, skip};
use orlop_harness::cluster::addons::{AddOns, NATIVE_LIMIT_S, NodeKind, ProxyMode};
use orlop_harness::cluster::fixture::{Joined, STAYS, api_pod, await_ready, await_serving};
use orlop_harness::cluster::flags::{IPV6_ADDRESS, Settings};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet_with, write};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::wires::Wire;
use orlop_harness::native::config;
use orlop_harness::native::node::NativeNode;
use serde_json::json;

use super::asking::{
    ServiceAddresses, answers, answers_outside, await_named, ensure_all_answer, seen_from, serve, words,
};
use super::services::{CLIENT, NODES, WEB, web_pods};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    HERE.case(
        "addons/dual-stack",
        120,
        "a node with two addresses has pods with two, Services of both families are reached by both, by name and at \
         the nodes' ports, and nothing of that changes when the agent is killed",
        iptables,
    ),
    HERE.case("addons/dual-stack-nftables", 120, "the same with kube-proxy's mode nftables", nftables),
];

/// Where the kernel has IPv6.
const IPV6: &str = "/proc/sys/net/ipv6";

fn iptables(cx: &mut CaseContext<'_>) -> Result<()> {
    dual_stack(cx, ProxyMode::Iptables)
}

fn nftables(cx: &mut CaseContext<'_>) -> Result<()> {
    dual_stack(cx, ProxyMode::Nftables)
}

fn dual_stack(cx: &mut CaseContext<'_>, mode: ProxyMode) -> Result<()> {
    if let Some(module) = mode.missing_module() {
        return skip(format!("the machine's kernel lacks {module}"));
    }
    if !Path::new(IPV6).exists() {
        return skip("the machine's kernel has no IPv6");
    }
    let mut joined = start(cx)?;
    let addons = AddOns::make(&joined.cluster, mode, NodeKind::Native)?;
    joined.nodes.iter().try_for_each(|node| addons.offer(node))?;
    addons.install(&joined.cluster, u8::try_from(NODES.len())?, NATIVE_LIMIT_S)?;
    let pods = web_pods(&joined.cluster)?;
    joined.run_pod(api_pod(CLIENT, NODES[0], STAYS, 1))?;
    let both = json!({"type": "NodePort", "ipFamilyPolicy": "RequireDualStack"});
    let service = serve(&joined.cluster, WEB, WEB, both)?;
    let six = serve(&joined.cluster, "six", WEB, json!({"ipFamilies": ["IPv6"]}))?;
    ensure!(six.address.is_ipv6(), "a Service of IPv6 alone has the address {}", six.address);
    ensure_addresses(&joined)?;
    ensure_reached(&joined, &pods, &service, &six)?;
    let before = pod_addresses(&joined.cluster)?;
    joined.nodes[0].kill_agent()?;
    start_kubelet(&mut joined.nodes[0], 0)?;
    await_serving(&joined.cluster, NODES[0], 60)?;
    ensure_addresses(&joined)?;
    let after = pod_addresses(&joined.cluster)?;
    ensure!(before == after, "the pods' addresses were {before:?}, and are {after:?}");
    ensure_reached(&joined, &pods, &service, &six)?;
    joined.cluster.ensure_nothing_forbidden()
}

/// Starts the cluster. The configuration of its kubelets has both addresses of their nodes.
fn start(cx: &CaseContext<'_>) -> Result<Joined> {
    let agent = built::agent(&cx.run, false)?;
    let settings = Settings { dual_stack: true, ..Settings::default() };
    let cluster = Cluster::start(&cx.run, &cx.artefacts, settings)?;
    let mut joined = Joined { nodes: Vec::new(), cluster };
    for (number, name) in (0..).zip(NODES) {
        let mut node = joined.cluster.start_node(&cx.artefacts, name, agent.clone())?;
        let wire = Wire::new(number)?;
        let network = config::cni_with_host_ports(&[wire.pods(), wire.ipv6_pods()]);
        write(&node, config::CNI, &network)?;
        start_kubelet(&mut node, number)?;
        joined.nodes.push(node);
    }
    for name in NODES {
        await_ready(&joined.cluster, name, 120)?;
        await_serving(&joined.cluster, name, 60)?;
    }
    Ok(joined)
}

fn start_kubelet(node: &mut NativeNode, number: u8) -> Result<()> {
    let wire = Wire::new(number)?;
    let addresses = format!("--node-ip={},{}", wire.address(), wire.ipv6_address());
    start_kubelet_with(node, JoinMethod::BootstrapKubeconfig, &[addresses])
}

/// Addresses of both families, that of IPv4 first.
fn ensure_both(what: &str, addresses: &[IpAddr]) -> Result<()> {
    let families: Vec<bool> = addresses.iter().map(IpAddr::is_ipv4).collect();
    ensure!(families == [true, false], "{what} has the addresses {addresses:?}");
    Ok(())
}

/// Nodes and pods have both, the Service has both.
fn ensure_addresses(joined: &Joined) -> Result<()> {
    let client = joined.cluster.client();
    for (number, name) in (0..).zip(NODES) {
        let node = client.get::<Node>(&client.all(), name)?.with_context(|| format!("no node {name}"))?;
        let told = node.status.and_then(|status| status.addresses).unwrap_or_default();
        let told = told.iter().filter(|address| address.type_ == "InternalIP");
        let told: Vec<&str> = told.map(|address| address.address.as_str()).collect();
        let wire = Wire::new(number)?;
        ensure!(told == [wire.address(), wire.ipv6_address()], "{name} has the addresses {told:?}");
    }
    for (pod, addresses) in pod_addresses(&joined.cluster)? {
        ensure_both(&pod, &addresses)?;
    }
    let service = client.get::<Service>(&client.of("default"), WEB)?.context("no Service")?;
    let addresses = service.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
    ensure_both("the Service", &parsed(&addresses)?)
}

/// Names and addresses of the pods of the namespace `default`.
fn pod_addresses(cluster: &Cluster) -> Result<Vec<(String, Vec<IpAddr>)>> {
    let client = cluster.client();
    let all = client.wait::<Pod, _>(&client.of("default"), 10, "the pods", |all| Some(all.clone()))?;
    let addresses = |(name, pod): (String, Pod)| -> Result<(String, Vec<IpAddr>)> {
        let addresses = pod.status.and_then(|status| status.pod_ips).unwrap_or_default();
        let addresses: Vec<String> = addresses.into_iter().map(|address| address.ip).collect();
        Ok((name, parsed(&addresses)?))
    };
    all.into_iter().map(addresses).collect()
}

fn parsed(addresses: &[String]) -> Result<Vec<IpAddr>> {
    addresses.iter().map(|text| text.parse().with_context(|| format!("the address {text:?}"))).collect()
}

/// Both Services answer: by both addresses from a pod, at the ports of both addresses of each node, and by name.
fn ensure_reached(
    joined: &Joined,
    pods: &BTreeSet<String>,
    service: &ServiceAddresses,
    six: &ServiceAddresses,
) -> Result<()> {
    let cluster = &joined.cluster;
    let client = cluster.client();
    let object = client.get::<Service>(&client.of("default"), WEB)?.context("no Service")?;
    let addresses = parsed(&object.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default())?;
    let named: BTreeSet<IpAddr> = addresses.iter().copied().collect();
    await_named(cluster, CLIENT, WEB, &named)?;
    for address in addresses.iter().chain([&six.address]) {
        let seen = answers(cluster, CLIENT, &format!("{address} 80"))?;
        ensure_all_answer(pods, &seen, &format!("at {address}, from a pod"))?;
    }
    let plane: IpAddr = IPV6_ADDRESS.parse().context("the control plane's address")?;
    for number in 0..u8::try_from(NODES.len())? {
        let node: IpAddr = Wire::new(number)?.ipv6_address().parse().context("a node's address")?;
        let at = service.at_node(node)?;
        ensure_all_answer(pods, &answers_outside(cluster, &words(at))?, &format!("at {at}, from outside"))?;
        let seen = seen_from(cluster.pid()?, at)?;
        ensure!(seen.is_ipv6() && seen != plane, "behind {at} a pod sees {seen}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_in_their_order() {
        let addresses = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            parsed(&texts).unwrap()
        };
        assert!(ensure_both("it", &addresses(&["10.96.0.7", "fd00:96::7"])).is_ok());
        for wrong in [&["10.96.0.7"][..], &["fd00:96::7", "10.96.0.7"], &["10.96.0.7", "10.96.0.8"], &[]] {
            assert!(ensure_both("it", &addresses(wrong)).is_err(), "{wrong:?}");
        }
        assert!(parsed(&["nowhere".to_owned()]).is_err());
    }
}
