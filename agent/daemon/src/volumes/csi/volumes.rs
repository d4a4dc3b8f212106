//! What this incarnation of the agent knows of drivers' volumes: which pods want one, which it has staged and published.
//!
//! In: set-ups and tearings down of pods, the Node as the watch shows it. Out: whether a pod may have a volume, one at a time
//! for each volume. Invariant: nothing here is needed after a kill: what is on the disk is told again, what was done is asked
//! for again. The decisions are `agent_volumes::attach`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_types::api::WatchEvent;
use agent_types::ids::PodUid;
use agent_types::time::Mono;
use agent_volumes::attach::{Attached, OnDisk, Staging};
use agent_volumes::key::VolumeKey;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::{Notify, OwnedMutexGuard};

use crate::tasks::keyed_locks::KeyedLocks;

/// The volumes of drivers; clones share it.
#[derive(Clone, Default)]
pub struct CsiVolumes(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Whoever stages, publishes or takes back a volume holds its lock while the driver is at it: staging for one pod and
    /// unstaging after another must not overlap.
    locks: KeyedLocks<VolumeKey>,
    /// Whoever logs in at an iSCSI target, or out, holds its lock.
    targets: KeyedLocks<String>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    staging: Staging,
    staged: BTreeSet<VolumeKey>,
    published: BTreeMap<String, Published>,
}

/// A volume that is published for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// Whose it is.
    pub(crate) pod: PodUid,
    /// Name of the volume in the pod.
    pub(crate) name: String,
    /// Which volume.
    pub(crate) key: VolumeKey,
    /// The driver wants to be asked again and again.
    pub(crate) again: bool,
}

impl CsiVolumes {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of it is whole.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Alone with a volume, until the answer is dropped.
    pub(crate) async fn alone(&self, key: &VolumeKey) -> OwnedMutexGuard<()> {
        self.0.locks.alone(key).await
    }

    /// Alone with an iSCSI target, until the answer is dropped.
    pub(crate) async fn alone_with_target(&self, iqn: &str) -> OwnedMutexGuard<()> {
        self.0.targets.alone(&iqn.to_owned()).await
    }

    /// What the disk holds is different: some volume may be free.
    pub(crate) fn look_again(&self) {
        self.0.changed.notify_one();
    }

    /// A pod wants a volume; `attached` is whether it has to be attached to the node.
    pub(crate) fn want(&self, pod: &PodUid, key: &VolumeKey, attached: bool) {
        if self.lock().staging.want(pod, key, attached) {
            self.0.changed.notify_one();
        }
    }

    /// A pod's volumes were taken away.
    pub(crate) fn forget(&self, pod: &PodUid) {
        self.lock().staging.forget(pod);
        self.0.changed.notify_one();
    }

    /// Whether a pod may have a volume that has to be attached.
    pub(crate) fn is_attached(&self, key: &VolumeKey) -> Attached {
        self.lock().staging.is_attached(key)
    }

    /// As which device the cluster attached a volume; empty: as none.
    pub(crate) fn device(&self, key: &VolumeKey) -> String {
        self.lock().staging.device(key)
    }

    /// What the watch on the Node says; the answer is pods that may have a volume now.
    pub(crate) fn node_says(&self, event: &WatchEvent<Node>) -> BTreeSet<PodUid> {
        let node = match event {
            WatchEvent::Listed(nodes) => match nodes.first() {
                Some(node) => node,
                None => return BTreeSet::new(),
            },
            WatchEvent::Applied(node) => node,
            WatchEvent::Deleted(_) | WatchEvent::Lost(_) => return BTreeSet::new(),
        };
        let Some(status) = &node.status else { return BTreeSet::new() };
        let in_use = status.volumes_in_use.iter().flatten().cloned().collect();
        let attached = status.volumes_attached.iter().flatten().map(|v| v.name.clone()).collect();
        let devices =
            status.volumes_attached.iter().flatten().map(|v| (v.name.clone(), v.device_path.clone()));
        let mut state = self.lock();
        state.staging.devices_are(devices.filter(|(_, path)| !path.is_empty()).collect());
        state.staging.node_says(in_use, attached)
    }

    /// The volume was staged by this agent, and not taken back.
    pub(crate) fn is_staged(&self, key: &VolumeKey) -> bool {
        self.lock().staged.contains(key)
    }

    /// It is now, or may no longer be.
    pub(crate) fn set_staged(&self, key: &VolumeKey, is: bool) {
        let staged = &mut self.lock().staged;
        if is {
            staged.insert(key.clone())
        } else {
            staged.remove(key)
        };
    }

    /// It was published there by this agent, and not taken back.
    pub(crate) fn is_published(&self, target: &str) -> bool {
        self.lock().published.contains_key(target)
    }

    /// It was, and nothing is left to ask its driver for.
    pub(crate) fn is_settled(&self, target: &str) -> bool {
        self.lock().published.get(target).is_some_and(|of| !of.again)
    }

    /// It is now, for this pod.
    pub(crate) fn published(&self, target: &str, of: Published) {
        self.lock().published.insert(target.to_owned(), of);
    }

    /// It may no longer be.
    pub(crate) fn unpublished(&self, target: &str) {
        self.lock().published.remove(target);
    }

    /// All that is published, by its target.
    pub(crate) fn all_published(&self) -> BTreeMap<String, Published> {
        self.lock().published.clone()
    }

    /// What the API server is to be told, and what drivers are to be asked to let go of.
    pub(super) fn look(&self, disk: &OnDisk, now: Mono) -> (Vec<String>, Vec<VolumeKey>) {
        let mut state = self.lock();
        (state.staging.in_use(disk), state.staging.unstage(disk, now))
    }

    pub(super) fn in_use(&self, disk: &OnDisk) -> Vec<String> {
        self.lock().staging.in_use(disk)
    }

    pub(super) fn is_idle(&self, key: &VolumeKey, disk: &OnDisk) -> bool {
        self.lock().staging.is_idle(key, disk)
    }

    pub(super) fn unstaged(&self, key: &VolumeKey, done: bool, now: Mono) {
        self.lock().staging.unstaged(key, done, now);
        self.0.changed.notify_one();
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        self.lock().staging.deadline()
    }

    /// Something may be different.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }
}
