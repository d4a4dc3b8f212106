//! PLEG: finds pods that changed in the runtime, from the event stream first, from relists as a backstop.
//!
//! # For the shell
//! Feed it [`PlegEvent::StreamUp`]/[`PlegEvent::StreamDown`], each stream entry as [`PlegEvent::Hint`], the
//! answers to its actions, and [`PlegEvent::Tick`] at the deadline. Carry out [`PlegAction::Relist`] (at most
//! one in flight) and [`PlegAction::Inspect`] (at most [`Config::inspects_max`] in flight, one for each pod);
//! give [`PlegAction::Changed`] to the pod's worker or, if the pod has none, to the search for orphans. Pass
//! a snapshot that a pod worker took itself (`Effect::Inspect`) on as [`PlegEvent::Inspected`] too: it
//! answers hints that arrived before its request, and saves a second inspection.
//!
//! Invariants: a hint only causes an inspection, it is never a fact; hints of one pod coalesce; the relist
//! after a lost stream finds the changes that the stream missed; memory is bounded by the number of pods.
//! Upstream: pkg/kubelet/pleg (generic.go and evented.go in one machine; KEP-3386).

mod records;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use agent_types::ids::{PodKey, PodUid};
use agent_types::machine::{Machine, Outbox};
use agent_types::runtime::observed::{ListedPod, PodSnapshot, RuntimeHint};
use agent_types::time::{Mono, Now};

use records::PodRecords;

/// Periods and bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Relist period while the stream is up: a backstop.
    pub backstop: Duration,
    /// Relist period while the stream is down and things change.
    pub relist_min: Duration,
    /// It doubles up to this while nothing changes.
    pub relist_max: Duration,
    /// While somebody reads the metrics, so old the last list gets before the next one: rules take the rate of the lists' durations
    /// over five minutes (docs/decisions/pleg-relists.md).
    pub measured: Duration,
    /// Time to collect hints of one pod before its inspection.
    pub gather: Duration,
    /// And at least this long for each of its containers: the cost of an inspection grows with their number,
    /// so the start of hundreds in one pod would cost the number squared.
    pub gather_each: Duration,
    /// Inspections in flight.
    pub inspects_max: usize,
    /// Without a successful relist for this long beyond its period PLEG is unhealthy.
    pub unhealthy_after: Duration,
}

impl Default for Config {
    /// 300 s; 1 s to 10 s; 100 s; 20 ms; 1 ms, so that a thousand containers wait as long as upstream's relist; 16; 3 m.
    fn default() -> Self {
        Config {
            backstop: Duration::from_secs(300),
            relist_min: Duration::from_secs(1),
            relist_max: Duration::from_secs(10),
            measured: Duration::from_secs(100),
            gather: Duration::from_millis(20),
            gather_each: Duration::from_millis(1),
            inspects_max: 16,
            unhealthy_after: Duration::from_secs(180),
        }
    }
}

/// What PLEG reacts to.
#[derive(Clone, Debug)]
pub enum PlegEvent {
    /// The CRI event stream is connected.
    StreamUp,
    /// It is lost, or the runtime has none.
    StreamDown,
    /// An entry of the stream about a pod.
    Hint(RuntimeHint),
    /// The answer to [`PlegAction::Relist`].
    Listed {
        /// Read before the question was sent.
        as_of: Mono,
        /// Every pod of the runtime, or why not.
        result: Result<Vec<ListedPod>, String>,
    },
    /// The answer to [`PlegAction::Inspect`], or a snapshot from a pod worker.
    Inspected(Arc<PodSnapshot>),
    /// [`PlegAction::Inspect`] failed.
    InspectFailed {
        /// Pod whose inspection failed.
        uid: PodUid,
    },
    /// Somebody has read the metrics of the lists.
    Scraped,
    /// The deadline has passed.
    Tick,
}

/// A request of PLEG to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum PlegAction {
    /// List every pod; answer [`PlegEvent::Listed`].
    Relist,
    /// Inspect one pod; answer [`PlegEvent::Inspected`] or [`PlegEvent::InspectFailed`].
    Inspect {
        /// Pod to inspect.
        uid: PodUid,
    },
    /// The pod is now like this in the runtime.
    Changed(Arc<PodSnapshot>),
}

/// The relist in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    Idle,
    Asked,
    /// In flight, but requested too early: another one must follow.
    Again,
}

/// PLEG as a state machine.
#[derive(Clone, Debug)]
pub struct Pleg {
    config: Config,
    records: PodRecords,
    stream_up: bool,
    listing: Listing,
    next_relist: Mono,
    period: Duration,
    last_listed: Option<Mono>,
    /// When the last list was answered, also by an error.
    last_answered: Option<Mono>,
}

