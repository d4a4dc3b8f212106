//! Invariants over the API server's state: STATUS-MONO (there), STATUS-TRUTH, DELETE-LAST, SECRET-SCOPE.
//!
//! In: statuses and deletions that the API server applied, and events of the runtime. Out: violations. They
//! look at the server's side: calls that were not applied do not count.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::ids::{ContainerId, PodUid, SandboxId};
use agent_types::time::Mono;

use super::{Invariant, TraceEvent};
use crate::status::Phase;

fn is_terminal(phase: &str) -> bool {
    Phase::terminal(phase).is_some()
}

/// STATUS-MONO: a terminal phase that the API has shown stays, also after a restart. Mirror pods show one run
/// of a static pod after the other and are exempt.
#[derive(Clone, Debug, Default)]
pub struct ApiStatusMono {
    terminal: BTreeMap<PodUid, String>,
}

impl Invariant for ApiStatusMono {
    fn name(&self) -> &'static str {
        "STATUS-MONO"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::ApiStatus { pod, phase, mirror: false, .. } => match self.terminal.get(pod) {
                Some(was) if was != phase => Err(format!("the API showed {pod} as {was} and shows {phase}")),
                None if is_terminal(phase) => {
                    self.terminal.insert(pod.clone(), phase.clone());
                    Ok(())
                }
                _ => Ok(()),
            },
            TraceEvent::ApiGone { pod } => {
                self.terminal.remove(pod);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// What the runtime has of each pod.
#[derive(Clone, Debug, Default)]
struct Holdings {
    containers: BTreeMap<ContainerId, PodUid>,
    live: BTreeSet<ContainerId>,
    /// Containers that ran at some time.
    started: BTreeSet<ContainerId>,
    sandboxes: BTreeMap<SandboxId, PodUid>,
}

impl Holdings {
    fn observe(&mut self, event: &TraceEvent) {
        match event {
            TraceEvent::SandboxReady { pod, id, .. } => {
                self.sandboxes.insert(id.clone(), pod.clone());
            }
            TraceEvent::SandboxRemoved { id } => {
                self.sandboxes.remove(id);
            }
            TraceEvent::ContainerCreated { pod, id, .. } => {
                self.containers.insert(id.clone(), pod.clone());
            }
            TraceEvent::ContainerStarted { id } => {
                self.live.insert(id.clone());
                self.started.insert(id.clone());
            }
            TraceEvent::ContainerExited { id } => {
                self.live.remove(id);
            }
            TraceEvent::ContainerRemoved { id } => {
                self.live.remove(id);
                self.containers.remove(id);
            }
            TraceEvent::RuntimeEmptied => {
                self.live.clear();
                self.containers.clear();
                self.sandboxes.clear();
            }
            _ => {}
        }
    }

    fn live_of(&self, pod: &PodUid) -> Option<&ContainerId> {
        self.live.iter().find(|id| self.containers.get(id) == Some(pod))
    }
}

/// STATUS-TRUTH: the API shows a terminal phase only for a pod without running containers, and shows only
/// started containers as running.
#[derive(Clone, Debug, Default)]
pub struct StatusTruth {
    holdings: Holdings,
    /// Pods that the API shows as over.
    over: BTreeSet<PodUid>,
    /// Pods that an old list brought back after their end, until their worker has taken them down.
    brought_back: BTreeSet<PodUid>,
}

impl StatusTruth {
    /// A new agent got a list that was older than the pod's end, and ran the pod again. A later list has the end; while the
    /// agent takes the pod down, its statuses keep the phase, which the API had before (simulation, stopping, seed 30221).
    fn note_lists(&mut self, event: &TraceEvent) {
        match event {
            TraceEvent::ApiListedFirst { pod } if self.over.contains(pod) => {
                self.brought_back.insert(pod.clone());
            }
            TraceEvent::WorkerState { pod, state: "terminated" } | TraceEvent::ApiGone { pod } => {
                self.brought_back.remove(pod);
            }
            _ => {}
        }
        match event {
            TraceEvent::ApiStatus { pod, phase, .. } if is_terminal(phase) => {
                self.over.insert(pod.clone());
            }
            TraceEvent::ApiStatus { pod, .. } | TraceEvent::ApiGone { pod } => {
                self.over.remove(pod);
            }
            _ => {}
        }
    }
}

impl Invariant for StatusTruth {
    fn name(&self) -> &'static str {
        "STATUS-TRUTH"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        self.holdings.observe(event);
        self.note_lists(event);
        let TraceEvent::ApiStatus { pod, phase, running, mirror } = event else { return Ok(()) };
        if let Some(id) = running.iter().find(|id| !self.holdings.started.contains(*id)) {
            return Err(format!("{pod} is said to run {id}, which was never started"));
        }
        let is_new = is_terminal(phase) && !self.brought_back.contains(pod);
        // The pod of a mirror pod has another UID: its containers are not looked up here.
        match self.holdings.live_of(pod).filter(|_| is_new && !mirror) {
            Some(id) => Err(format!("{pod} is said to be {phase} while {id} runs")),
            None => Ok(()),
        }
    }
}

/// DELETE-LAST: the agent deletes a pod only if that was requested, after its terminal phase was reported,
/// and after all parts of it are gone from the node; or, if it is left from a shutdown, after its terminal
/// phase was reported and none of its containers runs. Mirror pods are copies and may go at any time.
#[derive(Clone, Debug, Default)]
pub struct DeleteLast {
    holdings: Holdings,
    phases: BTreeMap<PodUid, String>,
    asked: BTreeSet<PodUid>,
    left_over: BTreeSet<PodUid>,
}

impl DeleteLast {
    fn judge(&self, pod: &PodUid) -> Result<(), String> {
        if self.left_over.contains(pod) && !self.asked.contains(pod) {
            return match self.holdings.live_of(pod) {
                Some(id) => Err(format!("{pod} was taken away while {id} runs")),
                None => Ok(()),
            };
        }
        if !self.asked.contains(pod) {
            return Err(format!("{pod} was deleted and nobody had asked for it"));
        }
        let phase = self.phases.get(pod).map_or("", String::as_str);
        if !is_terminal(phase) {
            return Err(format!("{pod} was deleted in phase {phase:?}"));
        }
        if let Some((id, _)) = self.holdings.containers.iter().find(|(_, of)| *of == pod) {
            return Err(format!("{pod} was deleted before its container {id} was removed"));
        }
        if let Some((id, _)) = self.holdings.sandboxes.iter().find(|(_, of)| *of == pod) {
            return Err(format!("{pod} was deleted before its sandbox {id} was removed"));
        }
        Ok(())
    }
}

impl Invariant for DeleteLast {
    fn name(&self) -> &'static str {
        "DELETE-LAST"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        self.holdings.observe(event);
        match event {
            TraceEvent::ApiStatus { pod, phase, .. } => {
                self.phases.insert(pod.clone(), phase.clone());
            }
            TraceEvent::ApiDeletionAsked { pod } => {
                self.asked.insert(pod.clone());
            }
            TraceEvent::ApiLeftOver { pod } => {
                self.left_over.insert(pod.clone());
            }
            TraceEvent::ApiDeletedByAgent { pod, mirror: false } => return self.judge(pod),
            TraceEvent::ApiGone { pod } => {
                self.phases.remove(pod);
                self.asked.remove(pod);
                self.left_over.remove(pod);
            }
            _ => {}
        }
        Ok(())
    }
}

/// SECRET-SCOPE: the agent reads only objects of its node: not other nodes, their leases or pods. No present
/// call reads a Secret or a ConfigMap; a future one must be checked here, too.
#[derive(Clone, Copy, Debug, Default)]
pub struct SecretScope;

impl Invariant for SecretScope {
    fn name(&self) -> &'static str {
        "SECRET-SCOPE"
    }

    fn observe(&mut self, _: Mono, event: &TraceEvent) -> Result<(), String> {
        match event {
            TraceEvent::ApiAsked { what, own: false } => Err(format!("{what}: not this node's business")),
            _ => Ok(()),
        }
    }
}
