//! Clients without credentials that misuse the node API: silent connections, endless requests, unknown tokens, answers that
//! they do not read. The node goes on serving its own clients.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone};
use orlop_harness::cluster::flood::{Flood, takers_of_nothing, tokens};
use orlop_harness::cluster::node_api::NodeApi;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::proxy::inside;
use orlop_harness::cluster::strangers::{endless_body, endless_head, silent_crowd, slow_head};
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;
use orlop_harness::usage::resident_kib;

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "api/strangers",
    level: Level::L4n,
    expected_s: 240,
    about: "silent connections, endless heads and bodies, tokens without end, answers that are not taken: node unmoved",
    group: GROUP,
    run: strangers,
}];

const FIRST: &str = "172.30.0.10";
/// Set: `api/strangers` floods the node with 1,000 connections of 250 streams for a minute.
const WHOLE_FLOOD: &str = "ORLOP_E2E_WHOLE_FLOOD";

fn strangers(cx: &mut CaseContext<'_>) -> Result<()> {
    const MIB: usize = 1024 * 1024;
    let joined = Joined::shared(cx)?;
    let pod = joined.run_pod(api_pod("unmoved", "first", &format!("echo here; {STAYS}"), 1))?;
    let (cluster, node) = (&joined.cluster, &joined.nodes[0]);
    let api = NodeApi::at(cluster, FIRST)?;
    let admin = cluster.pki().node_admin()?;
    api.await_healthy(&admin, 30)?;
    let before = resident_kib(node.agent_pid()?)? / 1024;
    let ready = ready_since(cluster)?;
    let address = SocketAddr::new(FIRST.parse()?, 10250);
    let ca = cluster.pki().ca.pem.clone();
    // The crowd comes last: the node closes the oldest anonymous connections of one address in favour of new ones.
    let all = inside(cluster.pid()?, async move || {
        let (slow, head, body) = tokio::join!(
            slow_head(address, &ca),
            endless_head(address, &ca, 1024 * MIB),
            endless_body(address, &ca, 1024 * MIB),
        );
        Ok((slow, head, body, silent_crowd(address, 10_000, Duration::from_secs(15)).await))
    });
    let (slow, head, body, crowd) = all?;
    let (slow, head, body, crowd) = (slow?, head?, body?, crowd?);
    say::line(format!(
        "a byte at a time: ended after {slow:.0?}; {head} bytes of a head, {} of a body",
        body.1
    ));
    // Buffers of the sockets take some beyond the limit.
    ensure!(head < 16 * MIB, "{head} bytes of a head without end were taken");
    ensure!(body.0 == 401 && body.1 < 16 * MIB, "a body without end: {body:?}");
    ensure!(crowd >= 1000, "only {crowd} of 10000 connections were taken");
    api.await_healthy(&admin, 60)?;
    let after = resident_kib(node.agent_pid()?)? / 1024;
    say::line(format!(
        "{crowd} of 10000 silent connections taken and ended; agent {before} MiB, then {after} MiB"
    ));
    ensure!(node.http_get(10248, "/healthz")? == "ok", "healthz on 10248");
    ensure!(ready_since(cluster)? == ready, "the node was not Ready all the time");
    let client = cluster.client();
    let same = client.get::<Pod>(&client.of("default"), "unmoved")?.context("the pod")?;
    ensure!(same.status == pod.status, "the pod was moved: {:?}", same.status);
    flood(cluster, address, node)?;
    ensure!(ready_since(cluster)? == ready, "the node was not Ready all the time");
    client.delete::<Pod>(&client.of("default"), "unmoved", None)?;
    await_pod_gone(cluster, "unmoved", 30)
}

/// Unknown tokens, then connections that do not read their answers: heartbeats and an admin's `kubectl logs` go on.
fn flood(cluster: &Cluster, address: SocketAddr, node: &NativeNode) -> Result<()> {
    // The whole load needs a host with more processors than this one.
    let whole = std::env::var_os(WHOLE_FLOOD).is_some();
    let flood = match whole {
        true => Flood { connections: 1000, streams: 250, lasts: Duration::from_secs(60) },
        false => Flood { connections: 200, streams: 100, lasts: Duration::from_secs(20) },
    };
    let before = resident_kib(node.agent_pid()?)? / 1024;
    let (flooded, heartbeats) = while_asked(cluster, async |ca: String| tokens(address, &ca, flood).await)?;
    let after = resident_kib(node.agent_pid()?)? / 1024;
    say::line(format!("{flood:?}: {flooded:?}; {heartbeats}; agent {before} MiB, then {after} MiB"));
    ensure!(after < before + 128, "the agent grew from {before} to {after} MiB");
    let (lived, heartbeats) = while_asked(cluster, async |ca: String| {
        takers_of_nothing(address, &ca, 1000, Duration::from_secs(120)).await
    })?;
    say::line(format!("1000 connections that take nothing lived {lived:.0?} at most; {heartbeats}"));
    Ok(())
}

/// Runs strangers in the plane's network; meanwhile the lease must be renewed and a log be shown.
fn while_asked<T: Send>(
    cluster: &Cluster,
    strangers: impl AsyncFnOnce(String) -> Result<T> + Send,
) -> Result<(T, String)> {
    let (pid, ca) = (cluster.pid()?, cluster.pki().ca.pem.clone());
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || inside(pid, async move || strangers(ca).await));
        let (mut oldest, mut slowest, mut logs) = (Duration::ZERO, Duration::ZERO, 0);
        while !thread.is_finished() {
            oldest = oldest.max(lease_age(cluster)?);
            let asked = Instant::now();
            let said = cluster.kubectl(&["logs", "unmoved"])?;
            ensure!(said == "here", "the log of the pod: {said}");
            slowest = slowest.max(asked.elapsed());
            logs += 1;
        }
        let came = thread.join().map_err(|_| anyhow::anyhow!("the strangers' thread panicked"))??;
        ensure!(logs >= 3, "only {logs} logs were shown");
        // The lease is renewed every 10 s, and Ready ends after 40 s without.
        ensure!(oldest < Duration::from_secs(20), "the lease was {oldest:?} old");
        Ok((came, format!("lease {oldest:.0?} old at most, {logs} logs, the slowest after {slowest:.1?}")))
    })
}

fn lease_age(cluster: &Cluster) -> Result<Duration> {
    let path = "jsonpath={.spec.renewTime}";
    let renewed = cluster.kubectl(&["get", "lease", "-n", "kube-node-lease", "first", "-o", path])?;
    let renewed: Timestamp = renewed.parse().context("the lease's renewTime")?;
    let age = Timestamp::now().duration_since(renewed);
    Ok(Duration::try_from(age).unwrap_or_default())
}

/// Since when the node has been Ready.
fn ready_since(cluster: &Cluster) -> Result<String> {
    let path = "{.status.conditions[?(@.type==\"Ready\")]['status','lastTransitionTime']}";
    let said = cluster.kubectl(&["get", "node", "first", "-o", &format!("jsonpath={path}")])?;
    ensure!(said.starts_with("True "), "the node is not Ready: {said}");
    Ok(said)
}
