//! Pods that share volumes of CSI drivers: the machines of `agent_volumes::{csi, stages}` in a small world of their
//! own, in which every step of every task, every half of a driver's call and every death of the agent is one event.
//!
//! ```text
//! chance ─► a task takes a step │ a call ends: done, refused, lost │ a pod comes or goes │ the agent dies │ the power fails
//!              └─► Publishing, Unpublishing, Unstaging, VolumeTable ─► a driver that judges, records on disk
//! ```
//! In: a seed, a [`StagingDefect`], perhaps the one event at which the agent dies. Out: the first violation. Promises:
//! STAGED-FIRST (a driver that stages publishes only staged volumes), UNSTAGED-LAST (no published volume is unstaged),
//! ONE-CALL (one call at a time for each volume), POD-HAS (a volume that was reported to a worker stays published),
//! PROGRESS (at rest every pod has its volumes), LEFT-OVER (after the last pod, nothing of a volume is left). The run
//! in [`crate::scenario`] has whole pods, and set-ups in one event.

mod jobs;
mod model;

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::time::Mono;

use crate::checks::Violation;
use crate::rng::Rng;

use jobs::Agent;
use model::{Disk, Driver, Fate, STAGER, VOLUMES, target, violation};

/// Most pods at one time; then the number of pods of a run.
const PODS: usize = 3;
const PODS_IN_ALL: u64 = 9;
/// Number of events of a storm; then the most events until the world must be at rest.
const STORM: u64 = 600;
const CALM: u64 = 6_000;

/// A planted defect, at least one for each invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagingDefect {
    /// Publishes without a stage (STAGED-FIRST).
    SkipsStaging,
    /// Unstages a volume when one pod has released it, without regard to other pods (UNSTAGED-LAST).
    UnstagesUnderPods,
    /// Does not wait for a turn (ONE-CALL).
    IgnoresTurns,
    /// A dropped task keeps its turn (PROGRESS).
    KeepsTurns,
    /// Treats a call without an answer as a refused call (LEFT-OVER).
    TakesLostForRefused,
    /// Writes no record of a pod (LEFT-OVER).
    WritesNoTarget,
    /// Writes no record of a stage (LEFT-OVER).
    WritesNoStage,
    /// Keeps its state over a power loss (POD-HAS).
    RemembersPower,
}

/// Result of a run without violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of events.
    pub events: u64,
    /// Number of crashes of the agent.
    pub crashes: u32,
    /// Number of pods.
    pub pods: u64,
}

#[derive(Debug)]
struct Pod {
    /// Numbers of volumes.
    volumes: Vec<usize>,
    label: String,
    leaving: bool,
}

/// A possible next event.
#[derive(Clone, Debug)]
enum Event {
    GoOn(u32),
    ReadDisk,
    SetUp(PodUid, usize),
    TearDown(PodUid),
    Controller,
    Time,
    Come,
    Leave(PodUid),
    Crash,
    PowerLost,
}

struct World {
    rng: Rng,
    now: Mono,
    defect: Option<StagingDefect>,
    /// Faults happen.
    faults: bool,
    /// The event after which the agent dies.
    dies: Option<u64>,
    /// Volumes have SELinux labels.
    labelled: bool,
    driver: Driver,
    disk: Disk,
    agent: Agent,
    pods: BTreeMap<PodUid, Pod>,
    made: u64,
    events: u64,
    crashes: u32,
}

/// Runs a storm of faults, then a time without faults, then the removal of all pods.
///
/// # Errors
/// The first broken invariant.
pub fn run(seed: u64, defect: Option<StagingDefect>) -> Result<Outcome, Violation> {
    let mut world = World::new(seed, defect, true);
    for _ in 0..STORM {
        world.event()?;
    }
    world.faults = false;
    world.end()
}

