//! `bench scrape`: the cost of a kubelet's answers about statistics and metrics, first the agent's and then the
//! upstream kubelet's, in the same environment: a native node of a cluster of its own each, or (`--vm`) one booted VM,
//! whose pods the second one takes over.
//!
//! ```text
//! no requests ─► a minute as Prometheus and metrics-server ask ─► each path by itself
//! ```
//! Out: processor time of kubelet and containerd in each minute and of each answer, the duration of an answer,
//! its size, memory. Requests use one connection and accept gzip, as Prometheus does.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::client::Body;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use orlop_harness::built;
use orlop_harness::cluster::fixture::{await_ready, await_serving};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::node_api::{NodeApi, User};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::programs;
use orlop_harness::native::node::NativeNode;
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::usage::{resident_kib, usage};

use super::peer::scale;
use super::scrape_vm;

/// Options of the measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Pods on the node.
    #[arg(long, default_value_t = 100)]
    pub pods: u32,
    /// Answers of each path.
    #[arg(long, default_value_t = 20)]
    pub answers: u32,
    /// Only this one.
    #[arg(long, value_enum)]
    pub only: Option<Kubelet>,
    /// In a booted VM, with cgroup v2.
    #[arg(long)]
    pub vm: bool,
}

/// The measured kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kubelet {
    /// Ours.
    Agent,
    /// The upstream kubelet.
    Upstream,
}

impl Options {
    /// The measured kubelets, in order.
    pub(super) fn kubelets(&self) -> impl Iterator<Item = Kubelet> + use<> {
        both(self.only)
    }
}

/// Both, the agent first, or only this one.
pub(super) fn both(only: Option<Kubelet>) -> impl Iterator<Item = Kubelet> {
    let all = [Kubelet::Agent, Kubelet::Upstream];
    all.into_iter().filter(move |kubelet| only.is_none_or(|only| only == *kubelet))
}

/// By then the work after a start and after a hundred pods is over.
pub(super) const SETTLE: Duration = Duration::from_secs(30);
/// Window of the processor time.
const WINDOW: Duration = Duration::from_secs(60);
/// Period of the requests of Prometheus and metrics-server in the window.
const EVERY: Duration = Duration::from_secs(15);
/// Pause between two answers of one path.
const PAUSE: Duration = Duration::from_secs(1);
/// Requests of Prometheus with kube-prometheus' configuration, and of metrics-server.
const ASKED: [&str; 4] = ["/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource"];
/// Paths that are measured one by one.
const PATHS: [&str; 6] = [
    "/stats/summary",
    "/stats/summary?only_cpu_and_memory=true",
    "/metrics/cadvisor",
    "/metrics/resource",
    "/metrics",
    "/metrics/probes",
];

/// Measured where it is answered: the upstream kubelet does not have it.
const OF_SYSTEM: &str = "/metrics/node";

/// A node whose programs' usage can be read.
pub(super) trait MeasuredNode {
    /// Seconds of processor time of kubelet and containerd so far.
    fn spent(&mut self) -> Result<[f64; 2]>;
    /// Resident and anonymous memory of the kubelet, KiB.
    fn memory_kib(&mut self) -> Result<[u64; 2]>;
    /// Lets time pass.
    fn pass(&mut self, moment: Duration) -> Result<()>;
}

