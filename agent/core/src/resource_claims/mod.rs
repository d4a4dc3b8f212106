//! Resource claims of the node's pods: registered drivers, prepared claims, and the devices of the claims.
//!
//! ```text
//! worker: Prepare ──► queue of the pod ──► Fetch ─► Write ─► Call … ─► Write ──► Answer with devices
//! worker: Unprepare ──►       │       ──► Call … ─► Write ────────────────────► Answer
//! ActivePods ─────────────────┘                       plugins ──► which one to call, timers of ResourceSlices
//! health reports ──► tables ──► Changed, WriteHealth
//! ```
//! In: [`ClaimEvent`]. Out: [`ClaimAction`]. Invariants: each question is answered once, after its calls and writes were answered; one
//! work per pod at a time; one call per claim at a time; each work gets its turn on the claims that it needs (module turns); the
//! references of a pod are on the disk before a driver is called for it; nothing is random. The modules' headers have the differences
//! from upstream. One more: a pod that got its devices since the last [`ClaimEvent::ActivePods`] does not count as gone, because that
//! list may be older than the pod. Upstream: pkg/kubelet/cm/dra.

pub mod api;
mod cache;
mod calls;
mod checkpoint;
mod common;
mod devices;
mod drivers;
mod health;
mod judging;
mod news;
mod preparing;
mod queue;
mod slices;
mod turns;
mod unpreparing;
mod writes;

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_types::ids::PodUid;
use agent_types::machine::{Machine, Outbox};
use agent_types::runtime::claims::{ClaimsOfPod, PodClaims};
use agent_types::time::{Mono, Now};

pub use cache::ANY_DRIVER;
pub use checkpoint::{CLAIMS_STATE, CheckpointError};
pub use health::HEALTH_STATE;

use api::{ClaimAction, ClaimEvent, ClaimGates, ClaimsView, PluginId};
use common::{Common, Progress, WorkEvent};
use devices::DeviceLookup;
use health::HealthTables;
use news::HealthNews;
use queue::{Work, WorkQueue};
use slices::SliceTimers;
use writes::CheckpointWrites;

/// The owner of the node's resource claims. Its first step, for which the deadline is the zero of the clock, deletes the ResourceSlices
/// of all drivers, and writes the checkpoint if there was none.
#[derive(Clone, Debug)]
pub struct ResourceClaims {
    gates: ClaimGates,
    common: Common,
    queue: WorkQueue,
    slices: SliceTimers,
    health: HealthTables,
    news: HealthNews,
    /// Pods that got their devices since the last list of active pods.
    recent: BTreeSet<PodUid>,
    /// True after the first step.
    begun: bool,
}

impl ResourceClaims {
    /// A node that never had a claim.
    #[must_use]
    pub fn new(gates: ClaimGates) -> ResourceClaims {
        let writes = CheckpointWrites::new(None);
        let common = Common::new(writes, gates.workload_claims);
        ResourceClaims {
            gates,
            common,
            queue: WorkQueue::default(),
            slices: SliceTimers::default(),
            health: HealthTables::default(),
            news: HealthNews::default(),
            recent: BTreeSet::new(),
            begun: false,
        }
    }

    /// The claims of an earlier agent: texts of [`CLAIMS_STATE`] and [`HEALTH_STATE`]; `None`: no file. A health file that cannot be read
    /// counts as missing.
    ///
    /// # Errors
    /// The checkpoint cannot be used. Upstream's kubelet does not start then.
    pub fn restore(
        gates: ClaimGates,
        checkpoint: Option<&str>,
        health: Option<&str>,
        now: Now,
    ) -> Result<ResourceClaims, CheckpointError> {
        let mut claims = ResourceClaims::new(gates);
        if let Some(text) = checkpoint {
            claims.common.cache = checkpoint::read(text)?;
            claims.common.writes = CheckpointWrites::new(Some(text.to_owned()));
        }
        if let Some(text) = health.filter(|_| gates.health) {
            claims.health = HealthTables::restore(text, now);
        }
        Ok(claims)
    }

    /// True if a pod uses a claim. Then the shell sends [`ClaimEvent::ActivePods`].
    #[must_use]
    pub fn has_references(&self) -> bool {
        self.common.cache.iter().any(|(_, claim)| !claim.pods.is_empty())
    }

    /// The claims for the pod resources API and for metrics.
    #[must_use]
    pub fn view(&self) -> ClaimsView {
        self.common.cache.view()
    }

