//! How much is left of memory, disks and process ids. Some microseconds: it is asked several times a second when memory is
//! nearly used up.
//!
//! In: where disks and pods are. Out: observations. Invariants: what cannot be read is left out; memory that is left can
//! be given. Linux: proc(5), Documentation/admin-guide/cgroup-v2.rst.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use agent_kubelet_api::stats::cgroup::{field, number};
use agent_kubelet_api::stats::disk::Filesystem;
use agent_kubelet_api::stats::host;
use agent_types::resources::observation::{Layout, Observation, Observations};
use agent_types::time::Wall;
use orlop_config::kubelet::eviction::Signal;
use orlop_config::procfs::kilobytes;

use crate::disk_use;

/// The unified hierarchy and /proc.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/proc"];
/// What is read of /proc in addition to meminfo: the rest of the machine's account costs more than all of this.
const OF_PROC: [&str; 3] = ["loadavg", "sys/kernel/pid_max", "sys/kernel/threads-max"];

/// Where to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignalPaths {
    /// The kubelet's root directory.
    pub root_dir: PathBuf,
    /// Where the runtime has images; `None` until it has said so.
    pub images: Option<PathBuf>,
    /// Where it has writable layers; `None` until it has said so.
    pub containers: Option<PathBuf>,
    /// The cgroup in which all pods' cgroups are, a path inside the hierarchy.
    pub pods: String,
}

impl SignalPaths {
    /// Which file systems there are; `None` until the runtime said where images are.
    #[must_use]
    pub fn layout(&self) -> Option<Layout> {
        let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
        let (node, images) = (device(&self.root_dir)?, device(self.images.as_deref()?)?);
        let containers = self.containers.as_deref().and_then(device).unwrap_or(images);
        Some(Layout { dedicated_images: images != node, split_containers: containers != images })
    }
}

/// Reads them.
#[must_use]
pub fn observe(places: &SignalPaths, at: Wall) -> Observations {
    let [cgroups, proc] = ROOTS.map(Path::new);
    observe_in(cgroups, proc, places, at)
}

fn observe_in(cgroups: &Path, proc: &Path, places: &SignalPaths, at: Wall) -> Observations {
    let mut found = Observations::new();
    let mut add = |signal: Signal, available: u64, capacity: u64| {
        let amount = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
        found.insert(signal, Observation { at, available: amount(available), capacity: amount(capacity) });
    };
    let read = |name: &str| std::fs::read_to_string(proc.join(name)).ok();
    let meminfo = read("meminfo").unwrap_or_default();
    if let Some((left, all)) = host::left(&meminfo).zip(kilobytes(&meminfo, "MemTotal")) {
        add(Signal::MemoryAvailable, left, all);
    }
    let node = host::usage(at, |name| OF_PROC.contains(&name).then(|| read(name)).flatten());
    if let Some((used, max)) = node.tasks.threads.zip(node.tasks.threads_max) {
        add(Signal::PidAvailable, max.saturating_sub(used), max);
    }
    if let Some((left, limit)) = of_pods(&cgroups.join(places.pods.trim_matches('/'))) {
        add(Signal::AllocatableMemoryAvailable, left, limit);
    }
    let containers = places.containers.as_ref().or(places.images.as_ref());
    let disks = [
        (Some(&places.root_dir), Signal::NodefsAvailable, Signal::NodefsInodesFree),
        (places.images.as_ref(), Signal::ImagefsAvailable, Signal::ImagefsInodesFree),
        (containers, Signal::ContainerfsAvailable, Signal::ContainerfsInodesFree),
    ];
    for (path, space, inodes) in disks {
        let Some(Ok(disk)) = path.map(|path| disk_use::filesystem(path, at)) else { continue };
        let Filesystem { available_bytes, capacity_bytes, inodes_free, .. } = disk;
        add(space, available_bytes, capacity_bytes);
        if let Some((free, all)) = inodes_free.zip(disk.inodes) {
            add(inodes, free, all);
        }
    }
    found
}

/// What all pods together may still have, and their limit; `None` where they have no limit of their own.
fn of_pods(group: &Path) -> Option<(u64, u64)> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let limit = number(&read("memory.max")?)?;
    let inactive = field(&read("memory.stat")?, "inactive_file").unwrap_or(0);
    let used = number(&read("memory.current")?)?.saturating_sub(inactive);
    Some((limit.saturating_sub(used), limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_from_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let meminfo = "MemTotal: 1000 kB\nMemFree: 300 kB\nInactive(file): 60 kB\nSReclaimable: 40 kB\n";
        write("proc/meminfo", meminfo);
        write("proc/loadavg", "0.0 0.0 0.0 2/90 4711\n");
        write("proc/sys/kernel/pid_max", "100\n");
        write("proc/sys/kernel/threads-max", "4000\n");
        write("cgroup/kubepods.slice/memory.max", "5000\n");
        write("cgroup/kubepods.slice/memory.current", "3000\n");
        write("cgroup/kubepods.slice/memory.stat", "anon 1\ninactive_file 1000\n");
        let places = SignalPaths {
            root_dir: dir.path().to_owned(),
            images: Some(PathBuf::from("/proc")),
            containers: None,
            pods: "/kubepods.slice".to_owned(),
        };
        let look = |places: &SignalPaths| {
            observe_in(&dir.path().join("cgroup"), &dir.path().join("proc"), places, Wall(5))
        };
        let found = look(&places);
        let of = |signal: Signal| found.get(&signal).map(|o| (o.available, o.capacity));
        assert_eq!(of(Signal::MemoryAvailable), Some((400 << 10, 1000 << 10)));
        assert_eq!(of(Signal::PidAvailable), Some((10, 100)));
        assert_eq!(of(Signal::AllocatableMemoryAvailable), Some((3000, 5000)));
        assert!(of(Signal::NodefsAvailable).is_some_and(|(left, all)| left > 0 && left <= all));
        assert_eq!(of(Signal::ContainerfsAvailable), of(Signal::ImagefsAvailable), "layers are with images");
        assert_eq!(
            places.layout(),
            Some(Layout { dedicated_images: true, split_containers: false }),
            "/proc is another file system"
        );
        write("cgroup/kubepods.slice/memory.max", "max\n");
        let unlimited = look(&SignalPaths { images: None, ..places.clone() });
        assert!(!unlimited.contains_key(&Signal::AllocatableMemoryAvailable));
        assert!(!unlimited.contains_key(&Signal::ImagefsAvailable));
        assert_eq!(SignalPaths { images: None, ..places }.layout(), None);
    }

    #[test]
    fn this_machine_has_memory_and_pids_left() {
        let places = SignalPaths { root_dir: PathBuf::from("/"), ..SignalPaths::default() };
        let found = observe(&places, Wall(5));
        for signal in [Signal::MemoryAvailable, Signal::PidAvailable, Signal::NodefsAvailable] {
            assert!(found.get(&signal).is_some_and(|o| o.available > 0 && o.available <= o.capacity));
        }
    }
}
