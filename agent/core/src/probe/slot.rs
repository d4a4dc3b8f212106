//! One probe of one container: its due times, and its result after several outcomes.
//!
//! In: the probed instance, whether it may be probed now, outcomes. Out: due times, a result. Invariants: at
//! most one probe in flight; an outcome counts only for the probed instance; a result changes only after as
//! many equal outcomes in a row as the threshold requires. Upstream: pkg/kubelet/prober/worker.go.

use std::time::Duration;

use agent_types::ids::ContainerId;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::Probe;

use super::{Kind, Outcome, ProbeId};

/// Tries of a prober that fails by itself before its failure counts.
const TRIES_MAX: u32 = 3;

/// What a probe's results amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeResult {
    Unknown,
    Success,
    Failure,
}

/// Times and thresholds of a probe, defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timing {
    pub(super) period: Duration,
    pub(super) delay: Duration,
    pub(super) timeout: Duration,
    pub(super) failures: u32,
    pub(super) successes: u32,
}

impl Timing {
    pub(super) fn of(probe: &Probe) -> Timing {
        let at_least = |given: Option<i32>, default: u32, floor: u32| {
            given.and_then(|n| u32::try_from(n).ok()).filter(|n| *n >= floor).unwrap_or(default)
        };
        let seconds = |n: u32| Duration::from_secs(u64::from(n));
        Timing {
            period: seconds(at_least(probe.period_seconds, 10, 1)),
            delay: seconds(at_least(probe.initial_delay_seconds, 0, 0)),
            timeout: seconds(at_least(probe.timeout_seconds, 1, 1)),
            failures: at_least(probe.failure_threshold, 3, 1),
            successes: at_least(probe.success_threshold, 1, 1),
        }
    }
}

/// An instance that runs.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) id: ContainerId,
    /// When it started, on the monotonic clock.
    pub(super) started: Mono,
    /// It ran before this agent did.
    pub(super) adopted: bool,
    /// An earlier agent reported it as started, or as ready.
    pub(super) known_good: bool,
}

#[derive(Clone, Debug)]
struct Watched {
    instance: Instance,
    standing: ProbeResult,
    /// The last outcome and how often it came in a row.
    run: (Option<bool>, u32),
    /// No further probe of this instance.
    hold: bool,
    /// It may be probed, and is due then.
    due: Option<Mono>,
    /// Probe in flight, and the number of its tries.
    flight: Option<(ProbeId, u32)>,
}

/// What an answer changes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProbeUpdate {
    /// Not an answer to the probe in flight.
    Stale,
    /// The prober failed: repeat the probe.
    Again,
    /// Taken; true if the standing changed.
    Taken(bool),
}

/// One probe of one container.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    kind: Kind,
    pub(super) timing: Timing,
    /// A moment from which on the periods count.
    anchor: Mono,
    /// Delay of the first probe of an adopted instance.
    jitter: Duration,
    watched: Option<Watched>,
}

impl Slot {
    /// A probe that is known since `now`; `jitter` spreads the first questions of an agent that has just started.
    pub(super) fn new(kind: Kind, timing: Timing, now: Mono, jitter: Duration) -> Slot {
        Slot { kind, timing, anchor: now.after(jitter), jitter, watched: None }
    }

    /// Sets the probed instance; returns a probe whose answer is not needed any more.
    pub(super) fn watch(&mut self, instance: Option<Instance>) -> Option<ProbeId> {
        let same = |w: &Watched| instance.as_ref().is_some_and(|i| i.id == w.instance.id);
        if self.watched.as_ref().is_some_and(same) {
            return None;
        }
        let before = self.watched.take();
        self.watched = instance.map(|instance| {
            let standing = match self.kind {
                Kind::Liveness => ProbeResult::Success,
                Kind::Readiness | Kind::Startup if instance.known_good => ProbeResult::Success,
                Kind::Readiness => ProbeResult::Failure,
                Kind::Startup => ProbeResult::Unknown,
            };
            // A container that has started stays started.
            let hold = self.kind == Kind::Startup && standing == ProbeResult::Success;
            Watched { instance, standing, run: (None, 0), hold, due: None, flight: None }
        });
        before.and_then(|w| w.flight).map(|(id, _)| id)
    }

    /// Allows or forbids probes; returns a probe whose answer is not needed any more.
    pub(super) fn allow(&mut self, allowed: bool, now: Mono) -> Option<ProbeId> {
        let (kind, timing, anchor, jitter) = (self.kind, self.timing, self.anchor, self.jitter);
        let w = self.watched.as_mut()?;
        if !allowed || w.hold {
            w.due = None;
            return w.flight.take().map(|(id, _)| id);
        }
        if w.due.is_none() {
            let earliest = now.max(w.instance.started.after(timing.delay));
            w.due = Some(match kind {
                // The first readiness probe runs at once, so that a ready container need not wait.
                // After a restart of the agent a jitter spreads the probes.
                Kind::Readiness if w.instance.adopted => earliest.max(now.after(jitter)),
                Kind::Readiness => earliest,
                Kind::Startup | Kind::Liveness => on_grid(anchor, timing.period, earliest),
            });
            if kind == Kind::Readiness {
                self.anchor = w.due.unwrap_or(now);
            }
        }
        None
    }

