//! `cargo e2e conformance`: the upstream end-to-end suite against the nodes of a cluster, native or VMs.
//!
//! ```text
//! host:   harness ──► ginkgo ──► e2e.test × procs (in the plane's network, on the host's root)
//! plane:  registry of images        └─► API server        nodes: agent or upstream kubelet
//! ```
//! What comes in: the selected tests ([`Options`], the data file of [`skips`]). What goes out: a line per test as it
//! ends, the failures' messages, counts; `e2e.log`, `report.json`, `junit.xml`, `results.txt` and the nodes' logs in
//! the run's directory; results that are kept in a folder of their own (`session.rs`). Invariant: both kubelets are
//! tested in the same place with the same images.

mod contents;
pub mod images;
pub mod kept;
pub mod lines;
pub mod login;
pub mod node;
pub mod report;
pub mod selection;
mod session;
pub mod skips;
mod summary;
mod tools;
mod unit;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use orlop_image::qemu::Topology;
use serde_json::json;

use self::login::Login;
use self::selection::Part;
use self::session::{Session, Watcher};
use self::skips::Skip;
use crate::built;
use crate::cluster::fixture::{await_ready, await_serving};
use crate::cluster::flags::{ADDRESS, LOG_STREAMS_GATE, Settings};
use crate::cluster::join::{JoinMethod, start_kubelet};
use crate::cluster::plane::Cluster;
use crate::cluster::programs::{self, Suite};
use crate::cluster::vm_node::{READY_LIMIT_S, VmNode};
use crate::counts::Counts;
use crate::native::images as host;
use crate::native::node::NativeNode;
use crate::native::registry;
use crate::process::{must, stream};
use crate::run::Run;
use crate::say;

/// The selected tests, and the nodes.
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
    /// Nodes of the cluster; two with `--certified`.
    #[arg(long, conflicts_with = "node", value_parser = clap::value_parser!(u8).range(1..=9))]
    pub nodes: Option<u8>,
    /// All tests marked `[Conformance]`, slow and serial ones too, on at least two nodes; results are kept.
    #[arg(long, conflicts_with_all = ["focus", "skip", "no_skip_list", "node", "ssh"])]
    pub certified: bool,
    /// Keeps results in a folder of the cache (of the place, or NAME), and runs in parts the tests that have no result
    /// there or failed.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = session::OWN)]
    pub resume: Option<String>,
    /// Tests of a part, at most.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..=200))]
    pub part: u16,
    /// Prints the selected tests, with `--resume` their results as well, and runs none.
    #[arg(long)]
    pub list: bool,
}

impl Options {
    /// Selects the tests, all at once; `listed` are left out.
    fn whole(&self, listed: &[Skip]) -> Part {
        let focus = if self.certified { CONFORMANCE } else { self.focus.as_str() }.to_owned();
        let skips = listed.iter().map(|s| &s.skip).chain(&self.skip).cloned().collect();
        // A VM's own suite runs one test after the other.
        let alone = self.serial || self.node && !self.native;
        Part { focus, skips, procs: if alone { 1 } else { self.procs } }
    }

    /// Name of the folder of results of this suite in this place.
    fn place(&self) -> String {
        let suite = match (self.certified, self.node, self.serial) {
            (true, ..) => "certified",
            (_, true, true) => "node-serial",
            (_, true, false) => "node",
            _ => "suite",
        };
        let is_vm = self.vm || self.node && !self.native;
        let kubelet = if self.upstream { "-upstream" } else { "" };
        format!("{suite}-{}{kubelet}", if is_vm { "vm" } else { "native" })
    }

    /// Names of the nodes.
    fn names(&self) -> Vec<String> {
        let number = self.nodes.unwrap_or(if self.certified { 2 } else { 1 });
        let other = (2..=number).map(|n| format!("{NODE}{n}"));
        std::iter::once(NODE.to_owned()).chain(other).collect()
    }
}

/// Name of the first node.
const NODE: &str = "conformance";
/// Selects the tests that a certified cluster passes.
const CONFORMANCE: &str = r"\[Conformance\]";
/// Port of the images in the plane's network.
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

