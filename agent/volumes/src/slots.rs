//! The volumes of one pod: mounted ones, ones to set up (again), and the times of the set-ups.
//!
//! In: the pod's volumes, the volumes behind its claims, answers of set-ups, changes of their sources, the
//! time. Out: set-ups to start now, whether all volumes are mounted, texts for events. Invariants: one set-up
//! in flight for a volume; after a failure 0.5 s doubling to 2m2s, unless a source changed meanwhile; a
//! mounted volume stays mounted for its containers, even if a later set-up fails. Upstream:
//! pkg/volume/util/nestedpendingoperations, pkg/kubelet/volumemanager (reconciler, `WaitForAttachAndMount`).

mod slot;

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::time::Mono;

use crate::bound::{Bound, Claims};

use slot::{Kind, SetUpReason, Slot, SlotState, Work};

/// How long containers wait before an event says what for.
const WAIT_MAX: Duration = Duration::from_secs(123);
/// How long files are given to a group before an event says so, and how long until the next one. Upstream:
/// firstEventReportDuration, progressReportDuration.
const GIVING_FIRST: Duration = Duration::from_secs(30);
const GIVING_NEXT: Duration = Duration::from_secs(60);
/// Why such a wait ended.
const TOO_LONG: &str = "context deadline exceeded";
const NO_ROOM: &str = "Node has reached its volume attachment limit, rejecting pod.";

/// A volume that a pod has.
#[derive(Clone, Copy, Debug, Default)]
pub struct DesiredVolume<'n> {
    /// Name of the volume.
    pub name: &'n str,
    /// It is a claim's.
    pub claimed: bool,
    /// Only containers wait for it ([`super::account::is_account`]).
    pub account: bool,
    /// If it is new, it is not set up sooner than this.
    pub not_before: Mono,
}

/// The volumes of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodVolumes {
    slots: BTreeMap<String, Slot>,
    /// What the claims among them are bound to.
    claims: Claims,
    /// Since when containers wait.
    waiting: Option<Mono>,
    torn_down: bool,
}

