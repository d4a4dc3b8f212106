//! `/metrics/node` under node_exporter's names, and the rules and the dashboard of docs/monitoring against what a node tells.
//!
//! ```text
//! node ──► /metrics/node, /metrics ──► families ──► golden/node-exporter.json
//!                    │                    └───────► every metric of rules and dashboard is among them
//!                    └─► promtool check metrics     promtool check rules, test rules ◄── docs/monitoring
//! ```
//! In: the group's first node. Out: each difference. Native nodes share the machine, so its figures are known.

mod files;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use orlop_config::procfs;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined};
use orlop_harness::cluster::kubeconfig::Credentials;
use orlop_harness::cluster::node_api::NodeApi;
use orlop_harness::cluster::programs;
use orlop_harness::say;

use crate::cases::api::metrics::families::{Families, Text};
use files::{dashboard, directory, names, rules};

/// Cases of this file.
pub const CASES: &[Case] = &[CaseDefaults { level: Level::L4n, group: GROUP }.case(
    "manage/metrics",
    280,
    "the operating system's metrics are node_exporter's in name and kind; rules and dashboard find their metrics, and promtool agrees",
    metrics,
)];

const ADDRESS: &str = "172.30.0.10";
const OF_SYSTEM: &str = "/metrics/node";
/// Between two scrapes, as Prometheus' most usual interval.
const INTERVAL: Duration = Duration::from_secs(15);
/// Two lists of PLEG are at most so far apart while somebody scrapes: 105 s, a scrape, and a machine that is busy.
const LISTS_APART: Duration = Duration::from_secs(150);
/// promtool's status if the names are not what its authors would choose; node_exporter's are not.
const STYLE: i32 = 3;
/// Metrics of rules and dashboard that a native node may lack, by their beginning, with the reason.
const ABSENT: &[(&str, &str)] = &[
    (
        "kubelet_runtime_operations_errors_total",
        "a family with labels appears with its first sample: no call failed",
    ),
    ("node_cpu_package_throttles_total", "a virtual machine has no such counter"),
    ("node_hwmon_", "a virtual machine has no sensors"),
    ("node_nf_conntrack_", "the module may not be loaded"),
    ("node_systemd_", "the machine of the tests may have no systemd"),
    ("node_thermal_zone_temp", "a virtual machine has no sensors"),
    ("orlop_boot_phase_seconds", "the appliance alone has a ledger"),
    ("orlop_config_refused", "the appliance alone has a NodeConfig"),
    ("orlop_state_degraded", "the appliance alone has a state partition"),
];

fn metrics(cx: &mut CaseContext<'_>) -> Result<()> {
    let (run, artefacts) = (cx.run.clone(), cx.artefacts.clone());
    let promtool = programs::promtool(&run)?;
    let joined = Joined::shared(cx)?;
    let admin = joined.cluster.pki().node_admin()?;
    let node = NodeApi::at(&joined.cluster, ADDRESS)?;
    let (status, _) = node.get(None, OF_SYSTEM)?;
    ensure!(matches!(status, 401 | 403), "a stranger is answered with {status}");
    let mut scrapes = Vec::new();
    for (path, file) in [(OF_SYSTEM, "node.txt"), ("/metrics", "metrics.txt")] {
        let body = scrape(&node, &admin, path)?;
        let text = Text::parse(&body).with_context(|| path.to_owned())?;
        fs::create_dir_all(&artefacts).and_then(|()| fs::write(artefacts.join(file), &body))?;
        scrapes.push((artefacts.join(file), text));
    }
    let (system, own) = (&scrapes[0].1, &scrapes[1].1);
    named_as_node_exporter(system)?;
    numbers(system)?;
    found(&[system.families(), own.families()])?;
    for (file, _) in &scrapes {
        well_formed(&promtool, file)?;
    }
    check_rules(&promtool)?;
    let mut lists = Lists::of(own)?;
    let deadline = Instant::now() + LISTS_APART * 2;
    while lists.apart.is_none() {
        ensure!(Instant::now() < deadline, "PLEG has made {} lists since the first scrape", lists.seen);
        joined.nodes[0].pass(INTERVAL)?;
        lists.add(&Text::parse(&scrape(&node, &admin, "/metrics")?)?)?;
    }
    let apart = lists.apart.unwrap_or_default();
    say::line(format!("  lists of PLEG are {:.0} s apart", apart.as_secs_f64()));
    ensure!(
        apart <= LISTS_APART,
        "rules over five minutes need lists that are nearer to each other: {apart:?}"
    );
    Ok(())
}

fn scrape(node: &NodeApi<'_>, who: &Credentials, path: &str) -> Result<String> {
    let (status, body) = node.get(Some(who), path)?;
    ensure!(status == 200, "GET {path}: {status}: {body}");
    Ok(body)
}

/// Every family is node_exporter's, with the same kind and labels, but for those of this system.
fn named_as_node_exporter(system: &Text) -> Result<()> {
    let record = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/node-exporter.json");
    let text = fs::read_to_string(&record).with_context(|| format!("read {}", record.display()))?;
    let theirs = Families::of_json(&serde_json::from_str(&text).context("the record")?)?;
    let ours = system.families();
    say::line(format!("  {OF_SYSTEM}: {} families", ours.len()));
    let wrong: Vec<String> =
        ours.not_in(&theirs).into_iter().filter(|what| !what.starts_with("orlop_")).collect();
    ensure!(wrong.is_empty(), "told otherwise than node_exporter tells it:\n{}", wrong.join("\n"));
    Ok(())
}

