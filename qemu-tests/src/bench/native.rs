//! `bench native`: the cost of the agent on the native node without pods and with many.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use orlop_harness::built;
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::pods::Pod;
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::usage::{Usage, usage};

/// Window of the CPU time.
const WINDOW: Duration = Duration::from_secs(60);

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

/// Prints the usage of agent and containerd over a window.
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
    fn cpu_is_counted_against_the_window() {
        assert_eq!(per_mille(100, 130, 100, Duration::from_secs(60)), 5);
        assert_eq!(per_mille(0, 6000, 100, Duration::from_secs(60)), 1000);
        assert_eq!(per_mille(5, 4, 100, Duration::ZERO), 0);
    }
}