impl Pleg {
    /// Nothing known, stream down: the first tick relists.
    #[must_use]
    pub fn new(config: Config) -> Pleg {
        Pleg {
            period: config.relist_min,
            config,
            records: PodRecords::default(),
            stream_up: false,
            listing: Listing::Idle,
            next_relist: Mono(0),
            last_listed: None,
            last_answered: None,
        }
    }

    /// Healthy, or upstream's sentence about why not.
    ///
    /// # Errors
    /// The reason, for node conditions and health checks.
    pub fn health(&self, now: Mono) -> Result<(), String> {
        let Some(last) = self.last_listed else { return Err("pleg has yet to be successful".to_owned()) };
        let ago = now.since(last);
        let period = if self.stream_up { self.config.backstop } else { self.period };
        if ago <= self.config.unhealthy_after + period {
            return Ok(());
        }
        let (secs, limit) = (ago.as_secs(), self.config.unhealthy_after.as_secs());
        Err(format!(
            "PLEG is not healthy: pleg was last seen active {}m{}s ago; threshold is {}m{}s",
            secs / 60,
            secs % 60,
            limit / 60,
            limit % 60
        ))
    }

    /// True once everything the runtime holds has been listed: before that, nothing is an orphan.
    #[must_use]
    pub fn has_listed(&self) -> bool {
        self.last_listed.is_some()
    }

    /// Every pod that the runtime was last known to hold, and whether anything of it may run.
    pub fn pods(&self) -> impl Iterator<Item = (&PodKey, bool)> {
        self.records.pods()
    }

    /// How many pods are waiting to be inspected or being inspected (checker BOUNDED).
    #[must_use]
    pub fn pending(&self) -> usize {
        self.records.pending()
    }

    fn listed(&mut self, as_of: Mono, result: Result<Vec<ListedPod>, String>, now: Mono) {
        let again = self.listing == Listing::Again;
        self.listing = Listing::Idle;
        self.last_answered = Some(now);
        let changed = match result {
            Ok(pods) => {
                self.last_listed = Some(now);
                self.records.compare(as_of, pods, now)
            }
            Err(_) => false,
        };
        let succeeded = self.last_listed == Some(now);
        self.period = if changed { self.config.relist_min } else { self.longer() };
        let period = if self.stream_up && succeeded { self.config.backstop } else { self.period };
        self.next_relist = if again { now } else { now.after(period) };
    }

    /// What happened before now may have been lost with the stream: list, again if a list is under way.
    fn relist_now(&mut self, now: Mono) {
        match self.listing {
            Listing::Idle => self.next_relist = now,
            Listing::Asked | Listing::Again => self.listing = Listing::Again,
        }
    }

    /// How far apart a pod's inspections are at least.
    fn pace(&self, uid: &PodUid) -> Duration {
        self.config.gather_each.saturating_mul(self.records.containers(uid))
    }

    fn longer(&self) -> Duration {
        self.period.saturating_mul(2).min(self.config.relist_max)
    }

    fn advance(&mut self, now: Mono, out: &mut Outbox<PlegAction>) {
        if self.listing == Listing::Idle && self.next_relist <= now {
            self.listing = Listing::Asked;
            out.push(PlegAction::Relist);
        }
        for uid in self.records.due(now, self.config.inspects_max) {
            out.push(PlegAction::Inspect { uid });
        }
    }
}

impl Machine for Pleg {
    type Event = PlegEvent;
    type Action = PlegAction;

    fn step(&mut self, now: Now, event: PlegEvent, out: &mut Outbox<PlegAction>) {
        let now = now.mono;
        match event {
            PlegEvent::StreamUp => {
                self.stream_up = true;
                self.relist_now(now);
            }
            PlegEvent::StreamDown => {
                if self.stream_up {
                    self.period = self.config.relist_min;
                    self.relist_now(now);
                }
                self.stream_up = false;
            }
            PlegEvent::Hint(hint) => {
                let gather = self.config.gather.max(self.pace(&hint.uid));
                self.records.hint(&hint.uid, now, now.after(gather));
            }
            PlegEvent::Listed { as_of, result } => self.listed(as_of, result, now),
            PlegEvent::Inspected(snapshot) => {
                let next = snapshot.as_of.after(self.pace(&snapshot.pod.uid)).max(now);
                if self.records.inspected(&snapshot, next) {
                    out.push(PlegAction::Changed(snapshot));
                }
            }
            PlegEvent::InspectFailed { uid } => {
                self.records.failed(&uid, now, now.after(self.config.relist_min));
            }
            PlegEvent::Scraped => {
                // Lists that fail are repeated at their own pace.
                if self.last_answered.is_some_and(|last| now.since(last) >= self.config.measured) {
                    self.next_relist = self.next_relist.min(now);
                }
            }
            PlegEvent::Tick => {}
        }
        self.advance(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        let relist = (self.listing == Listing::Idle).then_some(self.next_relist);
        let inspect = self.records.next_due(self.config.inspects_max);
        [relist, inspect].into_iter().flatten().min()
    }
}
