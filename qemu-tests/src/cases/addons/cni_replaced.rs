//! A pod network that is replaced by another one, on nodes that are neither installed nor started again.
//!
//! Case: `addons/cni-replaced`. Invariant: between the two networks a pod waits with an event that names the reason.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, skip};
use orlop_harness::cluster::addons::flannel::{self, OVERHEAD};
use orlop_harness::cluster::addons::{
    AddOns, Cni, NATIVE_LIMIT_S, NodeKind, ProxyMode, install_network, kube_router, make_room,
};
use orlop_harness::cluster::fixture::{
    Joined, STAYS, api_pod, await_event, await_pod_gone, await_pod_ready, await_ready,
};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::wires::has_link;
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;
use serde_json::json;

use super::pod_network::{
    MTU, NETWORK_LIMIT_S, NODES, WEB, await_not_ready, ensure_connected, install, route_pods, scale_names,
    serve, web_pods,
};

/// Cases of this file.
pub const CASES: &[Case] = &[CaseDefaults { level: Level::L4n, group: None }.case(
    "addons/cni-replaced",
    240,
    "flannel goes and kube-router takes its place without another start of the nodes: meanwhile a pod waits with the event \
     NetworkNotReady, then pods have addresses of the new network, and nothing of the old one is in their way",
    replaced,
)];

/// A pod that lives through the replacement, and one that is made between the two networks.
const KEPT: &str = "kept";
const BETWEEN: &str = "between";
/// CNI configuration files of a node.
const CONFIGURATIONS: &str = "/var/lib/orlop/cni/net.d";
/// Links of flannel and of its plugin.
const OLD_LINKS: [&str; 2] = ["flannel.1", "cni0"];
/// Limit for a pod of the case to be Ready, or gone.
const POD_LIMIT_S: u64 = 120;

/// Why this machine cannot have the nodes of the case.
fn missing() -> Option<String> {
    let vxlan = || (!flannel::is_possible_here()).then(|| "the machine's kernel has no VXLAN".to_owned());
    super::kube_router::missing().or_else(vxlan)
}

fn replaced(cx: &mut CaseContext<'_>) -> Result<()> {
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
    ensure_connected(cluster, &pods, &service, MTU - OVERHEAD).context("with flannel")?;
    joined.run_pod(api_pod(KEPT, NODES[0], STAYS, 1))?;
    let before = agents(&joined)?;
    remove_flannel(&joined)?;
    ensure_named(cluster)?;
    install_network(cluster, Cni::KubeRouter, u8::try_from(NODES.len())?, NATIVE_LIMIT_S)?;
    NODES.iter().try_for_each(|node| await_ready(cluster, node, NETWORK_LIMIT_S).map(drop))?;
    await_pod_ready(cluster, BETWEEN, POD_LIMIT_S)?;
    let pods = web_pods(cluster, NODES, None)?;
    for (pod, node) in pods.iter().zip(&joined.nodes) {
        ensure_leased(node, &pod.address)?;
    }
    ensure_connected(cluster, &pods, &service, MTU).context("with kube-router")?;
    scale_names(cluster, 2)?;
    let client = cluster.client();
    client.delete::<Pod>(&client.of("default"), KEPT, Some(1))?;
    await_pod_gone(cluster, KEPT, POD_LIMIT_S).context("a pod of the network that is gone")?;
    joined.nodes.iter().try_for_each(|node| ensure_clean(cluster, node))?;
    ensure!(before == agents(&joined)?, "an agent was started again");
    cluster.ensure_nothing_forbidden()
}

/// The images of both networks are on the nodes; flannel is the one to be installed.
fn make(cluster: &Cluster) -> Result<AddOns> {
    let mut addons = AddOns::make(cluster, ProxyMode::Iptables, NodeKind::Native)?;
    for cni in [Cni::KubeRouter, Cni::Flannel] {
        addons.add_network(cluster, cni)?;
    }
    Ok(addons)
}

/// Process ids of the agents.
fn agents(joined: &Joined) -> Result<Vec<i32>> {
    joined.nodes.iter().map(NativeNode::agent_pid).collect()
}

