//! Containers of a pod whose sandbox is good: init order, sidecars, restart policies, changed definitions.
//!
//! In: [`Inputs`] and the sandbox. Out: kills, starts and waits appended to the plan. Invariants: init
//! containers start one after another, and never again once a regular container exists in the sandbox; a
//! container with a live instance is never in `start`. Upstream: `computeInitContainerActions` of
//! pkg/kubelet/kuberuntime/kuberuntime_container.go, `ShouldContainerBeRestarted` of
//! pkg/kubelet/container/helpers.go; restart rules: KEP-5307.

use agent_types::ids::SandboxId;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot};
use agent_types::runtime::view::{Slot, SlotKind, Slots, is_live, newest, newest_in, slots};
use agent_types::time::Wall;

use super::{Inputs, Kill, PodActions, SandboxPlan, ephemeral};
use crate::pod_actions::ended::{ContainerExit, changed, ended, ended_for_good, policy, restarts};
use crate::pod_actions::steps::{adopt_created, kill_unknown, restart_later_or_now, start_fresh};
use crate::probe::Kind;

/// Whether the slot should have an instance that runs or will run, seen from its newest instance.
pub(super) fn wants_instance(inputs: &Inputs<'_>, slot: &Slot, seen: Option<&ContainerObserved>) -> bool {
    let Some(container) = slot.spec(inputs.pod) else { return false };
    match seen {
        None => !ended_for_good(inputs.pod, slot, &container),
        Some(c) => match ended(slot.kind, c) {
            Some(how) => inputs.replaced.contains_key(&c.id) || restarts(inputs.pod, slot, &container, how),
            None if c.state == ContainerState::Created => true,
            // Live now, but its sandbox is removed: it will have failed when the new one is ready.
            None => restarts(inputs.pod, slot, &container, ContainerExit::Failed(137)),
        },
    }
}

/// Appends the actions for the containers in the sandbox `home`.
pub(super) fn plan(inputs: &Inputs<'_>, home: &SandboxId, actions: &mut PodActions) {
    stop_strays(inputs, home, actions);
    ephemeral::plan(inputs, home, actions);
    let all = slots(inputs.pod);
    let initialized = all
        .iter()
        .any(|s| s.kind == SlotKind::Regular && newest_in(inputs.snapshot, &s.name, home).is_some());
    match init_plan(inputs, home, &all, initialized, actions) {
        Init::Wait => return,
        Init::Failed => {
            stop_all(inputs, actions);
            return;
        }
        Init::Done => {}
    }
    for slot in all.iter().filter(|s| s.kind == SlotKind::Regular) {
        regular(inputs, home, slot, actions);
    }
    if !keeps_anything(inputs, home, &all, actions) {
        stop_all(inputs, actions);
    }
}

/// Nothing is left to run: the whole pod is stopped.
fn stop_all(inputs: &Inputs<'_>, actions: &mut PodActions) {
    actions.start.clear();
    actions.waiting.clear();
    actions.kill.clear();
    actions.sandbox = SandboxPlan::Stop;
    actions.over = true;
    super::clear_out(inputs, actions);
}

/// Live instances that are not the newest, live in another sandbox, or have no specification any more.
fn stop_strays(inputs: &Inputs<'_>, home: &SandboxId, actions: &mut PodActions) {
    let slots = Slots::of(inputs.pod);
    for c in inputs.snapshot.containers.iter().filter(|c| is_live(c.state)) {
        let is_newest = newest(inputs.snapshot, &c.name).is_some_and(|n| n.id == c.id);
        let slot = slots.get(&c.name);
        if !is_newest || c.sandbox != *home || slot.spec(inputs.pod).is_none() {
            let message = format!("Stopping container {}", c.name);
            actions.kill.push(Kill { slot, id: c.id.clone(), message, replace: false, grace_s: None });
        }
    }
}

enum Init {
    Done,
    Wait,
    Failed,
}

fn init_plan(
    inputs: &Inputs<'_>,
    home: &SandboxId,
    all: &[Slot],
    initialized: bool,
    actions: &mut PodActions,
) -> Init {
    let is_init = |s: &&Slot| matches!(s.kind, SlotKind::Init | SlotKind::Sidecar);
    let inits: Vec<&Slot> = all.iter().filter(is_init).collect();
    let reached = inits.iter().rposition(|s| newest_in(inputs.snapshot, &s.name, home).is_some());
    for (i, slot) in inits.iter().enumerate() {
        let here = newest_in(inputs.snapshot, &slot.name, home);
        if slot.kind == SlotKind::Sidecar {
            let up = sidecar(inputs, home, slot, actions);
            if !up && !initialized {
                return Init::Wait;
            }
            continue;
        }
        // A later one exists, so this one is done even if its record is gone.
        let passed = initialized || (here.is_none() && reached.is_some_and(|r| r > i));
        if passed {
            continue;
        }
        match here.map(|c| (c, ended(slot.kind, c))) {
            Some((_, Some(ContainerExit::Succeeded))) => {}
            Some((c, Some(how @ ContainerExit::Failed(_)))) => {
                let container = slot.spec(inputs.pod);
                if container.is_some_and(|spec| restarts(inputs.pod, slot, &spec, how)) {
                    restart_later_or_now(inputs, slot, c, actions);
                    return Init::Wait;
                }
                return Init::Failed;
            }
            Some((c, None)) => {
                match c.state {
                    ContainerState::Unknown => kill_unknown(slot, c, false, actions),
                    ContainerState::Created => adopt_created(inputs, home, slot, c, actions),
                    _ => {}
                }
                return Init::Wait;
            }
            None => {
                start_fresh(inputs, slot, actions);
                return Init::Wait;
            }
        }
    }
    Init::Done
}