    /// Time of the next probe, if one is allowed.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.watched.as_ref().filter(|w| w.flight.is_none()).and_then(|w| w.due)
    }

    /// Records the start of a probe at `now`; the next one is due a period after this one was.
    pub(super) fn ask(&mut self, id: ProbeId, now: Mono) {
        self.skip(now);
        if let Some(w) = &mut self.watched {
            w.flight = Some((id, 1));
        }
    }

    /// Lets the question that was due at `now` pass.
    pub(super) fn skip(&mut self, now: Mono) {
        let (anchor, period) = (self.anchor, self.timing.period);
        if let Some(w) = &mut self.watched {
            w.due = Some(on_grid(anchor, period, Mono(now.0.saturating_add(1))));
        }
    }

    /// Records a repetition of the same probe.
    pub(super) fn ask_again(&mut self, id: ProbeId) {
        if let Some((flight, tries)) = self.watched.as_mut().and_then(|w| w.flight.as_mut()) {
            *flight = id;
            *tries += 1;
        }
    }

    /// The probe in flight.
    pub(super) fn flight(&self) -> Option<ProbeId> {
        self.watched.as_ref().and_then(|w| w.flight).map(|(id, _)| id)
    }

    /// The instance that is watched.
    pub(super) fn instance(&self) -> Option<&ContainerId> {
        self.watched.as_ref().map(|w| &w.instance.id)
    }

    /// What its results amount to; `None` while nothing is watched.
    pub(super) fn standing(&self) -> Option<ProbeResult> {
        self.watched.as_ref().map(|w| w.standing)
    }

    /// Takes the answer to question `id`.
    pub(super) fn answered(&mut self, id: ProbeId, outcome: &Outcome) -> ProbeUpdate {
        let (kind, timing) = (self.kind, self.timing);
        let Some(w) = self.watched.as_mut() else { return ProbeUpdate::Stale };
        let Some((_, tries)) = w.flight.filter(|(asked, _)| *asked == id) else { return ProbeUpdate::Stale };
        let good = match outcome {
            Outcome::Error(_) | Outcome::Broken(_) if tries < TRIES_MAX => return ProbeUpdate::Again,
            Outcome::Error(_) | Outcome::Broken(_) => {
                w.flight = None;
                return ProbeUpdate::Taken(false);
            }
            Outcome::Success | Outcome::Warning(_) => true,
            Outcome::Failure(_) => false,
        };
        w.flight = None;
        w.run = match w.run {
            (Some(last), n) if last == good => (Some(good), n.saturating_add(1)),
            _ => (Some(good), 1),
        };
        if w.run.1 < if good { timing.successes } else { timing.failures } {
            return ProbeUpdate::Taken(false);
        }
        let standing = if good { ProbeResult::Success } else { ProbeResult::Failure };
        let changed = std::mem::replace(&mut w.standing, standing) != standing;
        if kind == Kind::Startup || (kind == Kind::Liveness && !good) {
            w.hold = true;
            w.due = None;
        }
        ProbeUpdate::Taken(changed)
    }
}

/// The first of `anchor`, `anchor + period`, … that is not before `earliest`.
fn on_grid(anchor: Mono, period: Duration, earliest: Mono) -> Mono {
    let Some(late) = earliest.0.checked_sub(anchor.0) else { return anchor };
    let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    Mono(anchor.0.saturating_add(late.div_ceil(period).saturating_mul(period)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_never_answers_a_moment_before() {
        let second = Duration::from_secs(1);
        let at = |s: u64| Mono(s * 1_000_000_000);
        assert_eq!(on_grid(at(5), second, at(2)), at(5));
        assert_eq!(on_grid(at(5), second, at(5)), at(5));
        assert_eq!(on_grid(at(5), second, Mono(at(5).0 + 1)), at(6));
        assert_eq!(on_grid(at(5), second * 3, at(12)), at(14));
        assert_eq!(on_grid(Mono(1), Duration::ZERO, Mono(9)), Mono(9));
        assert_eq!(on_grid(Mono(1), Duration::MAX, Mono(u64::MAX)), Mono(u64::MAX));
    }

    #[test]
    fn nonsense_in_a_specification_is_the_default() {
        let zeroes = Probe {
            period_seconds: Some(0),
            timeout_seconds: Some(-1),
            failure_threshold: Some(0),
            success_threshold: Some(0),
            initial_delay_seconds: Some(-5),
            ..Probe::default()
        };
        assert_eq!(Timing::of(&zeroes), Timing::of(&Probe::default()));
        let given = Probe { period_seconds: Some(1), initial_delay_seconds: Some(7), ..Probe::default() };
        let timing = Timing::of(&given);
        assert_eq!((timing.period.as_secs(), timing.delay.as_secs(), timing.timeout.as_secs()), (1, 7, 1));
        assert_eq!((timing.failures, timing.successes), (3, 1));
    }
}
