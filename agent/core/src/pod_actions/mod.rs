//! The plan for one pod: compares desired and observed state, from scratch after every change.
//!
//! In: the pod, a snapshot of the runtime, the crash-loop state, the time. Out: [`PodActions`], a value. The
//! pod worker decides which of the actions it may carry out now (freshness, fences, one effect at a time).
//! Invariants: a container never starts while an earlier instance of it may still run; a sandbox is never
//! created while another one is ready; a pod in its desired state gives an empty plan. Upstream:
//! `computePodActions` of pkg/kubelet/kuberuntime/kuberuntime_manager.go.

mod containers;
pub mod ended;
mod ephemeral;
mod reset;
mod rules;
mod steps;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::ids::{ContainerId, SandboxId};
use agent_types::pod;
use agent_types::restart::BackOff;
use agent_types::runtime::observed::{
    ContainerObserved, ContainerState, PodSnapshot, SandboxObserved, SandboxState,
};
use agent_types::runtime::view::{Slot, SlotKind, Slots, is_live, newest, newest_sandbox, slots};
use agent_types::time::{Mono, Wall};
use k8s_openapi::api::core::v1::Pod;

pub use containers::last_end;
pub use ephemeral::{has_run, target};
pub use rules::{may_restart_all, restarts_all};

use crate::probe::Verdicts;

/// Instances that were killed in order to be replaced, each with the end of the newest instance that had ended before, if
/// the runtime had one when the kill was decided.
pub type Replaced = BTreeMap<ContainerId, Option<Wall>>;

/// What a plan is computed from.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The desired pod.
    pub pod: &'a Pod,
    /// The runtime, as observed.
    pub snapshot: &'a PodSnapshot,
    /// Crash-loop state, with every ended instance already reported to it.
    pub back_off: &'a BackOff,
    /// Instances that were killed in order to be replaced: they restart however they end.
    pub replaced: &'a Replaced,
    /// Verdicts of probes about the running instances.
    pub probes: &'a Verdicts,
    /// Instances with a failed postStart hook.
    pub hook_failed: &'a BTreeSet<ContainerId>,
    /// Instances that must restart to get other resources (`resizePolicy`).
    pub resized: &'a BTreeSet<ContainerId>,
    /// `container_spec::container_hash`.
    pub hash: &'a dyn Fn(&str, &str) -> String,
    /// Now.
    pub now: Mono,
}

/// What should happen to the pod's sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxPlan {
    /// Use this one.
    Keep(SandboxId),
    /// Stop the present sandbox, then run a new one with this attempt.
    Create {
        /// Newest attempt + 1, 0 for the first.
        attempt: u32,
        /// True if one existed before (event `SandboxChanged`).
        replaces: bool,
    },
    /// Nothing left to run: stop the present sandbox, create none.
    Stop,
}

/// A container to bring up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Container of the pod.
    pub slot: Slot,
    /// Attempt of the instance (its restart count).
    pub attempt: u32,
    /// An instance that was created but never started: start it, create nothing.
    pub created: Option<ContainerId>,
    /// A restart that the back-off counts.
    pub counts: bool,
}

/// A running container to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Container of the pod.
    pub slot: Slot,
    /// Which instance.
    pub id: ContainerId,
    /// Text of the `Killing` event.
    pub message: String,
    /// It is to come back (definition changed, probe failed, sandbox lost).
    pub replace: bool,
    /// Grace of its own, seconds (`terminationGracePeriodSeconds` of the probe that failed).
    pub grace_s: Option<i64>,
}

/// A container that should run but has to wait for its back-off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Container of the pod.
    pub slot: Slot,
    /// The ended instance.
    pub instance: ContainerId,
    /// Until when.
    pub until: Mono,
    /// The whole delay, for the message.
    pub delay: Duration,
}

/// The plan. Empty vectors and `SandboxPlan::Keep` mean that the world is as desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodActions {
    /// The sandbox.
    pub sandbox: SandboxPlan,
    /// Live containers to stop: all of them when the sandbox is to be removed.
    pub kill: Vec<Kill>,
    /// Containers to start, in order.
    pub start: Vec<Start>,
    /// Containers that wait for their crash-loop back-off.
    pub waiting: Vec<Waiting>,
    /// Unused dead instances: all but the newest of each container, and created ones that block their
    /// successor. (container name, id).
    pub remove: Vec<(String, ContainerId)>,
    /// Old sandboxes without containers.
    pub remove_sandboxes: Vec<SandboxId>,
    /// All containers restart (RestartAllContainers): kills happen at once.
    pub resetting: bool,
    /// Nothing is left to run in a sandbox that is good: the pod ends, its containers stop in the order of an end.
    pub over: bool,
    /// In a reset, the containers that requested it: to be removed when no other container of the pod can be
    /// left.
    pub remove_last: Vec<(String, ContainerId)>,
}

/// The plan for a pod that should run.
#[must_use]
pub fn compute(inputs: &Inputs<'_>) -> PodActions {
    let plan = sandbox_plan(inputs);
    let mut actions = PodActions {
        sandbox: plan,
        kill: Vec::new(),
        start: Vec::new(),
        waiting: Vec::new(),
        remove: Vec::new(),
        remove_sandboxes: Vec::new(),
        resetting: false,
        over: false,
        remove_last: Vec::new(),
    };
    match actions.sandbox.clone() {
        SandboxPlan::Keep(_) if reset::plan(inputs, &mut actions) => return actions,
        SandboxPlan::Keep(home) => containers::plan(inputs, &home, &mut actions),
        SandboxPlan::Create { .. } | SandboxPlan::Stop => clear_out(inputs, &mut actions),
    }
    retire(inputs, &mut actions);
    actions
}

