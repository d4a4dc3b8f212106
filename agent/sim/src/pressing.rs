//! A node whose pods use up its memory: the eviction machine against a fake kernel. docs/reference/eviction.md.
//!
//! ```text
//! pods that grow ─► memory ─► observations, measurements (late, incomplete) ─► Eviction ─► victims ─► room, after a while
//!                                                                                 ▲ dies and starts again
//! ```
//! In: a seed, a defect. Out: the evicted pods, or the first violation. EVICT-FAIR: pods are evicted only while memory
//! is short, one at a time, never a critical pod, and never before a pod that ranks higher by the checker's own
//! comparison of two pods. EVICT-PROMPT: a pod that may be evicted is evicted within a moment after memory has run
//! short. The checker uses the measured usage of pods, which is all that the machine can know.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_core::eviction::{
    CLEANUP_MAX, Eviction, EvictionAction, EvictionConfig, EvictionEvent, Observed, PERIOD, PodUse, Uses,
    Victim,
};
use agent_types::ids::PodUid;
use agent_types::machine::{Machine, Outbox};
use agent_types::pod;
use agent_types::resources::observation::{Layout, Observation};
use agent_types::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::Pod;
use orlop_config::kubelet::eviction::Signal;
use serde_json::json;

use crate::checks::Violation;
use crate::queue::Queue;
use crate::rng::Rng;

/// Memory of the machine, MiB.
const MEMORY: i64 = 4096;
/// Threshold of available memory, MiB: below it the agent evicts pods.
const HARD: i64 = 200;
/// Memory that must be available above the threshold before the pressure ends, MiB.
const RECLAIM: i64 = 100;
/// Longest time of an answer, milliseconds.
const ANSWER_MS_MAX: u64 = 400;

/// A planted defect of the eviction manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PressureDefect {
    /// Evicts the second pod of the ranking.
    TakesTheNext,
    /// Evicts a critical pod.
    TakesTheCritical,
    /// Evicts another pod while one terminates.
    TakesTwo,
    /// Evicts a pod while no memory is short.
    TakesForNothing,
    /// Chooses a pod and does not evict it.
    TakesNobody,
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PressureReport {
    /// Evicted pods, in order.
    pub evicted: Vec<String>,
    /// Number of OOM kills of the kernel.
    pub kernel_kills: u32,
    /// Number of crashes of the agent.
    pub crashes: u32,
    /// Number of failed measurements of the machine or of its pods.
    pub failures: u32,
}

#[derive(Clone, Debug)]
enum Event {
    Grow,
    Tick { incarnation: u32 },
    Answer { incarnation: u32, event: Box<EvictionEvent> },
    Gone(PodUid),
}

struct Eater {
    pod: Arc<Pod>,
    asked: i64,
    priority: i32,
    /// Memory in use, MiB; then its growth in each tenth of a second.
    used: i64,
    growth: i64,
    most: i64,
    going: Option<Mono>,
}

impl Eater {
    fn is_critical(&self) -> bool {
        self.priority >= 2_000_000_000
    }
}

struct Pressing {
    rng: Rng,
    queue: Queue<Event>,
    machine: Eviction,
    incarnation: u32,
    defect: Option<PressureDefect>,
    pods: BTreeMap<PodUid, Eater>,
    /// Available memory of the last observation that the machine got, MiB.
    left: i64,
    was_short: bool,
    measured: Uses,
    /// Time since which memory is short and a pod may be evicted.
    owed: Option<Mono>,
    report: PressureReport,
}

/// Runs one seed from beginning to end.
///
/// # Errors
/// The first broken promise.
pub fn run_pressing(seed: u64, defect: Option<PressureDefect>) -> Result<PressureReport, Violation> {
    let mut world = Pressing::new(seed, defect);
    world.queue.after(Duration::from_millis(1), Event::Grow);
    world.tell(EvictionEvent::Tick)?;
    let until = Mono(0).after(Duration::from_secs(600));
    while let Some(event) = world.queue.pop_until(until) {
        match event {
            Event::Grow => world.grow()?,
            Event::Tick { incarnation } if incarnation == world.incarnation => {
                let due = world.machine.deadline().is_some_and(|at| at <= world.queue.now());
                if due {
                    world.tell(EvictionEvent::Tick)?;
                }
            }
            Event::Answer { incarnation, event } if incarnation == world.incarnation => world.tell(*event)?,
            Event::Tick { .. } | Event::Answer { .. } => {}
            Event::Gone(uid) => {
                world.pods.remove(&uid);
                world.tell(EvictionEvent::Released(uid))?;
            }
        }
    }
    Ok(world.report)
}