/// Brings a sidecar to its state; true if it is up (so the next init container may start).
fn sidecar(inputs: &Inputs<'_>, home: &SandboxId, slot: &Slot, actions: &mut PodActions) -> bool {
    let Some(c) = newest(inputs.snapshot, &slot.name) else {
        start_fresh(inputs, slot, actions);
        return false;
    };
    let up = c.sandbox == *home && c.state == ContainerState::Running && !changed(inputs, slot, c);
    let healthy = !inputs.probes.failed.contains_key(&c.id) && !inputs.hook_failed.contains(&c.id);
    if up && healthy && inputs.resized.contains(&c.id) {
        settle(inputs, home, slot, c, actions);
        return !inputs.probes.starting.contains(&c.id);
    }
    if up && healthy {
        return !inputs.probes.starting.contains(&c.id);
    }
    settle(inputs, home, slot, c, actions);
    false
}

fn regular(inputs: &Inputs<'_>, home: &SandboxId, slot: &Slot, actions: &mut PodActions) {
    match newest(inputs.snapshot, &slot.name) {
        None if wants_instance(inputs, slot, None) => start_fresh(inputs, slot, actions),
        None => {}
        Some(c) => settle(inputs, home, slot, c, actions),
    }
}

/// A sidecar or regular container that has an instance.
fn settle(
    inputs: &Inputs<'_>,
    home: &SandboxId,
    slot: &Slot,
    c: &ContainerObserved,
    actions: &mut PodActions,
) {
    match c.state {
        ContainerState::Running if c.sandbox != *home => {} // a stray, stopped already
        ContainerState::Running if changed(inputs, slot, c) => {
            // In spite of the policy: the pod wants another container than the running one.
            let message = match slot.kind {
                SlotKind::Sidecar => format!("Init container {} definition changed", slot.name),
                _ => format!("Container {} definition changed, will be restarted", slot.name),
            };
            let (slot, id) = (slot.clone(), c.id.clone());
            actions.kill.push(Kill { slot, id, message, replace: true, grace_s: None });
        }
        ContainerState::Running if inputs.hook_failed.contains(&c.id) => {
            let message = "FailedPostStartHook".to_owned();
            let (slot, id) = (slot.clone(), c.id.clone());
            actions.kill.push(Kill { slot, id, message, replace: false, grace_s: None });
        }
        ContainerState::Running => {
            if let Some(kind) = inputs.probes.failed.get(&c.id) {
                kill_unhealthy(inputs, slot, c, *kind, actions);
            } else if inputs.resized.contains(&c.id) {
                let message = format!("Container {} resize requires restart", slot.name);
                let (slot, id) = (slot.clone(), c.id.clone());
                actions.kill.push(Kill { slot, id, message, replace: true, grace_s: None });
            }
        }
        ContainerState::Unknown => {
            if c.sandbox == *home {
                kill_unknown(slot, c, true, actions);
            }
        }
        ContainerState::Created => adopt_created(inputs, home, slot, c, actions),
        ContainerState::Exited => {
            if wants_instance(inputs, slot, Some(c)) {
                restart_later_or_now(inputs, slot, c, actions);
            }
        }
    }
}

/// When the newest instance of the container that has ended did so, if the runtime has one.
#[must_use]
pub fn last_end(snapshot: &PodSnapshot, name: &str) -> Option<Wall> {
    let ended = snapshot.containers.of(name).iter().find(|o| o.state == ContainerState::Exited);
    ended.map(|o| o.finished.unwrap_or(o.created))
}

/// A container that failed its startup or liveness probe; the probe may have a grace of its own.
fn kill_unhealthy(
    inputs: &Inputs<'_>,
    slot: &Slot,
    c: &ContainerObserved,
    kind: Kind,
    actions: &mut PodActions,
) {
    let spec = slot.spec(inputs.pod);
    // The policy alone decides: the container has no exit code yet that a rule could look at.
    let replace = spec.as_ref().is_some_and(|spec| policy(inputs.pod, spec) != "Never");
    let (what, suffix) = match slot.kind {
        SlotKind::Regular | SlotKind::Ephemeral => {
            ("Container", if replace { ", will be restarted" } else { "" })
        }
        SlotKind::Init | SlotKind::Sidecar => ("Init container", ""),
    };
    let message = format!("{what} {} failed {} probe{suffix}", slot.name, kind.as_lower_str());
    let probe = spec.as_ref().and_then(|spec| kind.of(spec));
    let grace_s = probe.and_then(|probe| probe.termination_grace_period_seconds);
    actions.kill.push(Kill { slot: slot.clone(), id: c.id.clone(), message, replace, grace_s });
}

/// A regular container lives here and may go on, or will live. Sidecars do not keep a pod alive, nor does a container that
/// its probe failed and that is not to come back.
fn keeps_anything(inputs: &Inputs<'_>, home: &SandboxId, all: &[Slot], actions: &PodActions) -> bool {
    let failed = |c: &ContainerObserved| {
        inputs.probes.failed.contains_key(&c.id) && actions.kill.iter().any(|k| k.id == c.id && !k.replace)
    };
    all.iter().filter(|s| s.kind == SlotKind::Regular).any(|s| {
        let seen = newest(inputs.snapshot, &s.name);
        let lives = seen.is_some_and(|c| is_live(c.state) && c.sandbox == *home && !failed(c));
        lives || wants_instance(inputs, s, seen)
    })
}
