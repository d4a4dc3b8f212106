//! File systems of the node itself: which mounts they are, and their use.
//!
//! In: `mountinfo`, directories of pods, answers of `statfs`. Out: the mounts to ask, and their families. Invariant: a mount of a pod,
//! of another machine or of a user-space file system is never one to ask, because its server may not answer.

use std::collections::{BTreeMap, BTreeSet};

use agent_volumes::mount_table;

use super::{DEVICES_MAX, FilesystemUsage, KernelFiles, MountUsage, NodeFacts, flag};
use crate::stats::exposition::{Exposition, Kind};

/// Types of file systems on the node's own devices and in its memory.
const TYPES: [&str; 8] = ["btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "vfat", "xfs"];
/// Directories whose mounts are none of the node's. node_exporter leaves out the first four, too.
const LEFT_OUT: [&str; 6] = ["/dev", "/proc", "/run/credentials", "/sys", "/run/containerd", "/run/netns"];

/// One mount of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeMount {
    /// The device, or the name that the file system has instead.
    pub device: String,
    /// Path of the mount point.
    pub mount_point: String,
    /// Type of the file system.
    pub fstype: String,
    /// Number of the device's driver.
    pub major: String,
    /// Number of the device within its driver.
    pub minor: String,
    /// Nothing can be written.
    pub read_only: bool,
}

/// The node's own mounts, the topmost one at each path, sorted by path, at most `DEVICES_MAX`. `pods`: directories of pods and of the
/// runtime; mounts below them are left out, a disk that is mounted at one of them is the node's. `mountinfo`: proc_pid_mountinfo(5).
#[must_use]
pub fn own_mounts(mountinfo: &str, pods: &[&str]) -> Vec<NodeMount> {
    let is_below = |path: &str, directory: &str| {
        let directory = directory.trim_end_matches('/');
        !directory.is_empty() && path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
    };
    // A later mount at the same path hides the earlier one. Lines, and not mounts: pods have thousands of them.
    let topmost: BTreeMap<&str, &str> =
        mountinfo.lines().filter_map(|line| Some((line.split(' ').nth(4)?, line))).collect();
    let is_own = |mount: &NodeMount| {
        let path = mount.mount_point.as_str();
        TYPES.contains(&mount.fstype.as_str())
            && !LEFT_OUT.iter().any(|directory| path == *directory || is_below(path, directory))
            && !pods.iter().any(|directory| is_below(path, directory))
    };
    topmost.into_values().filter_map(mount).filter(is_own).take(DEVICES_MAX).collect()
}

fn mount(line: &str) -> Option<NodeMount> {
    let point = mount_table::parse(line).into_iter().next()?;
    let (left, right) = line.split_once(" - ")?;
    let options = left.split(' ').nth(5)?;
    let mut right = right.split(' ').skip(1);
    let (device, super_options) = (right.next()?, right.next().unwrap_or_default());
    let has = |options: &str, option: &str| options.split(',').any(|has| has == option);
    let read_only = has(options, "ro") || has(super_options, "ro") || has(super_options, "emergency_ro");
    let (major, minor) = point.device.split_once(':')?;
    Some(NodeMount {
        device: device.to_owned(),
        major: major.parse::<u32>().ok()?.to_string(),
        minor: minor.parse::<u32>().ok()?.to_string(),
        mount_point: point.path,
        fstype: point.kind,
        read_only,
    })
}

/// A name, its help, and where its value is.
type UsageFamily = (&'static str, &'static str, fn(&FilesystemUsage) -> u64);