/// Measures both, the agent first.
///
/// # Errors
/// If a node does not become Ready or its pods do not run.
pub fn run(run: &Arc<Run>, options: &Options) -> Result<()> {
    let artefacts = run.dir().join("bench-scrape");
    fs::create_dir_all(&artefacts)?;
    if options.vm {
        scrape_vm::run(run, &artefacts, options)?;
    } else {
        natively(run, &artefacts, options.only, |artefacts, kubelet| {
            native(run, artefacts, kubelet, options)
        })?;
    }
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

/// Has both measured, or only this one, each with a directory of its own, by its name and its program.
pub(super) fn natively(
    run: &Arc<Run>,
    artefacts: &Path,
    only: Option<Kubelet>,
    mut measure: impl FnMut(&Path, (&str, PathBuf)) -> Result<()>,
) -> Result<()> {
    for kubelet in both(only) {
        let (name, program) = match kubelet {
            Kubelet::Agent => ("agent", built::agent(run, true)?),
            Kubelet::Upstream => ("upstream", programs::kubelet(run)?),
        };
        let artefacts = artefacts.join(name);
        fs::create_dir_all(&artefacts)?;
        measure(&artefacts, (name, program)).with_context(|| format!("{name} ({})", artefacts.display()))?;
    }
    Ok(())
}

fn native(run: &Arc<Run>, artefacts: &Path, (name, program): (&str, PathBuf), of: &Options) -> Result<()> {
    say::line(format!("== {name}, {} pods ==", of.pods));
    let mut cluster = Cluster::start(run, artefacts, Settings::default())?;
    let mut node = cluster.start_node(artefacts, "peer", program)?;
    start_kubelet(&mut node, JoinMethod::BootstrapKubeconfig)?;
    await_ready(&cluster, "peer", 120)?;
    await_serving(&cluster, "peer", 60)?;
    scale(&cluster, of.pods)?;
    measure(&cluster, &mut node, &cluster.newest_address()?, of)
}

/// All figures of one kubelet.
pub(super) fn measure(
    cluster: &Cluster,
    node: &mut impl MeasuredNode,
    address: &str,
    of: &Options,
) -> Result<()> {
    let api = NodeApi::at(cluster, address)?;
    let user = api.as_user(Some(&cluster.pki().node_admin()?))?;
    node.pass(SETTLE)?;
    let idle = minute(node, |node, rest| node.pass(rest))?;
    report("a minute in which nobody asks", idle, idle);
    let asked = minute(node, |node, mut rest| {
        while rest > Duration::ZERO {
            let start = Instant::now();
            for path in ASKED {
                ask(&user, path)?;
            }
            let step = EVERY.min(rest);
            node.pass(step.saturating_sub(start.elapsed()))?;
            rest -= step;
        }
        Ok(())
    })?;
    report("a minute with Prometheus and metrics-server, every 15 s", asked, idle);
    let [resident, anonymous] = node.memory_kib()?;
    let mib = |kib: u64| kib as f64 / 1024.0;
    say::line(format!("memory after it: {:.1} MiB ({:.1} anonymous)", mib(resident), mib(anonymous)));
    for path in PATHS {
        each(node, &user, path, of.answers, idle)?;
    }
    if ask(&user, OF_SYSTEM).is_ok() {
        each(node, &user, OF_SYSTEM, of.answers, idle)?;
    }
    Ok(())
}

/// Seconds of processor time in a minute.
pub(super) fn minute<N: MeasuredNode>(
    node: &mut N,
    work: impl FnOnce(&mut N, Duration) -> Result<()>,
) -> Result<[f64; 2]> {
    let (before, start) = (node.spent()?, Instant::now());
    work(node, WINDOW)?;
    let (after, took) = (node.spent()?, start.elapsed());
    Ok([0, 1].map(|n| (after[n] - before[n]) * WINDOW.as_secs_f64() / took.as_secs_f64()))
}

fn report(what: &str, spent: [f64; 2], idle: [f64; 2]) {
    let ms = |s: f64| s * 1000.0;
    let [kubelet, containerd] = spent.map(ms);
    let more = ms(spent.iter().sum::<f64>() - idle.iter().sum::<f64>());
    say::line(format!("{what}: kubelet {kubelet:.0} ms, containerd {containerd:.0} ms ({more:+.0} ms)"));
}

/// The cost of one path. The usage without requests is subtracted, and printed.
fn each(
    node: &mut impl MeasuredNode,
    user: &User<'_>,
    path: &str,
    answers: u32,
    idle: [f64; 2],
) -> Result<()> {
    let (before, start) = (node.spent()?, Instant::now());
    let (mut took, mut bytes) = (Vec::new(), 0);
    for _ in 0..answers {
        let begin = Instant::now();
        bytes = ask(user, path)?;
        took.push(begin.elapsed());
        node.pass(PAUSE)?;
    }
    let (after, elapsed) = (node.spent()?, start.elapsed());
    took.sort_unstable();
    let share = elapsed.as_secs_f64() / WINDOW.as_secs_f64();
    let per_answer = [0, 1].map(|n| (after[n] - before[n]) * 1000.0 / f64::from(answers));
    let without = [0, 1].map(|n| per_answer[n] - idle[n] * share * 1000.0 / f64::from(answers));
    let median = took.get(took.len() / 2).copied().unwrap_or_default();
    say::line(format!(
        "{path}: kubelet {:.2} ms ({:.2} without idle), containerd {:.2} ms ({:.2}), answer after {:.1} ms, {bytes} bytes",
        per_answer[0],
        without[0],
        per_answer[1],
        without[1],
        median.as_secs_f64() * 1000.0
    ));
    Ok(())
}

fn ask(user: &User<'_>, path: &str) -> Result<usize> {
    let request = http::Request::builder().uri(path).header("accept-encoding", "gzip");
    let (status, body) = user.send(request.body(Body::empty())?)?;
    ensure!(status == 200, "{path} is answered {status}: {}", String::from_utf8_lossy(&body));
    Ok(body.len())
}

impl MeasuredNode for NativeNode {
    fn spent(&mut self) -> Result<[f64; 2]> {
        let seconds = |pid: i32| -> Result<f64> {
            let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid)).context("a process' clock")?;
            Ok(Duration::from(clock_gettime(clock).context("read a process' clock")?).as_secs_f64())
        };
        Ok([seconds(self.agent_pid()?)?, seconds(self.containerd_pid()?)?])
    }

    fn memory_kib(&mut self) -> Result<[u64; 2]> {
        let pid = self.agent_pid()?;
        Ok([resident_kib(pid)?, usage(pid)?.anon_kib])
    }

    fn pass(&mut self, moment: Duration) -> Result<()> {
        NativeNode::pass(self, moment)
    }
}