    fn find(&self, pod: &ClaimsOfPod, now: Mono) -> PodClaims {
        self.lookup(now).of_pod(pod)
    }

    fn lookup(&self, now: Mono) -> DeviceLookup<'_> {
        DeviceLookup { cache: &self.common.cache, health: &self.health, gates: self.gates, now }
    }

    /// Answers the question with the devices of the pod.
    fn answer_devices(&mut self, ask: u64, pod: Arc<ClaimsOfPod>, now: Now, out: &mut Outbox<ClaimAction>) {
        let claims = self.find(&pod, now.mono);
        let uid = PodUid::from(pod.uid.as_str());
        if self.common.cache.references(&uid) {
            self.recent.insert(uid.clone());
            self.news.told(uid, pod, claims.clone());
        }
        out.push(ClaimAction::Answer { ask, answer: Ok(claims) });
    }

    /// Passes an event to the pod's work. After the end of this work the next work of the pod begins.
    fn go_on(&mut self, uid: &PodUid, mut event: WorkEvent, now: Now, out: &mut Outbox<ClaimAction>) {
        while let Some(work) = self.queue.current(uid) {
            let outcome = match work.go_on(event, &mut self.common, out) {
                Ok(Progress::Waits) => return,
                Ok(Progress::Done) => Ok(()),
                Err(error) => Err(error),
            };
            self.common.turns.keep_only(&BTreeSet::new(), uid);
            if let Some(work) = self.queue.end(uid) {
                self.ended(uid, work, outcome, now, out);
            }
            event = WorkEvent::Begin;
        }
    }

    /// Answers the questions of a work that ended.
    fn ended(
        &mut self,
        uid: &PodUid,
        work: Work,
        outcome: Result<(), String>,
        now: Now,
        out: &mut Outbox<ClaimAction>,
    ) {
        match (work, outcome) {
            (Work::Prepare(_, asks), Ok(())) => {
                for (ask, pod) in asks {
                    self.answer_devices(ask, pod, now, out);
                }
            }
            (Work::Prepare(_, asks), Err(error)) => {
                let answer = |ask| ClaimAction::Answer { ask, answer: Err(error.clone()) };
                asks.into_iter().for_each(|(ask, _)| out.push(answer(ask)));
            }
            (Work::Unprepare(_, asks), outcome) => {
                if outcome.is_ok() {
                    self.news.forget(uid);
                    self.recent.remove(uid);
                }
                if let (Err(error), true) = (&outcome, asks.is_empty()) {
                    out.push(ClaimAction::NotGivenBack { uid: uid.clone(), error: error.clone() });
                }
                let answer = outcome.map(|()| PodClaims::default());
                let answer = |ask| ClaimAction::Answer { ask, answer: answer.clone() };
                asks.into_iter().for_each(|ask| out.push(answer(ask)));
            }
        }
    }

    /// Passes the answer to a question to the work that asked.
    fn answered(&mut self, question: u64, event: WorkEvent, now: Now, out: &mut Outbox<ClaimAction>) {
        if let Some(uid) = self.common.answered(question) {
            self.go_on(&uid, event, now, out);
        }
    }

    fn written(&mut self, outcome: &Result<(), String>, now: Now, out: &mut Outbox<ClaimAction>) {
        let Some(met) = self.common.writes.end(outcome.is_ok()) else { return };
        if outcome.is_ok() {
            self.common.saved(met);
        }
        for uid in self.queue.pods() {
            self.go_on(&uid, WorkEvent::Written(met, outcome.clone()), now, out);
        }
    }

    /// Unprepares the claims of pods that are gone.
    fn reconcile(&mut self, active: &BTreeSet<PodUid>, now: Now, out: &mut Outbox<ClaimAction>) {
        let recent = std::mem::take(&mut self.recent);
        let mut gone = self.common.cache.pods();
        gone.retain(|uid| !active.contains(uid) && !recent.contains(uid) && !self.queue.has(uid));
        for uid in gone {
            self.queue.unprepare(None, &uid);
            self.go_on(&uid, WorkEvent::Begin, now, out);
        }
    }

    /// A plugin of the driver registered, ended, or changed its connection; `None`: the plugin is not registered.
    fn changed_driver(&mut self, driver: Option<String>, now: Now) {
        if let Some(driver) = driver {
            self.slices.note(&driver, self.common.drivers.is_usable(&driver), now.mono);
        }
    }

    /// The plugin's health reports have ended.
    fn end_health(&mut self, plugin: PluginId) {
        let Some(driver) = self.common.drivers.driver(plugin) else { return };
        if self.health.end(plugin, driver) {
            self.news.note([driver.to_owned()]);
        }
    }

    fn react(&mut self, event: ClaimEvent, now: Now, out: &mut Outbox<ClaimAction>) {
        match event {
            ClaimEvent::Prepare { ask, pod } => {
                let uid = PodUid::from(pod.uid.as_str());
                if self.queue.prepare(ask, pod) {
                    self.go_on(&uid, WorkEvent::Begin, now, out);
                }
            }
            ClaimEvent::Find { ask, pod } => self.answer_devices(ask, pod, now, out),
            ClaimEvent::Unprepare { ask, uid } => {
                if self.queue.unprepare(Some(ask), &uid) {
                    self.go_on(&uid, WorkEvent::Begin, now, out);
                }
            }
            ClaimEvent::Fetched { fetch, answer } => {
                self.answered(fetch, WorkEvent::Fetched(answer), now, out);
            }
            ClaimEvent::Called { call, answer } => self.answered(call, WorkEvent::Called(answer), now, out),
            ClaimEvent::Written(outcome) => self.written(&outcome, now, out),
            ClaimEvent::Registered { plugin, driver } => {
                self.common.drivers.register(plugin, &driver);
                self.changed_driver(Some(driver), now);
            }
            ClaimEvent::Connected(plugin) => {
                let driver = self.common.drivers.connect(plugin, true);
                self.changed_driver(driver, now);
            }
            ClaimEvent::Disconnected(plugin) => {
                let driver = self.common.drivers.connect(plugin, false);
                self.changed_driver(driver, now);
            }
            ClaimEvent::Deregistered(plugin) => {
                self.end_health(plugin);
                let driver = self.common.drivers.deregister(plugin);
                self.changed_driver(driver, now);
            }
            ClaimEvent::Health { plugin, devices } => {
                let driver = self.common.drivers.driver(plugin).filter(|_| self.gates.health);
                if let Some(driver) = driver
                    && self.health.report(plugin, driver, devices, now)
                {
                    self.news.note([driver.to_owned()]);
                }
            }
            ClaimEvent::HealthEnded(plugin) => self.end_health(plugin),
            ClaimEvent::ActivePods(active) => self.reconcile(&active, now, out),
            ClaimEvent::Tick => self.news.note(self.health.expire(now)),
        }
    }

    /// Lets work that waits for claims ask whether it is its turn.
    fn use_freed(&mut self, now: Now, out: &mut Outbox<ClaimAction>) {
        while self.common.turns.take_freed() {
            for uid in self.queue.pods() {
                self.go_on(&uid, WorkEvent::Freed, now, out);
            }
        }
    }

    /// Passes changes of the health to workers and to the disk.
    fn tell_health(&mut self, now: Now, out: &mut Outbox<ClaimAction>) {
        let Some(drivers) = self.news.take_due(now.mono) else { return };
        out.push(ClaimAction::WriteHealth(self.health.text()));
        let (cache, health, gates) = (&self.common.cache, &self.health, self.gates);
        let lookup = DeviceLookup { cache, health, gates, now: now.mono };
        for uid in cache.pods_of_drivers(&drivers) {
            if let Some(claims) = self.news.news_for(&uid, |pod| lookup.of_pod(pod)) {
                out.push(ClaimAction::Changed { uid, claims });
            }
        }
    }
}

impl Machine for ResourceClaims {
    type Event = ClaimEvent;
    type Action = ClaimAction;

    fn step(&mut self, now: Now, event: ClaimEvent, out: &mut Outbox<ClaimAction>) {
        if !self.begun {
            self.begun = true;
            out.push(ClaimAction::DeleteSlices { driver: None });
        }
        self.react(event, now, out);
        self.use_freed(now, out);
        for driver in self.slices.take_due(now.mono) {
            out.push(ClaimAction::DeleteSlices { driver: Some(driver) });
        }
        self.tell_health(now, out);
        if let Some(text) = self.common.writes.begin(&self.common.cache) {
            out.push(ClaimAction::Write(text));
        }
    }

    fn deadline(&self) -> Option<Mono> {
        if !self.begun {
            return Some(Mono(0));
        }
        let deadlines = [self.slices.deadline(), self.health.deadline(), self.news.deadline()];
        deadlines.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