/// Runs the tests; returns their counts, or nothing if they are only listed.
///
/// # Errors
/// The part that did not start, or a suite without a report.
pub fn run(run: &Arc<Run>, options: &Options) -> Result<Option<Counts>> {
    let is_vm = options.vm || options.node && !options.native;
    anyhow::ensure!(is_vm || options.topology.is_none(), "only a VM has a --topology: add --vm or --node");
    anyhow::ensure!(
        !(options.node && options.upstream && is_vm),
        "--node runs the upstream kubelet on a native node only: add --native"
    );
    let names = options.names();
    anyhow::ensure!(!options.certified || names.len() > 1, "--certified wants two nodes at least");
    anyhow::ensure!(!options.ssh || names.len() == 1, "--ssh is for one node");
    let is_whole = options.no_skip_list || options.certified;
    let listed = if is_whole { Vec::new() } else { skips::listed(options.node, options.serial)? };
    let artefacts = artefacts(run)?;
    let program = if options.node { programs::node_suite(run)? } else { programs::suite(run)?.e2e };
    let session = Session::prepare(run, options, &program, &artefacts, &listed)?;
    if options.list {
        session.say_list();
        return Ok(None);
    }
    if session.is_over() {
        session.close()?;
        return Ok(Some(session.counts()));
    }
    skips::say(&listed);
    let counts = match (options.node, options.native) {
        (true, true) => node::run_native(run, options, &artefacts, session)?,
        (true, false) => node::run(run, options, &artefacts, session)?,
        (false, _) => run_in_cluster(run, options, &artefacts, session)?,
    };
    Ok(Some(counts))
}

/// The suite of a whole cluster.
fn run_in_cluster(run: &Arc<Run>, options: &Options, artefacts: &Path, session: Session) -> Result<Counts> {
    let suite = programs::suite(run)?;
    let wanted = must(run, Command::new(&suite.e2e).arg("--list-images")).context("ask for the images")?;
    let mut cluster = Cluster::start(run, artefacts, Settings { log_streams: true, ..Settings::default() })?;
    serve_images(&cluster, &artefacts.join("images"), &suite, &wanted)?;
    let (mut vms, mut native) = (Vec::new(), Vec::new());
    let names = options.names();
    for name in &names {
        if options.vm {
            let mut vm = plug(&mut cluster, artefacts, options, name)?;
            boot(&mut vm, &cluster, name)?;
            vms.push(vm);
        } else {
            native.push(start(&mut cluster, artefacts, options, name)?);
        }
    }
    for name in &names {
        await_serving(&cluster, name, 60)?;
    }
    let login = options.ssh.then(|| Login::offer(&cluster, artefacts, NODE)).transpose()?;
    let kubelet = if options.upstream { "upstream kubelet" } else { "agent" };
    let (focus, procs, nodes) = (options.whole(&[]).focus, options.procs, names.len());
    say::line(format!("{kubelet}, tests that match {focus}, {procs} at once, nodes: {nodes}"));
    session.note_versions(&cluster)?;
    let report = artefacts.join("report.json");
    let counts = session.play(|part, watcher| {
        forget(&report)?;
        let mut command = command(&suite, &cluster, artefacts, (part, nodes), login.as_ref())?;
        let ended = watch(run, &mut command, watcher)?;
        fs::read(&report).with_context(|| format!("the suite left no report ({ended})"))
    })?;
    drop((vms, native));
    Ok(counts)
}

fn artefacts(run: &Arc<Run>) -> Result<PathBuf> {
    let artefacts = run.dir().join("conformance");
    fs::create_dir_all(&artefacts).with_context(|| format!("make {}", artefacts.display()))?;
    Ok(artefacts)
}

/// Removes the report of the last part: a part without a report of its own has failed.
fn forget(report: &Path) -> Result<()> {
    match fs::remove_file(report) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("remove {}", report.display()))
        }
        _ => Ok(()),
    }
}

/// Makes the suite's images in a registry's directory, and serves it in the plane's network.
fn serve_images(cluster: &Cluster, dir: &Path, suite: &Suite, wanted: &str) -> Result<()> {
    images::make(cluster.run(), dir, suite, wanted)?;
    registry::serve_in(cluster.pid()?, PORT, dir)
}

