//! `orlop-e2e`: command line of the harness. Decides nothing: selects, runs, prints the closing line.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use orlop_harness::cluster::addons::{Cni, ProxyMode};
use orlop_harness::cluster::play::Kind;
use orlop_harness::counts::Counts;
use orlop_harness::run::{Run, clean_stale};
use orlop_harness::runner::{Options, run_cases};
use orlop_harness::{cluster, conformance, history, native, prepare, say, select, selftest, signals};
use orlop_image::arch::Arch;
use orlop_qemu_tests::{bench, cases};

/// Cases on the native node and in booted VMs, benchmarks, and every test there is.
#[derive(Parser)]
#[command(name = "orlop-e2e")]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Lists the cases with their level and expected duration.
    List,
    /// Runs the cases that the patterns name (`boot/*`, `lifecycle/static-pod-add`).
    Run {
        /// Names or patterns with `*` and `?`.
        #[arg(required = true)]
        patterns: Vec<String>,
        /// Take the image as the last build left it.
        #[arg(long)]
        as_built: bool,
        #[command(flatten)]
        how: RunOptions,
    },
    /// Builds the image for arm64 and boots it on an emulated machine.
    #[command(name = "arm64")]
    Arm64 {
        /// Take that image as its last build left it.
        #[arg(long)]
        as_built: bool,
        #[command(flatten)]
        how: RunOptions,
    },
    /// Format, lints, all tests, documentation, licences, then a fixed set of cases.
    Selftest {
        /// All cases instead of the fixed set.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        how: RunOptions,
    },
    /// Measures; prints figures and judges nothing.
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// A cluster to play with: control plane and nodes, until Ctrl-C.
    Cluster {
        /// Number of nodes.
        #[arg(long, default_value_t = 1)]
        nodes: u8,
        /// Booted VMs instead of native nodes.
        #[arg(long)]
        vm: bool,
        /// The upstream kubelet in the agent's place.
        #[arg(long, conflicts_with = "vm")]
        upstream: bool,
        /// With kube-proxy, CoreDNS and metrics-server.
        #[arg(long)]
        addons: bool,
        /// The part of the kernel that kube-proxy uses.
        #[arg(long, value_enum, default_value_t = ProxyMode::Iptables, requires = "addons")]
        proxy_mode: ProxyMode,
        /// The add-on that brings the pod network. Without it the nodes have the harness's own.
        #[arg(long, value_enum, requires = "addons")]
        cni: Option<Cni>,
        /// Take the image as the last build left it.
        #[arg(long)]
        as_built: bool,
    },
    /// The upstream end-to-end suite against the nodes of a cluster.
    Conformance {
        #[command(flatten)]
        what: conformance::Options,
        /// Take the image as the last build left it.
        #[arg(long)]
        as_built: bool,
    },
    /// First steps of a native node: joins the cgroups, enters new namespaces (used by the harness itself).
    #[command(hide = true)]
    NodeLaunch {
        /// The node's cgroups.
        cgroups: Vec<PathBuf>,
    },
    /// First process of a native node (used by the harness itself).
    #[command(hide = true)]
    NodeSupervisor,
    /// Kills a process before its n-th step of a kind (used by the harness itself).
    #[command(hide = true)]
    KillBeforeStep {
        /// The process.
        pid: i32,
        /// The kind of steps.
        steps: native::steps::Steps,
        /// Number of the step, from 1.
        nth: usize,
    },
    /// A CSI driver of the machine that it runs in (used by cases in VMs).
    #[command(hide = true)]
    CsiDriver {
        /// Name of the driver.
        name: String,
    },
    /// Removes the remains of interrupted runs.
    Clean,
}

