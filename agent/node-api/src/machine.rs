//! Devices and file systems as the kernel shows them in /sys and /proc. Blocking; a value that is not there is empty.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agent_linux::files::{FilesError, read_capped, visible_names};
use nix::sys::statvfs::statvfs;
use orlop_config::procfs;
use orlop_proto::node_api::v1alpha1::{DiskStatus, LinkStatus, MountStatus};

/// Devices of one kind that are looked at.
const DEVICES_MAX: usize = 1024;
/// A file of /sys is not longer, bytes.
const VALUE_MAX: u64 = 4096;
/// A table of mounts is not longer, bytes: some twenty thousand mounts.
const TABLE_MAX: u64 = 4 << 20;
/// Sizes in /sys/block are in these, bytes.
const SECTOR: u64 = 512;
/// File systems in memory that a person asks for; pods have more of them.
const IN_MEMORY: [&str; 4] = ["/", "/run", "/var", "/tmp"];

fn value(directory: &Path, file: &str) -> String {
    let bytes = read_capped(&directory.join(file), VALUE_MAX).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn number(directory: &Path, file: &str) -> u64 {
    value(directory, file).parse().unwrap_or(0)
}

fn names(directory: &Path) -> Vec<String> {
    let mut names = visible_names(directory).unwrap_or_default();
    names.truncate(DEVICES_MAX);
    names
}

/// The last part of a link's target.
fn link_name(link: &Path) -> String {
    let target = std::fs::read_link(link).unwrap_or_default();
    target.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Block devices with a size, those in memory and loops left out.
pub(crate) fn disks(root: &Path) -> Vec<(String, DiskStatus)> {
    let block = root.join("sys/block");
    let of = |name: String| {
        let device = block.join(&name);
        let size_bytes = number(&device, "size").saturating_mul(SECTOR);
        let is_shown = size_bytes > 0 && !name.starts_with("ram") && !name.starts_with("loop");
        let partitions =
            names(&device).into_iter().filter(|part| device.join(part).join("partition").exists());
        let status = DiskStatus {
            size_bytes,
            model: value(&device, "device/model"),
            read_only: number(&device, "ro") == 1,
            removable: number(&device, "removable") == 1,
            rotational: number(&device, "queue/rotational") == 1,
            partitions: partitions.collect(),
        };
        is_shown.then_some((name, status))
    };
    names(&block).into_iter().filter_map(of).collect()
}

/// Network interfaces.
pub(crate) fn links(root: &Path) -> Vec<(String, LinkStatus)> {
    let net = root.join("sys/class/net");
    let of = |name: String| {
        let device = net.join(&name);
        let status = LinkStatus {
            state: value(&device, "operstate"),
            mac: value(&device, "address"),
            mtu: number(&device, "mtu"),
            driver: link_name(&device.join("device/driver")),
        };
        (name, status)
    };
    names(&net).into_iter().map(of).collect()
}

/// File systems of local devices, each at its first place, and the node's own in memory. `statvfs` may hang; those of FUSE, which a
/// process of a pod may serve, are not asked: one that stands still would cost the sizes of all.
///
/// # Errors
/// PID 1's table cannot be read, or is longer than [`TABLE_MAX`].
pub(crate) fn mounts(root: &Path) -> Result<Vec<(String, MountStatus)>, FilesError> {
    // PID 1's: the sandbox of this process shows the same file systems as read-only.
    let table = read_capped(&root.join("proc/1/mounts"), TABLE_MAX)?;
    let table = String::from_utf8_lossy(&table).into_owned();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for mounted in procfs::mounts(&table) {
        let in_memory = mounted.fstype == "tmpfs" && IN_MEMORY.contains(&mounted.target);
        let key = if in_memory { mounted.target } else { mounted.source };
        if !(in_memory || mounted.source.starts_with("/dev/"))
            || !seen.insert(key)
            || found.len() >= DEVICES_MAX
        {
            continue;
        }
        found.push((mounted.target.to_owned(), of_mount(&mounted, &below(root, mounted.target))));
    }
    Ok(found)
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn of_mount(mounted: &procfs::Mounted<'_>, place: &Path) -> MountStatus {
    // A place that cannot be looked at has no sizes.
    let stat = if mounted.fstype.starts_with("fuse") { None } else { statvfs(place).ok() };
    let (size_bytes, available_bytes) = stat.map_or((0, 0), |stat| {
        let bytes = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
        (bytes(stat.blocks()), bytes(stat.blocks_available()))
    });
    MountStatus {
        source: mounted.source.to_owned(),
        fstype: mounted.fstype.to_owned(),
        read_only: mounted.has("ro"),
        size_bytes,
        available_bytes,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    #[test]
    fn disks_have_sizes_in_bytes_and_partitions() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("sys/block/vda/size", "8388608\n"),
            ("sys/block/vda/ro", "1\n"),
            ("sys/block/vda/removable", "0\n"),
            ("sys/block/vda/queue/rotational", "1\n"),
            ("sys/block/vda/device/model", "QEMU HARDDISK   \n"),
            ("sys/block/vda/vda1/partition", "1\n"),
            ("sys/block/vda/vda7/partition", "7\n"),
            ("sys/block/loop0/size", "8\n"),
            ("sys/block/sr0/size", "0\n"),
        ] {
            put(root.path(), path, text);
        }
        let found = disks(root.path());
        assert_eq!(found.len(), 1);
        let (name, disk) = &found[0];
        assert_eq!((name.as_str(), disk.size_bytes, disk.model.as_str()), ("vda", 4 << 30, "QEMU HARDDISK"));
        assert!(disk.read_only && disk.rotational && !disk.removable);
        assert_eq!(disk.partitions, ["vda1", "vda7"]);
        assert!(disks(&root.path().join("none")).is_empty());
    }

    #[test]
    fn links_have_state_and_driver() {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in [("operstate", "up\n"), ("address", "52:54:00:12:34:56\n"), ("mtu", "1500\n")] {
            put(root.path(), &format!("sys/class/net/enp0s2/{file}"), text);
        }
        fs::create_dir_all(root.path().join("sys/class/net/enp0s2/device")).unwrap();
        symlink("../../bus/drivers/virtio_net", root.path().join("sys/class/net/enp0s2/device/driver"))
            .unwrap();
        let found = links(root.path());
        let (name, link) = &found[0];
        assert_eq!((name.as_str(), link.state.as_str(), link.mtu), ("enp0s2", "up", 1500));
        assert_eq!((link.mac.as_str(), link.driver.as_str()), ("52:54:00:12:34:56", "virtio_net"));
    }

    #[test]
    fn a_device_has_one_mount_and_pods_memory_none() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("var")).unwrap();
        fs::create_dir(root.path().join("fuse")).unwrap();
        put(
            root.path(),
            "proc/1/mounts",
            "/dev/mapper/root / erofs ro 0 0\n/dev/vda7 /var ext4 rw,relatime 0 0\ntmpfs /run tmpfs rw 0 0\n/dev/fuse /fuse fuse.x rw 0 0\n\
             /dev/vda7 /var/lib/kubelet/pods/1 ext4 rw 0 0\ntmpfs /var/lib/kubelet/pods/1/volumes/x tmpfs rw 0 0\n\
             proc /proc proc rw 0 0\n",
        );
        assert!(mounts(root.path()).is_ok() && mounts(&root.path().join("none")).is_err());
        let found = mounts(root.path()).unwrap();
        let places: Vec<&str> = found.iter().map(|(place, _)| place.as_str()).collect();
        assert_eq!(places, ["/", "/var", "/run", "/fuse"]);
        assert!(found[0].1.read_only && !found[1].1.read_only);
        assert!(found[1].1.size_bytes >= found[1].1.available_bytes && found[1].1.size_bytes > 0);
        // There is no such directory below this root, and nobody asks FUSE.
        assert_eq!((found[2].1.size_bytes, found[3].1.size_bytes), (0, 0));
    }
}
