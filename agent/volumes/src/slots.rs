//! The volumes of one pod: mounted ones, ones to set up (again), and the times of the set-ups.
//!
//! In: the pod's volumes, the volumes behind its claims, answers of set-ups, changes of their sources, the
//! time. Out: set-ups to start now, whether all volumes are mounted, texts for events. Invariants: one set-up
//! in flight for a volume; after a failure 0.5 s doubling to 2m2s, unless a source changed meanwhile; a
//! mounted volume stays mounted for its containers, even if a later set-up fails. Upstream:
//! pkg/volume/util/nestedpendingoperations, pkg/kubelet/volumemanager (reconciler, `WaitForAttachAndMount`).

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::backoff::Backoff;
use agent_types::time::Mono;

use crate::bound::{Bound, Claims};

/// Waits for a claim: a node may not watch claims, and upstream asks ten times a second.
const CLAIM_BACKOFF: Backoff = Backoff { max: Duration::from_secs(8), ..Backoff::OPERATION };
/// How long containers wait before an event says what for.
const WAIT_MAX: Duration = Duration::from_secs(123);
/// How long files are given to a group before an event says so, and how long until the next one. Upstream:
/// firstEventReportDuration, progressReportDuration.
const GIVING_FIRST: Duration = Duration::from_secs(30);
const GIVING_NEXT: Duration = Duration::from_secs(60);
/// Why such a wait ended.
const TOO_LONG: &str = "context deadline exceeded";
const NO_ROOM: &str = "Node has reached its volume attachment limit, rejecting pod.";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Slot {
    mounted: bool,
    /// It is a claim's.
    claimed: bool,
    /// Only containers wait for it, unless it has failed.
    account: bool,
    /// It is not attached to the node yet.
    unattached: bool,
    /// It was not when containers had waited long: the next set-up is to say why.
    overdue: bool,
    /// It will not be attached: the node has no room for it.
    full: bool,
    busy: bool,
    /// It is not known who mounts it.
    unprocessed: bool,
    /// It must be set up, or looked through again.
    stale: bool,
    /// What is being set up is old already.
    overtaken: bool,
    /// Of a block device: where the node and the pod have it once it is there.
    maps: Option<[String; 2]>,
    failures: u32,
    not_before: Mono,
    /// Its files are being given to a group, and an event says so once that has taken this long.
    giving: Option<Duration>,
    /// A token in it is renewed then.
    renew: Option<Mono>,
}

