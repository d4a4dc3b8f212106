//! RestartAllContainers (KEP-5532): the end of one container restarts the whole pod, in the same sandbox.
//!
//! In: [`Inputs`]. Out: kills and removals of everything but ephemeral containers; the containers that
//! requested the reset are removed last. Invariants: such a container exists until no other does, so that the
//! runtime itself records the reset, even for another agent; nothing starts meanwhile. Repeated requests of a
//! container wait for its crash-loop back-off. Upstream: `getContainersToReset` of
//! pkg/kubelet/kuberuntime/kuberuntime_manager.go.

use agent_types::runtime::observed::ContainerObserved;
use agent_types::runtime::view::{Slot, SlotKind, is_live, slots};

use super::{Inputs, PodActions};
use crate::pod_actions::ended::ended_asking;
use crate::pod_actions::steps::{kill, waiting};

/// Appends the removals. True if a reset is in progress: no other action is allowed.
pub(super) fn plan(inputs: &Inputs<'_>, actions: &mut PodActions) -> bool {
    let all: Vec<Slot> = slots(inputs.pod).into_iter().filter(|s| s.kind != SlotKind::Ephemeral).collect();
    let asked: Vec<&ContainerObserved> = all.iter().filter_map(|slot| asks(inputs, slot)).collect();
    if asked.is_empty() {
        return false;
    }
    // Regular containers first, then init containers; upstream removes them in the order of their lists.
    let (init, regular): (Vec<&Slot>, Vec<&Slot>) = all.iter().partition(|s| s.kind != SlotKind::Regular);
    let mut left = false;
    for slot in regular.into_iter().chain(init) {
        for c in inputs.snapshot.containers.of(&slot.name) {
            if asked.iter().any(|source| source.id == c.id) {
                continue;
            }
            left = true;
            if is_live(c.state) {
                kill(slot, c, false, actions);
            } else {
                actions.remove.push((c.name.clone(), c.id.clone()));
            }
        }
    }
    actions.resetting = true;
    if !left {
        actions.remove_last = asked.iter().map(|c| (c.name.clone(), c.id.clone())).collect();
    }
    true
}

/// The newest instance of the container, if its end requests a reset, and the request is due.
fn asks<'a>(inputs: &Inputs<'a>, slot: &Slot) -> Option<&'a ContainerObserved> {
    ended_asking(inputs, slot).filter(|c| waiting(inputs, slot, c).is_none())
}