/// Runs two or three pods without faults; the agent dies once, after `at` events.
///
/// # Errors
/// The first broken invariant.
pub fn run_with_crash(seed: u64, at: u64) -> Result<Outcome, Violation> {
    let mut world = World::new(seed, None, false);
    for _ in 0..seed % 2 + 2 {
        world.come();
    }
    world.dies = Some(at);
    world.end()
}

impl World {
    fn new(seed: u64, defect: Option<StagingDefect>, faults: bool) -> World {
        let mut rng = Rng::new(seed ^ 0x0073_7461_6765);
        let labelled = faults && rng.chance(250);
        World {
            rng,
            now: Mono(0),
            defect,
            faults,
            dies: None,
            labelled,
            driver: Driver::default(),
            disk: Disk::default(),
            agent: Agent::default(),
            pods: BTreeMap::new(),
            made: 0,
            events: 0,
            crashes: 0,
        }
    }

    fn label(&self, pod: &PodUid, number: usize) -> Option<String> {
        let has = self.labelled && VOLUMES[number] == (STAGER, "a", false);
        self.pods.get(pod).filter(|_| has).map(|pod| pod.label.clone())
    }

    /// True if a small fault happens.
    fn fails(&mut self) -> bool {
        self.faults && self.rng.chance(40)
    }

    fn fate(&mut self) -> Fate {
        match self.rng.below(1_000) {
            _ if !self.faults => Fate::Done,
            0..100 => Fate::Refused,
            100..200 => Fate::LostDone,
            200..300 => Fate::LostUndone,
            _ => Fate::Done,
        }
    }

    fn come(&mut self) {
        let uid = PodUid::from(format!("pod-{}", self.made).as_str());
        self.made += 1;
        let mut volumes: Vec<usize> = (0..VOLUMES.len()).filter(|_| self.rng.chance(500)).collect();
        if volumes.is_empty() {
            volumes.push(0);
        }
        let label = if self.rng.chance(500) { "a" } else { "b" }.to_owned();
        self.pods.insert(uid, Pod { volumes, label, leaving: false });
    }