/// The figures of this machine.
fn numbers(system: &Text) -> Result<()> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("read {path}"));
    let of = |name: &str| system.sum(name, &[]).with_context(|| format!("{name} is not told"));
    let memory = procfs::kilobytes(&read("/proc/meminfo")?, "MemTotal").context("no MemTotal")?;
    // Amounts of memory are exact in both.
    #[allow(clippy::cast_precision_loss)]
    let memory = memory as f64;
    ensure!(of("node_memory_MemTotal_bytes")? == memory, "the machine has {memory} bytes");
    let stat = read("/proc/stat")?;
    let booted = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
    let booted = booted.context("no btime")?;
    ensure!((of("node_boot_time_seconds")? - booted).abs() < 3.0, "the machine was booted at {booted}");
    let cpus = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    let cpus = f64::from(u32::try_from(cpus)?);
    ensure!(of("node_cpu_seconds_total")? > cpus, "{cpus} processors have hardly run");
    let release = read("/proc/sys/kernel/osrelease")?;
    let kernel = system.sum("node_uname_info", &[("release", release.trim())]);
    ensure!(kernel == Some(1.0), "the kernel is {release}");
    for part in ["identity", "clock"] {
        ensure!(system.sum("orlop_problem", &[("part", part)]) == Some(0.0), "a problem of {part}");
    }
    let done = |collector: &str| system.sum("node_scrape_collector_success", &[("collector", collector)]);
    for collector in
        ["cpu", "diskstats", "loadavg", "meminfo", "netdev", "netclass", "stat", "time", "uname", "vmstat"]
    {
        ensure!(done(collector) == Some(1.0), "the collector {collector} has nothing");
    }
    let took = of("node_scrape_collector_duration_seconds")?;
    say::line(format!("  the collectors took {:.1} ms", took * 1e3));
    Ok(())
}

/// Every metric of rules and dashboard is told, or a native node lacks it.
fn found(told: &[&Families]) -> Result<()> {
    let rules = rules()?;
    let recorded: Vec<&str> =
        rules.iter().filter(|rule| !rule.is_alert).map(|rule| rule.name.as_str()).collect();
    let silent = rules.iter().find(|rule| rule.is_alert && rule.runbook.is_empty());
    ensure!(silent.is_none(), "{:?} names no section", silent.map(|rule| &rule.name));
    let of_rules = rules.iter().map(|rule| rule.expr.as_str());
    let queries = dashboard()?;
    let mut missing = Vec::new();
    for name in of_rules.chain(queries.iter().map(String::as_str)).flat_map(names) {
        let family =
            ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(*end)).unwrap_or(&name);
        let is_told = told.iter().any(|families| families.has(&name) || families.has(family));
        let is_absent = ABSENT.iter().any(|(start, _)| name.starts_with(start));
        if !is_told && !is_absent && !recorded.contains(&name.as_str()) {
            missing.push(name);
        }
    }
    ensure!(missing.is_empty(), "rules and dashboard ask for what no node tells: {missing:?}");
    Ok(())
}

/// A scrape is read by Prometheus, and the names of this system are as its authors would choose them.
fn well_formed(promtool: &Path, scrape: &Path) -> Result<()> {
    let text = File::open(scrape).with_context(|| format!("open {}", scrape.display()))?;
    let output = Command::new(promtool).args(["check", "metrics"]).stdin(Stdio::from(text)).output()?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        matches!(output.status.code(), Some(0 | STYLE)),
        "{}: {}\n{words}",
        scrape.display(),
        output.status
    );
    let ours: Vec<&str> = words.lines().filter(|line| line.starts_with("orlop_")).collect();
    ensure!(ours.is_empty(), "{ours:?}");
    Ok(())
}

/// The rules are valid, and fire when they are to.
fn check_rules(promtool: &Path) -> Result<()> {
    for args in [["check", "rules", "orlop.rules.yaml"], ["test", "rules", "orlop.test.yaml"]] {
        let output = Command::new(promtool).args(args).current_dir(directory()).output()?;
        let words = [output.stdout, output.stderr].map(|words| String::from_utf8_lossy(&words).into_owned());
        ensure!(
            output.status.success(),
            "promtool {}: {}\n{}",
            args.join(" "),
            output.status,
            words.concat()
        );
    }
    Ok(())
}

/// Lists of PLEG, as scrapes show them.
struct Lists {
    count: f64,
    /// New ones since the first scrape, and when the last of them was seen.
    seen: u32,
    last: Option<Instant>,
    /// Between two new ones that are seen one after the other.
    apart: Option<Duration>,
}

impl Lists {
    fn of(first: &Text) -> Result<Lists> {
        Ok(Lists { count: count(first)?, seen: 0, last: None, apart: None })
    }

    fn add(&mut self, scrape: &Text) -> Result<()> {
        let count = count(scrape)?;
        if count > self.count {
            let now = Instant::now();
            self.apart = self.last.map(|last| now - last);
            (self.count, self.seen, self.last) = (count, self.seen + 1, Some(now));
        }
        Ok(())
    }
}

fn count(scrape: &Text) -> Result<f64> {
    scrape.sum("kubelet_pleg_relist_duration_seconds_count", &[]).context("no lists of PLEG are told")
}
