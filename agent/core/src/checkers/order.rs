//! Invariants about starts and ends of a pod's containers: ORDER, GRACE, GC-SAFE.
//!
//! In: the pod's specification, the runtime's events, requested stops. Out: violations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::ids::{ContainerId, PodUid};
use agent_types::time::Mono;

use super::{Invariant, TraceEvent};

/// Longest time of an inspection: a container that has run longer was seen.
const LOOK_MAX: Duration = Duration::from_secs(130);
/// Least grace of a stop, and the most that rounding up to whole seconds may add, seconds.
const STOP_MIN_S: u64 = 2;
const ROUNDING: Duration = Duration::from_secs(1);

/// What the runtime has of each container.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pod: PodUid,
    name: String,
    attempt: u32,
    /// Since when it runs, if it does.
    pub(super) live: Option<Mono>,
    started: bool,
}

/// Instances by id, from the runtime's events.
#[derive(Clone, Debug, Default)]
pub(super) struct Instances(BTreeMap<ContainerId, Instance>);

impl Instances {
    pub(super) fn observe(&mut self, at: Mono, event: &TraceEvent) {
        match event {
            TraceEvent::ContainerCreated { pod, name, attempt, id } => {
                let (pod, name, attempt) = (pod.clone(), name.clone(), *attempt);
                self.0.insert(id.clone(), Instance { pod, name, attempt, live: None, started: false });
            }
            TraceEvent::ContainerStarted { id } => {
                if let Some(i) = self.0.get_mut(id) {
                    (i.live, i.started) = (Some(at), true);
                }
            }
            TraceEvent::ContainerExited { id } => {
                if let Some(i) = self.0.get_mut(id) {
                    i.live = None;
                }
            }
            TraceEvent::ContainerRemoved { id } => {
                self.0.remove(id);
            }
            TraceEvent::RuntimeEmptied => self.0.clear(),
            _ => {}
        }
    }

    pub(super) fn of<'a>(&'a self, pod: &'a PodUid) -> impl Iterator<Item = &'a Instance> {
        self.0.values().filter(move |i| i.pod == *pod)
    }
}

/// An init container of a pod's specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitContainer {
    /// Name of the container.
    pub name: String,
    /// It keeps running: `restartPolicy: Always`.
    pub sidecar: bool,
}

/// What happened in a pod's newest sandbox.
#[derive(Clone, Debug, Default)]
struct Progress {
    begun: BTreeSet<String>,
    /// Containers whose last run succeeded.
    done: BTreeSet<String>,
}

/// ORDER: init containers run one after another to success, sidecars start in their place among them, the
/// regular ones come after all of them; once regular ones exist in a sandbox, init containers do not run
/// again in it. At the end of the pod a sidecar stops only when no regular container and no later sidecar
/// runs, or when the grace period is over: upstream then stops all remaining containers at once, even next to
/// one that does not end. Sidecars wait neither for a plain init container nor for an ephemeral one. For a
/// pod whose specification this incarnation never had, the sidecars are unknown.
#[derive(Clone, Debug, Default)]
pub struct Order {
    instances: Instances,
    init: BTreeMap<PodUid, Vec<InitContainer>>,
    progress: BTreeMap<PodUid, Progress>,
    /// Ephemeral containers: they wait for nothing.
    ephemeral: BTreeSet<(PodUid, String)>,
    /// Pods whose containers must all restart.
    anew: BTreeSet<PodUid>,
    terminating: BTreeSet<PodUid>,
    /// Pods that this incarnation of the agent was given.
    known: BTreeSet<PodUid>,
}

impl Order {
    fn started(&mut self, id: &ContainerId) -> Result<(), String> {
        let Some(i) = self.instances.0.get(id) else { return Ok(()) };
        let (pod, name) = (i.pod.clone(), i.name.clone());
        if self.ephemeral.contains(&(pod.clone(), name.clone())) {
            return Ok(());
        }
        let Some(init) = self.init.get(&pod) else { return Ok(()) };
        let place = init.iter().position(|c| c.name == name);
        let progress = self.progress.entry(pod.clone()).or_default();
        let is_init = |begun: &String| init.iter().any(|c| c.name == *begun);
        let plain = place.is_some_and(|place| !init[place].sidecar);
        if let Some(rest) = progress.begun.iter().find(|b| plain && !is_init(b)) {
            return Err(format!("init container {name} of {pod} runs after {rest} began"));
        }
        for before in &init[..place.unwrap_or(init.len())] {
            let passed = if before.sidecar { &progress.begun } else { &progress.done };
            if !passed.contains(&before.name) {
                return Err(format!("{name} of {pod} was started before {} had had its turn", before.name));
            }
        }
        progress.done.remove(&name);
        progress.begun.insert(name);
        Ok(())
    }

