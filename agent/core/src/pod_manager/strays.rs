//! Pods of the runtime and of directories that no source wants.
//!
//! In: unknown pods, leftovers of an earlier agent. Out: workers that end them. Invariant: only a pod with the name of a static pod is
//! ended before every expected source was read. Upstream: `HandlePodCleanups` of pkg/kubelet/kubelet_pods.go.

use std::sync::Arc;

use agent_types::ids::PodKey;
use agent_types::kill::KillReason;
use agent_types::machine::Outbox;

use super::state::PodStanding;
use super::{Beginning, ManagerAction, PodManager, tell};
use crate::pod_worker::PodEvent;

impl PodManager {
    /// An unknown pod with the name of a static pod can only be an earlier version of it.
    pub(super) fn take_down_predecessors(&mut self, successor: &PodKey, out: &mut Outbox<ManagerAction>) {
        let same = |key: &&PodKey| {
            key.name == successor.name && key.namespace == successor.namespace && key.uid != successor.uid
        };
        let found: Vec<PodKey> = self.unknown.values().filter(same).cloned().collect();
        for key in found {
            self.orphan(key, out);
        }
    }

    /// Once all sources were read: terminates the pods that no source wants.
    pub(super) fn clean_up(&mut self, out: &mut Outbox<ManagerAction>) {
        if !self.all_is_known() {
            return;
        }
        if !self.synced {
            self.finish_resumed(out);
        }
        // A pod that waits for admission is wanted; if that changes, this list must still contain it.
        let strays = self.unknown.iter().filter(|(uid, _)| !self.waiting.contains(uid));
        let strays: Vec<PodKey> = strays.map(|(_, key)| key.clone()).collect();
        for key in strays {
            self.orphan(key, out);
        }
        if std::mem::replace(&mut self.synced, true) {
            return;
        }
        for uid in self.leftovers.directories.clone() {
            self.orphan(PodKey { namespace: Arc::from(""), name: Arc::from(""), uid }, out);
        }
        self.forget_strangers();
        self.placing.check();
        self.room_came("pods_added");
        out.push(ManagerAction::Synced);
    }

    /// A resumed termination may be that of a pod that a source was to keep; no source wants it now.
    fn finish_resumed(&self, out: &mut Outbox<ManagerAction>) {
        for uid in self.workers.keys().filter(|uid| !self.desired.contains_key(*uid)) {
            tell(uid, PodEvent::Kill { reason: KillReason::Removed, grace_s: None }, out);
        }
    }

    pub(super) fn orphan(&mut self, key: PodKey, out: &mut Outbox<ManagerAction>) {
        self.unknown.remove(&key.uid);
        if self.desired.contains_key(&key.uid) || self.workers.contains_key(&key.uid) {
            return;
        }
        let uid = key.uid.clone();
        self.start(key, Beginning::Fresh, out);
        self.occupy_unknown(&uid);
        if !self.may_run(&uid)
            && let Some(worker) = self.workers.get_mut(&uid)
        {
            worker.standing = PodStanding::Ended;
        }
        tell(&uid, PodEvent::Kill { reason: KillReason::Orphan, grace_s: None }, out);
    }
}
