//! Containers of a pod whose sandbox is good: init order, sidecars, restart policies, changed definitions.
//!
//! In: [`Inputs`] and the sandbox. Out: kills, starts and waits appended to the plan. Invariants: init
//! containers start one after another and never again once a regular container exists in the sandbox; a
//! container with a live instance is never in `start`. Upstream: computeInitContainerActions,
//! ShouldContainerBeRestarted (contract 7.1 rules 5 and 6, container restart rules of 7.3).

use k8s_openapi::api::core::v1::{Container, Pod};

use super::view::{Slot, SlotKind, Slots, newest, newest_in, next_attempt, slots};
use super::{Inputs, Kill, PodActions, SandboxPlan, Start, Waiting};
use super::{ephemeral, reset, rules};
use crate::probe::Kind;
use crate::restart;
use crate::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot};
use crate::runtime::{SandboxId, labels};
use crate::status::named;
use crate::time::Wall;
use crate::types::pod;

/// How a container that is not live ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Exit code 0.
    Succeeded,
    /// Anything else, with its exit code.
    Failed(i32),
}

/// How the instance ended; `None` while it is live or was never started. An init container did not do its work if the
/// kernel killed one of its processes (upstream: isInitContainerFailed); of the others the exit code says all.
#[must_use]
pub fn ended(kind: SlotKind, c: &ContainerObserved) -> Option<Ended> {
    let killed = kind == SlotKind::Init && c.reason == "OOMKilled";
    match c.state {
        ContainerState::Exited if c.exit_code == 0 && !killed => Some(Ended::Succeeded),
        ContainerState::Exited => Some(Ended::Failed(c.exit_code)),
        ContainerState::Created | ContainerState::Running | ContainerState::Unknown => None,
    }
}

/// Whether the policy brings a container back that ended like this: its own rules first, then its own
/// policy, then the pod's (`Always` unless set). Regular init containers restart on failure only.
#[must_use]
pub fn restarts(p: &Pod, slot: &Slot, container: &Container, how: Ended) -> bool {
    let exit_code = match how {
        Ended::Succeeded => 0,
        Ended::Failed(code) => code,
    };
    if rules::restarts(container, exit_code) {
        return slot.kind != SlotKind::Init || how != Ended::Succeeded;
    }
    match (policy(p, container), how) {
        ("Never", _) | ("OnFailure", Ended::Succeeded) => false,
        (_, Ended::Succeeded) => slot.kind != SlotKind::Init,
        _ => true,
    }
}

/// The container's own restart policy, else the pod's.
fn policy<'a>(p: &'a Pod, container: &'a Container) -> &'a str {
    let of_pod = pod::spec(p).restart_policy.as_deref().unwrap_or("Always");
    container.restart_policy.as_deref().unwrap_or(of_pod)
}

/// Whether the slot should have an instance that runs or will run, seen from its newest instance.
pub(super) fn wants_instance(inputs: &Inputs<'_>, slot: &Slot, seen: Option<&ContainerObserved>) -> bool {
    let Some(container) = slot.spec(inputs.pod) else { return false };
    match seen {
        None => !ended_for_good(inputs.pod, slot, &container),
        Some(c) => match ended(slot.kind, c) {
            Some(how) => inputs.replaced.contains_key(&c.id) || restarts(inputs.pod, slot, &container, how),
            None if c.state == ContainerState::Created => true,
            // Live now, but its sandbox goes: it will have failed when the new one is ready.
            None => restarts(inputs.pod, slot, &container, Ended::Failed(137)),
        },
    }
}

/// The API shows that the container ended and is not to come back. What the runtime forgot stays true: the API server
/// lets nobody take it back, and who ran once is promised not to run twice.
fn ended_for_good(p: &Pod, slot: &Slot, container: &Container) -> bool {
    let shown = p.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    let shown = shown.and_then(|all| named(all, &slot.name));
    let terminated = shown.and_then(|c| c.state.as_ref()).and_then(|s| s.terminated.as_ref());
    terminated.is_some_and(|t| {
        let how = if t.exit_code == 0 { Ended::Succeeded } else { Ended::Failed(t.exit_code) };
        // Where all may be made to begin anew, no end is for good.
        slot.kind == SlotKind::Regular && !restarts(p, slot, container, how) && !rules::may_restart_all(p)
    })
}

/// Appends what the containers need in the sandbox `home`.
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

