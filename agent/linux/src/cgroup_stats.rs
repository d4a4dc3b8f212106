//! What cgroups use, read from cgroupfs when somebody asks.
//!
//! In: where in the hierarchy the pods are. Out: [`Snapshot`]. Invariants: nothing is read between two questions; a
//! cgroup that goes away meanwhile is left out, a file that it does not have is an amount left out. Linux,
//! Documentation/admin-guide/cgroup-v2.rst.

use std::path::Path;

use agent_core::stats::{PodUsage, Snapshot, Usage, cgroup};

use crate::files::FilesError;
use crate::machine::kilobytes;

/// Where the unified hierarchy is mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// QoS classes lie between the pods' common cgroup and a pod's.
const LEVELS: usize = 3;

/// Reads the machine and every pod below `pods`, a path inside the hierarchy.
///
/// # Errors
/// There is no unified hierarchy. A node without pods is none.
pub fn snapshot(pods: &str) -> Result<Snapshot, FilesError> {
    snapshot_of(Path::new(ROOT), pods, &read(Path::new("/proc"), "meminfo"))
}

fn snapshot_of(root: &Path, pods: &str, meminfo: &str) -> Result<Snapshot, FilesError> {
    let controllers = root.join("cgroup.controllers");
    std::fs::metadata(&controllers).map_err(FilesError::at("look for", &controllers))?;
    let mut found = Vec::new();
    below(&root.join(pods.trim_start_matches('/')), LEVELS, &mut found);
    Ok(Snapshot { node: node(root, meminfo), pods: found })
}

fn below(dir: &Path, levels: usize, found: &mut Vec<PodUsage>) {
    for (name, path) in directories(dir) {
        match cgroup::pod_of(&name) {
            Some(pod) => found.push(PodUsage { pod, usage: usage(&path), containers: containers(&path) }),
            None if levels > 1 => below(&path, levels - 1, found),
            None => {}
        }
    }
}

fn containers(pod: &Path) -> Vec<(String, Usage)> {
    let all = directories(pod);
    all.filter_map(|(name, path)| Some((cgroup::container_of(&name)?.to_owned(), usage(&path)))).collect()
}

fn directories(dir: &Path) -> impl Iterator<Item = (String, std::path::PathBuf)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
}

fn read(dir: &Path, file: &str) -> String {
    std::fs::read_to_string(dir.join(file)).unwrap_or_default()
}

fn usage(dir: &Path) -> Usage {
    let used = cgroup::number(&read(dir, "memory.current"));
    let inactive = cgroup::field(&read(dir, "memory.stat"), "inactive_file");
    Usage {
        cpu_usec: cgroup::field(&read(dir, "cpu.stat"), "usage_usec"),
        working_set_bytes: working_set(used, inactive),
        swap_bytes: cgroup::number(&read(dir, "memory.swap.current")),
        swap_limit_bytes: cgroup::number(&read(dir, "memory.swap.max")),
    }
}

/// The root has no memory.current: the machine's own account stands in, as upstream has it.
fn node(root: &Path, meminfo: &str) -> Usage {
    let less =
        |all: &str, rest: &str| Some(kilobytes(meminfo, all)?.saturating_sub(kilobytes(meminfo, rest)?));
    let inactive = cgroup::field(&read(root, "memory.stat"), "inactive_file");
    Usage {
        cpu_usec: cgroup::field(&read(root, "cpu.stat"), "usage_usec"),
        working_set_bytes: working_set(less("MemTotal", "MemFree"), inactive),
        swap_bytes: less("SwapTotal", "SwapFree"),
        swap_limit_bytes: None,
    }
}

fn working_set(used: Option<u64>, inactive_file: Option<u64>) -> Option<u64> {
    Some(used?.saturating_sub(inactive_file.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn pods_of_every_class_are_found_with_their_containers() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, &[("cgroup.controllers", "cpu memory\n"), ("cpu.stat", "usage_usec 9\n")]);
        write(root, &[("memory.stat", "anon 1\ninactive_file 1024\n")]);
        let id = "ab".repeat(32);
        let pod = root.join("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice");
        write(&pod, &[("cpu.stat", "usage_usec 7\n"), ("memory.current", "100\n")]);
        write(
            &pod.join(format!("cri-containerd-{id}.scope")),
            &[
                ("cpu.stat", "usage_usec 5\nuser_usec 5\n"),
                ("memory.current", "90\n"),
                ("memory.stat", "inactive_file 40\n"),
                ("memory.swap.current", "3\n"),
                ("memory.swap.max", "max\n"),
            ],
        );
        write(&root.join("kubepods.slice/kubepods-pod3.slice"), &[]);
        write(&root.join("system.slice/kubepods-pod4.slice"), &[]);
        let meminfo = "MemTotal: 10 kB\nMemFree:   4 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n";
        let mut found = snapshot_of(root, "/kubepods.slice", meminfo).unwrap();
        found.pods.sort_by(|a, b| a.pod.cmp(&b.pod));
        let [first, second] = &found.pods[..] else { panic!("{found:?}") };
        assert_eq!((first.pod.as_str(), first.usage.cpu_usec), ("1_2", Some(7)));
        let inside = Usage {
            cpu_usec: Some(5),
            working_set_bytes: Some(50),
            swap_bytes: Some(3),
            swap_limit_bytes: None,
        };
        assert_eq!(first.containers, [(id, inside)]);
        assert_eq!(*second, PodUsage { pod: "3".to_owned(), ..PodUsage::default() });
        let node = Usage {
            cpu_usec: Some(9),
            working_set_bytes: Some(5 * 1024),
            swap_bytes: Some(0),
            swap_limit_bytes: None,
        };
        assert_eq!(found.node, node);
    }

    #[test]
    fn a_machine_without_the_unified_hierarchy_says_so() {
        let root = tempfile::tempdir().unwrap();
        let error = snapshot_of(root.path(), "/kubepods", "").unwrap_err();
        assert!(error.to_string().starts_with("look for "), "{error}");
    }
}
