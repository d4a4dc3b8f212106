//! `bench streams`: many streams at once, of the agent and then of the upstream kubelet of the same release: execs that
//! echo, followers of a log that is written at 10 MB/s, and a pod that churns. Memory before, at its largest and after.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_harness::built;
use orlop_harness::cluster::churn::Churn;
use orlop_harness::cluster::fixture::{await_pod_ready, await_ready, await_serving};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::load::{self, Load};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::programs;
use orlop_harness::run::Run;
use orlop_harness::say;

use super::native::processor_s;

const NODE: &str = "peer";

/// Measures both, the agent first. A byte that the agent loses is a failure, one that upstream loses is printed.
///
/// # Errors
/// If a node does not become Ready, or a stream does not end as it must.
pub fn run(run: &Arc<Run>, load: Load) -> Result<()> {
    let kubelet = programs::kubelet(run)?;
    let agent = built::agent(run, true)?;
    for (name, program) in [("agent", agent), ("upstream", kubelet)] {
        let artefacts = run.dir().join("bench-streams").join(name);
        fs::create_dir_all(&artefacts)?;
        one(run, &artefacts, (name, &program), load)
            .with_context(|| format!("{name} ({})", artefacts.display()))?;
    }
    fs::remove_dir_all(run.dir().join("bench-streams")).context("remove the benchmark's logs")
}

fn one(run: &Arc<Run>, artefacts: &Path, (name, program): (&str, &Path), load: Load) -> Result<()> {
    say::line(format!("== {name} =="));
    let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
    let mut node = cluster.start_node(artefacts, NODE, program.to_owned())?;
    start_kubelet(&mut node, JoinMethod::BootstrapKubeconfig)?;
    await_ready(&cluster, NODE, 120)?;
    await_serving(&cluster, NODE, 60)?;
    let client = cluster.client();
    for pod in [load::writer(NODE, load.rounds), load::echoer(NODE)] {
        client.create::<k8s_openapi::api::core::v1::Pod>(&client.of("default"), pod)?;
    }
    for pod in ["writes", "echoes"] {
        await_pod_ready(&cluster, pod, 90)?;
    }
    let mut churn = Churn::start(cluster.kubeconfig(), NODE)?;
    churn.await_round(Duration::from_secs(120))?;
    let pid = node.agent_pid()?;
    let address: SocketAddr = format!("{}:10250", cluster.newest_address()?).parse()?;
    let spent = processor_s(pid)?;
    let seen = load::run(&cluster, address, pid, load)?;
    let spent = processor_s(pid)? - spent;
    let rounds = churn.finish()?;
    let mb = |bytes: usize| bytes as f64 / 1e6;
    say::line(format!(
        "{} execs echoed {:.0} MB, {} followers got {:.0} MB, in {:.1} s; {rounds} pods came and went meanwhile",
        load.execs,
        mb(seen.echoed),
        load.followers,
        mb(seen.followed),
        seen.took_s,
    ));
    let [before, most, after] = seen.resident_kib.map(|kib| kib as f64 / 1024.0);
    say::line(format!("resident {before:.1} MiB before, {most:.1} MiB at most, {after:.1} MiB after"));
    say::line(format!("processor time {spent:.1} s"));
    say::line(format!("{} streams lost bytes", seen.problems.len()));
    for problem in seen.problems.iter().take(3) {
        say::line(format!("  {problem}"));
    }
    ensure!(name != "agent" || seen.problems.is_empty(), "the agent lost bytes: {:?}", seen.problems);
    Ok(())
}
