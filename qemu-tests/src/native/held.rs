//! What a node holds besides what the runtime lists: directories, mounts, cgroups, processes, addresses. Taken before
//! the first pod and after the last one, it says what pods have left behind.
//!
//! What comes in: a node. What goes out: [`Held`]. Invariant: nothing is changed by looking.

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

/// What was found, one word of its kind and its name each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held(BTreeSet<String>);

impl Held {
    /// Looks at the node as it is now.
    ///
    /// # Errors
    /// If the runtime does not answer, or the node has ended.
    pub fn by(node: &NativeNode) -> Result<Held> {
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
            held.extend(groups.iter().map(|group| format!("cgroup {}", group.display())));
        }
        held.extend(shims(node)?.iter().map(|pid| format!("shim {pid}")));
        Ok(Held(held))
    }

    /// What is there and was not before.
    #[must_use]
    pub fn beyond(&self, before: &Held) -> Vec<String> {
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

/// Takes out of `left` the cgroups that containerd itself has lost by the words of its log; answers of how many tasks.
///
/// A caller that dies in RunPodSandbox or StartContainer cancels the call. containerd may then forget a task that its shim
/// goes on to make: no call of CRI reaches it any more (see containerd's issue 7733). The agent ends such shims and what
/// they hold; their cgroups go with the pod's where cgroups are version 2, and stay where the host's version 1 is what a
/// native node has. A containerd that is itself killed between a task's making and its answer cleans up when it is back,
/// and may leave the task's cgroups; the start that is asked for again then finds no pipes.
pub fn forgive_lost_tasks(left: &mut Vec<String>, containerd_log: &str) -> usize {
    let ids: BTreeSet<&str> = containerd_log.lines().filter_map(lost_task).collect();
    let id_of =
        |what: &str| ids.iter().find(|id| what.starts_with("cgroup ") && what.ends_with(**id)).copied();
    let lost: BTreeSet<&str> = left.iter().filter_map(|what| id_of(what)).collect();
    left.retain(|what| id_of(what).is_none());
    lost.len()
}

/// The container or sandbox whose start was cancelled, or whose containerd was killed, while its shim was making the task.
fn lost_task(line: &str) -> Option<&str> {
    let named = ["StartContainer for \\\"", "failed to start sandbox \\\""];
    let (_, rest) = named.iter().find_map(|before| line.split_once(before))?;
    let (id, rest) = rest.split_once("\\\"")?;
    let (_, why) = rest.split_once("failed to create shim task: ")?;
    let causes = ["context canceled", "failed to start io pipe copy"];
    causes.iter().any(|cause| why.starts_with(cause)).then_some(id)
}

/// host-local's own files, and the cgroup that containerd keeps for all containers.
fn is_bookkeeping(what: &str) -> bool {
    what.ends_with("/e2e/lock") || what.contains("/e2e/last_reserved_ip.") || what.ends_with("/k8s.io")
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

    fn held(all: &[&str]) -> Held {
        Held(all.iter().map(|what| (*what).to_owned()).collect())
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
        let log = "time=\"x\" level=error msg=\"StartContainer for \\\"abc\\\" failed\" error=\"rpc error: desc = \
                   failed to create containerd task: failed to create shim task: context canceled\"\n\
                   level=info msg=\"StartContainer for \\\"def\\\" returns successfully\"\n\
                   level=error msg=\"RunPodSandbox for &PodSandboxMetadata{Name:p,} failed, error\" error=\"rpc error: \
                   desc = failed to start sandbox \\\"5a\\\": failed to create containerd task: failed to create shim \
                   task: context canceled\"\n";
        let all = [
            "cgroup /c/pids/k8s.io/abc",
            "cgroup /c/cpu/k8s.io/abc",
            "cgroup /c/cpu/k8s.io/5a",
            "cgroup /c/cpu/k8s.io/def",
            "shim 1",
        ];
        let mut left = all.map(str::to_owned).to_vec();
        assert_eq!(forgive_lost_tasks(&mut left, log), 2);
        assert_eq!(left, ["cgroup /c/cpu/k8s.io/def", "shim 1"]);
        let cleaned = log.replace("context canceled", "failed to start io pipe copy: unable to copy pipes");
        let mut left = vec!["cgroup /c/pids/k8s.io/abc".to_owned()];
        assert_eq!((forgive_lost_tasks(&mut left, &cleaned), left.len()), (1, 0));
        let other = log.replace("context canceled", "OCI runtime create failed");
        let mut left = vec!["cgroup /c/pids/k8s.io/abc".to_owned()];
        assert_eq!((forgive_lost_tasks(&mut left, &other), left.len()), (0, 1));
    }

    #[test]
    fn mount_points_are_the_fifth_field() {
        let text = "25 1 0:22 / /sys rw - sysfs s rw\n26 25 0:23 /a /var/lib/x rw - ext4 d rw\n";
        assert_eq!(mount_points(text).collect::<Vec<_>>(), ["/sys", "/var/lib/x"]);
    }
}
