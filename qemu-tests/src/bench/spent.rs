//! Processor time during the start of pods, by program: the control plane's programs, the kubelet, containerd, what
//! containerd starts (CNI plugins, shims' starters), and the rest of the node (shims, the OCI runtime, the containers).
//!
//! In: `/proc` and the node's cpuacct group. Out: seconds by name, and their differences.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::native::node::NativeNode;

/// Seconds of processor time so far, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuSeconds(BTreeMap<String, f64>);

impl CpuSeconds {
    /// The times so far.
    ///
    /// # Errors
    /// If a program has ended.
    pub fn now(cluster: &Cluster, node: &NativeNode) -> Result<CpuSeconds> {
        let kubelet = of(node.agent_pid()?)?;
        let CpuSeconds(mut spent) = CpuSeconds::beside(node, &kubelet)?;
        for pid in children(cluster.pid()?)? {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            *spent.entry(comm.trim().to_owned()).or_default() += of(pid)?.own;
        }
        spent.insert("kubelet".into(), kubelet.own);
        Ok(CpuSeconds(spent))
    }

    /// The times of a node without a kubelet.
    ///
    /// # Errors
    /// If containerd has ended.
    pub fn runtime(node: &NativeNode) -> Result<CpuSeconds> {
        CpuSeconds::beside(node, &Times::default())
    }

    fn beside(node: &NativeNode, kubelet: &Times) -> Result<CpuSeconds> {
        let containerd = of(node.containerd_pid()?)?;
        let mut spent = BTreeMap::new();
        spent.insert("containerd".into(), containerd.own);
        spent.insert("started by containerd".into(), containerd.reaped);
        if let Some(all) = of_group(node) {
            let rest = all - kubelet.own - kubelet.reaped - containerd.own - containerd.reaped;
            spent.insert("shims, OCI runtime, containers".into(), rest);
        }
        Ok(CpuSeconds(spent))
    }

    /// The time since `before`, the largest first.
    #[must_use]
    pub fn since(&self, before: &CpuSeconds) -> String {
        let mut all: Vec<(f64, &String)> =
            self.0.iter().map(|(name, s)| (s - before.0.get(name).unwrap_or(&0.0), name)).collect();
        all.retain(|(s, _)| *s >= 0.05);
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.iter().map(|(s, name)| format!("{name} {s:.1} s")).collect::<Vec<_>>().join(", ")
    }
}

#[derive(Default)]
struct Times {
    own: f64,
    /// Time of children that have ended and were reaped.
    reaped: f64,
}

fn of(pid: i32) -> Result<Times> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.unwrap_or(100);
    parse(&stat, f64::from(i32::try_from(per_second)?)).context("a /proc of another kernel")
}

fn parse(stat: &str, per_second: f64) -> Option<Times> {
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks: Vec<f64> = rest.split_whitespace().skip(11).take(4).filter_map(|f| f.parse().ok()).collect();
    let [user, system, reaped_user, reaped_system] = ticks[..] else { return None };
    Some(Times { own: (user + system) / per_second, reaped: (reaped_user + reaped_system) / per_second })
}

fn children(pid: i32) -> Result<Vec<i32>> {
    let all = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .with_context(|| format!("children of process {pid}"))?;
    Ok(all.split_whitespace().filter_map(|p| p.parse().ok()).collect())
}

/// Seconds of the node's whole cpuacct group; `None` on a machine without one.
fn of_group(node: &NativeNode) -> Option<f64> {
    let text = node.cgroups().iter().find_map(|dir| fs::read_to_string(dir.join("cpuacct.usage")).ok())?;
    Some(text.trim().parse::<f64>().ok()? / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_comes_first_and_nothing_is_left_out() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 200 300 20 0 5 0 1234 1 2 3";
        let times = parse(stat, 100.0).unwrap();
        assert_eq!((times.own, times.reaped), (0.42, 5.0));
        let of = |all: &[(&str, f64)]| CpuSeconds(all.iter().map(|(n, s)| ((*n).to_owned(), *s)).collect());
        let before = of(&[("a", 1.0), ("b", 1.0)]);
        let after = of(&[("a", 2.0), ("b", 4.5), ("c", 0.01)]);
        assert_eq!(after.since(&before), "b 3.5 s, a 1.0 s");
    }
}
