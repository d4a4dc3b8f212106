//! Parts of `addons/services`: a UDP Service, which is the cluster's DNS.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use orlop_harness::cluster::addons::{COREDNS, NAMESPACE};
use orlop_harness::cluster::dns::DnsClient;
use orlop_harness::cluster::fixture::Joined;
use orlop_harness::cluster::flags::DNS_ADDRESS;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::say;
use serde_json::json;

use super::{NODES, WEB};
use crate::cases::addons::asking::{ServiceAddresses, address_of};

/// `k8s-app` of the pods of CoreDNS.
const KUBE_DNS: &str = "kube-dns";
/// Limit of one answer; a lost packet is not sent again.
const ANSWER: Duration = Duration::from_millis(500);
/// Time between the beginnings of two questions.
const RETRY: Duration = Duration::from_millis(250);
/// Limit until a Service answers again.
const BACK: Duration = Duration::from_secs(60);

/// A port of each node leads to the cluster's DNS. A client with one socket, whose packets are one flow to the kernel,
/// gets answers again after all pods of the Service were replaced: kube-proxy must remove the flow that leads to a pod
/// that is gone.
pub(super) fn ensure(joined: &Joined, web: &ServiceAddresses) -> Result<()> {
    let cluster = &joined.cluster;
    let client = cluster.client();
    let made = client.create::<Service>(
        &client.of(NAMESPACE),
        json!({"metadata": {"name": "names"}, "spec": {
            "type": "NodePort", "selector": {"k8s-app": KUBE_DNS},
            "ports": [{"protocol": "UDP", "port": 53, "targetPort": 53}],
        }}),
    )?;
    let ports = made.spec.and_then(|spec| spec.ports).unwrap_or_default();
    let port =
        ports.first().and_then(|port| port.node_port).context("a Service without a port of the nodes")?;
    for node in NODES {
        let at = SocketAddr::from((address_of(cluster, node)?, u16::try_from(port)?));
        let mut dns = DnsClient::in_network(cluster.pid()?, at, ANSWER)?;
        await_named(cluster, &mut dns, web).with_context(|| format!("UDP at a port of {node}"))?;
    }
    let at = format!("{DNS_ADDRESS}:53").parse().context("the address of the cluster's DNS")?;
    let mut dns = DnsClient::in_network(joined.nodes[0].pid(), at, ANSWER)?;
    await_named(cluster, &mut dns, web).context("UDP at a Service's address")?;
    replace_pods(cluster)?;
    let took = await_named(cluster, &mut dns, web).context("the pods of a UDP Service were replaced")?;
    say::line(format!(
        "  a UDP flow leads to a new pod {:.1} s after the old ones were gone",
        took.as_secs_f64()
    ));
    Ok(())
}

/// Asks for the web Service's name until its address is the answer; returns the time that this took.
fn await_named(cluster: &Cluster, dns: &mut DnsClient, web: &ServiceAddresses) -> Result<Duration> {
    let (begun, name) = (Instant::now(), format!("{WEB}.default.svc.cluster.local"));
    let client = cluster.client();
    // A packet that is lost reports nothing.
    let mut retry = client.block_on(async { tokio::time::interval(RETRY) });
    loop {
        client.block_on(retry.tick());
        let answer = dns.ask(&name)?;
        if let Some([address]) = answer.as_deref()
            && web.address == *address
        {
            return Ok(begun.elapsed());
        }
        ensure!(begun.elapsed() < BACK, "no answer with the address in {} s: {answer:?}", BACK.as_secs());
    }
}

/// Deletes all pods of CoreDNS and waits until they are gone.
fn replace_pods(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    let names = |all: &BTreeMap<String, Pod>| -> BTreeSet<String> {
        all.keys().filter(|name| name.starts_with(COREDNS)).cloned().collect()
    };
    let old = client.wait::<Pod, _>(&client.of(NAMESPACE), 10, "the pods", |all| Some(names(all)))?;
    ensure!(!old.is_empty(), "no pod of {COREDNS} is there");
    for pod in &old {
        client.delete::<Pod>(&client.of(NAMESPACE), pod, Some(1))?;
    }
    client.wait::<Pod, _>(&client.of(NAMESPACE), 60, "the old pods to be gone", |all| {
        names(all).is_disjoint(&old).then_some(())
    })
}