    fn leave(&mut self, uid: &PodUid) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.leaving = true;
        }
        // Set-ups are dropped at any step.
        let jobs = self.agent.jobs.iter().filter(|(_, job)| job.pod.as_ref() == Some(uid));
        for id in jobs.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.drop_job(id);
        }
    }

    fn crash(&mut self) {
        self.crashes += 1;
        for id in self.agent.jobs.keys().copied().collect::<Vec<_>>() {
            self.drop_job(id);
        }
        self.agent = Agent::default();
    }

    fn lose_power(&mut self) {
        let remembered = std::mem::take(&mut self.agent.mounted);
        self.crash();
        self.driver.power_lost();
        if self.defect == Some(StagingDefect::RemembersPower) {
            self.agent.mounted = remembered;
        }
    }

    /// All possible next events.
    fn possible(&self) -> Vec<Event> {
        let jobs = self.agent.jobs.iter().filter(|(_, job)| !job.waits);
        let mut all: Vec<Event> = jobs.map(|(id, _)| Event::GoOn(*id)).collect();
        if self.agent.reads {
            all.push(Event::ReadDisk);
        }
        for (uid, pod) in &self.pods {
            let mut own = self.agent.jobs.values().filter(|job| job.pod.as_ref() == Some(uid));
            if pod.leaving {
                if own.next().is_none() {
                    all.push(Event::TearDown(uid.clone()));
                }
                continue;
            }
            let busy: Vec<Option<usize>> = own.map(|job| job.number).collect();
            let due = pod.volumes.iter().filter(|number| {
                !busy.contains(&Some(**number)) && !self.agent.mounted.contains(&(uid.clone(), **number))
            });
            all.extend(due.map(|number| Event::SetUp(uid.clone(), *number)));
        }
        all.extend([Event::Controller, Event::Time]);
        all
    }

    /// Chooses the next event and processes it.
    fn event(&mut self) -> Result<(), Violation> {
        self.events += 1;
        let strange = if self.faults { self.rng.below(1_000) } else { 1_000 };
        let living: Vec<PodUid> =
            self.pods.iter().filter(|(_, p)| !p.leaving).map(|(u, _)| u.clone()).collect();
        let event = match strange {
            0..8 => Event::Crash,
            8..11 => Event::PowerLost,
            11..60 if self.pods.len() < PODS && self.made < PODS_IN_ALL => Event::Come,
            60..80 => self.rng.pick(&living).cloned().map_or(Event::Time, Event::Leave),
            _ => {
                let possible = self.possible();
                self.rng.pick(&possible).cloned().unwrap_or(Event::Time)
            }
        };
        self.happens(event)?;
        if self.dies == Some(self.events) {
            self.crash();
        }
        self.judge()
    }

    fn happens(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::GoOn(id) => self.go_on(id)?,
            Event::ReadDisk => self.read_disk(),
            Event::SetUp(pod, number) => self.set_up(&pod, number),
            Event::TearDown(pod) => {
                let mounted = |of: &(PodUid, usize)| of.0 != pod;
                self.agent.mounted.retain(mounted);
                if self.tear_down(&pod) {
                    self.pods.remove(&pod);
                }
            }
            Event::Controller => {
                let in_use = self.agent.in_use.clone();
                self.agent.table.node_says(in_use.clone(), in_use, BTreeMap::new());
            }
            Event::Time => {
                self.now = self.now.after(Duration::from_secs(1));
                self.agent.table.tick(self.now);
                self.carry_out();
            }
            Event::Come => self.come(),
            Event::Leave(pod) => self.leave(&pod),
            Event::Crash => self.crash(),
            Event::PowerLost => self.lose_power(),
        }
        Ok(())
    }

    /// Checks the invariants that hold after every event.
    fn judge(&self) -> Result<(), Violation> {
        for (pod, number) in &self.agent.mounted {
            let leaves = self.pods.get(pod).is_none_or(|pod| pod.leaving);
            let csi = model::volume_of(*number, pod, None);
            if !leaves && !self.driver.has(&csi.key(), &target(pod, &csi.volume)) {
                return Err(violation("POD-HAS", format!("{pod} has {} no more", csi.volume)));
            }
        }
        Ok(())
    }

    /// True if all pods have all their volumes, except volumes whose pods have different SELinux labels.
    fn all_mounted(&self) -> bool {
        let has = |uid: &PodUid, number: &usize| {
            self.agent.mounted.contains(&(uid.clone(), *number)) || self.label(uid, *number).is_some()
        };
        self.pods.iter().all(|(uid, pod)| pod.leaving || pod.volumes.iter().all(|number| has(uid, number)))
    }

    fn is_clean(&self) -> bool {
        let idle = self.agent.table.is_idle() && self.agent.in_use.is_empty();
        idle && self.pods.is_empty() && self.disk.is_empty() && self.driver.is_empty()
    }

    fn until(&mut self, is: fn(&World) -> bool, invariant: &'static str) -> Result<(), Violation> {
        let last = self.events + CALM;
        while !is(self) {
            if self.events == last {
                let (pods, disk, driver) = (&self.pods, &self.disk, &self.driver);
                return Err(violation(invariant, format!("{pods:?}, {disk:?}, {driver:?}")));
            }
            self.event()?;
        }
        Ok(())
    }

    /// Checks PROGRESS, removes all pods, and checks LEFT-OVER.
    fn end(mut self) -> Result<Outcome, Violation> {
        self.until(World::all_mounted, "PROGRESS")?;
        for pod in self.pods.keys().cloned().collect::<Vec<_>>() {
            self.leave(&pod);
        }
        self.until(World::is_clean, "LEFT-OVER")?;
        Ok(Outcome { events: self.events, crashes: self.crashes, pods: self.made })
    }
}
