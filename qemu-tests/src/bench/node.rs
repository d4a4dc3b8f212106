//! `bench node`: what a node costs besides its pods, in one table: memory and processor time of every program that is not a
//! pod's, with the agent and then with the upstream kubelet, at several numbers of pods. In a VM also the kernel's own
//! memory, the boot, what is written to the disk, and a stock Debian 13 in the same QEMU.
//!
//! ```text
//! pods made ─► settle ─► first sample ─► window ─► second sample ─► a column of the table
//! ```
//! A native node has no systemd and shares the machine's kernel: what a column does not have is shown as unknown.

mod in_vm;
mod native;
mod on_stock;
mod sample;
mod table;
mod usage;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::cluster::client::ClusterClient;
use orlop_harness::run::Run;
use orlop_harness::say;
use serde_json::{Value, json};

pub(super) use self::sample::GATHER;
use self::table::{NamedUsage, table};
use super::peer::await_available;
use super::scrape::Kubelet;

/// The Node's name, which `peer::forget_ready` knows.
const NODE: &str = "peer";
/// The Deployment of the pods.
const PODS: &str = "node";
/// By then the work after a start and after many pods is over.
const SETTLE: Duration = Duration::from_secs(30);
/// Pods that a node takes beyond those of the measurement.
const SPARE_PODS: u32 = 20;

/// Options of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Numbers of pods; each is a column of the table.
    #[arg(long, value_delimiter = ',', default_value = "0,10,100")]
    pub pods: Vec<u32>,
    /// Only this kubelet.
    #[arg(long, value_enum)]
    pub only: Option<Kubelet>,
    /// Time between the two samples of a column, seconds.
    #[arg(long, default_value_t = 60)]
    pub window: u64,
    /// Pods that share a shim, with the agent; the upstream kubelet gives each pod its own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pods_per_shim: u32,
    /// Variables of containerd, for example GOGC=50.
    #[arg(long, value_delimiter = ',', conflicts_with = "vm")]
    pub containerd_env: Vec<String>,
    /// In a booted VM, with the kernel's part, beside a stock Debian 13.
    #[arg(long)]
    pub vm: bool,
    /// The VM's memory, MiB.
    #[arg(long, default_value_t = 3072, requires = "vm")]
    pub memory: u32,
    /// Without the stock Debian.
    #[arg(long, requires = "vm")]
    pub no_stock: bool,
}

impl Options {
    /// The numbers of pods, each once, the smallest first.
    fn sizes(&self) -> Vec<u32> {
        let mut sizes = self.pods.clone();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Pods that the node has to take.
    fn pods_max(&self) -> u32 {
        self.pods.iter().max().copied().unwrap_or(0).saturating_add(SPARE_PODS)
    }

    fn window(&self) -> Duration {
        Duration::from_secs(self.window.max(1))
    }
}

/// Measures, and prints the table; of a measurement that fails, the columns so far.
///
/// # Errors
/// If a node does not become Ready or its pods do not run.
pub fn run(run: &Arc<Run>, options: &Options) -> Result<()> {
    let artefacts = run.dir().join("bench-node");
    fs::create_dir_all(&artefacts)?;
    let mut columns: Vec<NamedUsage> = Vec::new();
    let measured = if options.vm {
        in_vm::measure(run, &artefacts, options, &mut columns)
    } else {
        native::measure(run, &artefacts, options, &mut columns)
    };
    table(&columns).iter().for_each(say::line);
    measured?;
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

/// Lets exactly so many pods run, each with this one container, and waits for them.
fn set_pods(client: &ClusterClient, pods: u32, container: &Value) -> Result<()> {
    let api = client.of::<Deployment>("default");
    if client.get(&api, PODS)?.is_some() {
        client.merge(&api, PODS, &json!({"spec": {"replicas": pods}}))?;
    } else if pods > 0 {
        let labels = json!({"app": PODS});
        client.create(
            &api,
            json!({"metadata": {"name": PODS}, "spec": {"replicas": pods, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "terminationGracePeriodSeconds": 1, "containers": [container]}}}}),
        )?;
    }
    if pods > 0 {
        return await_available(client, PODS, pods);
    }
    client
        .wait::<Pod, _>(&client.of("default"), 600, "all pods to be gone", |all| all.is_empty().then_some(()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Option<Options> {
        Line::try_parse_from(line.split(' ')).ok().map(|line| line.options)
    }

    #[test]
    fn each_size_is_measured_once() {
        let given = options("node --pods 100,0,10,100 --window 0").unwrap();
        assert_eq!((given.sizes(), given.pods_max()), (vec![0, 10, 100], 120));
        assert_eq!(given.window(), Duration::from_secs(1));
        assert_eq!(options("node").unwrap().sizes(), [0, 10, 100]);
        assert_eq!(options("node --pods 300,500").unwrap().pods_max(), 520);
    }

    #[test]
    fn a_shim_has_a_bounded_number_of_pods() {
        let of =
            |pods: &str| options(&format!("node --pods-per-shim {pods}")).map(|given| given.pods_per_shim);
        assert_eq!((of("1"), of("16"), of("64")), (Some(1), Some(16), Some(64)));
        assert_eq!((of("0"), of("65")), (None, None));
        assert_eq!(options("node").unwrap().pods_per_shim, 1);
    }

    #[test]
    fn what_only_a_vm_has_needs_one() {
        for line in ["node --memory 512", "node --no-stock", "node --vm --containerd-env GOGC=50"] {
            assert!(options(line).is_none(), "{line}");
        }
        assert_eq!(options("node --vm --memory 512 --no-stock").unwrap().memory, 512);
        assert_eq!(options("node --containerd-env GOGC=50,A=b").unwrap().containerd_env, ["GOGC=50", "A=b"]);
    }
}
