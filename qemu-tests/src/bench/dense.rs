//! `bench dense`: more pods on one node than the default maximum. All must run, have correct statuses and end; memory
//! and processor time are printed.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::built;
use orlop_harness::cluster::crowd::statuses;
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, share_shims, start_kubelet_with, write};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::native::config;
use orlop_harness::native::held::{HostLeftovers, shims};
use orlop_harness::native::node::NativeNode;
use orlop_harness::run::Run;
use orlop_harness::say;

use super::native::measure;
use super::peer::scale;
use super::spent::CpuSeconds;

const NODE: &str = "dense";
/// A node's usual range has fewer addresses. No client outside uses these.
const RANGE: &str = "10.90.0.0/16";

/// Options of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Numbers of pods; each is a measurement of its own, on a node of its own.
    #[arg(long, value_delimiter = ',', default_value = "300")]
    pub pods: Vec<u32>,
    /// Pods that share a shim.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pods_per_shim: u32,
}

/// Measures each number of pods.
///
/// # Errors
/// If a pod does not run, has a wrong status or leaves something behind.
pub fn run(run: &Arc<Run>, of: &Options) -> Result<()> {
    of.pods.iter().try_for_each(|pods| one(run, *pods, of.pods_per_shim))
}

fn one(run: &Arc<Run>, pods: u32, pods_per_shim: u32) -> Result<()> {
    let agent = built::agent(run, true)?;
    let artefacts = run.dir().join("bench-dense");
    fs::create_dir_all(&artefacts)?;
    let mut cluster = Cluster::start(run, &artefacts, Settings::default())?;
    let mut node = cluster.start_node(&artefacts, NODE, agent)?;
    write(&node, config::CNI, &config::cni(RANGE))?;
    if pods_per_shim > 1 {
        share_shims(&node, pods_per_shim)?;
    }
    start_kubelet_with(&mut node, JoinMethod::BootstrapKubeconfig, &[format!("--max-pods={}", pods + 20)])?;
    await_ready(&cluster, NODE, 120)?;
    let empty = HostLeftovers::by(&node)?;
    let (before, start) = (CpuSeconds::now(&cluster, &node)?, Instant::now());
    scale(&cluster, pods)?;
    say::line(format!("{pods} pods from create to available in {:.1} s", start.elapsed().as_secs_f64()));
    say::line(format!("  processor time: {}", CpuSeconds::now(&cluster, &node)?.since(&before)));
    tells_right(&cluster, &node, pods)?;
    node.pass(Duration::from_secs(20))?;
    measure(&mut node, &format!("{pods} pods"))?;
    say::line(format!("{} shims", shims(&node)?.len()));
    let (before, start) = (CpuSeconds::now(&cluster, &node)?, Instant::now());
    let client = cluster.client();
    client.delete::<Deployment>(&client.of("default"), "peer", None)?;
    client.wait::<Pod, _>(&client.of("default"), 900, "all pods to be gone", |all| {
        all.is_empty().then_some(())
    })?;
    say::line(format!("and gone again in {:.1} s", start.elapsed().as_secs_f64()));
    say::line(format!("  processor time: {}", CpuSeconds::now(&cluster, &node)?.since(&before)));
    let mut left = Vec::new();
    let waited = node.wait(60, "nothing to be left of the pods", |_| {
        left = HostLeftovers::by(&node).map_or_else(|e| vec![format!("{e:#}")], |now| now.beyond(&empty));
        left.is_empty().then_some(())
    });
    waited.with_context(|| format!("left behind: {left:#?}"))?;
    measure(&mut node, "0 again")?;
    drop(node);
    drop(cluster);
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

/// Each pod is Running and Ready, was never restarted, has an address of its own, and the runtime runs exactly what the
/// API server shows.
fn tells_right(cluster: &Cluster, node: &NativeNode, pods: u32) -> Result<()> {
    let client = cluster.client();
    let all = client.wait::<Pod, _>(&client.of("default"), 30, "the pods", |all| Some(all.clone()))?;
    let (mut addresses, mut shown) = (BTreeSet::new(), BTreeSet::new());
    for (name, pod) in &all {
        let status = pod.status.as_ref().with_context(|| format!("{name} has no status"))?;
        ensure!(ready::pod(pod) && ready::phase(pod) == "Running", "{name}: {status:?}");
        addresses.extend(status.pod_ip.clone());
        for container in statuses(pod) {
            ensure!(container.restart_count == 0, "{name} was restarted: {container:?}");
            shown.extend(container.container_id.clone());
        }
    }
    let running: BTreeSet<String> =
        node.cri().view()?.running("*").iter().map(|c| format!("containerd://{}", c.id)).collect();
    let counts = (all.len(), addresses.len(), shown.len());
    ensure!(
        counts == (pods as usize, pods as usize, pods as usize),
        "pods, addresses, containers: {counts:?}"
    );
    ensure!(running == shown, "the runtime runs {} containers, {} are shown", running.len(), shown.len());
    Ok(())
}
