//! `bench native`: what the agent costs on the native node with no pods and with many.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::built;
use crate::native::node::NativeNode;
use crate::native::pods::Pod;
use crate::run::Run;
use crate::say;

/// How long CPU time is counted.
const WINDOW: Duration = Duration::from_secs(60);

/// What a process has used so far, and holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, clock ticks.
    pub ticks: u64,
    /// Resident memory, KiB.
    pub rss_kib: u64,
    /// Its anonymous part, KiB.
    pub anon_kib: u64,
}

/// Reads `/proc/PID/stat` and `/proc/PID/status`. Pure.
#[must_use]
pub fn parse_usage(stat: &str, status: &str) -> Option<Usage> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let kib = |key: &str| -> Option<u64> {
        status.lines().find_map(|l| l.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
    };
    Some(Usage { ticks, rss_kib: kib("VmRSS:")?, anon_kib: kib("RssAnon:")? })
}

pub(super) fn usage(pid: i32) -> Result<Usage> {
    let read = |file: &str| {
        fs::read_to_string(format!("/proc/{pid}/{file}")).with_context(|| format!("read {file}"))
    };
    parse_usage(&read("stat")?, &read("status")?).context("a /proc of another kernel")
}

/// Resident memory of a process, KiB.
///
/// # Errors
/// If it has ended.
pub fn resident_kib(pid: i32) -> Result<u64> {
    Ok(usage(pid)?.rss_kib)
}

/// Thousandths of a core over a window.
#[must_use]
pub fn per_mille(before: u64, after: u64, ticks_per_second: u64, window: Duration) -> u64 {
    let available = u128::from(ticks_per_second) * window.as_millis();
    let used = u128::from(after.saturating_sub(before)) * 1_000_000;
    u64::try_from(used / available.max(1)).unwrap_or(u64::MAX)
}

/// Seconds of processor time of a process until now.
pub(super) fn processor_s(pid: i32) -> Result<f64> {
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.unwrap_or(100);
    let ticks = u32::try_from(usage(pid)?.ticks)?;
    Ok(f64::from(ticks) / f64::from(i32::try_from(per_second)?))
}

/// One line about a program that was measured twice, `window` apart.
pub(super) fn report(what: &str, name: &str, before: Usage, after: Usage, window: Duration) -> Result<()> {
    let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.unwrap_or(100);
    let cpu = per_mille(before.ticks, after.ticks, u64::try_from(ticks)?, window);
    say::line(format!(
        "{what:<10} {name:<12} {}.{} % of a core over {} s   {:>6.1} MiB resident ({:.1} MiB anonymous)",
        cpu / 10,
        cpu % 10,
        window.as_secs(),
        after.rss_kib as f64 / 1024.0,
        after.anon_kib as f64 / 1024.0,
    ));
    Ok(())
}

/// Prints what agent and containerd use over a window.
pub(super) fn measure(node: &mut NativeNode, what: &str) -> Result<()> {
    let pids = [("orlop-agent", node.agent_pid()?), ("containerd", node.containerd_pid()?)];
    let before: Vec<Usage> = pids.iter().map(|(_, pid)| usage(*pid)).collect::<Result<_>>()?;
    let start = Instant::now();
    node.pass(WINDOW)?;
    let window = start.elapsed();
    for ((name, pid), before) in pids.into_iter().zip(before) {
        report(what, name, before, usage(pid)?, window)?;
    }
    Ok(())
}

/// Runs it with `pods` static pods.
///
/// # Errors
/// If the node does not come up.
pub fn run(run: &Arc<Run>, pods: u32) -> Result<()> {
    let agent = built::agent(run, true)?;
    let artefacts = run.dir().join("bench-native");
    fs::create_dir_all(&artefacts)?;
    let mut node = NativeNode::start(run, &artefacts, agent)?;
    let start = Instant::now();
    node.start_agent_ready()?;
    say::line(format!("agent start to ready {} ms", start.elapsed().as_millis()));
    measure(&mut node, "0 pods")?;
    let start = Instant::now();
    for n in 0..pods {
        let pod = Pod::staying(&format!("bench{n:03}"));
        node.write_manifest(&pod.file(), &pod.manifest())?;
    }
    node.wait(600, "all pods to run", |v| (v.running("bench*").len() == pods as usize).then_some(()))?;
    say::line(format!(
        "{pods} static pods from manifest to running in {:.1} s",
        start.elapsed().as_secs_f64()
    ));
    node.pass(Duration::from_secs(10))?;
    measure(&mut node, &format!("{pods} pods"))?;
    drop(node);
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_behind_any_command_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 5 0 1234 1 2 3";
        let status = "Name:\ta\nVmRSS:\t   20480 kB\nRssAnon:\t    8192 kB\n";
        assert_eq!(parse_usage(stat, status), Some(Usage { ticks: 42, rss_kib: 20480, anon_kib: 8192 }));
        assert_eq!(parse_usage("7 (a) S 1", status), None);
    }

    #[test]
    fn cpu_is_counted_against_the_window() {
        assert_eq!(per_mille(100, 130, 100, Duration::from_secs(60)), 5);
        assert_eq!(per_mille(0, 6000, 100, Duration::from_secs(60)), 1000);
        assert_eq!(per_mille(5, 4, 100, Duration::ZERO), 0);
    }
}
