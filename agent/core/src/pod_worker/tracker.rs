//! Effects in flight, and the statements of a snapshot that are safe to believe.
//!
//! In: issued effects and their answers, stamps of snapshots. Out: yes or no. Invariants: at most one
//! mutating effect in flight for each target; a snapshot counts for a target only if it was requested after
//! the last effect on the target was over; **absence** counts only if the snapshot was requested after the
//! deadline of every call that may still create the object (zombie fence), calls of earlier incarnations
//! included. A start whose answer was lost is over earlier, once a snapshot shows its container as started:
//! it starts nothing twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::backoff::Backoff;
use agent_types::failure::{CANCELLED_CALL_MAX, Class};
use agent_types::ids::{ContainerId, SandboxId};
use agent_types::machine::EffectId;
use agent_types::restart;
use agent_types::time::Mono;

use crate::lifecycle_hooks::Hook;
use crate::pod_worker::effect::EffectError;

/// Waits before the runtime is looked at again.
const OBSERVE_AGAIN: Backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_secs(5));
/// Waits after an effect whose outcome is not known.
const UNKNOWN_AGAIN: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(10));

/// Objects that the effects of one pod act on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// The pod's directories.
    Dirs,
    /// The terminating record.
    Record,
    /// All sandboxes of the pod.
    Sandbox,
    /// All instances of the named container.
    Container(String),
    /// The hooks of the named container.
    Hook(String),
    /// The named volume.
    Volume(String),
    /// All that is mounted for the pod.
    Volumes,
    /// The pod's cgroup.
    Cgroup,
    /// What containers that run are given.
    Resize,
    /// Processors of containers that run.
    Cpus,
    /// The pod's resource claims.
    Claims,
    /// Nothing: looking.
    Observe,
}

/// What an effect was for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Inspect,
    CreateDirs,
    ContainerFiles,
    FetchObjects,
    ReadEnvFiles,
    MountSubPaths,
    PreStartDevices,
    AllocateDevices,
    /// For the sandbox of this attempt.
    PrepareClaims(u32),
    FindClaims,
    UnprepareClaims,
    ResolveClaim(String),
    SetUpVolume(String),
    TearDownVolumes,
    RemoveDirs,
    Persist,
    InspectImage,
    FetchPullSecrets,
    PullImage,
    FetchRuntimeClass,
    MapUsers,
    EnsureCgroup,
    RemoveCgroup,
    Resize,
    SetCpus,
    RunSandbox,
    StopSandbox(SandboxId),
    RemoveSandbox(SandboxId),
    Create,
    Start(ContainerId),
    Stop {
        id: ContainerId,
        grace_s: u32,
    },
    Remove(ContainerId),
    Hook {
        id: ContainerId,
        hook: Hook,
    },
}

impl Purpose {
    /// True if the effect changes a snapshot.
    fn mutates(&self) -> bool {
        !matches!(
            self,
            Purpose::Inspect
                | Purpose::CreateDirs
                | Purpose::ContainerFiles
                | Purpose::FetchObjects
                | Purpose::ReadEnvFiles
                | Purpose::MountSubPaths
                | Purpose::PreStartDevices
                | Purpose::AllocateDevices
                | Purpose::PrepareClaims(_)
                | Purpose::FindClaims
                | Purpose::UnprepareClaims
                | Purpose::ResolveClaim(_)
                | Purpose::SetUpVolume(_)
                | Purpose::TearDownVolumes
                | Purpose::RemoveDirs
                | Purpose::Persist
                | Purpose::InspectImage
                | Purpose::FetchPullSecrets
                | Purpose::PullImage
                | Purpose::FetchRuntimeClass
                | Purpose::MapUsers
                | Purpose::EnsureCgroup
                | Purpose::RemoveCgroup
                | Purpose::SetCpus
                | Purpose::Hook { .. }
        )
    }

    /// True if the effect prepares the creation of a container, and changes nothing that any other decision is made from.
    pub(super) fn prepares(&self) -> bool {
        matches!(
            self,
            Purpose::FetchPullSecrets
                | Purpose::InspectImage
                | Purpose::PullImage
                | Purpose::ContainerFiles
                | Purpose::FetchObjects
                | Purpose::ReadEnvFiles
                | Purpose::MountSubPaths
        )
    }

