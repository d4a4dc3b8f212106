//! `cargo e2e cluster`: a cluster for a person to play with, until Ctrl-C.
//!
//! What comes in: how many nodes, and which kubelet. What goes out: what to type. Everything is removed by the run's
//! own cleaning when the signal comes.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;

use super::fixture::await_ready;
use super::flags::Settings;
use super::join::{self, Way};
use super::plane::Cluster;
use super::programs;
use crate::native::node::{NativeNode, build_agent};
use crate::run::Run;
use crate::say;

/// Brings a cluster up, says how to reach it, and stays.
///
/// # Errors
/// What did not come up, and where its log is.
pub fn run(run: &Arc<Run>, nodes: u8, upstream: bool) -> Result<()> {
    let artefacts = run.dir().join("cluster");
    std::fs::create_dir_all(&artefacts)?;
    let mut cluster = Cluster::start(run, &artefacts, Settings::default())?;
    let agent = if upstream { programs::kubelet(run)? } else { build_agent(run, true)? };
    // They live as long as this function, which only a signal ends.
    let mut running = Vec::new();
    for number in 1..=nodes {
        running.push(start_node(&mut cluster, &artefacts, &format!("node{number}"), &agent)?);
    }
    say::line("");
    say::line(format!("export KUBECONFIG={}", cluster.kubeconfig().display()));
    say::line(format!("{} get nodes -o wide", cluster.kubectl_path().display()));
    say::line(format!("logs are in {}; Ctrl-C ends and removes everything", artefacts.display()));
    loop {
        std::thread::park();
    }
}

fn start_node(cluster: &mut Cluster, artefacts: &Path, name: &str, agent: &Path) -> Result<NativeNode> {
    let mut node = cluster.start_node(artefacts, name, agent.to_owned())?;
    let start = Instant::now();
    join::start_kubelet(&mut node, Way::BootstrapKubeconfig)?;
    await_ready(cluster, name, 120)?;
    say::line(format!("{name} is Ready after {:.1} s", start.elapsed().as_secs_f64()));
    Ok(node)
}
