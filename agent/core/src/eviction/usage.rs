//! A pod's usage of resources, as far as eviction needs it.
//!
//! In: statistics. Out: [`PodUse`]. Invariants: pure; an unmeasured value is `None` and counts as nothing; a
//! partly measured value counts as more than any limit, because a container can cause that; a pod without
//! statistics has no [`PodUse`]. Upstream: `PodStats` of the stats API
//! (k8s.io/kubelet/pkg/apis/stats/v1alpha1).

use agent_kubelet_api::stats::disk::{Bound, NodeDiskUsage, TreeUsage};
use agent_kubelet_api::stats::{ShownPod, Snapshot, usage};

/// Bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Used bytes.
    pub bytes: u64,
    /// Used inodes.
    pub inodes: u64,
    /// Whether that is all.
    pub bound: Bound,
}

impl From<&TreeUsage> for Space {
    fn from(taken: &TreeUsage) -> Space {
        Space { bytes: taken.bytes, inodes: taken.inodes, bound: taken.bound }
    }
}

impl Space {
    pub(super) fn plus(self, other: Space) -> Space {
        Space {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
            bound: self.bound.and(other.bound),
        }
    }

    /// The bytes, or the inodes: more than all others if there may be any number more.
    pub(super) fn amount(self, of: fn(Space) -> u64) -> i64 {
        match self.bound {
            Bound::Exact => i64::try_from(of(self)).unwrap_or(i64::MAX),
            Bound::AtLeast => i64::MAX,
        }
    }

    fn sum(parts: impl Iterator<Item = Space>) -> Space {
        parts.fold(Space::default(), Space::plus)
    }
}

/// A container that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUse {
    /// Its name in the pod.
    pub name: String,
    /// Memory that is not given back without harm, bytes.
    pub memory: Option<u64>,
    /// Its writable layer.
    pub layer: Option<Space>,
    /// Usage of the container's logs.
    pub logs: Option<Space>,
}

/// A volume that the node made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeUse {
    /// Its name in the pod.
    pub name: String,
    /// What is in it.
    pub space: Space,
    /// It counts as the pod's ephemeral storage.
    pub ephemeral: bool,
}

/// What a pod uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUse {
    /// Memory that is not given back without harm, bytes.
    pub memory: Option<u64>,
    /// Number of processes.
    pub processes: Option<u64>,
    /// The pod's hosts file, and the termination messages of its containers.
    pub own_files: Option<Space>,
    /// Containers, in the order in which they are shown.
    pub containers: Vec<ContainerUse>,
    /// Volumes, in the pod's order.
    pub volumes: Vec<VolumeUse>,
}

/// Parts of a pod's storage that count for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) layers: bool,
    pub(super) logs: bool,
    pub(super) volumes: bool,
}

impl PodUse {
    /// What is known of a pod; `None` if nothing of it runs.
    #[must_use]
    pub fn of(shown: &ShownPod, snapshot: &Snapshot, measured: Option<&NodeDiskUsage>) -> Option<PodUse> {
        let found = snapshot.pod(&shown.uid)?;
        let key = |name: &String| (shown.uid.clone(), name.clone());
        let layer_of = |bytes: u64, inodes: Option<u64>| Space {
            bytes,
            inodes: inodes.unwrap_or(0),
            bound: Bound::Exact,
        };
        let container = |c: &agent_kubelet_api::stats::ShownContainer| {
            let usage = found.container(&c.id)?;
            let layer = measured.and_then(|m| m.layers.get(&c.id));
            let logs = measured.and_then(|m| m.logs.get(&key(&c.name)));
            Some(ContainerUse {
                name: c.name.clone(),
                memory: usage.memory.working_set,
                layer: layer.and_then(|l| Some(layer_of(l.used_bytes?, l.inodes_used))),
                logs: logs.map(Space::from),
            })
        };
        let volume = |volume: &agent_kubelet_api::stats::ShownVolume| {
            let taken = measured?.volumes.get(&key(&volume.name))?.taken?;
            Some(VolumeUse {
                name: volume.name.clone(),
                space: Space::from(&taken),
                ephemeral: volume.ephemeral,
            })
        };
        let containers: Vec<ContainerUse> = shown.containers.iter().filter_map(container).collect();
        if containers.is_empty() {
            return None;
        }
        let of_shown = shown.containers.iter().filter_map(|c| found.container(&c.id));
        Some(PodUse {
            memory: found.whole(shown).memory.working_set,
            processes: usage::sum(of_shown, |usage| usage.tasks.processes),
            own_files: measured.and_then(|m| m.own_files.get(&shown.uid)).map(Space::from),
            containers,
            volumes: shown.volumes.iter().filter_map(volume).collect(),
        })
    }

    /// Writable layers, logs and ephemeral volumes; with these the node's own files for the pod, which are on the same disk.
    pub(super) fn storage(&self, parts: Parts) -> Space {
        let of = |container: &ContainerUse| {
            let layer = container.layer.filter(|_| parts.layers);
            let logs = container.logs.filter(|_| parts.logs);
            layer.unwrap_or_default().plus(logs.unwrap_or_default())
        };
        let volumes = self.volumes.iter().filter(|v| parts.volumes && v.ephemeral).map(|v| v.space);
        let own = self.own_files.filter(|_| parts.volumes);
        Space::sum(self.containers.iter().map(of).chain(volumes).chain(own))
    }

    /// All of the pod's own on the node's disk.
    pub(super) fn ephemeral(&self) -> Space {
        self.storage(Parts { layers: true, logs: true, volumes: true })
    }
}
