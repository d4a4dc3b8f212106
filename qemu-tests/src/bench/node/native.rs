//! `bench node` on a native node of a cluster of its own, with the agent and with the upstream kubelet.
//!
//! containerd has the configuration of native nodes (`qemu-tests/harness/src/native/config.rs`), with the image's plugins. It
//! has Go's defaults, unless the options say otherwise: init's file with GOGC and GOMEMLIMIT is not there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use orlop_harness::cluster::fixture::{STAYS, await_ready, container};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, share_shims, start_kubelet_with, write};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::native::config;
use orlop_harness::native::node::NativeNode;
use orlop_harness::run::Run;
use orlop_harness::say;

use super::sample::{NodeSample, parse, read_below};
use super::table::NamedUsage;
use super::usage::NodeUsage;
use super::{NODE, Options, SETTLE, set_pods};
use crate::bench::scrape::natively;

/// A node's usual range has fewer addresses. No client outside uses these.
const RANGE: &str = "10.90.0.0/16";

/// Adds a column for each kubelet and each number of pods.
pub(super) fn measure(
    run: &Arc<Run>,
    artefacts: &Path,
    options: &Options,
    columns: &mut Vec<NamedUsage>,
) -> Result<()> {
    natively(run, artefacts, options.only, |artefacts, kubelet| {
        one(run, artefacts, kubelet, options, columns)
    })
}

fn one(
    run: &Arc<Run>,
    artefacts: &Path,
    (name, program): (&str, PathBuf),
    options: &Options,
    columns: &mut Vec<NamedUsage>,
) -> Result<()> {
    let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
    let mut node = cluster.start_node(artefacts, NODE, program)?;
    if !options.containerd_env.is_empty() {
        node.kill_containerd()?;
        node.start_containerd_in(&variables(&options.containerd_env)?)?;
    }
    write(&node, config::CNI, &config::cni(RANGE))?;
    if options.pods_per_shim > 1 {
        share_shims(&node, options.pods_per_shim)?;
    }
    let flags = [format!("--max-pods={}", options.pods_max())];
    start_kubelet_with(&mut node, JoinMethod::BootstrapKubeconfig, &flags)?;
    await_ready(&cluster, NODE, 120)?;
    for pods in options.sizes() {
        set_pods(cluster.client(), pods, &container(STAYS))?;
        node.pass(SETTLE)?;
        let before = sample(&node);
        node.pass(options.window())?;
        let usage = NodeUsage::between(&before, &sample(&node), None);
        say::line(format!("measured: {name}, {pods} pods"));
        columns.push((format!("{name}, {pods} pods"), usage));
    }
    Ok(())
}

fn sample(node: &NativeNode) -> NodeSample {
    parse(&read_below(node.pid()))
}

/// `NAME=VALUE` in parts.
fn variables(all: &[String]) -> Result<Vec<(&str, &str)>> {
    all.iter().map(|one| one.split_once('=').with_context(|| format!("{one:?} is not NAME=VALUE"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_name_and_a_value() {
        let given = ["GOGC=50".to_owned(), "A=b=c".to_owned()];
        assert_eq!(variables(&given).unwrap(), [("GOGC", "50"), ("A", "b=c")]);
        assert!(variables(&["GOGC".to_owned()]).unwrap_err().to_string().contains("\"GOGC\" is not"));
    }
}
