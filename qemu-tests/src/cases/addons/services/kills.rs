//! Parts of `addons/services`: kube-proxy, the agent and containerd of a node die, while its Service is in use.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orlop_harness::cluster::addons::{KUBE_PROXY, NAMESPACE};
use orlop_harness::cluster::fixture::{Joined, await_serving};
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::requests::steady::{Pace, SteadyLoad, describe};
use orlop_harness::cluster::requests::{await_answer, await_body};
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;
use serde_json::json;

use super::{CLIENT, NODES, WEB, await_web_pods, web_pod_on};
use crate::cases::addons::asking::{
    ROUTED, ServiceAddresses, answers, ensure_all_answer, ensure_no_gap, first_answer, run_in, serve,
};

/// Pace of the requests during a kill.
const PACE: Pace = Pace { period: Duration::from_millis(100), limit: Duration::from_secs(5) };

pub(super) fn ensure(joined: &mut Joined, pods: &BTreeSet<String>, service: &ServiceAddresses) -> Result<()> {
    ensure_proxy_back(joined, pods, &service.at())?;
    under_load(joined, service, "the agent", |joined| {
        joined.nodes[0].kill_agent()?;
        start_kubelet(&mut joined.nodes[0], JoinMethod::BootstrapKubeconfig)?;
        await_serving(&joined.cluster, NODES[0], 60)
    })?;
    under_load(joined, service, "containerd", |joined| {
        joined.nodes[0].kill_containerd()?;
        joined.nodes[0].start_containerd()
    })?;
    ensure_replaced(joined, pods, service)
}

/// Kills a part of the first node under requests, and waits until a new Service is routed.
fn under_load(
    joined: &mut Joined,
    service: &ServiceAddresses,
    part: &str,
    kill: impl FnOnce(&mut Joined) -> Result<()>,
) -> Result<()> {
    let node = joined.nodes[0].pid();
    let load = SteadyLoad::start(node, vec![(WEB.to_owned(), service.socket())], PACE)?;
    kill(joined).with_context(|| format!("{part}, killed"))?;
    let back = load.elapsed();
    let name = format!("after-{}", part.trim_start_matches("the "));
    let late = serve(&joined.cluster, &name, WEB, json!({}))?;
    let routed = await_answer(node, late.socket(), ROUTED)?;
    let reports = load.finish()?;
    say::line(format!(
        "  {part} is back {:.1} s after its kill, a new Service works {:.1} s later; {}",
        back.as_secs_f64(),
        routed.as_secs_f64(),
        describe(&reports)
    ));
    ensure_no_gap(&reports, part)
}

/// After the kills, a deleted pod on that node is replaced, and the Service leads to the new one.
fn ensure_replaced(joined: &Joined, pods: &BTreeSet<String>, service: &ServiceAddresses) -> Result<()> {
    let cluster = &joined.cluster;
    let old = web_pod_on(cluster, NODES[0])?;
    ensure!(pods.contains(&old), "the kills replaced a pod by {old}");
    cluster.kubectl(&["delete", "pod", &old])?;
    let new = await_web_pods(cluster, |names| !names.contains(&old))?;
    // kube-proxy learns of the new pod a moment after it is Ready.
    let (node, added) = (joined.nodes[0].pid(), |name: &str| !pods.contains(name.trim()));
    await_body(node, service.socket(), ROUTED, added).context("the new pod")?;
    ensure_all_answer(&new, &answers(cluster, CLIENT, &service.at())?, "after a pod was replaced")
}

/// kube-proxy of the client's node dies: the known Service goes on, and a Service that is made after that works, too.
fn ensure_proxy_back(joined: &Joined, pods: &BTreeSet<String>, at: &str) -> Result<()> {
    let cluster = &joined.cluster;
    let before = await_proxy(cluster, "kube-proxy to run", |_| true)?;
    kill(Pid::from_raw(kube_proxy(&joined.nodes[0])?), Signal::SIGKILL).context("kill kube-proxy")?;
    let start = Instant::now();
    let late = serve(cluster, "late", WEB, json!({}))?;
    ensure_all_answer(pods, &answers(cluster, CLIENT, at)?, "without kube-proxy")?;
    let late = late.at();
    run_in(cluster, CLIENT, &first_answer(&late)).context("a Service made after kube-proxy was killed")?;
    say::line(format!(
        "  a new Service works {:.1} s after kube-proxy's kill",
        start.elapsed().as_secs_f64()
    ));
    await_proxy(cluster, "kube-proxy to have been started again", |restarts| restarts > before)?;
    ensure_all_answer(pods, &answers(cluster, CLIENT, &late)?, "the new Service")
}

/// Waits until kube-proxy's pod on the client's node is Ready with an accepted number of restarts; returns the number.
fn await_proxy(cluster: &Cluster, what: &str, accepts: impl Fn(i32) -> bool) -> Result<i32> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of(NAMESPACE), 30, what, |all| {
        let here = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.node_name.as_deref()) == Some(NODES[0]);
        let (_, pod) = all.iter().find(|(name, pod)| name.starts_with(KUBE_PROXY) && here(pod))?;
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        let restarts = statuses.iter().map(|container| container.restart_count).sum::<i32>();
        (ready::pod(pod) && accepts(restarts)).then_some(restarts)
    })
}

/// The process of kube-proxy in the node's network, as the host numbers it.
fn kube_proxy(node: &NativeNode) -> Result<i32> {
    let network = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = network(node.pid()).context("the node's network")?;
    let is = |pid: &i32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == KUBE_PROXY && network(*pid).as_ref() == Some(&own)
    };
    let entries = fs::read_dir("/proc").context("read /proc")?;
    let mut pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(is).context("no kube-proxy runs on the node")
}