impl PodVolumes {
    /// The pod has these volumes; those that are new are to be set up.
    pub fn desire<'n>(&mut self, volumes: impl Iterator<Item = DesiredVolume<'n>>) {
        for DesiredVolume { name, claimed, account, not_before } in volumes {
            let kind = match (claimed, account) {
                (true, _) => Kind::Claim,
                (false, true) => Kind::Account,
                (false, false) => Kind::Plain,
            };
            self.slots.entry(name.to_owned()).or_insert_with(|| Slot::new(kind, not_before));
        }
    }

    /// A source of the pod's volumes changed: look through all of them, also those that failed a moment ago.
    pub fn sources_changed(&mut self) {
        for slot in self.slots.values_mut() {
            let work = match slot.work() {
                Some(Work::Busy { why, .. }) => Work::Busy { overtaken: true, why: *why },
                Some(Work::Due { why, .. }) => Work::Due { not_before: Mono(0), why: *why },
                None => Work::Due { not_before: Mono(0), why: SetUpReason::Stale },
            };
            slot.set(work);
        }
    }

    /// Volumes to be set up at `now`.
    #[must_use]
    pub fn due(&self, now: Mono) -> Vec<String> {
        let due = |s: &Slot| s.due().is_some_and(|at| at <= now);
        self.slots.iter().filter(|(_, s)| due(s)).map(|(name, _)| name.clone()).collect()
    }

    /// A set-up of `name` is under way.
    pub fn began(&mut self, name: &str) {
        if let Some(slot) = self.slots.get_mut(name) {
            let why = slot.why().unwrap_or(SetUpReason::Stale);
            slot.set(Work::Busy { overtaken: false, why });
        }
    }

    /// The next set-up of `name` is to find out why it is not attached. It is said once.
    pub fn is_overdue(&mut self, name: &str) -> bool {
        match self.slots.get_mut(name).and_then(Slot::why_mut) {
            Some(SetUpReason::Unattached { overdue, .. }) => std::mem::take(overdue),
            _ => false,
        }
    }

    /// It is a block device, which the node and the pod will have there.
    pub fn maps(&mut self, name: &str, places: [String; 2]) {
        if let Some(SlotState::Missing { maps, .. }) = self.slots.get_mut(name).map(|slot| &mut slot.state) {
            *maps = Some(places);
        }
    }

    /// Of a block device that is there now and was not before: where.
    pub fn mapped(&mut self, name: &str) -> Option<[String; 2]> {
        match &mut self.slots.get_mut(name)?.state {
            SlotState::Missing { maps, .. } => maps.take(),
            _ => None,
        }
    }

    /// It is mounted and up to date; `renew` is when to look through it again by itself. `labelled`: its mount says what its
    /// files are labelled.
    pub fn succeeded(&mut self, name: &str, renew: Option<Mono>, labelled: bool) {
        if let Some(bound) = self.claims.get_mut(name) {
            bound.labelled |= labelled;
        }
        if let Some(slot) = self.slots.get_mut(name) {
            slot.failures = 0;
            slot.state = match slot.work() {
                Some(Work::Busy { overtaken: true, .. }) => {
                    SlotState::Stale(Work::Due { not_before: Mono(0), why: SetUpReason::Stale })
                }
                _ => SlotState::Fresh { renew },
            };
        }
    }

    /// What the claims are bound to, by their volumes' names.
    #[must_use]
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The claim of the volume `name` must be looked up before it can be set up.
    #[must_use]
    pub fn is_unbound(&self, name: &str) -> bool {
        self.slots.get(name).is_some_and(|s| s.kind == Kind::Claim) && !self.claims.contains_key(name)
    }

    /// The claim of the volume `name` is bound: it can be set up at once.
    pub fn bound(&mut self, name: &str, to: Bound) {
        if let Some(slot) = self.slots.get_mut(name) {
            let why = slot.why().unwrap_or(SetUpReason::Stale);
            slot.set(Work::Due { not_before: Mono(0), why });
            self.claims.insert(name.to_owned(), to);
        }
    }

    /// It failed. Of a claim it is looked up again what it is bound to, unless it is mounted.
    pub fn failed(&mut self, name: &str, now: Mono) {
        // What is not attached stays so until a set-up says otherwise.
        let why = match self.slots.get(name).and_then(Slot::why) {
            Some(why @ (SetUpReason::Unattached { .. } | SetUpReason::Unprocessed)) => why,
            _ => SetUpReason::Stale,
        };
        self.failed_as(name, why, now);
    }

    fn failed_as(&mut self, name: &str, why: SetUpReason, now: Mono) {
        let Some(slot) = self.slots.get_mut(name) else { return };
        let unattached = slot.is_unattached() || matches!(why, SetUpReason::Unattached { .. });
        slot.failed(why, now);
        if !slot.is_mounted() && !unattached {
            self.claims.remove(name);
        }
    }

    /// It is not attached to the node yet: look again in a while, or when its sources changed. `full`: the node has no room
    /// for it.
    pub fn unattached(&mut self, name: &str, full: bool, now: Mono) {
        self.failed_as(name, SetUpReason::Unattached { full, overdue: false }, now);
    }

    /// Its files are still being given to a group, for `took` by now: the next set-up waits for that. The answer is whether an
    /// event should say so, and whether that is the first one.
    pub fn giving(&mut self, name: &str, took: Duration) -> Option<bool> {
        let slot = self.slots.get_mut(name)?;
        let due = match slot.why_mut() {
            Some(SetUpReason::Giving { event }) => *event,
            _ => GIVING_FIRST,
        };
        let told = took >= due;
        let event = if told { took.saturating_add(GIVING_NEXT) } else { due };
        slot.set(Work::Due { not_before: Mono(0), why: SetUpReason::Giving { event } });
        told.then_some(due == GIVING_FIRST)
    }

    /// It is not known who mounts it: look again in a while.
    pub fn unprocessed(&mut self, name: &str, now: Mono) {
        self.failed_as(name, SetUpReason::Unprocessed, now);
    }

    /// Every volume is there.
    #[must_use]
    pub fn all_mounted(&self) -> bool {
        self.slots.values().all(Slot::is_mounted)
    }

    /// The sandbox may be made: what is not there yet, only containers wait for.
    #[must_use]
    pub fn let_sandbox(&self) -> bool {
        self.slots.values().all(|s| s.is_mounted() || (s.kind == Kind::Account && s.failures == 0))
    }

    /// Containers wait for volumes at `now`; the words of an event once they have waited too long.
    pub fn wait(&mut self, now: Mono) -> Option<String> {
        let since = *self.waiting.get_or_insert(now);
        if now.since(since) < WAIT_MAX {
            return None;
        }
        self.waiting = Some(now);
        for slot in self.slots.values_mut().filter(|slot| slot.is_unattached()) {
            if let Some(SetUpReason::Unattached { overdue, .. }) = slot.why_mut() {
                *overdue = true;
            }
        }
        Some(self.wait_ended(TOO_LONG))
    }

    /// Message for a pod that has to end because the node has no room for one of its volumes.
    #[must_use]
    pub fn no_room(&self) -> Option<String> {
        let full = |slot: &Slot| matches!(slot.why(), Some(SetUpReason::Unattached { full: true, .. }));
        let full = self.slots.values().any(full);
        let text = || format!("{NO_ROOM} {}: {TOO_LONG}", self.missing());
        full.then(text)
    }

    /// The words of an event about a wait that ended because of `why`.
    #[must_use]
    pub fn wait_ended(&self, why: &str) -> String {
        format!("Unable to attach or mount volumes: {}: {why}", self.missing())
    }

    /// What is not there, in upstream's words.
    fn missing(&self) -> String {
        let those = |is: fn(&Slot) -> bool| -> Vec<&str> {
            self.slots.iter().filter(|(_, s)| is(s)).map(|(name, _)| name.as_str()).collect()
        };
        let unmounted = those(|slot| !slot.is_mounted());
        let unattached = those(|slot| !slot.is_mounted() && slot.is_unattached());
        let unprocessed = |slot: &Slot| slot.why() == Some(SetUpReason::Unprocessed);
        let names = self.slots.iter().filter(|(name, slot)| unprocessed(slot) || self.is_unbound(name));
        let unprocessed: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
        format!(
            "unmounted volumes=[{}], unattached volumes=[{}], failed to process volumes=[{}]",
            unmounted.join(" "),
            unattached.join(" "),
            unprocessed.join(" ")
        )
    }

    /// No container waits for the volume any more.
    pub fn waited(&mut self) {
        self.waiting = None;
    }

    /// When to look again, later than `now`. What is due already has had its look: if nothing could be begun, the answer to
    /// what is under way is the moment to look again, not the clock.
    #[must_use]
    pub fn deadline(&self, now: Mono) -> Option<Mono> {
        let slots = self.slots.values().filter_map(Slot::due);
        slots.chain(self.waiting.map(|since| since.after(WAIT_MAX))).filter(|at| *at > now).min()
    }

    /// Everything that was mounted for the pod is gone.
    pub fn gone(&mut self) {
        self.torn_down = true;
        self.slots.clear();
        self.claims.clear();
    }

    /// [`Self::gone`] was said.
    #[must_use]
    pub fn are_gone(&self) -> bool {
        self.torn_down
    }
}

#[cfg(test)]
mod tests;