/// Nothing is left to run: the whole pod goes down.
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
    for c in inputs.snapshot.containers.iter().filter(|c| super::is_live(c.state)) {
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
            Some((_, Some(Ended::Succeeded))) => {}
            Some((c, Some(how @ Ended::Failed(_)))) => {
                let container = slot.spec(inputs.pod);
                if container.is_some_and(|spec| restarts(inputs.pod, slot, &spec, how)) {
                    restart_later_or_now(inputs, slot, c, actions);
                    return Init::Wait;
                }
                return Init::Failed;
            }
            Some((c, None)) => {
                match c.state {
                    ContainerState::Unknown => kill(slot, c, false, actions),
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
            // Whatever the policy is: the pod asks for another container than the one that runs.
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
                kill(slot, c, true, actions);
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

/// Created but never started: start it if it is what we want where we want it; otherwise it must be gone
/// before a successor exists.
pub(super) fn adopt_created(
    inputs: &Inputs<'_>,
    home: &SandboxId,
    slot: &Slot,
    c: &ContainerObserved,
    actions: &mut PodActions,
) {
    let as_wanted = !changed(inputs, slot, c) && !inputs.resized.contains(&c.id);
    if c.sandbox == *home && as_wanted && !live_elsewhere(inputs, slot, c) {
        actions.start.push(Start {
            slot: slot.clone(),
            attempt: c.attempt,
            created: Some(c.id.clone()),
            counts: false,
        });
    } else {
        actions.remove.push((c.name.clone(), c.id.clone()));
    }
}

/// Any other instance of the same container that is live, or could still be started by a late call.
fn live_elsewhere(inputs: &Inputs<'_>, slot: &Slot, newest: &ContainerObserved) -> bool {
    inputs
        .snapshot
        .containers
        .of(&slot.name)
        .iter()
        .any(|o| o.id != newest.id && (super::is_live(o.state) || o.state == ContainerState::Created))
}

pub(super) fn start_fresh(inputs: &Inputs<'_>, slot: &Slot, actions: &mut PodActions) {
    let attempt = next_attempt(inputs.snapshot, &slot.name);
    let counts = newest(inputs.snapshot, &slot.name).is_some_and(|c| c.finished.is_some());
    if let Some(c) = newest(inputs.snapshot, &slot.name) {
        // An init container of an earlier sandbox: its end does not count as a crash, but it must be down.
        if super::is_live(c.state) {
            return;
        }
        if c.state == ContainerState::Created {
            actions.remove.push((c.name.clone(), c.id.clone()));
            return;
        }
    }
    // Replaced now, it would not be there any more to ask when its back-off is over.
    if let Some(c) = reset::ended_asking(inputs, slot)
        && let Some(waiting) = waiting(inputs, slot, c)
    {
        actions.waiting.push(waiting);
        return;
    }
    actions.start.push(Start { slot: slot.clone(), attempt, created: None, counts });
}

/// That the container has to wait for its crash-loop back-off after this instance, if it has to.
pub(super) fn waiting(inputs: &Inputs<'_>, slot: &Slot, c: &ContainerObserved) -> Option<Waiting> {
    let (until, delay) = inputs.back_off.wait(&back_off_key(inputs.pod, slot), &c.id, inputs.now)?;
    Some(Waiting { slot: slot.clone(), instance: c.id.clone(), until, delay })
}

fn restart_later_or_now(inputs: &Inputs<'_>, slot: &Slot, c: &ContainerObserved, actions: &mut PodActions) {
    if live_elsewhere(inputs, slot, c) {
        for o in inputs.snapshot.containers.of(&slot.name).iter().filter(|o| o.id != c.id) {
            if o.state == ContainerState::Created {
                actions.remove.push((o.name.clone(), o.id.clone()));
            }
        }
        return;
    }
    if let Some(waiting) = waiting(inputs, slot, c) {
        actions.waiting.push(waiting);
        return;
    }
    actions.start.push(Start {
        slot: slot.clone(),
        attempt: c.attempt.saturating_add(1),
        created: None,
        // Upstream counts from the end of the instance before the one that it kills: without one it counts nothing.
        counts: inputs.replaced.get(&c.id).is_none_or(Option::is_some),
    });
}

/// When the newest instance of the container that has ended did so, if the runtime has one.
#[must_use]
pub fn last_end(snapshot: &PodSnapshot, name: &str) -> Option<Wall> {
    let ended = snapshot.containers.of(name).iter().find(|o| o.state == ContainerState::Exited);
    ended.map(|o| o.finished.unwrap_or(o.created))
}

pub(super) fn kill(slot: &Slot, c: &ContainerObserved, replace: bool, actions: &mut PodActions) {
    let message = format!("Stopping container {}", slot.name);
    actions.kill.push(Kill { slot: slot.clone(), id: c.id.clone(), message, replace, grace_s: None });
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

/// The definition changed if name and image hash differently; a container without our annotation counts as
/// unchanged (somebody else's tool made it).
fn changed(inputs: &Inputs<'_>, slot: &Slot, c: &ContainerObserved) -> bool {
    let Some(spec) = slot.spec(inputs.pod) else { return false };
    let wanted = (inputs.hash)(&slot.name, spec.image.as_deref().unwrap_or(""));
    c.annotations.get(labels::CONTAINER_HASH).is_some_and(|have| *have != wanted)
}

/// A regular container lives here and may go on, or will live. Sidecars do not keep a pod alive, nor does a container that
/// its probe failed and that is not to come back.
fn keeps_anything(inputs: &Inputs<'_>, home: &SandboxId, all: &[Slot], actions: &PodActions) -> bool {
    let failed = |c: &ContainerObserved| {
        inputs.probes.failed.contains_key(&c.id) && actions.kill.iter().any(|k| k.id == c.id && !k.replace)
    };
    all.iter().filter(|s| s.kind == SlotKind::Regular).any(|s| {
        let seen = newest(inputs.snapshot, &s.name);
        let lives = seen.is_some_and(|c| super::is_live(c.state) && c.sandbox == *home && !failed(c));
        lives || wants_instance(inputs, s, seen)
    })
}

/// A container's resources as stable text, for the back-off key.
#[must_use]
fn resources_text(container: &Container) -> String {
    container.resources.as_ref().and_then(|r| serde_json::to_string(r).ok()).unwrap_or_default()
}

/// The crash-loop key of a slot (contract 7.3).
#[must_use]
pub fn back_off_key(p: &Pod, slot: &Slot) -> String {
    let (image, resources) = slot
        .spec(p)
        .map_or_else(Default::default, |c| (c.image.clone().unwrap_or_default(), resources_text(&c)));
    restart::key(pod::uid(p), &slot.name, &image, &resources)
}
