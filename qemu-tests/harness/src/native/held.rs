//! Resources of a node beyond those that the runtime lists: directories, mounts, cgroups, processes, addresses. The
//! difference between a snapshot before the first pod and one after the last pod shows what pods left behind.
//!
//! In: a node. Out: [`HostLeftovers`]. Invariant: a snapshot changes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::node::NativeNode;

/// Directories whose entries belong to one pod or one container each.
const DIRECTORIES: [&str; 5] = [
    "/var/lib/kubelet/pods",
    "/var/log/pods",
    "/run/containerd/io.containerd.runtime.v2.task/k8s.io",
    "/run/netns",
    "/var/lib/cni/networks/e2e",
];

/// The resources, each as its kind and its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostLeftovers(BTreeSet<String>);

impl HostLeftovers {
    /// Looks at the node as it is now.
    ///
    /// # Errors
    /// If the runtime does not answer, or the node has ended.
    pub fn by(node: &NativeNode) -> Result<HostLeftovers> {
        let view = node.cri().view()?;
        let mut held: BTreeSet<String> = view.sandboxes.iter().map(|s| format!("sandbox {}", s.id)).collect();
        held.extend(view.containers.iter().map(|c| format!("container {}", c.id)));
        for dir in DIRECTORIES {
            held.extend(entries(&node.inside(dir)).into_iter().map(|name| format!("file {dir}/{name}")));
        }
        let path = format!("/proc/{}/mountinfo", node.pid());
        let mounts = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        held.extend(mount_points(&mounts).map(|point| format!("mount {point}")));
        for top in node.cgroups() {
            let mut groups = Vec::new();
            below(&top, &mut groups);
            held.extend(groups.iter().map(|group| format!("cgroup {}{}", group.display(), occupied(group))));
        }
        held.extend(shims(node)?.iter().map(|pid| format!("shim {pid}")));
        Ok(HostLeftovers(held))
    }

    /// The resources that were not in `before`.
    #[must_use]
    pub fn beyond(&self, before: &HostLeftovers) -> Vec<String> {
        self.0.difference(&before.0).filter(|what| !is_bookkeeping(what)).cloned().collect()
    }
}

/// Processes of a node's shims, as the host counts them.
///
/// # Errors
/// If the node has ended.
pub fn shims(node: &NativeNode) -> Result<Vec<i32>> {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", node.pid()))?;
    // One may have ended meanwhile.
    let comm = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    Ok(pids.filter(|pid| comm(pid).starts_with("containerd-shim")).collect())
}

/// Removes from `left` the empty cgroups of tasks whose start containerd never logged; returns the number of these
/// tasks.
///
/// A caller that dies in RunPodSandbox or StartContainer cancels the call, and a containerd that is killed breaks its
/// connections. In both cases the shim ends its `crun create` at any point. containerd then forgets the task (see its
/// issue 7733), or removes the task as far as the shim knows it, while crun has not recorded the cgroup yet. No CRI
/// call reaches that cgroup. The agent ends the processes of such shims; with cgroup v2 the cgroups are removed
/// together with the pod's, with the host's cgroup v1, which a native node uses, they stay.
pub fn forgive_lost_tasks(left: &mut Vec<String>, containerd_log: &str) -> usize {
    let started: BTreeSet<&str> = containerd_log.lines().filter_map(started_task).collect();
    let refused = |id: &str| containerd_log.lines().any(|line| line.contains(id) && line.contains(REFUSED));
    let lost_task = |what: &str| {
        let id = what.strip_prefix("cgroup ")?.split_once("/k8s.io/")?.1;
        let lost =
            id.len() == ID_LENGTH && id.bytes().all(|b| b.is_ascii_hexdigit()) && !started.contains(id);
        (lost && !refused(id)).then(|| id.to_owned())
    };
    let lost: BTreeSet<String> = left.iter().filter_map(|what| lost_task(what)).collect();
    left.retain(|what| lost_task(what).is_none());
    lost.len()
}

/// The text of a failure about `left`: each cgroup once for all its hierarchies, with containerd's last lines about it.
#[must_use]
pub fn leftovers_text(left: &[String], containerd_log: &str) -> String {
    let once = |what: &String| {
        let group = what.split_once("/k8s.io/").filter(|_| what.starts_with("cgroup "));
        group.map_or_else(|| what.clone(), |(_, rest)| format!("cgroup k8s.io/{rest}"))
    };
    let all: BTreeSet<String> = left.iter().map(once).collect();
    let words = |what: &String| {
        let id = what.strip_prefix("cgroup k8s.io/")?.get(..ID_LENGTH)?;
        let about: Vec<&str> = containerd_log.lines().filter(|line| line.contains(id)).collect();
        let last = about.iter().skip(about.len().saturating_sub(LAST_WORDS));
        Some(last.map(|line| format!("\n  {line}")).collect::<String>())
    };
    let lines: Vec<String> =
        all.iter().map(|what| format!("{what}{}", words(what).unwrap_or_default())).collect();
    lines.join("\n")
}

