//! metrics-server as a pod, behind the API server's aggregation.
//!
//! Case: `addons/metrics-server`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, skip};
use orlop_harness::cluster::addons::{AddOns, NAMESPACE, NATIVE_LIMIT_S, NodeKind, ProxyMode};
use orlop_harness::cluster::fixture::Joined;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::say;

/// Cases of this file.
pub const CASES: &[Case] = &[CaseDefaults { level: Level::L4n, group: None }.case(
    "addons/metrics-server",
    120,
    "metrics-server runs as a pod that is no root and writes to no file of its image; kubectl top shows the node and the \
     pods of kube-system",
    metrics_server,
)];

const NODE: &str = "first";

fn metrics_server(cx: &mut CaseContext<'_>) -> Result<()> {
    if let Some(module) = ProxyMode::Iptables.missing_module() {
        return skip(format!("the machine's kernel lacks {module}"));
    }
    let settings = Settings { aggregator_routing: true, ..Settings::default() };
    let mut joined = Joined::start(&cx.run, &cx.artefacts, settings, &[NODE])?;
    let mut addons = AddOns::make(&joined.cluster, ProxyMode::Iptables, NodeKind::Native)?;
    addons.add_metrics_server(&joined.cluster)?;
    joined.nodes.iter().try_for_each(|node| addons.offer(node))?;
    let start = Instant::now();
    addons.install(&joined.cluster, 1, NATIVE_LIMIT_S)?;
    say::line(format!("  {} after {:.1} s", addons.describe(), start.elapsed().as_secs_f64()));
    // The API server asks the APIService again after some seconds, and the pods' values need two requests.
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match ensure_shown(&joined.cluster) {
            Ok(()) => break,
            Err(error) if Instant::now() >= deadline => return Err(error.context("after two minutes")),
            Err(_) => joined.nodes[0].pass(Duration::from_secs(1))?,
        }
    }
    joined.cluster.ensure_nothing_forbidden()
}

/// The node and metrics-server's own pod are shown with processors and memory.
fn ensure_shown(cluster: &Cluster) -> Result<()> {
    let nodes = cluster.kubectl(&["top", "nodes", "--no-headers"])?;
    let pods = cluster.kubectl(&["top", "pods", "--namespace", NAMESPACE, "--no-headers"])?;
    for (name, text) in [(NODE, &nodes), ("metrics-server", &pods)] {
        let row = text.lines().find(|line| line.starts_with(name));
        let words: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
        // NAME CPU(cores) and, after the part of the node's processors, MEMORY(bytes)
        let has = |unit: &str| {
            let number = words.iter().find_map(|word| word.strip_suffix(unit)?.parse::<u64>().ok());
            number.is_some_and(|number| number > 0)
        };
        ensure!(has("m") && has("Mi"), "{name} is not shown with its usage:\n{text}");
    }
    Ok(())
}
