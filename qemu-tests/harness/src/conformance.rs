//! `cargo e2e conformance`: the upstream end-to-end suite against one node of a cluster, native or a VM.
//!
//! ```text
//! host:   harness ──► ginkgo ──► e2e.test × procs (in the plane's network, on the host's root)
//! plane:                            └─► API server        node: agent or upstream kubelet, images from its registry
//! ```
//! What comes in: the selected tests ([`Options`], the data file of [`skips`]). What goes out: a line per test as it
//! ends, the failures' messages, counts; `e2e.log`, `report.json`, `junit.xml`, `results.txt` and the node's logs in
//! the run's directory. Invariant: both kubelets are tested in the same place with the same images.

pub mod images;
pub mod lines;
pub mod login;
pub mod node;
pub mod report;
pub mod skips;
mod unit;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use orlop_image::qemu::Topology;
use serde_json::json;

use self::login::Login;
use crate::built;
use crate::case::human;
use crate::cluster::fixture::{await_ready, await_serving};
use crate::cluster::flags::{ADDRESS, LOG_STREAMS_GATE, Settings};
use crate::cluster::join::{JoinMethod, start_kubelet};
use crate::cluster::plane::Cluster;
use crate::cluster::programs::{self, Suite};
use crate::cluster::vm_node::{READY_LIMIT_S, VmNode};
use crate::counts::Counts;
use crate::native::registry;
use crate::process::{must, stream};
use crate::run::Run;
use crate::say;

/// The selected tests, and the node.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Tests whose full name matches this regular expression.
    #[arg(long, default_value = r"\[NodeConformance\]")]
    pub focus: String,
    /// And not this one; may be repeated. On top of the list in `qemu-tests/conformance/skip.json`.
    #[arg(long)]
    pub skip: Vec<String>,
    /// Without that list.
    #[arg(long)]
    pub no_skip_list: bool,
    /// The upstream kubelet in the agent's place.
    #[arg(long)]
    pub upstream: bool,
    /// A booted VM instead of the native node: with cgroup v2 and systemd, independent of the host.
    #[arg(long, conflicts_with = "upstream")]
    pub vm: bool,
    /// The suite of the node itself (e2e_node), which runs on a booted VM, one test after the other.
    #[arg(long, conflicts_with = "vm")]
    pub node: bool,
    /// With `--node`: a native node instead of the VM, `--procs` tests at once.
    #[arg(long, requires = "node")]
    pub native: bool,
    /// With `--node`: tests may stop, configure and start the kubelet, which runs as the suite's own unit; one test at a
    /// time.
    #[arg(long, requires = "node")]
    pub serial: bool,
    /// A VM's sockets (each a NUMA node), cores of a socket and threads of a core: 2x4x1.
    #[arg(long, value_parser = topology)]
    pub topology: Option<Topology>,
    /// A VM's memory, MiB: many tests have their pods on it at once.
    #[arg(long, default_value_t = 4096)]
    pub memory: u32,
    /// Lets tests log in to the node over SSH: a pod there takes the suite's key.
    #[arg(long, conflicts_with = "node")]
    pub ssh: bool,
    /// Tests at once.
    #[arg(long, default_value_t = 4)]
    pub procs: u8,
}

const NODE: &str = "conformance";
/// Port of the images for a VM, in the plane's network.
const PORT: u16 = 5002;
/// Largest number of each part of a topology.
const PARTS_MAX: u32 = 16;

/// Reads `SOCKETSxCORESxTHREADS`. Pure.
fn topology(text: &str) -> Result<Topology, String> {
    let parts: Option<Vec<u32>> = text.split('x').map(|part| part.parse().ok()).collect();
    match parts.as_deref() {
        Some(&[sockets, cores, threads])
            if [sockets, cores, threads].iter().all(|part| (1..=PARTS_MAX).contains(part)) =>
        {
            Ok(Topology { sockets, cores, threads })
        }
        _ => Err(format!("three numbers from 1 to {PARTS_MAX}, as in 2x4x1")),
    }
}

/// Runs the tests; returns the counts of those that began.
///
/// # Errors
/// The part that did not start, or a suite without a report.
pub fn run(run: &Arc<Run>, options: &Options) -> Result<Counts> {
    let listed = if options.no_skip_list { Vec::new() } else { skips::listed(options.node, options.serial)? };
    let is_vm = options.vm || options.node && !options.native;
    anyhow::ensure!(is_vm || options.topology.is_none(), "only a VM has a --topology: add --vm or --node");
    if options.node && options.native {
        return node::run_native(run, options, &listed);
    }
    if options.node {
        anyhow::ensure!(
            !options.upstream,
            "--node runs the upstream kubelet on a native node only: add --native"
        );
        return node::run(run, options, &listed);
    }
    let suite = programs::suite(run)?;
    let artefacts = artefacts(run)?;
    let wanted = must(run, Command::new(&suite.e2e).arg("--list-images")).context("ask for the images")?;
    let mut cluster = Cluster::start(run, &artefacts, Settings { log_streams: true, ..Settings::default() })?;
    let (mut vm, mut native) = (None, None);
    if options.vm {
        let mut plugged = plugged(&mut cluster, &artefacts, options, (&suite, &wanted))?;
        boot(&mut plugged, &cluster)?;
        vm = Some(plugged);
    } else {
        let agent = if options.upstream { programs::kubelet(run)? } else { built::agent(run, false)? };
        let mut node = cluster.start_node(&artefacts, NODE, agent)?;
        images::serve(run, &node, &suite, &wanted)?;
        start_kubelet(&mut node, JoinMethod::BootstrapKubeconfig)?;
        await_ready(&cluster, NODE, 120)?;
        native = Some(node);
    }
    await_serving(&cluster, NODE, 60)?;
    let login = options.ssh.then(|| Login::offer(&cluster, &artefacts, NODE)).transpose()?;
    let kubelet = if options.upstream { "upstream kubelet" } else { "agent" };
    say::line(format!("{kubelet}, tests that match {}, {} at once", options.focus, options.procs));
    skips::say(&listed);
    let start = Instant::now();
    let skipped: Vec<&str> = listed.iter().map(|s| s.skip.as_str()).collect();
    let mut command = command(&suite, &cluster, &artefacts, options, (&skipped, login.as_ref()))?;
    let ended = watch(run, &mut command, &artefacts.join("e2e.log"))?;
    let report = fs::read(artefacts.join("report.json")).with_context(|| {
        format!("the suite left no report ({ended}): see {}/e2e.log", artefacts.display())
    })?;
    let counts = write_results(&artefacts, &report)?;
    say::line(format!("\n{}; everything is in {}", human(start.elapsed()), artefacts.display()));
    drop((vm, native));
    Ok(counts)
}