/// containerd's message if crun itself refused to make a task: the call was not cut off, so it must leave nothing.
const REFUSED: &str = "OCI runtime create failed";

/// Number of log lines of containerd for each cgroup.
const LAST_WORDS: usize = 8;

/// Number of hexadecimal digits in containerd's names of sandboxes and containers.
const ID_LENGTH: usize = 64;

/// The container or sandbox whose start the line reports.
fn started_task(line: &str) -> Option<&str> {
    let container = || line.split_once("StartContainer for \\\"")?.1.split_once("\\\" returns successfully");
    let sandbox = || {
        line.contains("RunPodSandbox for ").then_some(())?;
        line.split_once("returns sandbox id \\\"")?.1.split_once("\\\"")
    };
    container().or_else(sandbox).map(|(id, _)| id)
}

/// host-local's own files, and the cgroup that containerd keeps for all containers.
fn is_bookkeeping(what: &str) -> bool {
    what.ends_with("/e2e/lock") || what.contains("/e2e/last_reserved_ip.") || what.ends_with("/k8s.io")
}

/// The addition for a cgroup that contains processes.
fn occupied(group: &Path) -> &'static str {
    let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    if processes.is_empty() { "" } else { " with processes" }
}

fn mount_points(mountinfo: &str) -> impl Iterator<Item = &str> {
    mountinfo.lines().filter_map(|line| line.split(' ').nth(4))
}

fn entries(dir: &Path) -> Vec<String> {
    let Ok(all) = fs::read_dir(dir) else { return Vec::new() };
    all.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn below(dir: &Path, groups: &mut Vec<PathBuf>) {
    let Ok(all) = fs::read_dir(dir) else { return };
    for entry in all.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        groups.push(entry.path());
        below(&entry.path(), groups);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(all: &[&str]) -> HostLeftovers {
        HostLeftovers(all.iter().map(|what| (*what).to_owned()).collect())
    }

    #[test]
    fn what_is_new_is_left_behind() {
        let before = held(&["mount /", "file /var/lib/cni/networks/e2e/lock"]);
        let after = held(&["mount /", "mount /x", "file /var/lib/cni/networks/e2e/last_reserved_ip.0"]);
        assert_eq!(after.beyond(&before), ["mount /x"]);
        assert!(before.beyond(&after).is_empty());
    }

    #[test]
    fn what_containerd_lost_is_told_apart() {
        let [cancelled, killed, started, sandbox] = ["a", "b", "c", "d"].map(|digit| digit.repeat(ID_LENGTH));
        let log = format!(
            "time=\"x\" level=error msg=\"StartContainer for \\\"{cancelled}\\\" failed\" error=\"failed to create \
             shim task: context canceled\"\n\
             level=info msg=\"StartContainer for \\\"{killed}\\\"\"\n\
             level=info msg=\"StartContainer for \\\"{started}\\\" returns successfully\"\n\
             level=info msg=\"RunPodSandbox for &PodSandboxMetadata{{Name:p,Attempt:0,}} returns sandbox id \
             \\\"{sandbox}\\\"\"\n"
        );
        let group = |controller: &str, name: &str| format!("cgroup /c/{controller}/k8s.io/{name}");
        let kept = [
            group("cpu", &started),
            group("cpu", &sandbox),
            format!("{} with processes", group("cpu", &killed)),
            group("cpu", "abc"),
            "shim 1".to_owned(),
        ];
        let mut left = vec![group("pids", &cancelled), group("cpu", &cancelled), group("cpu", &killed)];
        left.extend(kept.clone());
        assert_eq!(forgive_lost_tasks(&mut left, &log), 2);
        assert_eq!(left, kept);
        let other = log.replace("context canceled", "OCI runtime create failed");
        let mut left = vec![group("pids", &cancelled)];
        assert_eq!((forgive_lost_tasks(&mut left, &other), left.len()), (0, 1));
    }

    #[test]
    fn a_cgroup_is_told_once_with_the_log_about_it() {
        let id = "e".repeat(ID_LENGTH);
        let left = ["cpu", "pids"].map(|controller| format!("cgroup /c/{controller}/k8s.io/{id}"));
        let left = [&left[..], &["shim 1".to_owned()]].concat();
        let log = format!("begins \"{id}\"\nanother\nends \"{id}\"\n");
        let wanted = format!("cgroup k8s.io/{id}\n  begins \"{id}\"\n  ends \"{id}\"\nshim 1");
        assert_eq!(leftovers_text(&left, &log), wanted);
    }

    #[test]
    fn mount_points_are_the_fifth_field() {
        let text = "25 1 0:22 / /sys rw - sysfs s rw\n26 25 0:23 /a /var/lib/x rw - ext4 d rw\n";
        assert_eq!(mount_points(text).collect::<Vec<_>>(), ["/sys", "/var/lib/x"]);
    }
}