    fn ended(&mut self, id: &ContainerId, well: bool) {
        let Some(i) = self.instances.0.get(id) else { return };
        let progress = self.progress.entry(i.pod.clone()).or_default();
        if well {
            progress.done.insert(i.name.clone());
        } else {
            progress.done.remove(&i.name);
        }
    }

    /// No container is left of a restarting pod: its order starts again, too.
    fn begin_anew(&mut self) {
        let left = |pod: &PodUid| {
            self.instances.of(pod).any(|i| !self.ephemeral.contains(&(pod.clone(), i.name.clone())))
        };
        let over: Vec<PodUid> = self.anew.iter().filter(|pod| !left(pod)).cloned().collect();
        for pod in over {
            self.anew.remove(&pod);
            self.progress.remove(&pod);
        }
    }

    fn stopped(&self, at: Mono, pod: &PodUid, id: &ContainerId) -> Result<(), String> {
        let Some(init) = self.init.get(pod) else { return Ok(()) };
        if !self.terminating.contains(pod) || !self.known.contains(pod) {
            return Ok(());
        }
        let name = self.instances.0.get(id).map_or("", |i| i.name.as_str());
        let place = |name: &str| init.iter().position(|c| c.name == name);
        let Some(own) = place(name).filter(|own| init[*own].sidecar) else { return Ok(()) };
        let waited_for = |name: &String| match place(name) {
            Some(place) => place > own && init[place].sidecar,
            None => !self.ephemeral.contains(&(pod.clone(), name.clone())),
        };
        let late =
            |i: &&Instance| i.live.is_some_and(|since| at.since(since) > LOOK_MAX) && waited_for(&i.name);
        match self.instances.of(pod).find(late) {
            Some(i) => Err(format!("sidecar {name} of {pod} is stopped while {} runs", i.name)),
            None => Ok(()),
        }
    }
}

impl Invariant for Order {
    fn name(&self) -> &'static str {
        "ORDER"
    }

    fn observe(&mut self, at: Mono, event: &TraceEvent) -> Result<(), String> {
        self.instances.observe(at, event);
        match event {
            TraceEvent::PodPlanned { pod, init } => {
                self.init.insert(pod.clone(), init.clone());
            }
            TraceEvent::RestartAllAsked { pod, .. } => {
                self.anew.insert(pod.clone());
            }
            TraceEvent::ContainerRemoved { .. } => self.begin_anew(),
            TraceEvent::EphemeralAdded { pod, name } => {
                self.ephemeral.insert((pod.clone(), name.clone()));
            }
            TraceEvent::SandboxReady { pod, .. } => {
                self.progress.remove(pod);
            }
            TraceEvent::ContainerStarted { id } => return self.started(id),
            TraceEvent::ContainerExited { id } => self.ended(id, true),
            TraceEvent::ContainerFailed { id } => self.ended(id, false),
            TraceEvent::WorkerState { pod, state } => {
                if *state == "terminating" {
                    self.terminating.insert(pod.clone());
                } else {
                    self.terminating.remove(pod);
                }
                if *state == "syncing" {
                    self.known.insert(pod.clone());
                }
            }
            TraceEvent::AgentStarted { .. } => self.known.clear(),
            // The rest of the grace period is the least grace of a stop: the period is over.
            TraceEvent::StopAsked { grace_s, .. } if u64::from(*grace_s) <= STOP_MIN_S => {}
            TraceEvent::StopAsked { pod, id, .. } => return self.stopped(at, pod, id),
            TraceEvent::RuntimeEmptied => self.progress.clear(),
            _ => {}
        }
        Ok(())
    }
}

/// GRACE: a terminating pod has one grace period for all its containers together; neither a second request
/// nor a restart of the agent adds to it. Time spent before a restart is known only if it could be recorded.
#[derive(Clone, Debug, Default)]
pub struct Grace {
    /// When the pod's grace is over; nothing was stopped yet if there is none.
    until: BTreeMap<PodUid, Option<Mono>>,
    /// Their record could not be written.
    unwritten: BTreeSet<PodUid>,
}