fn artefacts(run: &Arc<Run>) -> Result<PathBuf> {
    let artefacts = run.dir().join("conformance");
    fs::create_dir_all(&artefacts).with_context(|| format!("make {}", artefacts.display()))?;
    Ok(artefacts)
}

/// Writes the report's results, and prints the failures with their reasons.
fn write_results(artefacts: &Path, report: &[u8]) -> Result<Counts> {
    let results = report::results(report)?;
    fs::write(artefacts.join("results.txt"), report::table(&results)).context("write the results")?;
    for failure in results.iter().filter(|r| r.verdict == report::Verdict::Failed) {
        say::line(format!("\nFAILED {}\n{}", failure.name, report::indented(&failure.message)));
    }
    Ok(report::counts(&results))
}

/// A VM of the built image, whose containerd finds the suite's images in the plane's network; not booted yet.
fn plugged(
    cluster: &mut Cluster,
    artefacts: &Path,
    options: &Options,
    (suite, wanted): (&Suite, &str),
) -> Result<VmNode> {
    let dir = artefacts.join("images");
    images::make(cluster.run(), &dir, suite, wanted)?;
    registry::serve_in(cluster.pid()?, PORT, &dir)?;
    let mut vm = VmNode::plug(cluster, artefacts, NODE)?;
    vm.give_memory(options.memory);
    if let Some(topology) = options.topology {
        vm.give_topology(topology);
    }
    vm.configure("featureGates", json!({LOG_STREAMS_GATE: true}));
    vm.mirror(images::REGISTRY, &format!("http://{ADDRESS}:{PORT}"));
    Ok(vm)
}

/// Boots it until it is Ready.
fn boot(vm: &mut VmNode, cluster: &Cluster) -> Result<()> {
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(cluster)?;
    await_ready(cluster, NODE, READY_LIMIT_S)?;
    Ok(())
}

/// ginkgo with the suite, in the plane's network namespace: pods and nodes are reached from there.
fn command(
    suite: &Suite,
    cluster: &Cluster,
    artefacts: &Path,
    options: &Options,
    (listed, login): (&[&str], Option<&Login>),
) -> Result<Command> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--target={}", cluster.pid()?)).args(["--net", "--"]);
    if let Some(login) = login {
        login.lead(&mut command);
    }
    command.arg(&suite.ginkgo);
    command.args([
        "-v",
        "--no-color",
        "--timeout=4h",
        "--json-report=report.json",
        "--junit-report=junit.xml",
    ]);
    command.arg(format!("--procs={}", options.procs)).arg("--output-dir").arg(artefacts);
    command.arg(format!("--focus={}", options.focus));
    for skip in listed.iter().copied().chain(options.skip.iter().map(String::as_str)) {
        command.arg(format!("--skip={skip}"));
    }
    command.arg(&suite.e2e).arg("--");
    command.arg("--kubeconfig").arg(cluster.inside_kubeconfig());
    command.arg("--kubectl-path").arg(cluster.kubectl_path());
    // Tests that log in themselves are skipped where the provider is not one of those with SSH.
    command.arg(if login.is_some() { "--provider=local" } else { "--provider=skeleton" });
    command.args(["--num-nodes=1", "--node-os-distro=custom", "--disable-log-dump"]);
    // After a failed test it would ask the kubelet for metrics for two minutes. The harness keeps the logs in any case.
    command.arg("--dump-logs-on-failure=false");
    command.arg("--e2e-output-dir").arg(artefacts);
    // Programs must neither read nor write the user's own files.
    command.current_dir(artefacts).env("HOME", cluster.dir()).env_remove("KUBECONFIG");
    for proxy in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] {
        command.env_remove(proxy);
    }
    Ok(command)
}

/// Runs the suite, keeps its output, and prints a line for every test that ends; returns the suite's exit status.
fn watch(run: &Arc<Run>, command: &mut Command, log: &Path) -> Result<String> {
    let mut log = BufWriter::new(File::create(log).with_context(|| format!("make {}", log.display()))?);
    let mut lines = lines::Lines::default();
    let status = stream(run, command, |line| {
        // A disk that is full shows in the missing report.
        let _ = writeln!(log, "{line}");
        if let Some(ended) = lines.next(line) {
            say::line(ended);
        }
    })?;
    log.flush().context("write the suite's output")?;
    Ok(status.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_has_three_numbers() {
        assert_eq!(topology("2x4x1"), Ok(Topology { sockets: 2, cores: 4, threads: 1 }));
        for wrong in ["", "2", "2x4", "2x4x0", "2x4x17", "2x4x1x1", "2 x4x1", "-1x1x1", "axbxc"] {
            assert!(topology(wrong).is_err(), "{wrong}");
        }
    }
}