#[derive(Subcommand)]
enum Bench {
    /// The boot ledger next to a stock Debian 13 in the same QEMU.
    Boot {
        /// Number of boots.
        #[arg(long, default_value_t = 1)]
        times: u32,
        /// Only Orlop: to compare two images.
        #[arg(long)]
        alone: bool,
    },
    /// The agent's memory and CPU time on the native node.
    Native {
        /// Static pods of the second measurement.
        #[arg(long, default_value_t = 100)]
        pods: u32,
    },
    /// What a node costs besides its pods: a table of every program's memory and processor time, and of the kernel's.
    Node {
        #[command(flatten)]
        how: bench::node::Options,
    },
    /// The agent and the upstream kubelet, each on a native node of a cluster.
    Peer {
        /// Pods of the second measurement.
        #[arg(long, default_value_t = 100)]
        pods: u32,
        /// Only the starts and the time until all pods run, not the usage of idle nodes.
        #[arg(long)]
        burst: bool,
        /// In a booted VM, without pods.
        #[arg(long, conflicts_with = "burst")]
        vm: bool,
        /// The VM's processors.
        #[arg(long, default_value_t = 2, requires = "vm")]
        processors: u32,
    },
    /// The cost of statistics and metrics: the agent, then the upstream kubelet.
    Scrape {
        #[command(flatten)]
        how: bench::scrape::Options,
    },
    /// Many pods with projected volumes whose objects change: the agent, then the upstream kubelet.
    Projected {
        #[command(flatten)]
        how: bench::projected::Options,
    },
    /// Deployments that are rolled over under requests and kills: the agent, then the upstream kubelet.
    Rollover {
        #[command(flatten)]
        how: bench::rollover::Options,
    },
    /// Sizes of the build output.
    Size,
    /// Many streams at once, of the agent and of the upstream kubelet: execs that echo, followers of a log at 10 MB/s,
    /// a pod that churns.
    Streams {
        /// Execs at once.
        #[arg(long, default_value_t = 50)]
        execs: usize,
        /// Megabytes that each of them echoes.
        #[arg(long, default_value_t = 10)]
        echo_mb: usize,
        /// Followers at once.
        #[arg(long, default_value_t = 200)]
        followers: usize,
        /// Megabytes of the log, a tenth of a second apart.
        #[arg(long, default_value_t = 30)]
        rounds: usize,
    },
    /// Many pods on one node: all run and go again; memory and CPU time.
    Dense {
        #[command(flatten)]
        how: bench::dense::Options,
    },
    /// The time from a shortage of memory to the end of the evicted pod, of the agent and of the upstream kubelet, in a
    /// VM.
    Eviction {
        /// Number of rounds with each.
        #[arg(long, default_value_t = 5)]
        rounds: u32,
    },
    /// Single pods of the API, one after the other: the duration, and the part of it in calls of the runtime.
    Start {
        /// Number of pods.
        #[arg(long, default_value_t = 50)]
        pods: u32,
    },
    /// Many pods by calls of the runtime alone, without any kubelet.
    Floor {
        #[command(flatten)]
        how: bench::floor::Options,
    },
    /// A VM that updates itself: downtime, bytes from the network, the updater's memory; next to a plain reboot.
    Update,
}

#[derive(clap::Args)]
struct RunOptions {
    /// Groups of cases at once; two of them at most with VMs.
    #[arg(long, default_value_t = 3)]
    jobs: usize,
    /// Repeats a run's random choices.
    #[arg(long)]
    seed: Option<u64>,
    /// Cases that fail (five at most) run again, alone, at the end, up to twice; always so in a selftest.
    #[arg(long)]
    again: bool,
}

impl RunOptions {
    fn options(&self) -> Options {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| u64::from(d.subsec_nanos()));
        Options {
            jobs: self.jobs,
            seed: self.seed.unwrap_or(clock),
            again: self.again,
            until: None,
            touched: BTreeSet::new(),
            history: Some(history::file()),
        }
    }
}

/// When a selftest's cases must be over, seconds since 1970. With this variable a selftest adds cases to the fixed set.
const UNTIL: &str = "ORLOP_SELFTEST_UNTIL";