    /// True if the effect can create an object in the pod, even after its answer was given up.
    fn creates(&self) -> bool {
        matches!(self, Purpose::RunSandbox | Purpose::Create | Purpose::Start(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flight {
    pub(super) target: Target,
    pub(super) purpose: Purpose,
    pub(super) issued: Mono,
    pub(super) deadline: Option<Mono>,
    pub(super) cancelled: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Settled {
    /// Only a later snapshot counts for the target.
    known_after: Mono,
    /// A snapshot must be later for its silence to mean absence.
    absent_after: Mono,
    /// A start with a lost answer, and the latest time of its end: equal to `absent_after` until a snapshot
    /// shows its end.
    starting: Option<(ContainerId, Mono)>,
}

impl Settled {
    fn absent_after(&self) -> Mono {
        self.starting.as_ref().map_or(self.absent_after, |(_, deadline)| self.absent_after.max(*deadline))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Retry {
    failures: u32,
    not_before: Mono,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EffectTracker {
    flights: BTreeMap<EffectId, Flight>,
    /// Targets of the flights: a pod of many containers may have as many flights, and each pass queries each
    /// container.
    busy: BTreeSet<Target>,
    settled: BTreeMap<Target, Settled>,
    retries: BTreeMap<Target, Retry>,
    fence: Mono,
    next_id: u64,
}

impl EffectTracker {
    pub(super) fn new(fence_until: Mono) -> EffectTracker {
        EffectTracker { fence: fence_until, ..EffectTracker::default() }
    }

    /// When the last call of an earlier incarnation is over.
    pub(super) fn fence(&self) -> Mono {
        self.fence
    }

    pub(super) fn open(&mut self, flight: Flight) -> EffectId {
        let id = EffectId(self.next_id);
        self.next_id += 1;
        let is_first = self.busy.insert(flight.target.clone());
        debug_assert!(is_first, "one effect in flight per target: {flight:?}");
        self.flights.insert(id, flight);
        id
    }

    /// Ends a flight, with the class of its failure if it failed; `None` if the id is not in flight (an
    /// answer to an earlier incarnation, or a second one).
    pub(super) fn close(
        &mut self,
        id: EffectId,
        completed_at: Mono,
        failure: Option<Class>,
    ) -> Option<Flight> {
        let flight = self.flights.remove(&id)?;
        self.busy.remove(&flight.target);
        if flight.purpose.mutates() {
            let s = self.settled.entry(flight.target.clone()).or_default();
            s.known_after = s.known_after.max(completed_at);
            // A stop or removal that may still be going on takes away, it brings nothing back.
            let lingers = failure.filter(|_| flight.purpose.creates()).and_then(|class| {
                let deadline = flight.deadline.unwrap_or(completed_at);
                match class {
                    Class::DeadlineExceeded => Some(deadline),
                    Class::Interrupted => Some(completed_at.after(CANCELLED_CALL_MAX).min(deadline)),
                    _ => None,
                }
            });
            let (over, earlier) = (lingers.unwrap_or(completed_at), s.absent_after());
            match &flight.purpose {
                Purpose::Start(id) if lingers.is_some() => {
                    // A start of another container is not affected by this one.
                    if s.starting.as_ref().is_some_and(|(other, _)| other != id) {
                        s.absent_after = earlier;
                    }
                    s.absent_after = s.absent_after.max(completed_at);
                    s.starting = Some((id.clone(), over.max(earlier)));
                }
                _ => s.absent_after = s.absent_after.max(over).max(completed_at),
            }
        }
        Some(flight)
    }

    /// Forgets pulls in flight; their answers will be those of unknown effects.
    pub(super) fn abandon_pulls(&mut self) -> Vec<EffectId> {
        let pulls = self.flights.iter().filter(|(_, f)| f.purpose == Purpose::PullImage);
        let ids: Vec<EffectId> = pulls.map(|(id, _)| *id).collect();
        for id in &ids {
            if let Some(pull) = self.flights.remove(id) {
                self.busy.remove(&pull.target);
            }
        }
        ids
    }

    pub(super) fn busy(&self, target: &Target) -> bool {
        self.busy.contains(target)
    }

    /// Some container effect is in flight.
    pub(super) fn any_container_busy(&self) -> bool {
        self.flights.values().any(|f| matches!(f.target, Target::Container(_)))
    }

    /// A container is being made or started, or was acted upon later than a snapshot stamped `as_of` can show.
    pub(super) fn making(&self, as_of: Mono) -> bool {
        let container = |target: &Target| matches!(target, Target::Container(_));
        self.flights.values().any(|f| container(&f.target) && f.purpose.creates())
            || self.settled.iter().any(|(target, s)| container(target) && as_of <= s.known_after)
    }

    /// How many volumes are being set up.
    pub(super) fn volumes_busy(&self) -> usize {
        self.flights.values().filter(|f| matches!(f.target, Target::Volume(_))).count()
    }

    pub(super) fn flights_mut(&mut self) -> impl Iterator<Item = (&EffectId, &mut Flight)> {
        self.flights.iter_mut()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// A snapshot stamped `as_of` shows the started containers, running or ended: a start of one of them with
    /// a lost answer will not happen any more.
    pub(super) fn started(&mut self, as_of: Mono, was_started: impl Fn(&ContainerId) -> bool) {
        for s in self.settled.values_mut() {
            if as_of > s.known_after && s.starting.as_ref().is_some_and(|(id, _)| was_started(id)) {
                s.starting = None;
            }
        }
    }

    /// A snapshot stamped `as_of` is the truth about `target`.
    pub(super) fn fresh(&self, target: &Target, as_of: Mono) -> bool {
        !self.busy(target) && self.settled.get(target).is_none_or(|s| as_of > s.known_after)
    }

    /// Every target that has been acted on is settled and older than the snapshot.
    pub(super) fn all_fresh(&self, as_of: Mono) -> bool {
        !self.flights.values().any(|f| f.purpose.mutates())
            && self.settled.values().all(|s| as_of > s.known_after)
    }

    /// Latest end of a start on `target` with a lost answer, unless a snapshot has shown its end.
    pub(super) fn starting_until(&self, target: &Target) -> Mono {
        let starting = self.settled.get(target).and_then(|s| s.starting.as_ref());
        starting.map_or(Mono(0), |(_, over)| *over)
    }

    /// From when on a snapshot's silence about `target` means absence.
    pub(super) fn absent_after(&self, target: &Target) -> Mono {
        self.settled.get(target).map_or(Mono(0), Settled::absent_after).max(self.fence)
    }

    /// The same for everything of the pod.
    pub(super) fn all_absent_after(&self) -> Mono {
        self.settled.values().map(Settled::absent_after).max().unwrap_or_default().max(self.fence)
    }

    /// The stamp that the next snapshot must exceed to be news about everything.
    pub(super) fn known_after(&self) -> Mono {
        self.settled.values().map(|s| s.known_after).max().unwrap_or_default()
    }

    /// When `target` may be tried again, if not at `now`.
    pub(super) fn held_until(&self, target: &Target, now: Mono) -> Option<Mono> {
        self.retries.get(target).map(|r| r.not_before).filter(|t| now < *t)
    }

    pub(super) fn succeeded(&mut self, target: &Target) {
        self.retries.remove(target);
    }

    /// Notes a failure; the next try waits. `unknown`: the peer did not answer, and the world will be looked
    /// at before anything is repeated, so the wait starts small.
    pub(super) fn failed(
        &mut self,
        target: &Target,
        seed: &str,
        now: Mono,
        error: &EffectError,
        unknown: bool,
    ) {
        let r = self.retries.entry(target.clone()).or_default();
        let earlier = r.failures;
        r.failures = r.failures.saturating_add(1);
        let base = match target {
            Target::Observe => OBSERVE_AGAIN.next(earlier),
            _ if unknown => UNKNOWN_AGAIN.next(earlier),
            _ => restart::REQUEUE,
        };
        let wait = restart::jittered(base, seed, u64::from(r.failures));
        let asked = match error.class {
            Class::Retryable { after_ms } => Duration::from_millis(after_ms),
            _ => Duration::ZERO,
        };
        r.not_before = now.after(wait.max(asked));
    }

    /// Lets a target that failed be tried at `at` already.
    pub(super) fn release(&mut self, target: &Target, at: Mono) {
        self.retries.entry(target.clone()).or_default().not_before = at;
    }

    /// Holds a target back without a failure (a start that ends itself, a missing precondition).
    pub(super) fn hold(&mut self, target: &Target, until: Mono) {
        let r = self.retries.entry(target.clone()).or_default();
        r.not_before = r.not_before.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_waits() {
        let millis = |series: Backoff| [0, 1, 2, 3, 4, 5, 6, 40].map(|n| series.next(n).as_millis());
        assert_eq!(millis(OBSERVE_AGAIN), [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(millis(UNKNOWN_AGAIN), [1000, 2000, 4000, 8000, 10_000, 10_000, 10_000, 10_000]);
    }
}
