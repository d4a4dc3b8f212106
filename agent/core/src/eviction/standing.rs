//! State of the thresholds over time: since when each is met, which of them need a victim, and the Node's
//! conditions.
//!
//! In: observations, the time. Out: starved resources, pressures. Invariants: pure; a threshold that caused a
//! reclaim stays met until its minimum reclaim is free, too; a condition lasts for the transition period
//! after its last observation; the order of starved resources is total. Upstream: the first half of
//! `synchronize` of pkg/kubelet/eviction/eviction_manager.go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::pressures::Pressures;
use agent_types::resources::observation::Observations;
use agent_types::time::Mono;
use orlop_config::kubelet::eviction::Signal;

use super::threshold::{self, Resource, Threshold};

/// The fastest that memory is expected to be used up, bytes in a second: a few processors that do nothing else.
const FASTEST: u64 = 1 << 30;
/// Never look more often than this.
const SHORTEST: Duration = Duration::from_millis(200);

/// A condition of the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    Memory,
    Disk,
    Pid,
}

impl Condition {
    fn of(signal: Signal) -> Condition {
        match Resource::of(signal) {
            Resource::Memory => Condition::Memory,
            Resource::EphemeralStorage | Resource::Inodes => Condition::Disk,
            Resource::Pids => Condition::Pid,
        }
    }
}

/// What is remembered; thresholds by index.
#[derive(Clone, Debug, Default)]
pub(super) struct ThresholdHistory {
    first: BTreeMap<usize, Mono>,
    acted_on: Vec<usize>,
    seen: BTreeMap<Condition, Mono>,
}

impl ThresholdHistory {
    /// Takes observations in. What calls for a victim, the most urgent first.
    pub(super) fn assess(
        &mut self,
        thresholds: &[Threshold],
        observations: &Observations,
        now: Mono,
    ) -> Vec<usize> {
        let kept = self.acted_on.iter().copied();
        let unresolved =
            kept.filter(|index| thresholds.get(*index).is_some_and(|t| t.is_met(observations, true)));
        let met: BTreeSet<usize> =
            threshold::met(thresholds, observations, false).chain(unresolved).collect();
        self.first = met.iter().map(|index| (*index, *self.first.get(index).unwrap_or(&now))).collect();
        for condition in met.iter().filter_map(|index| thresholds.get(*index)) {
            self.seen.insert(Condition::of(condition.signal), now);
        }
        let over = |(index, since): (&usize, &Mono)| {
            let threshold = thresholds.get(*index)?;
            (now.since(*since) >= threshold.grace).then_some((threshold.rank(), *index))
        };
        let mut starved: Vec<_> = self.first.iter().filter_map(over).collect();
        starved.sort_unstable();
        self.acted_on = starved.into_iter().map(|(_, index)| index).collect();
        self.acted_on.clone()
    }

    /// The Node's conditions.
    pub(super) fn pressures(&self, transition: Duration, now: Mono) -> Pressures {
        let holds = |condition| self.seen.get(&condition).is_some_and(|at| now.since(*at) < transition);
        Pressures {
            memory: holds(Condition::Memory),
            disk: holds(Condition::Disk),
            pid: holds(Condition::Pid),
        }
    }

    /// When the next threshold's grace is over.
    pub(super) fn grace_ends(&self, thresholds: &[Threshold]) -> Option<Mono> {
        let held = self.first.iter().filter(|(index, _)| !self.acted_on.contains(index));
        held.filter_map(|(index, since)| Some(since.after(thresholds.get(*index)?.grace))).min()
    }
}

/// Least time until memory can be short: an observation by then is not late.
pub(super) fn soonest(thresholds: &[Threshold], observations: &Observations, longest: Duration) -> Duration {
    let left = |t: &Threshold| {
        let observed = observations.get(&t.signal).filter(|_| Resource::of(t.signal) == Resource::Memory)?;
        u64::try_from(observed.available.saturating_sub(t.least(observed.capacity, false))).ok()
    };
    let nearest = thresholds.iter().filter_map(left).min().unwrap_or(u64::MAX);
    let nanos = u128::from(nearest).saturating_mul(1_000_000_000) / u128::from(FASTEST);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).clamp(SHORTEST, longest)
}
