//! Invariants over the objects of the runtime: ONE-LIVE, ONE-SANDBOX, NO-OUTLIVE.
//!
//! In: the runtime's events. Out: violations.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::{ContainerId, PodUid, SandboxId};
use agent_types::time::Mono;

use super::agent::NonTerminalPods;
use super::{Invariant, TraceEvent};

#[derive(Clone, Debug)]
struct Instance {
    pod: PodUid,
    name: String,
    attempt: u32,
    live: bool,
}

/// ONE-LIVE: never two live containers for one (pod, container); attempts only rise. An instance that was
/// removed before it ever ran was no attempt: its number may be used again.
#[derive(Clone, Debug, Default)]
pub struct OneLive {
    instances: BTreeMap<ContainerId, Instance>,
    /// Highest attempt that ran.
    newest: BTreeMap<(PodUid, String), u32>,
}

impl Invariant for OneLive {
    fn name(&self) -> &'static str {
        "ONE-LIVE"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::ContainerCreated { pod, name, attempt, id } => {
                let (attempt, live) = (*attempt, false);
                let instance = Instance { pod: pod.clone(), name: name.clone(), attempt, live };
                self.instances.insert(id.clone(), instance);
                let before = self.newest.get(&(pod.clone(), name.clone())).copied();
                match before.filter(|b| *b >= attempt) {
                    Some(b) => Err(format!("container {name} of {pod}: attempt {attempt} created after {b}")),
                    None => Ok(()),
                }
            }
            TraceEvent::ContainerStarted { id } => self.started(id),
            TraceEvent::ContainerExited { id } => {
                if let Some(i) = self.instances.get_mut(id) {
                    i.live = false;
                }
                Ok(())
            }
            TraceEvent::ContainerRemoved { id } => {
                self.instances.remove(id);
                Ok(())
            }
            TraceEvent::RuntimeEmptied => {
                *self = OneLive::default();
                Ok(())
            }
            TraceEvent::PodForgotten { pod } => {
                self.newest.retain(|(p, _), _| p != pod);
                Ok(())
            }
            // Who runs it again finds nothing to count on from.
            TraceEvent::ApiListedFirst { pod } if self.instances.values().all(|i| i.pod != *pod) => {
                self.newest.retain(|(p, _), _| p != pod);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl OneLive {
    fn started(&mut self, id: &ContainerId) -> Result<(), String> {
        let Some(this) = self.instances.get(id).cloned() else { return Ok(()) };
        let twin = self
            .instances
            .iter()
            .find(|(other, i)| *other != id && i.live && i.pod == this.pod && i.name == this.name);
        if let Some((other, _)) = twin {
            return Err(format!("{id} and {other} live, both container {} of {}", this.name, this.pod));
        }
        if let Some(i) = self.instances.get_mut(id) {
            i.live = true;
        }
        let newest = self.newest.entry((this.pod, this.name)).or_default();
        *newest = this.attempt.max(*newest);
        Ok(())
    }
}

/// ONE-SANDBOX: never two ready sandboxes for one pod; attempts only rise.
#[derive(Clone, Debug, Default)]
pub struct OneSandbox {
    ready: BTreeMap<SandboxId, PodUid>,
    /// Ready or not.
    there: BTreeMap<SandboxId, PodUid>,
    newest: BTreeMap<PodUid, u32>,
}

impl Invariant for OneSandbox {
    fn name(&self) -> &'static str {
        "ONE-SANDBOX"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::SandboxReady { pod, id, attempt } => {
                if let Some((other, _)) = self.ready.iter().find(|(_, p)| *p == pod) {
                    return Err(format!("{id} and {other} are both ready for {pod}"));
                }
                self.ready.insert(id.clone(), pod.clone());
                self.there.insert(id.clone(), pod.clone());
                match self.newest.insert(pod.clone(), *attempt).filter(|b| b >= attempt) {
                    Some(b) => Err(format!("sandbox of {pod}: attempt {attempt} run after {b}")),
                    None => Ok(()),
                }
            }
            TraceEvent::SandboxStopped { id } => {
                self.ready.remove(id);
                Ok(())
            }
            TraceEvent::SandboxRemoved { id } => {
                self.ready.remove(id);
                self.there.remove(id);
                Ok(())
            }
            TraceEvent::RuntimeEmptied => {
                *self = OneSandbox::default();
                Ok(())
            }
            TraceEvent::PodForgotten { pod } => {
                self.newest.remove(pod);
                Ok(())
            }
            // As above.
            TraceEvent::ApiListedFirst { pod } if self.there.values().all(|p| p != pod) => {
                self.newest.remove(pod);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// NO-OUTLIVE: no container of a pod lives after its terminal report, and no object is left after its worker
/// finished. A new incarnation knows the report only from the API server.
#[derive(Clone, Debug, Default)]
pub struct NoOutlive {
    going_on: NonTerminalPods,
    owners: BTreeMap<ContainerId, PodUid>,
    live: BTreeSet<ContainerId>,
    sandboxes: BTreeMap<SandboxId, PodUid>,
    over: BTreeSet<PodUid>,
    /// Pods whose end this incarnation reported.
    own: BTreeSet<PodUid>,
    /// Pods that an old list brought back after their end.
    brought_back: BTreeSet<PodUid>,
    finished: BTreeSet<PodUid>,
}

impl Invariant for NoOutlive {
    fn name(&self) -> &'static str {
        "NO-OUTLIVE"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        self.going_on.observe(event);
        match event {
            TraceEvent::SandboxReady { pod, id, .. } => {
                self.sandboxes.insert(id.clone(), pod.clone());
                self.none_left(pod)?;
            }
            TraceEvent::SandboxRemoved { id } => {
                self.sandboxes.remove(id);
            }
            TraceEvent::ContainerCreated { pod, id, .. } => {
                self.owners.insert(id.clone(), pod.clone());
                self.none_left(pod)?;
            }
            TraceEvent::ContainerStarted { id } => {
                self.live.insert(id.clone());
                if let Some(pod) = self.owners.get(id).cloned() {
                    self.none_live(&pod)?;
                }
            }
            TraceEvent::ContainerExited { id } => {
                self.live.remove(id);
            }
            TraceEvent::ContainerRemoved { id } => {
                self.live.remove(id);
                self.owners.remove(id);
            }
            TraceEvent::RuntimeEmptied => {
                self.owners.clear();
                self.live.clear();
                self.sandboxes.clear();
            }
            TraceEvent::StatusPublished { pod, phase }
                if matches!(phase.as_str(), "Succeeded" | "Failed") =>
            {
                self.own.insert(pod.clone());
                // The agent repeats what the server has shown for long, while it takes down what it began for an old list.
                if !self.brought_back.contains(pod) {
                    self.over.insert(pod.clone());
                    self.none_live(pod)?;
                }
            }
            TraceEvent::WorkerState { pod, state: "terminated" } if self.brought_back.remove(pod) => {
                self.over.insert(pod.clone());
                self.none_live(pod)?;
            }
            TraceEvent::AgentStarted { .. } => {
                self.over.retain(|pod| !self.going_on.contains(pod));
                self.own.clear();
            }
            // The server was restored before this incarnation reported the pod: an earlier report is unknown.
            TraceEvent::ApiStatus { pod, .. } if self.going_on.contains(pod) && !self.own.contains(pod) => {
                self.over.remove(pod);
            }
            TraceEvent::ApiListedFirst { pod } => {
                // That the server shows its end is no report of the agent that begins the pod again (simulation, stopping, seed
                // 30221: the list that the agent got first was older than the end; the next one had it, while containers ran).
                if !self.going_on.contains(pod) {
                    self.brought_back.insert(pod.clone());
                }
                self.over.remove(pod);
            }
            TraceEvent::WorkerState { pod, state: "finished" } => {
                self.finished.insert(pod.clone());
                self.none_left(pod)?;
            }
            TraceEvent::PodForgotten { pod } => {
                // Also when its worker begins again after it was through: then the old list has brought it back just now, and that
                // excuse lasts until the worker has ended it (simulation, seeds, seed 60710).
                self.over.remove(pod);
                self.finished.remove(pod);
            }
            _ => {}
        }
        Ok(())
    }
}

impl NoOutlive {
    fn none_live(&self, pod: &PodUid) -> Result<(), String> {
        let lives = self.live.iter().find(|id| self.owners.get(*id) == Some(pod));
        match lives.filter(|_| self.over.contains(pod)) {
            Some(id) => Err(format!("{id} lives although {pod} was reported as over")),
            None => Ok(()),
        }
    }

    fn none_left(&self, pod: &PodUid) -> Result<(), String> {
        if !self.finished.contains(pod) {
            return Ok(());
        }
        let container = self.owners.iter().find(|(_, p)| *p == pod).map(|(id, _)| id.to_string());
        let sandbox = self.sandboxes.iter().find(|(_, p)| *p == pod).map(|(id, _)| id.to_string());
        match container.or(sandbox) {
            Some(id) => Err(format!("{id} is left although {pod} was finished")),
            None => Ok(()),
        }
    }
}
