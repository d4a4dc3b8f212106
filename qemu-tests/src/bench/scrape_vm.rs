//! `bench scrape --vm`: the same VM, with cgroup v2, for both kubelets; the second one takes over the first one's pods.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::Deployment;
use orlop_harness::built;
use orlop_harness::cluster::client::ClusterClient;
use orlop_harness::cluster::fixture::{await_ready, await_serving};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::programs;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::usage::Usage;
use orlop_harness::vm::shell::Shell;
use serde_json::json;

use super::peer::{await_available, forget_ready};
use super::peer_vm::{FORGET_IDENTITY, PROGRAM, UNIT, disk_of_kubelets, start_command, usage};
use super::scrape::{Kubelet, MeasuredNode, Options, measure};

/// `forget_ready` knows it.
const NODE: &str = "peer";
/// Path of the tree's agent; the image has one of its own.
const AGENT: &str = "/var/lib/kubelet/agent";
/// The VM's memory, MiB: a hundred shims alone use a VM's default memory, and then the benchmark would measure page
/// reclaim instead of the kubelets.
const MEMORY_MIB: u32 = 3072;
/// Upstream's kubelet restarts all pods of the agent before it reports Ready, seconds under TCG.
const TAKEN_OVER_LIMIT_S: u64 = 600;
/// Hundredths of a second, on every Linux that there is an image for.
const TICKS_PER_S: f64 = 100.0;

/// Boots the VM and measures.
pub(super) fn run(run: &Arc<Run>, artefacts: &Path, options: &Options) -> Result<()> {
    let (agent, kubelet) = (built::agent(run, true)?, programs::kubelet(run)?);
    let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
    let disk = disk_of_kubelets(artefacts, &cluster, &[(&agent, AGENT), (&kubelet, PROGRAM)])?;
    let mut node = VmNode::plug(&mut cluster, artefacts, NODE)?;
    node.add_disk(disk.file());
    node.give_memory(MEMORY_MIB);
    node.give_processors(2);
    node.boot(Some(cluster.token()))?;
    node.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    node.give_range(&cluster)?;
    node.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    let address = node.wire().address();
    let shell = node.vm()?.shell()?;
    disk.unpack(shell)?;
    shell.must("systemctl stop kubelet")?;
    deploy(cluster.client(), options.pods)?;
    for which in options.kubelets() {
        let (name, program) = match which {
            Kubelet::Agent => ("agent", AGENT),
            Kubelet::Upstream => ("upstream", PROGRAM),
        };
        say::line(format!("== {name}, {} pods, in a VM ==", options.pods));
        shell.must(FORGET_IDENTITY)?;
        forget_ready(&cluster)?;
        let start = start_command(shell, program)?;
        shell.must(&start)?;
        await_ready(&cluster, NODE, TAKEN_OVER_LIMIT_S)?;
        await_serving(&cluster, NODE, 120)?;
        await_available(cluster.client(), NODE, options.pods)?;
        measure(&cluster, &mut InVm { shell }, &address, options)?;
        shell.must(&format!("systemctl stop {UNIT}"))?;
    }
    drop(node);
    Ok(())
}

fn deploy(client: &ClusterClient, pods: u32) -> Result<()> {
    let labels = json!({"app": NODE});
    let container = json!({"name": "hello", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never"});
    client.create::<Deployment>(
        &client.of("default"),
        json!({"metadata": {"name": NODE}, "spec": {"replicas": pods, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {
                "terminationGracePeriodSeconds": 1, "containers": [container]}}}}),
    )?;
    Ok(())
}

struct InVm<'a> {
    shell: &'a mut Shell,
}

impl InVm<'_> {
    fn usage(&mut self, unit: &str) -> Result<Usage> {
        usage(self.shell, unit)
    }
}

impl MeasuredNode for InVm<'_> {
    fn spent(&mut self) -> Result<[f64; 2]> {
        let seconds =
            |usage: Usage| -> Result<f64> { Ok(f64::from(u32::try_from(usage.ticks)?) / TICKS_PER_S) };
        Ok([seconds(self.usage(UNIT)?)?, seconds(self.usage("containerd.service")?)?])
    }

    fn memory_kib(&mut self) -> Result<[u64; 2]> {
        let usage = self.usage(UNIT)?;
        Ok([usage.rss_kib, usage.anon_kib])
    }

    fn pass(&mut self, moment: Duration) -> Result<()> {
        let limit = moment + Duration::from_secs(60);
        self.shell.run(&format!("sleep {:.3}", moment.as_secs_f64()), limit).context("let time pass")?;
        Ok(())
    }
}
