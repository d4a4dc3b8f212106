//! File systems in the document, with the usage of their parts. Upstream: pkg/kubelet/stats/helper.go.

use agent_types::api_time;
use agent_types::time::Wall;

use super::document::{ContainerStats, FsStats, PvcRef, RuntimeStats, VolumeHealthStats, VolumeStats};
use crate::stats::disk::{Filesystem, Layer, NodeDiskUsage, TreeUsage};
use crate::stats::{ShownPod, ShownVolume};

/// A file system and all that is on it.
pub(super) fn whole(fs: &Filesystem) -> FsStats {
    FsStats {
        used_bytes: Some(fs.used_bytes),
        inodes_used: fs.inodes.zip(fs.inodes_free).map(|(all, free)| all.saturating_sub(free)),
        ..size(fs.at, Some(fs))
    }
}

/// Size of a file system; the caller adds the usage.
fn size(at: Wall, fs: Option<&Filesystem>) -> FsStats {
    FsStats {
        time: api_time::text(at),
        available_bytes: fs.map(|fs| fs.available_bytes),
        capacity_bytes: fs.map(|fs| fs.capacity_bytes),
        inodes_free: fs.and_then(|fs| fs.inodes_free),
        inodes: fs.and_then(|fs| fs.inodes),
        ..FsStats::default()
    }
}

/// One file system for both: the runtime has only one.
pub(super) fn runtime(measured: &NodeDiskUsage) -> Option<RuntimeStats> {
    let image_fs = layer(measured.images.as_ref()?, measured)?;
    Some(RuntimeStats { container_fs: image_fs.clone(), image_fs })
}

/// A writable layer, or the images.
pub(super) fn layer(layer: &Layer, measured: &NodeDiskUsage) -> Option<FsStats> {
    let fs = measured.filesystems.get(&layer.mountpoint);
    Some(FsStats { used_bytes: layer.used_bytes, inodes_used: layer.inodes_used, ..size(layer.at, fs) })
}

/// A container's logs.
pub(super) fn logs(uid: &str, container: &str, measured: &NodeDiskUsage) -> Option<FsStats> {
    let taken = measured.logs.get(&(uid.to_owned(), container.to_owned()))?;
    Some(with(taken, measured.root.as_ref()))
}

fn with(taken: &TreeUsage, fs: Option<&Filesystem>) -> FsStats {
    FsStats { used_bytes: Some(taken.bytes), inodes_used: Some(taken.inodes), ..size(taken.at, fs) }
}

/// Volumes that were measured, in the pod's order.
pub(super) fn volumes(shown: &ShownPod, measured: &NodeDiskUsage) -> Vec<VolumeStats> {
    let volume = |name: &String| {
        let found = measured.volumes.get(&(shown.uid.clone(), name.clone()))?;
        let fs = match (&found.taken, &found.filesystem) {
            (Some(taken), fs) => with(taken, fs.as_ref()),
            (None, Some(fs)) => size(fs.at, Some(fs)),
            (None, None) => return None,
        };
        let health = found.abnormal.map(|abnormal| VolumeHealthStats { abnormal });
        Some((fs, name.clone(), health))
    };
    let claim = |name: &String| PvcRef { name: name.clone(), namespace: shown.namespace.clone() };
    let told = |v: &ShownVolume| {
        let (fs, name, volume_health_stats) = volume(&v.name)?;
        Some(VolumeStats { fs, name, pvc_ref: v.claim.as_ref().map(claim), volume_health_stats })
    };
    shown.volumes.iter().filter_map(told).collect()
}

/// A pod's whole usage of the node's own disk: writable layers, logs, ephemeral volumes, its hosts file and
/// termination messages.
pub(super) fn ephemeral(
    shown: &ShownPod,
    containers: &[ContainerStats],
    volumes: &[VolumeStats],
    measured: &NodeDiskUsage,
) -> Option<FsStats> {
    let root = measured.root.as_ref()?;
    let counts = |name: &String| shown.volumes.iter().any(|v| v.ephemeral && v.name == *name);
    let own = measured.own_files.get(&shown.uid).map(|taken| with(taken, None));
    let parts = containers
        .iter()
        .flat_map(|c| [&c.rootfs, &c.logs])
        .flatten()
        .chain(volumes.iter().filter(|v| counts(&v.name)).map(|v| &v.fs))
        .chain(&own);
    let mut all = size(root.at, Some(root));
    for part in parts {
        all.used_bytes = added(all.used_bytes, part.used_bytes);
        all.inodes_used = added(all.inodes_used, part.inodes_used);
    }
    Some(all)
}

fn added(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    }
}
