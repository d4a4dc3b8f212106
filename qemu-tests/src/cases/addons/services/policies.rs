//! Parts of `addons/services`: the choice of a Service's pod, and the client's address that a pod sees.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_harness::cluster::addons::ProxyMode;
use orlop_harness::cluster::fixture::{Joined, api_pod};
use orlop_harness::cluster::flags::ADDRESS;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::requests::{RequestFault, await_accepted, await_outcome, get_from};
use serde_json::json;

use super::{CLIENT, NODES, WEB, web_pod_on};
use crate::cases::addons::asking::{
    ANSWERS, PORT, ROUTED, ServiceAddresses, address_of, answers, answers_outside, ensure_silent, seen_from,
    serve, words,
};

/// The pod that is on the second node only.
const LONE: &str = "lone";
/// Its port at its node.
const HOST_PORT: u16 = 8088;
/// Limit of a request that may get no answer, and of one of several requests.
const SOON: Duration = Duration::from_secs(3);

pub(super) fn ensure(
    joined: &Joined,
    mode: ProxyMode,
    pods: &BTreeSet<String>,
    web: &ServiceAddresses,
) -> Result<()> {
    let cluster = &joined.cluster;
    let mut lone = api_pod(LONE, NODES[1], ANSWERS, 1);
    lone["spec"]["containers"][0]["ports"] = json!([{"containerPort": PORT, "hostPort": HOST_PORT}]);
    lone["spec"]["containers"][0]["readinessProbe"] =
        json!({"tcpSocket": {"port": PORT}, "periodSeconds": 1});
    joined.run_pod(lone)?;
    let inward = serve(cluster, "lone-in", LONE, json!({"internalTrafficPolicy": "Local"}))?;
    let outward = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let outward = serve(cluster, "lone-out", LONE, outward)?;
    let local = serve(cluster, "web-in", WEB, json!({"internalTrafficPolicy": "Local"}))?;
    // The last one: a kube-proxy that knows it knows the others.
    let sticky = json!({"type": "NodePort", "sessionAffinity": "ClientIP"});
    let sticky = serve(cluster, "sticky", WEB, sticky)?;
    ensure_sticky(cluster, pods, &sticky)?;
    ensure_inward(joined, mode, &local, &inward)?;
    ensure_outward(cluster, mode, &outward, web)?;
    ensure_host_port(cluster)
}

/// All requests of a client go to one pod.
fn ensure_sticky(cluster: &Cluster, pods: &BTreeSet<String>, sticky: &ServiceAddresses) -> Result<()> {
    let from = |pod: &str| answers(cluster, pod, &sticky.at());
    let mut seen = vec![from(CLIENT)?, from(&web_pod_on(cluster, NODES[1])?)?];
    for node in NODES {
        seen.push(answers_outside(cluster, &words(sticky.at_node(address_of(cluster, node)?)?))?);
    }
    for one in seen {
        ensure!(one.len() == 1 && one.is_subset(pods), "with session affinity {one:?} answered one client");
    }
    Ok(())
}

/// True if kube-proxy lets requests end so at a node whose policy leaves it no pod, though the Service has pods elsewhere: rules of packet
/// filters drop them, so that the client tries again. A Service that is not known, or has no pod at all, ends otherwise. Pure.
fn is_silence(mode: ProxyMode, fault: RequestFault) -> bool {
    match mode {
        ProxyMode::Iptables | ProxyMode::Nftables => fault == RequestFault::NoConnection,
        // A virtual server without a real one.
        ProxyMode::Ipvs => true,
    }
}

/// Waits until requests from the network of process `pid` end in silence; no pod may answer meanwhile.
fn await_silence(pid: i32, at: SocketAddr, mode: ProxyMode) -> Result<()> {
    let outcome = await_outcome(pid, (at, "/"), SOON, ROUTED, |outcome| match outcome {
        Ok(_) => true,
        Err(fault) => is_silence(mode, *fault),
    })?;
    ensure!(outcome.is_err(), "{at} answers: {outcome:?}");
    Ok(())
}