/// The steps of docs/howto/addons.md, but for one pod that its owner forgets.
fn remove_flannel(joined: &Joined) -> Result<()> {
    let cluster = &joined.cluster;
    cluster.kubectl(&["delete", "pod", "--selector", &format!("app={WEB}"), "--timeout=60s"])?;
    scale_names(cluster, 0)?;
    flannel::remove(cluster)?;
    joined.nodes.iter().try_for_each(flannel::clean)?;
    NODES.iter().try_for_each(|node| await_not_ready(cluster, node))
}

/// A pod that is bound to a node without a network waits, and says why.
fn ensure_named(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    let mut pod = api_pod(BETWEEN, NODES[0], STAYS, 1);
    // The scheduler keeps other pods away from a node that is not Ready.
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    client.create::<Pod>(&client.of("default"), pod)?;
    let event = await_event(cluster, "NetworkNotReady", BETWEEN, NETWORK_LIMIT_S)?;
    let message = event.message.unwrap_or_default();
    ensure!(message.starts_with("network is not ready: "), "the event has the message {message:?}");
    say::line(format!("  between the networks: {message}"));
    Ok(())
}

/// The address is one of those that the new network has given away on this node.
fn ensure_leased(node: &NativeNode, address: &str) -> Result<()> {
    let lease = format!("/var/lib/cni/networks/{}/{address}", kube_router::NETWORK);
    ensure!(node.inside(&lease).exists(), "{} has no {lease}", node.name());
    Ok(())
}

/// The node has the new configuration alone and no link of the old network, and no rule of the old one stops packets.
fn ensure_clean(cluster: &Cluster, node: &NativeNode) -> Result<()> {
    let dir = node.inside(CONFIGURATIONS);
    let entries = std::fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))?;
    let files: BTreeSet<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    ensure!(files.iter().eq(["10-kuberouter.conflist"]), "{} has {files:?}", node.name());
    for link in OLD_LINKS {
        ensure!(!has_link(node.pid(), link)?, "{} still has the link {link}", node.name());
    }
    ensure!(has_link(node.pid(), kube_router::BRIDGE)?, "{} has no {}", node.name(), kube_router::BRIDGE);
    let rules = kube_router::rules(cluster, node.name())?;
    let harmful = harmful(&rules);
    ensure!(harmful.is_empty(), "rules of flannel on {}: {harmful:?}", node.name());
    let left = rules.lines().filter(|rule| rule.starts_with("-A FLANNEL")).count();
    say::line(format!("  {} has {left} rules of flannel left, none of which stops packets", node.name()));
    Ok(())
}

/// Rules of flannel that stop packets, and rules that name its links. Pure.
fn harmful(rules: &str) -> Vec<&str> {
    let stops = |rule: &str| {
        let is_flannels = rule.starts_with("-A FLANNEL");
        is_flannels && ["-j DROP", "-j REJECT"].iter().any(|end| rule.contains(end))
    };
    let names =
        |rule: &str| rule.starts_with("-A ") && rule.split_whitespace().any(|word| OLD_LINKS.contains(&word));
    rules.lines().filter(|rule| stops(rule) || names(rule)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_of_the_old_network_does_harm_if_it_stops_packets_or_names_a_link() {
        let rules = "*nat\n\
                     :FLANNEL-POSTRTG - [0:0]\n\
                     -A POSTROUTING -j FLANNEL-POSTRTG\n\
                     -A FLANNEL-POSTRTG -s 10.88.10.0/24 -d 10.88.0.0/16 -j RETURN\n\
                     -A FORWARD -i kube-bridge -j ACCEPT\n\
                     -A KUBE-POD-FW-X -j REJECT\n";
        assert_eq!(harmful(rules), Vec::<&str>::new());
        let stops = "-A FLANNEL-FWD -s 10.88.0.0/16 -j DROP";
        let names = "-A FORWARD -o cni0 -j ACCEPT";
        assert_eq!(harmful(&format!("{rules}{stops}\n{names}\n")), [stops, names]);
    }
}