fn sandbox_plan(inputs: &Inputs<'_>) -> SandboxPlan {
    if let Some(home) = usable_sandbox(inputs.pod, inputs.snapshot) {
        return SandboxPlan::Keep(home.id.clone());
    }
    let Some(newest) = newest_sandbox(inputs.snapshot) else { return create_or_stop(inputs, 0, false) };
    create_or_stop(inputs, newest.attempt.saturating_add(1), true)
}

/// The sandbox that the pod's containers may be made in: the newest, ready and the only one that is, with the network
/// that the pod wants.
#[must_use]
pub fn usable_sandbox<'s>(p: &Pod, snapshot: &'s PodSnapshot) -> Option<&'s SandboxObserved> {
    let ready = snapshot.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
    let host_network = pod::host_network(p);
    newest_sandbox(snapshot).filter(|s| {
        ready == 1
            && s.state == SandboxState::Ready
            && s.host_network == host_network
            && (host_network || s.ips.iter().any(|ip| !ip.is_empty()))
    })
}

/// Creates a sandbox only if a container will run in it: none for a pod of policy `Never` that already had containers, and
/// none if every container has ended for good.
fn create_or_stop(inputs: &Inputs<'_>, attempt: u32, replaces: bool) -> SandboxPlan {
    let never = pod::spec(inputs.pod).restart_policy.as_deref() == Some("Never");
    let all_slots = slots(inputs.pod);
    let existed = all_slots.iter().any(|s| newest(inputs.snapshot, &s.name).is_some());
    let restartable = all_slots
        .iter()
        .filter(|s| s.kind == SlotKind::Regular)
        .any(|s| containers::wants_instance(inputs, s, newest(inputs.snapshot, &s.name)));
    let pod_runs_once = never && replaces && existed && !has_own_policy(inputs.pod);
    if pod_runs_once || (existed && !restartable) {
        SandboxPlan::Stop
    } else {
        SandboxPlan::Create { attempt, replaces }
    }
}

fn has_own_policy(p: &Pod) -> bool {
    pod::containers(p).iter().any(|c| c.restart_policy.is_some() || c.restart_policy_rules.is_some())
}

/// Everything must be down before a sandbox is removed: live ones stopped, never-started ones removed (a late start of
/// one of them would make a second live instance). A regular container that runs starts again in the new sandbox, also
/// if it ends well of its stop: upstream decides that before it stops the container (computePodActions).
fn clear_out(inputs: &Inputs<'_>, actions: &mut PodActions) {
    let slots = Slots::of(inputs.pod);
    let anew = matches!(actions.sandbox, SandboxPlan::Create { .. });
    for c in inputs.snapshot.containers.iter().filter(|c| is_live(c.state)) {
        let slot = slots.get(&c.name);
        let message = format!("Stopping container {}", c.name);
        let replace = anew && comes_back(inputs, &slot, c);
        actions.kill.push(Kill { slot, id: c.id.clone(), message, replace, grace_s: None });
    }
    for c in &inputs.snapshot.containers {
        if c.state == ContainerState::Created {
            actions.remove.push((c.name.clone(), c.id.clone()));
        }
    }
}

/// The live instance `c` is the newest of a regular container that is to run in the pod's next sandbox.
fn comes_back(inputs: &Inputs<'_>, slot: &Slot, c: &ContainerObserved) -> bool {
    let is_newest = newest(inputs.snapshot, &slot.name).is_some_and(|n| n.id == c.id);
    slot.kind == SlotKind::Regular && is_newest && containers::wants_instance(inputs, slot, Some(c))
}

/// Dead instances that a newer dead instance of the same container supersedes. The newest one stays, for its
/// logs, its exit code and the restart count. An instance that never ran supersedes nothing: it may be
/// removed itself, and the count would start again.
#[must_use]
pub fn superseded(snapshot: &PodSnapshot) -> Vec<&ContainerObserved> {
    let age = |c: &ContainerObserved| (c.attempt, c.created);
    let mut superseded = Vec::new();
    for instances in snapshot.containers.chunk_by(|a, b| a.name == b.name) {
        let dead = || instances.iter().filter(|c| !is_live(c.state));
        // The newest comes first.
        if let Some(newest) = dead().find(|c| c.started.is_some()) {
            superseded.extend(dead().filter(|c| age(c) < age(newest)));
        }
    }
    superseded
}

/// Retention: superseded instances are removed unless an action on them is under way; a sandbox stays while
/// it is the newest or has containers.
fn retire(inputs: &Inputs<'_>, actions: &mut PodActions) {
    let snapshot = inputs.snapshot;
    let removed = actions.remove.iter().map(|(_, id)| id);
    let planned: BTreeSet<&ContainerId> =
        actions.start.iter().filter_map(|s| s.created.as_ref()).chain(removed).collect();
    let superseded = superseded(snapshot).into_iter().filter(|c| !planned.contains(&c.id));
    let removes: Vec<_> = superseded.map(|c| (c.name.clone(), c.id.clone())).collect();
    actions.remove.extend(removes);
    let Some(newest) = newest_sandbox(snapshot) else { return };
    for s in &snapshot.sandboxes {
        let used = snapshot.containers.iter().any(|c| c.sandbox == s.id);
        if s.id != newest.id && s.state == SandboxState::NotReady && !used {
            actions.remove_sandboxes.push(s.id.clone());
        }
    }
}
