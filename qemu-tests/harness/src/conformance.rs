//! `cargo e2e conformance`: the upstream end-to-end suite against the nodes of a cluster, native or VMs.
//!
//! ```text
//! host:   harness ──► ginkgo ──► e2e.test × procs (in the plane's network, on the host's root)
//! plane:  registry of images        └─► API server        nodes: agent or upstream kubelet
//! ```
//! In: the selected tests ([`Options`], the data file of [`skips`]). Out: a line per test as it ends, the failures'
//! messages, counts; `e2e.log`, `report.json`, `junit.xml`, `results.txt` and the nodes' logs in the run's
//! directory; results that are kept in a folder of their own (`session.rs`). Invariant: both kubelets are tested in
//! the same place with the same images.

mod contents;
pub mod images;
mod in_cluster;
mod junit;
pub mod kept;
pub mod lines;
pub mod login;
pub mod node;
mod product;
pub mod report;
pub mod selection;
mod session;
pub mod skips;
mod summary;
mod table;
pub(crate) mod tools;
mod unit;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use orlop_image::qemu::Topology;

use self::selection::Part;
use self::session::Session;
use self::skips::Skip;
use crate::cluster::addons::ProxyMode;
use crate::cluster::programs;
use crate::counts::Counts;
use crate::run::Run;

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
    /// kube-proxy in this mode, and CoreDNS; `--certified` has them in any case, in the mode iptables.
    #[arg(long, value_enum, conflicts_with = "node")]
    pub proxy_mode: Option<ProxyMode>,
    /// All tests marked `[Conformance]`, slow and serial ones too, on at least two nodes with kube-proxy and CoreDNS;
    /// results are kept.
    #[arg(long, conflicts_with_all = ["focus", "skip", "no_skip_list", "node", "ssh"])]
    pub certified: bool,
    /// Keeps results in a folder of the cache (of the place, or NAME), and runs in parts the tests that have no result
    /// there or failed.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = session::OWN)]
    pub resume: Option<String>,
    /// Takes the results of a junit file into that folder first: those of a run of the same suite in another place.
    #[arg(long, value_name = "FILE", requires = "resume")]
    pub from_junit: Option<PathBuf>,
    /// Writes the table of the kept results into docs/internals/conformance.md, too, after each part; with `--list` at once.
    #[arg(long, requires = "resume")]
    pub page: bool,
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
        let usual = self.certified.then_some(ProxyMode::Iptables);
        let mode = match self.proxy_mode {
            Some(mode) if Some(mode) != usual => format!("-{}", mode.name()),
            _ => String::new(),
        };
        format!("{suite}-{}{kubelet}{mode}", if is_vm { "vm" } else { "native" })
    }

    /// The mode of kube-proxy, if the cluster has add-ons.
    fn proxy(&self) -> Option<ProxyMode> {
        self.proxy_mode.or(self.certified.then_some(ProxyMode::Iptables))
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
        if options.page {
            session.write()?;
        }
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
        (false, _) => in_cluster::run(run, options, &artefacts, session)?,
    };
    Ok(Some(counts))
}

fn artefacts(run: &Arc<Run>) -> Result<PathBuf> {
    let artefacts = run.dir().join("conformance");
    fs::create_dir_all(&artefacts).with_context(|| format!("make {}", artefacts.display()))?;
    Ok(artefacts)
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
        for wrong in
            ["--focus x", "--skip x", "--node", "--no-skip-list", "--ssh", "--nodes 0", "--proxy-mode x"]
        {
            assert!(parsed(&format!("--certified {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_certified_cluster_has_add_ons() {
        let proxy = |words: &str| parsed(words).unwrap().proxy();
        assert_eq!(proxy(""), None);
        assert_eq!(proxy("--proxy-mode ipvs"), Some(ProxyMode::Ipvs));
        assert_eq!(proxy("--certified"), Some(ProxyMode::Iptables));
        assert_eq!(proxy("--certified --upstream --proxy-mode nftables"), Some(ProxyMode::Nftables));
        assert!(parsed("--node --proxy-mode iptables").is_err());
    }

    #[test]
    fn each_place_has_its_own_results() {
        let place = |words: &str| parsed(words).unwrap().place();
        assert_eq!(place("--node"), "node-vm");
        assert_eq!(place("--node --native --upstream"), "node-native-upstream");
        assert_eq!(place("--node --serial"), "node-serial-vm");
        assert_eq!(place("--vm"), "suite-vm");
        assert_eq!(place("--vm --proxy-mode iptables"), "suite-vm-iptables");
        assert_eq!(place("--certified --proxy-mode iptables"), "certified-native");
        assert_eq!(place("--certified --upstream --proxy-mode ipvs"), "certified-native-upstream-ipvs");
        for wrong in ["--node --page", "--node --from-junit x"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        let options = parsed("--node --resume=mine --skip b").unwrap();
        assert_eq!(options.resume.as_deref(), Some("mine"));
        let listed = [Skip { skip: "a".into(), reason: "r".into(), not_with_serial: false }];
        let part = options.whole(&listed);
        assert_eq!(part.skips, ["a", "b"]);
        assert_eq!((part.focus.as_str(), part.procs), (r"\[NodeConformance\]", 1));
        assert_eq!(parsed("").unwrap().names(), ["conformance"]);
    }
}