/// `internalTrafficPolicy: Local`: the pod of the client's own node answers, or none.
fn ensure_inward(
    joined: &Joined,
    mode: ProxyMode,
    local: &ServiceAddresses,
    lone: &ServiceAddresses,
) -> Result<()> {
    let cluster = &joined.cluster;
    let [first, second] = [web_pod_on(cluster, NODES[0])?, web_pod_on(cluster, NODES[1])?];
    for (client, own) in [(CLIENT, &first), (second.as_str(), &second)] {
        let seen = answers(cluster, client, &local.at())?;
        ensure!(seen == [own.clone()].into(), "{client} has {own} on its node, {seen:?} answered");
    }
    let seen = answers(cluster, &second, &lone.at())?;
    ensure!(seen == [LONE.to_owned()].into(), "on the node of the pod {seen:?} answered");
    // A pod's client cannot tell why it has no answer; its requests meet the same rules as those of its node.
    await_silence(joined.nodes[0].pid(), lone.socket(), mode)
        .context("a node without a pod of the Service")?;
    ensure_silent(cluster, CLIENT, &lone.at()).context("from a node without a pod of the Service")
}

/// `externalTrafficPolicy: Local`: a node without a pod does not answer, and reports that to load balancers; a pod
/// sees the address of its client. With the policy `Cluster` it sees another one.
fn ensure_outward(
    cluster: &Cluster,
    mode: ProxyMode,
    lone: &ServiceAddresses,
    web: &ServiceAddresses,
) -> Result<()> {
    let plane = cluster.pid()?;
    let [first, second] = [address_of(cluster, NODES[0])?, address_of(cluster, NODES[1])?];
    let own: IpAddr = ADDRESS.parse().context("the control plane's address")?;
    let seen = seen_from(plane, lone.at_node(second)?)?;
    ensure!(seen == own, "the pod sees {seen} instead of its client {own}");
    // kube-proxy serves this status after it has made its rules, so the first node's silence is the policy's.
    let port = lone.health_port.context("a Service without a port for health checks")?;
    for (node, expected) in [(second, 200), (first, 503)] {
        let at = SocketAddr::from((node, port));
        await_accepted(plane, (at, "/healthz"), SOON, ROUTED, |answer| answer.status == expected)
            .with_context(|| format!("{node} must tell a load balancer {expected}"))?;
    }
    await_silence(plane, lone.at_node(first)?, mode).context("a node without a pod")?;
    for node in [first, second] {
        let seen = seen_from(plane, web.at_node(node)?)?;
        ensure!(seen != own, "with the policy Cluster a pod sees its client {own}");
    }
    Ok(())
}

/// A pod's host port leads to it from outside and from a pod of the other node; the other node has no such port.
fn ensure_host_port(cluster: &Cluster) -> Result<()> {
    let [first, second] = [address_of(cluster, NODES[0])?, address_of(cluster, NODES[1])?];
    let at = SocketAddr::from((second, HOST_PORT));
    let own: IpAddr = ADDRESS.parse().context("the control plane's address")?;
    let seen = seen_from(cluster.pid()?, at).context("a host port, from outside")?;
    ensure!(seen == own, "the pod sees {seen} instead of its client {own} at its host port");
    let seen = answers(cluster, CLIENT, &words(at))?;
    ensure!(seen == [LONE.to_owned()].into(), "at the host port {seen:?} answered");
    let other = get_from(cluster.pid()?, (first, HOST_PORT).into(), "/", SOON)?;
    ensure!(other == Err(RequestFault::Refused), "the other node's host port: {other:?}");
    cluster.kubectl(&["delete", "pod", LONE, "--grace-period=1"])?;
    let gone = get_from(cluster.pid()?, at, "/", SOON)?;
    ensure!(gone == Err(RequestFault::Refused), "the host port of a pod that is gone: {gone:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dropped_packets_are_silence_where_a_filter_has_the_rules() {
        for mode in [ProxyMode::Iptables, ProxyMode::Nftables] {
            assert!(is_silence(mode, RequestFault::NoConnection), "{mode:?}");
            for fault in [RequestFault::Refused, RequestFault::Unreachable, RequestFault::NoAnswer] {
                assert!(!is_silence(mode, fault), "{mode:?} {fault}");
            }
        }
        assert!(is_silence(ProxyMode::Ipvs, RequestFault::Refused));
    }
}