pub(super) fn filesystem<F: KernelFiles>(_: &F, facts: &NodeFacts, out: &mut Exposition) -> bool {
    let Some(all) = &facts.filesystems else { return false };
    // Two mounts with the same labels would be one sample twice.
    let mut seen = BTreeSet::new();
    let all: Vec<&MountUsage> =
        all.iter().filter(|usage| seen.insert(usage.mount.mount_point.as_str())).collect();
    let asked = || all.iter().filter_map(|of| Some((of, of.usage.as_ref().ok()?)));
    let families: [UsageFamily; 5] = [
        ("node_filesystem_avail_bytes", "Bytes that are free for others than root.", |usage| {
            usage.available_bytes
        }),
        ("node_filesystem_files", "Inodes.", |usage| usage.files),
        ("node_filesystem_files_free", "Free inodes.", |usage| usage.files_free),
        ("node_filesystem_free_bytes", "Free bytes.", |usage| usage.free_bytes),
        ("node_filesystem_size_bytes", "Size in bytes.", |usage| usage.size_bytes),
    ];
    for (name, help, value) in families {
        // Exact below petabytes.
        #[allow(clippy::cast_precision_loss)]
        let samples = asked().map(|(of, usage)| (labels(of), value(usage) as f64));
        out.family((name, Kind::Gauge, help), samples, None);
    }
    let errors = all.iter().map(|of| (labels(of), flag(of.usage.is_err())));
    let help = "Whether the file system could not be asked for its use; the label says why.";
    out.family(("node_filesystem_device_error", Kind::Gauge, help), errors, None);
    let read_only = all.iter().map(|of| (labels(of), flag(of.mount.read_only)));
    let help = "Whether nothing can be written.";
    out.family(("node_filesystem_readonly", Kind::Gauge, help), read_only, None);
    let mounts = asked().map(|(of, _)| {
        let mount = &of.mount;
        let labels = vec![
            ("device", mount.device.as_str()),
            ("major", mount.major.as_str()),
            ("minor", mount.minor.as_str()),
            ("mountpoint", mount.mount_point.as_str()),
        ];
        (labels, 1.0)
    });
    out.family(("node_filesystem_mount_info", Kind::Gauge, "Mounts of the node; always 1."), mounts, None);
    true
}

fn labels(of: &MountUsage) -> Vec<(&str, &str)> {
    let error = of.usage.as_ref().err().map_or("", String::as_str);
    vec![
        ("device", of.mount.device.as_str()),
        ("device_error", error),
        ("fstype", of.mount.fstype.as_str()),
        ("mountpoint", of.mount.mount_point.as_str()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:0 / / ro,relatime shared:1 - erofs /dev/mapper/root ro
30 22 254:7 / /var rw,relatime shared:2 - ext4 /dev/vda7 rw
31 22 0:25 / /run rw,nosuid shared:3 - tmpfs tmpfs rw,size=100k
32 22 0:5 / /dev rw shared:4 - devtmpfs udev rw
33 32 0:26 / /dev/shm rw shared:5 - tmpfs tmpfs rw
34 30 0:60 / /var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/a rw shared:6 - tmpfs tmpfs rw
35 30 8:16 / /var/lib/kubelet/plugins/x/mount rw - ext4 /dev/sdb rw
36 22 0:70 / /mnt/nfs rw - nfs4 server:/x rw
37 22 0:71 / /mnt/fuse rw - fuse.sshfs x rw
38 22 8:32 / /mnt/disk\\040one rw - xfs /dev/sdc rw
39 38 0:72 / /mnt/disk\\040one rw - nfs server:/y rw
40 22 8:48 / /mnt/full rw - ext4 /dev/sdd rw,emergency_ro
41 31 0:73 / /run/containerd/io.containerd.grpc.v1.cri/sandboxes/s/shm rw - tmpfs shm rw
nonsense
";

    #[test]
    fn the_nodes_own_mounts_are_asked_and_no_others() {
        let own = own_mounts(TABLE, &["/var/lib/kubelet", "/"]);
        let shown: Vec<(&str, &str, &str, bool)> = own
            .iter()
            .map(|m| (m.mount_point.as_str(), m.device.as_str(), m.fstype.as_str(), m.read_only))
            .collect();
        let expected = [
            ("/mnt/full", "/dev/sdd", "ext4", true),
            ("/run", "tmpfs", "tmpfs", false),
            ("/var", "/dev/vda7", "ext4", false),
        ];
        assert_eq!(shown, expected, "a mount that hides another one is the one to ask");
        assert_eq!((own[2].major.as_str(), own[2].minor.as_str()), ("254", "7"));
        // A disk for images alone is the node's; what the runtime mounts on it is not.
        let runtime = "50 30 8:64 / /var/lib/containerd rw - xfs /dev/sde rw\n\
                       51 50 0:80 / /var/lib/containerd/tmpmounts/a rw - tmpfs tmpfs rw\n";
        let shown = own_mounts(runtime, &["/var/lib/containerd/"]);
        assert_eq!(shown.iter().map(|m| m.device.as_str()).collect::<Vec<_>>(), ["/dev/sde"]);
        // Without the mount above it the disk is one of the node's.
        let below: String = TABLE
            .lines()
            .filter(|line| !line.contains("server:/y"))
            .fold(String::new(), |all, line| all + line + "\n");
        assert!(own_mounts(&below, &[]).iter().any(|m| m.mount_point == "/mnt/disk one"));
    }
}