fn machine() -> Eviction {
    let config = json!({"evictionHard": {"memory.available": format!("{HARD}Mi")},
        "evictionMinimumReclaim": {"memory.available": format!("{RECLAIM}Mi")}});
    let config = serde_json::from_value(config).ok().and_then(|config| EvictionConfig::new(&config).ok());
    Eviction::new(config.unwrap_or_default())
}

fn broken(invariant: &'static str, detail: String) -> Result<(), Violation> {
    Err(Violation { invariant, detail })
}

impl Pressing {
    fn new(seed: u64, defect: Option<PressureDefect>) -> Pressing {
        let mut rng = Rng::new(seed ^ 0xE71C);
        let mut pods = BTreeMap::new();
        for index in 0..rng.between(3, 12) {
            let critical = index == 0 || rng.chance(100);
            let priority = if critical { 2_000_000_000 } else { i32::try_from(rng.below(3)).unwrap_or(0) };
            let asked = if rng.chance(500) { i64::try_from(rng.below(600)).unwrap_or(0) } else { 0 };
            let growth = if critical { 0 } else { i64::try_from(rng.below(12)).unwrap_or(0) };
            let name = format!("p{index}");
            let spec = json!({"priority": priority, "containers": [
                {"name": "c", "resources": {"requests": {"memory": format!("{asked}Mi")}}}]});
            let value = json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec});
            let Ok(pod) = serde_json::from_value::<Pod>(value) else { continue };
            let eater = Eater {
                pod: Arc::new(pod),
                asked,
                priority,
                used: i64::try_from(rng.between(10, 200)).unwrap_or(10),
                growth,
                most: i64::try_from(rng.between(100, 4000)).unwrap_or(100),
                going: None,
            };
            pods.insert(name.as_str().into(), eater);
        }
        Pressing {
            rng,
            queue: Queue::default(),
            machine: machine(),
            incarnation: 0,
            defect,
            pods,
            left: MEMORY,
            was_short: false,
            measured: Uses::new(),
            owed: None,
            report: PressureReport::default(),
        }
    }

    fn now(&self) -> Now {
        let mono = self.queue.now();
        Now { mono, wall: Wall(i64::try_from(mono.0).unwrap_or(i64::MAX)) }
    }

    fn left_now(&self) -> i64 {
        MEMORY - self.pods.values().map(|eater| eater.used).sum::<i64>()
    }

    /// Pods grow for a tenth of a second; sometimes the agent dies.
    fn grow(&mut self) -> Result<(), Violation> {
        for eater in self.pods.values_mut() {
            eater.used = (eater.used + eater.growth).min(eater.most);
        }
        if self.left_now() < 0 {
            // The kernel kills the largest pod, whose container restarts.
            self.report.kernel_kills += 1;
            if let Some(eater) = self.pods.values_mut().max_by_key(|eater| eater.used) {
                eater.used = 1;
            }
        }
        self.owe()?;
        self.queue.after(Duration::from_millis(100), Event::Grow);
        if self.rng.chance(2) {
            self.incarnation += 1;
            self.report.crashes += 1;
            let going = self.pods.iter().filter(|(_, eater)| eater.going.is_some());
            let going = going.map(|(uid, _)| uid.clone()).collect();
            self.machine = machine().waiting_for(going, self.queue.now());
            (self.was_short, self.owed) = (false, None);
            self.tell(EvictionEvent::Tick)?;
        } else if self.left_now() < HARD && self.rng.chance(100) {
            self.tell(EvictionEvent::Pressed)?;
        }
        Ok(())
    }

    /// Checks EVICT-PROMPT.
    fn owe(&mut self) -> Result<(), Violation> {
        let may_go = |eater: &Eater| !eater.is_critical() && eater.going.is_none();
        let somebody = self.pods.values().any(may_go) && !self.pods.values().any(|e| e.going.is_some());
        if self.left_now() >= HARD || !somebody {
            self.owed = None;
            return Ok(());
        }
        let since = *self.owed.get_or_insert(self.queue.now());
        // The last observation may have come just before. The limit covers the next observation, the measurement, and their answers.
        let limit = PERIOD + Duration::from_millis(4 * ANSWER_MS_MAX);
        let waited = self.queue.now().since(since);
        if waited > limit {
            return broken(
                "EVICT-PROMPT",
                format!("memory is short and nobody was told to go for {waited:?}"),
            );
        }
        Ok(())
    }

    fn tell(&mut self, event: EvictionEvent) -> Result<(), Violation> {
        if let EvictionEvent::Observed(seen) = &event
            && let Some(memory) = seen.signals.get(&Signal::MemoryAvailable)
        {
            self.left = memory.available >> 20;
            let least = if self.was_short { HARD + RECLAIM } else { HARD };
            self.was_short = self.left < least;
        } else if let EvictionEvent::Observed(_) = &event {
            // The observation failed: the agent cannot evict a pod before the next one.
            self.owed = self.owed.map(|_| self.queue.now());
        }
        if let EvictionEvent::Measured(uses) = &event {
            if uses.is_empty() && !self.pods.is_empty() {
                self.report.failures += 1;
            }
            self.measured.clone_from(uses);
        }
        let mut out = Outbox::new();
        let now = self.now();
        self.machine.step(now, event, &mut out);
        let actions: Vec<EvictionAction> = out.drain().collect();
        for action in actions {
            self.perform(action)?;
        }
        if let Some(at) = self.machine.deadline() {
            self.queue.at(at.max(self.queue.now()), Event::Tick { incarnation: self.incarnation });
        }
        Ok(())
    }

    fn perform(&mut self, action: EvictionAction) -> Result<(), Violation> {
        match action {
            EvictionAction::Observe => {
                let observation = Observation {
                    at: self.now().wall,
                    available: self.left_now() << 20,
                    capacity: MEMORY << 20,
                };
                let pods = self.pods.values().map(|eater| eater.pod.clone()).collect();
                let failed = self.rng.chance(20);
                self.report.failures += u32::from(failed);
                let signals =
                    (!failed).then_some((Signal::MemoryAvailable, observation)).into_iter().collect();
                let seen = Observed { signals, layout: Some(Layout::default()), pods };
                self.answer(EvictionEvent::Observed(Box::new(seen)));
                if self.defect == Some(PressureDefect::TakesForNothing) && !self.was_short {
                    self.take(|eater| !eater.is_critical())?;
                }
            }
            EvictionAction::Measure(_) => {
                let mut uses = Uses::new();
                // If the runtime does not answer, no pod is measured.
                let failed = self.rng.chance(20);
                for (uid, eater) in self.pods.iter().filter(|_| !failed) {
                    // A pod that starts has no measurement.
                    if !self.rng.chance(50) {
                        let memory = u64::try_from(eater.used << 20).ok();
                        uses.insert(uid.clone(), PodUse { memory, ..PodUse::default() });
                    }
                }
                self.answer(EvictionEvent::Measured(uses));
            }
            EvictionAction::MeasureLimited(_) => self.answer(EvictionEvent::Limited(Uses::new())),
            EvictionAction::Reclaim(_) => self.answer(EvictionEvent::Reclaimed),
            EvictionAction::Evict(victim) => self.evict(&victim)?,
            EvictionAction::Pressures(_)
            | EvictionAction::ThresholdMet(_)
            | EvictionAction::Decided(..)
            | EvictionAction::Report(_) => {}
        }
        Ok(())
    }

    fn answer(&mut self, event: EvictionEvent) {
        let latency = Duration::from_millis(self.rng.between(1, ANSWER_MS_MAX));
        let incarnation = self.incarnation;
        self.queue.after(latency, Event::Answer { incarnation, event: Box::new(event) });
    }

    fn evict(&mut self, victim: &Victim) -> Result<(), Violation> {
        let uid = victim.key.uid.clone();
        match self.defect {
            Some(PressureDefect::TakesNobody) => return Ok(()),
            Some(PressureDefect::TakesTheCritical) => return self.take(Eater::is_critical),
            Some(PressureDefect::TakesTheNext) => {
                let name = uid.to_string();
                return self.take(|eater| !eater.is_critical() && pod::name(&eater.pod) != name);
            }
            _ => {}
        }
        self.goes(uid.clone())?;
        if self.defect == Some(PressureDefect::TakesTwo) {
            let name = uid.to_string();
            return self.take(|eater| !eater.is_critical() && pod::name(&eater.pod) != name);
        }
        Ok(())
    }

    /// A broken agent evicts a pod of its choice.
    fn take(&mut self, is_it: impl Fn(&Eater) -> bool) -> Result<(), Violation> {
        let found = self.pods.iter().find(|(_, eater)| is_it(eater) && eater.going.is_none());
        match found.map(|(uid, _)| uid.clone()) {
            Some(uid) => self.goes(uid),
            None => Ok(()),
        }
    }

    /// Checks EVICT-FAIR; then the pod terminates.
    fn goes(&mut self, uid: PodUid) -> Result<(), Violation> {
        let now = self.queue.now();
        let Some(victim) = self.pods.get(&uid) else {
            // The pod has ended since the observation; the pod manager reports this.
            self.answer(EvictionEvent::Released(uid));
            return Ok(());
        };
        if victim.is_critical() {
            return broken("EVICT-FAIR", format!("{uid} is critical"));
        }
        if !self.was_short {
            return broken("EVICT-FAIR", format!("{uid} goes while {} MiB are left", self.left));
        }
        let recent = |at: Mono| now.since(at) < CLEANUP_MAX;
        let others: BTreeSet<&PodUid> = self
            .pods
            .iter()
            .filter(|(other, eater)| **other != uid && eater.going.is_some_and(recent))
            .map(|(other, _)| other)
            .collect();
        if !others.is_empty() {
            return broken("EVICT-FAIR", format!("{uid} goes beside {others:?}"));
        }
        for (other, eater) in self.pods.iter().filter(|(_, e)| !e.is_critical() && e.going.is_none()) {
            if *other != uid && self.compare((other, eater), (&uid, victim)) == Ordering::Less {
                return broken("EVICT-FAIR", format!("{uid} goes before {other}"));
            }
        }
        self.report.evicted.push(uid.to_string());
        if victim.going.is_some_and(recent) {
            return broken("EVICT-FAIR", format!("{uid} is told to go twice"));
        }
        let again = victim.going.is_some();
        if let Some(eater) = self.pods.get_mut(&uid) {
            eater.going = Some(now);
            eater.growth = 0;
        }
        if !again {
            let late = self.rng.chance(50);
            let takes = if late { self.rng.between(31_100, 60_000) } else { self.rng.between(100, 5000) };
            self.queue.after(Duration::from_millis(takes), Event::Gone(uid));
        }
        Ok(())
    }

    /// Order of two pods for eviction, rule by rule as in upstream's documentation.
    fn compare(&self, (a, of_a): (&PodUid, &Eater), (b, of_b): (&PodUid, &Eater)) -> Ordering {
        let memory = |uid: &PodUid| self.measured.get(uid).and_then(|found| found.memory);
        let (known_a, known_b) = (memory(a), memory(b));
        if known_a.is_some() != known_b.is_some() {
            return known_a.is_some().cmp(&known_b.is_some());
        }
        let beyond = |known: Option<u64>, eater: &Eater| {
            i64::try_from(known.unwrap_or(0) >> 20).unwrap_or(i64::MAX) - eater.asked
        };
        let (beyond_a, beyond_b) = (beyond(known_a, of_a), beyond(known_b, of_b));
        if known_a.is_some() && (beyond_a > 0) != (beyond_b > 0) {
            return if beyond_a > 0 { Ordering::Less } else { Ordering::Greater };
        }
        if of_a.priority != of_b.priority {
            return of_a.priority.cmp(&of_b.priority);
        }
        if known_a.is_some() && beyond_a != beyond_b {
            return beyond_b.cmp(&beyond_a);
        }
        Ordering::Equal
    }
}