impl Invariant for Grace {
    fn name(&self) -> &'static str {
        "GRACE"
    }

    fn observe(&mut self, at: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::WorkerState { pod, state: "terminating" } => {
                self.until.entry(pod.clone()).or_default();
            }
            TraceEvent::WorkerState { pod, state: "pending" | "syncing" | "finished" }
            | TraceEvent::PodForgotten { pod } => {
                self.until.remove(pod);
                self.unwritten.remove(pod);
            }
            TraceEvent::RecordLost { pod } => {
                self.unwritten.insert(pod.clone());
            }
            TraceEvent::AgentStarted { .. } => {
                for pod in std::mem::take(&mut self.unwritten) {
                    self.until.insert(pod, None);
                }
            }
            TraceEvent::StopAsked { pod, id, grace_s } => {
                let Some(until) = self.until.get_mut(pod) else { return Ok(()) };
                let asked = at.after(Duration::from_secs(u64::from(*grace_s)));
                let least = at.after(Duration::from_secs(STOP_MIN_S));
                let allowed = until.map_or(asked, |u| u.max(least).after(ROUNDING));
                if asked > allowed {
                    let over = asked.since(allowed).as_secs_f64();
                    return Err(format!(
                        "{id} of {pod} is given {grace_s} s, {over:.0} s more than are left"
                    ));
                }
                *until = Some(until.map_or(asked, |u| u.min(asked)));
            }
            _ => {}
        }
        Ok(())
    }
}

/// GC-SAFE: while a pod is wanted, the newest instance of each container that ran is kept, for its logs, its
/// exit code and the restart count. The checker judges a removal by the moment of its request: a call of an agent that has died may
/// come through when the next agent wants the pod again, and that agent can neither know of the call nor hold it up. The pod was to
/// go when the call was sent, and its next life begins behind the fence (simulation, stopping, seeds 20111 and 20142: the stop of
/// the machine that ended a static pod was called off; resizing, seed 20341: a manifest went and came back).
#[derive(Clone, Debug, Default)]
pub struct GcSafe {
    instances: Instances,
    /// Containers whose removal this agent requested, of pods that had to be removed.
    asked: BTreeSet<ContainerId>,
    /// The same of agents that have died: their calls may come late.
    late: BTreeSet<ContainerId>,
    wanted: BTreeSet<PodUid>,
    /// Pods whose containers must all restart: their dead instances are removed.
    anew: BTreeSet<PodUid>,
}

impl GcSafe {
    fn removed(&self, id: &ContainerId) -> Result<(), String> {
        let Some(gone) = self
            .instances
            .0
            .get(id)
            .filter(|i| i.started && self.wanted.contains(&i.pod) && !self.anew.contains(&i.pod))
            .filter(|_| !self.late.contains(id))
        else {
            return Ok(());
        };
        let newer = |i: &Instance| i.name == gone.name && i.attempt > gone.attempt && i.started;
        if self.instances.of(&gone.pod).any(newer) {
            return Ok(());
        }
        Err(format!("{id} was removed, the newest {} of {}", gone.name, gone.pod))
    }
}

impl Invariant for GcSafe {
    fn name(&self) -> &'static str {
        "GC-SAFE"
    }

    fn observe(&mut self, at: Mono, event: &TraceEvent) -> Result<(), String> {
        let verdict = match event {
            TraceEvent::ContainerRemoved { id } => self.removed(id),
            _ => Ok(()),
        };
        self.instances.observe(at, event);
        match event {
            TraceEvent::WorkerState { pod, state } => {
                if matches!(*state, "pending" | "syncing") {
                    self.wanted.insert(pod.clone());
                } else {
                    self.wanted.remove(pod);
                }
            }
            TraceEvent::RestartAllAsked { pod, .. } => {
                self.anew.insert(pod.clone());
            }
            TraceEvent::RemovalAsked { pod, id } if self.wanted.contains(pod) => {
                self.late.remove(id);
            }
            TraceEvent::RemovalAsked { id, .. } => {
                self.asked.insert(id.clone());
            }
            // The specification of the next incarnation is unknown until its worker reports it.
            TraceEvent::AgentStarted { .. } => {
                self.wanted.clear();
                self.late.append(&mut self.asked);
            }
            _ => {}
        }
        verdict
    }
}