fn until() -> Result<Option<SystemTime>> {
    let Some(text) = std::env::var_os(UNTIL).filter(|text| !text.is_empty()) else { return Ok(None) };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    let at = seconds.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
    at.map(Some).with_context(|| format!("{UNTIL} is {text:?}, not seconds since 1970 (`date +%s`)"))
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(e) => {
            say::line(format!("orlop-e2e: {e:#}"));
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode> {
    match &cli.command {
        Verb::List => {
            say::line(select::render_list(&cases::all()).trim_end());
            Ok(ExitCode::SUCCESS)
        }
        Verb::Run { patterns, as_built, how } => {
            let chosen = select::select(&cases::all(), patterns)
                .map_err(|p| anyhow::anyhow!("no case is named {p}; `orlop-e2e list` shows them"))?;
            let options = how.options();
            counted(|run| {
                if !as_built && prepare::needs_image(&chosen) {
                    prepare::host()?;
                    anyhow::ensure!(prepare::image(run)?, "the image does not build");
                }
                run_cases(run, &chosen, options).map(Some)
            })
        }
        Verb::Arm64 { as_built, how } => {
            let chosen = select::select(&cases::all(), &["arm64/*".to_owned()])
                .map_err(|p| anyhow::anyhow!("no case is named {p}"))?;
            let options = how.options();
            counted(|run| {
                prepare::host()?;
                prepare::machine_of(Arch::Arm64)?;
                if !as_built {
                    anyhow::ensure!(
                        prepare::image_of(run, Arch::Arm64)?,
                        "the image for arm64 does not build"
                    );
                }
                run_cases(run, &chosen, options).map(Some)
            })
        }
        Verb::Selftest { all, how } => {
            let options = Options { again: true, until: until()?, ..how.options() };
            let which = if *all { selftest::Cases::All } else { selftest::Cases::Fixed };
            counted(|run| selftest::run(run, &cases::all(), options, which).map(Some))
        }
        Verb::Bench { what } => counted(|run| {
            match what {
                Bench::Boot { times, alone } => bench::boot::run(run, *times, *alone)?,
                Bench::Native { pods } => bench::native::run(run, *pods)?,
                Bench::Node { how } => bench::node::run(run, how)?,
                Bench::Peer { vm: true, processors, .. } => bench::peer_vm::run(run, *processors)?,
                Bench::Peer { pods, burst, .. } => bench::peer::run(run, *pods, *burst)?,
                Bench::Scrape { how } => bench::scrape::run(run, how)?,
                Bench::Projected { how } => bench::projected::run(run, how)?,
                Bench::Rollover { how } => bench::rollover::run(run, how)?,
                Bench::Size => bench::size::run(run)?,
                Bench::Streams { execs, echo_mb, followers, rounds } => {
                    let echo_bytes = echo_mb * 1_000_000;
                    let load = cluster::load::Load {
                        execs: *execs,
                        echo_bytes,
                        followers: *followers,
                        rounds: *rounds,
                    };
                    bench::streams::run(run, load)?;
                }
                Bench::Dense { how } => bench::dense::run(run, how)?,
                Bench::Eviction { rounds } => bench::eviction::run(run, *rounds)?,
                Bench::Start { pods } => bench::start::run(run, *pods)?,
                Bench::Floor { how } => bench::floor::run(run, how)?,
                Bench::Update => bench::update::run(run)?,
            }
            Ok(None)
        }),
        Verb::Cluster { nodes, vm, upstream, addons, proxy_mode, cni, as_built } => counted(|run| {
            prepare::host()?;
            if !as_built && *nodes > 0 {
                anyhow::ensure!(prepare::image(run)?, "the image does not build");
            }
            let kind = match (vm, upstream) {
                (true, _) => Kind::Vm,
                (false, true) => Kind::Upstream,
                (false, false) => Kind::Agent,
            };
            let choice = cluster::play::AddOnChoice { mode: *proxy_mode, cni: *cni };
            cluster::play::run(run, *nodes, kind, addons.then_some(choice)).map(|()| None)
        }),
        Verb::Conformance { what, as_built } => counted(|run| {
            prepare::host()?;
            prepare::suite()?;
            if !as_built && !what.list {
                anyhow::ensure!(prepare::image(run)?, "the image does not build");
            }
            conformance::run(run, what)
        }),
        Verb::NodeLaunch { cgroups } => native::supervisor::launch(cgroups).map(|()| ExitCode::SUCCESS),
        Verb::NodeSupervisor => native::supervisor::main().map(|()| ExitCode::SUCCESS),
        Verb::KillBeforeStep { pid, steps, nth } => {
            native::steps::kill_before(*pid, *steps, *nth).map(|()| ExitCode::SUCCESS)
        }
        Verb::CsiDriver { name } => cluster::csi_here::serve(name).map(|()| ExitCode::SUCCESS),
        Verb::Clean => {
            clean_stale()?.iter().for_each(say::line);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A run with signals watched; its resources are removed before the closing line (if there are counts).
fn counted(work: impl FnOnce(&Arc<Run>) -> Result<Option<Counts>>) -> Result<ExitCode> {
    clean_stale()?.iter().for_each(say::line);
    let run = Run::start().context("start a run")?;
    signals::watch(run.clone())?;
    let result = work(&run);
    for problem in run.close() {
        say::line(format!("left behind: {problem}"));
    }
    let Some(counts) = result? else { return Ok(ExitCode::SUCCESS) };
    let left_out = run.left_out();
    if !left_out.is_empty() {
        say::line(format!("not run, no time was left: {}", left_out.join(" ")));
    }
    for unsteady in run.unsteady() {
        say::line(format!("unsteady, it passed when it ran again: {unsteady}"));
    }
    for failure in run.failures() {
        say::line(format!("failed: {failure}"));
    }
    say::line(counts.to_string());
    Ok(if counts.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
