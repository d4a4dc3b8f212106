//! The child cgroups a node runs in: one per hierarchy, named for the run.
//!
//! In: the host's mounts and `/proc/self/cgroup`. Out: the directories to make, join and remove on the host, and the
//! hierarchies to mount in the node. With a cgroup namespace of its own the node sees its children as roots, so it
//! cannot change another group.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One mounted hierarchy of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its mount point on the host.
    pub mountpoint: PathBuf,
    /// `cgroup` or `cgroup2`.
    pub fstype: String,
    /// Controllers or `name=systemd`, comma separated: the mount option to mount it again. Empty for v2.
    pub options: String,
}

const FLAGS: [&str; 6] = ["rw", "ro", "xattr", "clone_children", "noprefix", "cpuset_v2_mode"];

/// The hierarchies in a `/proc/self/mountinfo`. Pure.
#[must_use]
pub fn parse_mountinfo(text: &str) -> Vec<Hierarchy> {
    text.lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mountpoint = PathBuf::from(left.split(' ').nth(4)?);
            let mut right = right.split(' ');
            let fstype = right.next()?;
            let options: Vec<&str> = right
                .nth(1)?
                .split(',')
                .filter(|o| !FLAGS.contains(o) && !o.starts_with("release_agent="))
                .collect();
            match fstype {
                "cgroup" => Some(Hierarchy { mountpoint, fstype: fstype.into(), options: options.join(",") }),
                "cgroup2" => Some(Hierarchy { mountpoint, fstype: fstype.into(), options: String::new() }),
                _ => None,
            }
        })
        .collect()
}

/// The host's hierarchies, each once.
///
/// # Errors
/// If `/proc` cannot be read, or nothing is mounted.
pub fn host_hierarchies() -> Result<Vec<Hierarchy>> {
    let mut all = parse_mountinfo(&fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")?);
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|h| seen.insert((h.fstype.clone(), h.options.clone())));
    anyhow::ensure!(!all.is_empty(), "no cgroup hierarchy is mounted on this machine");
    Ok(all)
}

/// The directory in `hierarchy` that this process is in, on the host's mount.
fn own_dir(hierarchy: &Hierarchy) -> Result<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
    let path = own
        .lines()
        .find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            (controllers == hierarchy.options).then_some(path)
        })
        .unwrap_or("/");
    // In a container the paths may be relative to a root that is not ours: fall back to the mount's top.
    let dir = hierarchy.mountpoint.join(path.trim_start_matches('/'));
    Ok(if dir.is_dir() { dir } else { hierarchy.mountpoint.clone() })
}

/// The child directory for a node in each hierarchy.
///
/// # Errors
/// See [`host_hierarchies`].
pub fn child_dirs(name: &str) -> Result<Vec<(Hierarchy, PathBuf)>> {
    host_hierarchies()?
        .into_iter()
        .map(|h| {
            // cgroup v2 allows no processes in a group whose children have controllers, so a v2 child is made at the
            // top.
            let parent = if h.fstype == "cgroup2" { h.mountpoint.clone() } else { own_dir(&h)? };
            let dir = parent.join(name);
            Ok((h, dir))
        })
        .collect()
}

/// Makes a child group; in v1 a cpuset child starts empty and gets its parent's CPUs and nodes.
///
/// # Errors
/// If the kernel refuses.
pub fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("make cgroup {}", dir.display()))?;
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let (own, parent) = (dir.join(file), dir.parent().unwrap_or(dir).join(file));
        if own.exists()
            && fs::read_to_string(&own).is_ok_and(|t| t.trim().is_empty())
            && let Ok(value) = fs::read_to_string(&parent)
        {
            // On v2 an empty value already means the parent's, and the parent may have no such file.
            let _ = fs::write(&own, value.trim());
        }
    }
    Ok(())
}

/// Moves the calling process into the groups.
///
/// # Errors
/// Which group refused it.
pub fn join(dirs: &[PathBuf]) -> Result<()> {
    for dir in dirs {
        fs::write(dir.join("cgroup.procs"), "0").with_context(|| format!("join cgroup {}", dir.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_read_from_mountinfo() {
        let text = "\
            25 1 0:22 / /sys/fs/cgroup rw,relatime shared:1 - tmpfs tmpfs rw,mode=755\n\
            26 25 0:23 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
            27 25 0:24 / /sys/fs/cgroup/systemd rw shared:9 - cgroup systemd rw,xattr,release_agent=/x,name=systemd\n\
            28 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = parse_mountinfo(text);
        let short: Vec<_> = found
            .iter()
            .map(|h| (h.mountpoint.to_str().unwrap(), h.fstype.as_str(), h.options.as_str()))
            .collect();
        assert_eq!(
            short,
            [
                ("/sys/fs/cgroup/cpu", "cgroup", "cpu,cpuacct"),
                ("/sys/fs/cgroup/systemd", "cgroup", "name=systemd"),
                ("/sys/fs/cgroup/unified", "cgroup2", ""),
            ]
        );
    }
}