/// A native node whose containerd finds the suite's images in the plane's network, until it is Ready.
fn start(cluster: &mut Cluster, artefacts: &Path, options: &Options, name: &str) -> Result<NativeNode> {
    let run = cluster.run().clone();
    let agent = if options.upstream { programs::kubelet(&run)? } else { built::agent(&run, false)? };
    let mut node = cluster.start_node(artefacts, name, agent)?;
    host::lead_to_registry(&node, images::REGISTRY, &format!("{ADDRESS}:{PORT}"))?;
    start_kubelet(&mut node, JoinMethod::BootstrapKubeconfig)?;
    await_ready(cluster, name, 120)?;
    Ok(node)
}

/// A VM of the built image, whose containerd finds the suite's images in the plane's network; not booted yet.
fn plug(cluster: &mut Cluster, artefacts: &Path, options: &Options, name: &str) -> Result<VmNode> {
    let mut vm = VmNode::plug(cluster, artefacts, name)?;
    vm.give_memory(options.memory);
    if let Some(topology) = options.topology {
        vm.give_topology(topology);
    }
    vm.configure("featureGates", json!({LOG_STREAMS_GATE: true}));
    vm.mirror(images::REGISTRY, &format!("http://{ADDRESS}:{PORT}"));
    Ok(vm)
}

/// Boots it until it is Ready.
fn boot(vm: &mut VmNode, cluster: &Cluster, name: &str) -> Result<()> {
    vm.boot(Some(cluster.token()))?;
    vm.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    vm.give_range(cluster)?;
    await_ready(cluster, name, READY_LIMIT_S)?;
    Ok(())
}

/// ginkgo with the suite, in the plane's network namespace: pods and nodes are reached from there.
fn command(
    suite: &Suite,
    cluster: &Cluster,
    artefacts: &Path,
    (part, nodes): (&Part, usize),
    login: Option<&Login>,
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
    command.arg(format!("--procs={}", part.procs)).arg("--output-dir").arg(artefacts);
    command.arg(format!("--focus={}", part.focus));
    command.args(part.skips.iter().map(|skip| format!("--skip={skip}")));
    command.arg(&suite.e2e).arg("--");
    command.arg("--kubeconfig").arg(cluster.inside_kubeconfig());
    command.arg("--kubectl-path").arg(cluster.kubectl_path());
    // Tests that log in themselves are skipped where the provider is not one of those with SSH.
    command.arg(if login.is_some() { "--provider=local" } else { "--provider=skeleton" });
    command.arg(format!("--num-nodes={nodes}"));
    command.args(["--node-os-distro=custom", "--disable-log-dump"]);
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

/// Runs the suite, and hands its output to `watcher`; returns the suite's exit status.
fn watch(run: &Arc<Run>, command: &mut Command, watcher: &mut Watcher<'_>) -> Result<String> {
    let status = stream(run, command, |line| watcher.line(line))?;
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

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn parsed(words: &str) -> Result<Options, clap::Error> {
        let words = std::iter::once("conformance").chain(words.split_whitespace());
        <Cli as clap::Parser>::try_parse_from(words).map(|cli| cli.options)
    }

    #[test]
    fn a_certified_run_has_all_tests_and_two_nodes() {
        let options = parsed("--certified --resume --procs 8").unwrap();
        let part = options.whole(&[]);
        assert_eq!((part.focus.as_str(), part.procs), (r"\[Conformance\]", 8));
        assert_eq!(options.names(), ["conformance", "conformance2"]);
        assert_eq!(options.resume.as_deref(), Some(session::OWN));
        assert_eq!(options.place(), "certified-native");
        for wrong in ["--focus x", "--skip x", "--node", "--no-skip-list", "--ssh", "--nodes 0"] {
            assert!(parsed(&format!("--certified {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_place_has_its_own_results() {
        let place = |words: &str| parsed(words).unwrap().place();
        assert_eq!(place("--node"), "node-vm");
        assert_eq!(place("--node --native --upstream"), "node-native-upstream");
        assert_eq!(place("--node --serial"), "node-serial-vm");
        assert_eq!(place("--vm"), "suite-vm");
        let options = parsed("--node --resume=mine --skip b").unwrap();
        assert_eq!(options.resume.as_deref(), Some("mine"));
        let listed = [Skip { skip: "a".into(), reason: "r".into(), not_with_serial: false }];
        let part = options.whole(&listed);
        assert_eq!(part.skips, ["a", "b"]);
        assert_eq!((part.focus.as_str(), part.procs), (r"\[NodeConformance\]", 1));
        assert_eq!(parsed("").unwrap().names(), ["conformance"]);
    }
}
