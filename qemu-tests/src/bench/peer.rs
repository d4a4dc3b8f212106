//! `bench peer`: the agent and the upstream kubelet of the same Kubernetes release, one after the other in the same
//! environment: a native node of its own cluster each. Start to Ready, memory and CPU time at 0 and at many pods,
//! requests to the API server while nothing happens.

use std::cmp::Ordering;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use orlop_harness::built;
use orlop_harness::cluster::audit::{self, Request};
use orlop_harness::cluster::client::ClusterClient;
use orlop_harness::cluster::fixture::{STAYS, await_ready, container};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::programs;
use orlop_harness::native::node::NativeNode;
use orlop_harness::run::Run;
use orlop_harness::say;
use serde_json::json;

use super::native::measure;
use super::spent::CpuSeconds;

/// Idle time of a node before its measurement: by then the work after a start is over.
const SETTLE: Duration = Duration::from_secs(30);
/// Starts of a kubelet that has its certificate.
pub(super) const STARTS: usize = 5;

/// Measures both, the agent first; with `burst` nothing but their starts and the time that the pods take.
///
/// # Errors
/// If a node does not become Ready or its pods do not run.
pub fn run(run: &Arc<Run>, pods: u32, burst: bool) -> Result<()> {
    let kubelet = programs::kubelet(run)?;
    let agent = built::agent(run, true)?;
    for (name, program) in [("agent", agent), ("upstream", kubelet)] {
        let artefacts = run.dir().join("bench-peer").join(name);
        fs::create_dir_all(&artefacts)?;
        one(run, &artefacts, (name, &program), pods, burst)
            .with_context(|| format!("{name} ({})", artefacts.display()))?;
    }
    fs::remove_dir_all(run.dir().join("bench-peer")).context("remove the benchmark's logs")
}

fn one(
    run: &Arc<Run>,
    artefacts: &Path,
    (name, program): (&str, &Path),
    pods: u32,
    burst: bool,
) -> Result<()> {
    say::line(format!("== {name} =="));
    let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
    let mut node = cluster.start_node(artefacts, "peer", PathBuf::from(program))?;
    say::line(format!("start with bootstrap: Ready after {} ms", start(&cluster, &mut node)?));
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        node.stop_agent()?;
        forget_ready(&cluster)?;
        starts.push(start(&cluster, &mut node)?);
    }
    say::line(format!("start with its certificate: Ready after {} ms", Starts(starts)));
    if !burst {
        idle(&cluster, &mut node, "0 pods")?;
    }
    if pods == 0 {
        return Ok(());
    }
    let (before, asked) = (CpuSeconds::now(&cluster, &node)?, cluster.audit()?.len());
    let start = Instant::now();
    scale(&cluster, pods)?;
    say::line(format!("{pods} pods from create to available in {:.1} s", start.elapsed().as_secs_f64()));
    say::line(format!("  processor time: {}", CpuSeconds::now(&cluster, &node)?.since(&before)));
    let all = cluster.audit()?;
    let counts = audit::counts(all[asked..].iter().filter(|r| audit::is_of_node(r)));
    say::line(format!("  requests of the node: {counts:?}"));
    if burst { Ok(()) } else { idle(&cluster, &mut node, &format!("{pods} pods")) }
}

/// Starts the node's kubelet and answers after how many milliseconds the Node is Ready.
fn start(cluster: &Cluster, node: &mut NativeNode) -> Result<u128> {
    let start = Instant::now();
    start_kubelet(node, JoinMethod::BootstrapKubeconfig)?;
    await_ready(cluster, "peer", 120)?;
    Ok(start.elapsed().as_millis())
}

/// Several starts: the one in the middle, and all of them, because a kubelet may have more than one usual time.
pub(super) struct Starts<T>(pub(super) Vec<T>);

impl<T: fmt::Display + PartialOrd> fmt::Display for Starts<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted: Vec<&T> = self.0.iter().collect();
        sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
        if let Some(median) = sorted.get(sorted.len() / 2) {
            write!(f, "{median}")?;
        }
        let all: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, " (median of {})", all.join(", "))
    }
}

/// Removes the Ready condition of the stopped kubelet, so that a wait for Ready needs a new one.
pub(super) fn forget_ready(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    let condition =
        json!({"type": "Ready", "status": "Unknown", "reason": "Stopped", "message": "by the benchmark"});
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    let nodes = client.all::<Node>();
    client
        .block_on(nodes.patch_status("peer", &PatchParams::default(), &patch))
        .context("patch the node's status")?;
    Ok(())
}

fn idle(cluster: &Cluster, node: &mut NativeNode, what: &str) -> Result<()> {
    node.pass(SETTLE)?;
    let before = cluster.audit()?.len();
    let start = Instant::now();
    measure(node, what)?;
    let elapsed = start.elapsed();
    let all = cluster.audit()?;
    let of_node: Vec<&Request> = all[before..].iter().filter(|r| audit::is_of_node(r)).collect();
    let per_hour = of_node.len() as f64 * 3600.0 / elapsed.as_secs_f64();
    let kinds: Vec<String> =
        audit::counts(of_node.into_iter()).into_iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    say::line(format!("{what:<10} {per_hour:.0} API requests an hour ({})", kinds.join(", ")));
    // The upstream kubelet gets a pod once more after its deletion, and is refused.
    say::line(format!("{what:<10} {} forbidden requests so far", audit::forbidden(&all).len()));
    Ok(())
}

/// Makes a Deployment `peer` of so many pods and waits until they are available.
pub(super) fn scale(cluster: &Cluster, pods: u32) -> Result<()> {
    let client = cluster.client();
    let api = client.of::<Deployment>("default");
    let labels = json!({"app": "peer"});
    client.create(
        &api,
        json!({"metadata": {"name": "peer"}, "spec": {"replicas": pods, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "terminationGracePeriodSeconds": 1, "containers": [container(STAYS)]}}}}),
    )?;
    await_available(client, "peer", pods)
}

/// Waits until so many pods of a Deployment are available.
pub(super) fn await_available(client: &ClusterClient, deployment: &str, pods: u32) -> Result<()> {
    let wanted = i32::try_from(pods)?;
    client.wait::<Deployment, _>(&client.of("default"), 900, "all pods to be available", |all| {
        (all.get(deployment)?.status.as_ref()?.available_replicas == Some(wanted)).then_some(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_shown_by_the_middle_one_and_all() {
        assert_eq!(Starts(vec![350, 5400, 360]).to_string(), "360 (median of 350, 5400, 360)");
        assert_eq!(Starts(vec![0.5, 0.25]).to_string(), "0.5 (median of 0.5, 0.25)");
    }
}
