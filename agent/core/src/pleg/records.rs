//! PLEG's state of each pod: the last snapshot, and whether an inspection is due.
//!
//! In: hints, lists, snapshots. Out: due inspections, whether a snapshot is new. Invariants: an older answer
//! never replaces a newer one; a pod that is gone and was reported as gone is forgotten.

use std::collections::BTreeMap;

use agent_types::ids::{PodKey, PodUid};
use agent_types::runtime::observed::{ContainerState, ListedPod, PodSnapshot, SandboxState};
use agent_types::time::Mono;

#[derive(Clone, Debug, Default)]
struct PodRecord {
    /// As last seen; `None` before the first inspection.
    seen: Option<ListedPod>,
    /// Time of the request whose answer is `seen`.
    as_of: Mono,
    look: InspectState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InspectState {
    #[default]
    Idle,
    /// Inspect at `due`; only an answer to a request after `hinted` satisfies the hint.
    Due { hinted: Mono, due: Mono },
    /// Inspection in flight; `again`: time of a hint since.
    Asked { again: Option<Mono> },
}

#[derive(Clone, Debug, Default)]
pub(super) struct PodRecords {
    entries: BTreeMap<PodUid, PodRecord>,
}

impl PodRecords {
    pub(super) fn hint(&mut self, uid: &PodUid, now: Mono, due: Mono) {
        let entry = self.entries.entry(uid.clone()).or_default();
        entry.look = match entry.look {
            InspectState::Idle => InspectState::Due { hinted: now, due },
            InspectState::Due { due: earlier, .. } => {
                InspectState::Due { hinted: now, due: earlier.min(due) }
            }
            InspectState::Asked { .. } => InspectState::Asked { again: Some(now) },
        };
    }

    /// Marks every pod that differs from its last snapshot; true if there is one.
    pub(super) fn compare(&mut self, as_of: Mono, listed: Vec<ListedPod>, now: Mono) -> bool {
        let mut listed: BTreeMap<PodUid, ListedPod> =
            listed.into_iter().map(|p| (p.pod.uid.clone(), p)).collect();
        let mut changed = Vec::new();
        for (uid, entry) in &self.entries {
            let now_listed = listed.remove(uid);
            if as_of > entry.as_of && entry.seen.as_ref() != now_listed.as_ref() {
                changed.push(uid.clone());
            }
        }
        changed.extend(listed.into_keys());
        for uid in &changed {
            self.hint(uid, now, now);
        }
        !changed.is_empty()
    }

    /// How many containers the pod was last seen with.
    pub(super) fn containers(&self, uid: &PodUid) -> u32 {
        let seen = self.entries.get(uid).and_then(|entry| entry.seen.as_ref());
        seen.map_or(0, |seen| u32::try_from(seen.containers.len()).unwrap_or(u32::MAX))
    }

    /// Takes a snapshot; true if it differs from the last. If another inspection is needed, it is due at
    /// `next`.
    pub(super) fn inspected(&mut self, snapshot: &PodSnapshot, next: Mono) -> bool {
        let uid = snapshot.pod.uid.clone();
        let entry = self.entries.entry(uid.clone()).or_default();
        entry.look = match entry.look {
            InspectState::Due { hinted, .. } if hinted < snapshot.as_of => InspectState::Idle,
            InspectState::Asked { again: Some(hinted) } if hinted >= snapshot.as_of => {
                InspectState::Due { hinted, due: next }
            }
            InspectState::Asked { .. } => InspectState::Idle,
            other => other,
        };
        if entry.as_of > snapshot.as_of {
            return false;
        }
        entry.as_of = snapshot.as_of;
        let seen = as_listed(snapshot);
        let gone = seen.sandboxes.is_empty() && seen.containers.is_empty();
        let news = entry.seen.as_ref() != Some(&seen) && !(gone && entry.seen.is_none());
        entry.seen = Some(seen).filter(|_| !gone);
        if gone && entry.look == InspectState::Idle {
            self.entries.remove(&uid);
        }
        news
    }

    pub(super) fn failed(&mut self, uid: &PodUid, now: Mono, retry: Mono) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.look = InspectState::Due { hinted: now, due: retry };
        }
    }

    /// Takes the due pods, within the bound on inspections in flight.
    pub(super) fn due(&mut self, now: Mono, max: usize) -> Vec<PodUid> {
        let mut room = max.saturating_sub(self.asked());
        let mut out = Vec::new();
        for (uid, entry) in &mut self.entries {
            if let InspectState::Due { due, .. } = entry.look
                && due <= now
                && room > 0
            {
                entry.look = InspectState::Asked { again: None };
                room -= 1;
                out.push(uid.clone());
            }
        }
        out
    }

    /// When the next pod is to be inspected; none while the bound is reached (an answer will come).
    pub(super) fn next_due(&self, max: usize) -> Option<Mono> {
        if self.asked() >= max {
            return None;
        }
        let due = |e: &PodRecord| match e.look {
            InspectState::Due { due, .. } => Some(due),
            InspectState::Idle | InspectState::Asked { .. } => None,
        };
        self.entries.values().filter_map(due).min()
    }

    fn asked(&self) -> usize {
        self.entries.values().filter(|e| matches!(e.look, InspectState::Asked { .. })).count()
    }

    pub(super) fn pending(&self) -> usize {
        self.entries.values().filter(|e| e.look != InspectState::Idle).count()
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = (&PodKey, bool)> {
        let live = |p: &ListedPod| {
            p.sandboxes.values().any(|ready| *ready)
                || p.containers.values().any(|s| *s == number(ContainerState::Running))
        };
        self.entries.values().filter_map(|e| e.seen.as_ref()).map(move |p| (&p.pod, live(p)))
    }
}

/// A snapshot in the form of a relist's line, so that the two compare.
fn as_listed(snapshot: &PodSnapshot) -> ListedPod {
    ListedPod {
        pod: snapshot.pod.clone(),
        sandboxes: snapshot
            .sandboxes
            .iter()
            .map(|s| (s.id.clone(), s.state == SandboxState::Ready))
            .collect(),
        containers: snapshot.containers.iter().map(|c| (c.id.clone(), number(c.state))).collect(),
    }
}

/// The number of the CRI enum `ContainerState`.
fn number(state: ContainerState) -> i32 {
    match state {
        ContainerState::Created => 0,
        ContainerState::Running => 1,
        ContainerState::Exited => 2,
        ContainerState::Unknown => 3,
    }
}