/// A volume that a pod has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Desired<'n> {
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
    pub fn desire<'n>(&mut self, volumes: impl Iterator<Item = Desired<'n>>) {
        for Desired { name, claimed, account, not_before } in volumes {
            let new = || Slot { stale: true, claimed, account, not_before, ..Slot::default() };
            self.slots.entry(name.to_owned()).or_insert_with(new);
        }
    }

    /// A source of the pod's volumes changed: look through all of them, also those that failed a moment ago.
    pub fn sources_changed(&mut self) {
        for slot in self.slots.values_mut() {
            slot.stale = true;
            slot.overtaken = slot.busy;
            slot.not_before = Mono(0);
        }
    }

    /// Volumes to be set up at `now`.
    #[must_use]
    pub fn due(&self, now: Mono) -> Vec<String> {
        let due = |s: &Slot| {
            let wanted = s.stale || s.renew.is_some_and(|at| at <= now);
            wanted && !s.busy && s.not_before <= now
        };
        self.slots.iter().filter(|(_, s)| due(s)).map(|(name, _)| name.clone()).collect()
    }

    /// A set-up of `name` is under way.
    pub fn began(&mut self, name: &str) {
        if let Some(slot) = self.slots.get_mut(name) {
            (slot.busy, slot.overtaken) = (true, false);
            (slot.unattached, slot.unprocessed) = (false, false);
        }
    }

    /// The next set-up of `name` is to find out why it is not attached. It is said once.
    pub fn is_overdue(&mut self, name: &str) -> bool {
        self.slots.get_mut(name).is_some_and(|slot| std::mem::take(&mut slot.overdue))
    }

    /// It is a block device, which the node and the pod will have there.
    pub fn maps(&mut self, name: &str, places: [String; 2]) {
        if let Some(slot) = self.slots.get_mut(name).filter(|slot| !slot.mounted) {
            slot.maps = Some(places);
        }
    }

    /// Of a block device that is there now and was not before: where.
    pub fn mapped(&mut self, name: &str) -> Option<[String; 2]> {
        self.slots.get_mut(name)?.maps.take()
    }

    /// It is mounted and up to date; `renew` is when to look through it again by itself. `labelled`: its mount says what its
    /// files are labelled.
    pub fn succeeded(&mut self, name: &str, renew: Option<Mono>, labelled: bool) {
        if let Some(bound) = self.claims.get_mut(name) {
            bound.labelled |= labelled;
        }
        if let Some(slot) = self.slots.get_mut(name) {
            (slot.mounted, slot.busy, slot.failures, slot.giving) = (true, false, 0, None);
            (slot.stale, slot.not_before, slot.renew) = (slot.overtaken, Mono(0), renew);
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
        self.slots.get(name).is_some_and(|s| s.claimed) && !self.claims.contains_key(name)
    }

    /// The claim of the volume `name` is bound: it can be set up at once.
    pub fn bound(&mut self, name: &str, to: Bound) {
        if let Some(slot) = self.slots.get_mut(name) {
            (slot.busy, slot.stale, slot.not_before) = (false, true, Mono(0));
            self.claims.insert(name.to_owned(), to);
        }
    }

    /// It failed. Of a claim it is looked up again what it is bound to, unless it is mounted.
    pub fn failed(&mut self, name: &str, now: Mono) {
        if let Some(slot) = self.slots.get_mut(name) {
            let series = if slot.claimed { CLAIM_BACKOFF } else { Backoff::OPERATION };
            let wait = series.next(slot.failures);
            slot.failures = slot.failures.saturating_add(1);
            (slot.busy, slot.stale, slot.giving) = (false, true, None);
            slot.not_before = if slot.overtaken { Mono(0) } else { now.after(wait) };
            if !slot.mounted && !slot.unattached {
                self.claims.remove(name);
            }
        }
    }

    /// It is not attached to the node yet: look again in a while, or when its sources changed. `full`: the node has no room
    /// for it.
    pub fn unattached(&mut self, name: &str, full: bool, now: Mono) {
        if let Some(slot) = self.slots.get_mut(name) {
            (slot.unattached, slot.full) = (true, full);
        }
        self.failed(name, now);
    }

    /// Its files are still being given to a group, for `took` by now: the next set-up waits for that. The answer is whether an
    /// event should say so, and whether that is the first one.
    pub fn giving(&mut self, name: &str, took: Duration) -> Option<bool> {
        let slot = self.slots.get_mut(name)?;
        (slot.busy, slot.stale, slot.not_before) = (false, true, Mono(0));
        let due = *slot.giving.get_or_insert(GIVING_FIRST);
        if took < due {
            return None;
        }
        slot.giving = Some(took.saturating_add(GIVING_NEXT));
        Some(due == GIVING_FIRST)
    }

    /// It is not known who mounts it: look again in a while.
    pub fn unprocessed(&mut self, name: &str, now: Mono) {
        if let Some(slot) = self.slots.get_mut(name) {
            slot.unprocessed = true;
        }
        self.failed(name, now);
    }

    /// Every volume is there.
    #[must_use]
    pub fn all_mounted(&self) -> bool {
        self.slots.values().all(|s| s.mounted)
    }

    /// The sandbox may be made: what is not there yet, only containers wait for.
    #[must_use]
    pub fn let_sandbox(&self) -> bool {
        self.slots.values().all(|s| s.mounted || (s.account && s.failures == 0))
    }

    /// Containers wait for volumes at `now`; the words of an event once they have waited too long.
    pub fn wait(&mut self, now: Mono) -> Option<String> {
        let since = *self.waiting.get_or_insert(now);
        if now.since(since) < WAIT_MAX {
            return None;
        }
        self.waiting = Some(now);
        for slot in self.slots.values_mut().filter(|s| s.unattached) {
            slot.overdue = true;
        }
        Some(self.wait_ended(TOO_LONG))
    }

    /// Words for a pod that has to go because the node has no room for one of its volumes.
    #[must_use]
    pub fn no_room(&self) -> Option<String> {
        let full = self.slots.values().any(|slot| slot.unattached && slot.full);
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
        let (unmounted, unattached) = (those(|s| !s.mounted), those(|s| !s.mounted && s.unattached));
        let names = self.slots.iter().filter(|(name, slot)| slot.unprocessed || self.is_unbound(name));
        let unprocessed: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
        format!(
            "unmounted volumes=[{}], unattached volumes=[{}], failed to process volumes=[{}]",
            unmounted.join(" "),
            unattached.join(" "),
            unprocessed.join(" ")
        )
    }

    /// Nobody waits any more.
    pub fn waited(&mut self) {
        self.waiting = None;
    }

    /// When to look again, later than `now`. What is due already has had its look: if nothing could be begun, the answer to
    /// what is under way is the moment to look again, not the clock.
    #[must_use]
    pub fn deadline(&self, now: Mono) -> Option<Mono> {
        let slots = self.slots.values().filter(|s| !s.busy).filter_map(|s| {
            let wanted = if s.stale { Some(s.not_before) } else { s.renew };
            wanted.map(|at| at.max(s.not_before))
        });
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
mod tests {
    use super::*;

    #[test]
    fn the_series_of_waits_for_a_claim() {
        let millis = [0, 1, 2, 3, 4, 5, 40].map(|n| CLAIM_BACKOFF.next(n).as_millis());
        assert_eq!(millis, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
    }
}
