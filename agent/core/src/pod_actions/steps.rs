//! Steps of a plan for one container: adopt, start, wait, kill.

use agent_types::ids::SandboxId;
use agent_types::runtime::observed::{ContainerObserved, ContainerState};
use agent_types::runtime::view::{Slot, SlotKind, is_live, newest, next_attempt};

use crate::pod_actions::ended::{back_off_key, changed};
use crate::pod_actions::{Inputs, Kill, PodActions, Start, Waiting, ended};

/// An instance that was created but never started: start it if it is the wanted one in the wanted place;
/// otherwise remove it before its successor is created.
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
        .any(|o| o.id != newest.id && (is_live(o.state) || o.state == ContainerState::Created))
}

pub(super) fn start_fresh(inputs: &Inputs<'_>, slot: &Slot, actions: &mut PodActions) {
    let attempt = next_attempt(inputs.snapshot, &slot.name);
    let counts = newest(inputs.snapshot, &slot.name).is_some_and(|c| c.finished.is_some());
    if let Some(c) = newest(inputs.snapshot, &slot.name) {
        // An init container of an earlier sandbox: its end does not count as a crash, but it must be down.
        if is_live(c.state) {
            return;
        }
        if c.state == ContainerState::Created {
            actions.remove.push((c.name.clone(), c.id.clone()));
            return;
        }
    }
    // A replacement now would remove the instance whose request is due after its back-off.
    if let Some(c) = ended::ended_asking(inputs, slot)
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

pub(super) fn restart_later_or_now(
    inputs: &Inputs<'_>,
    slot: &Slot,
    c: &ContainerObserved,
    actions: &mut PodActions,
) {
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

pub(super) fn kill(slot: &Slot, c: &ContainerObserved, replace: bool, actions: &mut PodActions) {
    let message = format!("Stopping container {}", slot.name);
    actions.kill.push(Kill { slot: slot.clone(), id: c.id.clone(), message, replace, grace_s: None });
}

/// Kills an instance of which the runtime does not know the state: it may run, and a second one must not.
pub(super) fn kill_unknown(slot: &Slot, c: &ContainerObserved, replace: bool, actions: &mut PodActions) {
    let what = match slot.kind {
        SlotKind::Init | SlotKind::Sidecar => "Init container",
        SlotKind::Regular | SlotKind::Ephemeral => "Container",
    };
    let message = format!("{what} is in \"unknown\" state, try killing it before restart");
    actions.kill.push(Kill { slot: slot.clone(), id: c.id.clone(), message, replace, grace_s: None });
}
