//! The allocation of a container's devices, step by step.
//!
//! In: a container, answers of plugins, the outcome of writing the checkpoint. Out: the next step, which the caller takes. Invariants: a
//! pod has one allocation at a time, and several pods may have one each, so that a plugin that hangs delays only pods that request its
//! resource; chosen devices are reserved until the plugin answers; a refusal frees devices that no plugin has allocated; the container
//! keeps devices that a plugin has allocated until its pod is not active; the container does not start before the checkpoint has its
//! devices. Upstream: manager.go (`Allocate`, `allocateContainerResources`).
//!
//! ```text
//! begin ─┬─> AskPreferred ── preferred ──┐
//!        ├─> AskAllocate <───────────────┘     each resource in turn; any step may be Refused
//!        │       └── allocated ──> … ──> WriteCheckpoint ── written ──> Done
//!        └─> Done                              nothing to do
//! ```

use std::collections::BTreeSet;

use super::choice::{Choice, ChoiceError, ChoiceRequest, OpenChoice, PreferredQuestion, choose, stopped};
use super::manager::DeviceManager;
use super::plugin::{AllocateResponse, Connection};
use super::records::DeviceRecord;
use crate::node_mask::NodeMask;
use crate::request::{ContainerRequest, Kind, ResourceName};

/// The file's name in the directory of device plugins.
pub const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// The next step of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocationStep {
    /// Ask the plugin, then call [`DeviceManager::preferred`]. The call has no deadline.
    AskPreferred(PreferredQuestion),
    /// Ask the plugin, then call [`DeviceManager::allocated`]. The call has no deadline.
    AskAllocate(AllocateQuestion),
    /// Write the checkpoint, then call [`DeviceManager::written`].
    WriteCheckpoint,
    /// The container has its devices.
    Done,
    /// The pod is refused: the message of the error (`Allocate failed due to …, which is unexpected`).
    Refused(String),
}

/// An `Allocate` request for one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocateQuestion {
    /// The plugin to ask.
    pub connection: Connection,
    /// The resource.
    pub resource: ResourceName,
    /// `devices_ids`.
    pub ids: BTreeSet<String>,
}

/// An allocation that is not finished.
#[derive(Clone, Debug)]
pub(super) struct Allocation {
    uid: String,
    container: String,
    kind: Kind,
    nodes: Option<NodeMask>,
    runs_already: bool,
    /// Resources that are not allocated yet, the next one last.
    left: Vec<(ResourceName, usize)>,
    waits_for: Waits,
}

/// The event that an allocation waits for.
#[derive(Clone, Debug)]
enum Waits {
    /// No event: the allocation continues.
    Nothing,
    /// The plugin's preference.
    Preferred(OpenChoice),
    /// The plugin's allocation.
    Allocated { resource: ResourceName, ids: BTreeSet<String> },
    /// The checkpoint.
    Written,
}

impl Allocation {
    /// Chosen devices of the resource that no record has.
    pub(super) fn reserved(&self, resource: &str) -> Option<&BTreeSet<String>> {
        match &self.waits_for {
            Waits::Preferred(open) if open.resource == resource => Some(&open.chosen),
            Waits::Allocated { resource: of, ids } if of == resource => Some(ids),
            _ => None,
        }
    }
}

impl DeviceManager {
    /// Begins the allocation of a container's devices. The containers of a pod come in the order of its spec. `nodes` are those of the topology hint; `runs_already` is true if the pod sources are not all ready and the
    /// container was running when the agent started. An unfinished allocation of the pod is given up.
    pub fn begin(
        &mut self,
        uid: &str,
        container: &ContainerRequest,
        nodes: Option<NodeMask>,
        runs_already: bool,
    ) -> AllocationStep {
        let devices = &container.devices;
        let limits = devices.limits.iter().filter(|(name, _)| !devices.claimed.contains(*name));
        let needed = |limit: u64| usize::try_from(limit).unwrap_or(usize::MAX);
        self.allocations.remove(uid);
        self.advance(Allocation {
            uid: uid.to_owned(),
            container: container.name.clone(),
            kind: container.kind,
            nodes,
            runs_already,
            left: limits.rev().map(|(name, limit)| (name.clone(), needed(*limit))).collect(),
            waits_for: Waits::Nothing,
        })
    }

    /// The plugin stated the devices that it prefers, or failed. If other pods have got some of them since the question, the choice begins
    /// again with the devices that are free now (simulation, devices, seed 4): upstream admits one pod at a time.
    pub fn preferred(&mut self, uid: &str, answer: Result<BTreeSet<String>, String>) -> AllocationStep {
        let Some((mut allocation, Waits::Preferred(open))) = self.resume(uid) else { return out_of_turn() };
        let chosen = match answer {
            Ok(preferred) => open.clone().finish(&preferred),
            Err(error) => Err(ChoiceError::Preferred(error)),
        };
        match chosen {
            Ok(ids) if self.are_taken(&open, &ids) => {
                allocation.left.push((open.resource, open.required));
                self.advance(allocation)
            }
            Ok(ids) => self.ask_allocate(allocation, open.resource, ids),
            Err(error) => AllocationStep::Refused(error.to_string()),
        }
    }

    /// True if another pod has got one of these devices since the question.
    fn are_taken(&self, open: &OpenChoice, ids: &BTreeSet<String>) -> bool {
        let (in_use, reserved) = (self.records.in_use(&open.resource), self.reserved(&open.resource));
        ids.difference(&open.chosen).any(|id| in_use.contains(id) || reserved.contains(id))
    }

    /// The plugin allocated the devices, or failed. `None`: the answer has no response for a container.
    pub fn allocated(
        &mut self,
        uid: &str,
        answer: Result<Option<AllocateResponse>, String>,
    ) -> AllocationStep {
        let Some((allocation, Waits::Allocated { resource, ids })) = self.resume(uid) else {
            return out_of_turn();
        };
        let response = match answer {
            Ok(Some(response)) => response,
            // Upstream prints the answer at the end; an empty answer has no text.
            Ok(None) => {
                return AllocationStep::Refused("no containers return in allocation response ".to_owned());
            }
            Err(error) => return AllocationStep::Refused(error),
        };
        let record = DeviceRecord::new(&ids, |id| self.inventory.nodes_of(&resource, id), response);
        self.records.insert(&allocation.uid, &allocation.container, &resource, record);
        self.unwritten.insert(allocation.uid.clone());
        self.advance(allocation)
    }

    /// The checkpoint was written, or could not be written.
    pub fn written(&mut self, uid: &str, outcome: Result<(), String>) -> AllocationStep {
        let Some((allocation, Waits::Written)) = self.resume(uid) else { return out_of_turn() };
        match outcome {
            Ok(()) => {
                self.unwritten.remove(uid);
                self.finish(&allocation)
            }
            Err(error) => {
                AllocationStep::Refused(format!("failed to write checkpoint file \"{CHECKPOINT}\": {error}"))
            }
        }
    }

    /// Gives up the pod's allocation: frees chosen devices that no plugin has allocated.
    pub fn give_up(&mut self, uid: &str) {
        self.allocations.remove(uid);
    }

    /// The pod's admission begins or ends: later containers cannot use the devices of its init containers any more.
    pub fn forget_reusable(&mut self, uid: &str) {
        self.reusable.remove(uid);
    }

    fn resume(&mut self, uid: &str) -> Option<(Allocation, Waits)> {
        let mut allocation = self.allocations.remove(uid)?;
        let waited = std::mem::replace(&mut allocation.waits_for, Waits::Nothing);
        Some((allocation, waited))
    }

    fn wait(&mut self, mut allocation: Allocation, waits_for: Waits, step: AllocationStep) -> AllocationStep {
        allocation.waits_for = waits_for;
        self.allocations.insert(allocation.uid.clone(), allocation);
        step
    }

    /// Allocates resource after resource until a plugin must be asked.
    fn advance(&mut self, mut allocation: Allocation) -> AllocationStep {
        while let Some((resource, required)) = allocation.left.pop() {
            if !self.manages(&resource) {
                continue;
            }
            let reusable = self.reusable(&allocation.uid, &resource);
            let reserved = self.reserved(&resource);
            let request = ChoiceRequest {
                uid: &allocation.uid,
                container: &allocation.container,
                resource: &resource,
                required,
                nodes: allocation.nodes,
                runs_already: allocation.runs_already,
                reusable: &reusable,
                reserved: &reserved,
            };
            match choose(&self.inventory, &self.records, request) {
                Ok(Choice::Nothing) => {}
                Ok(Choice::Devices(ids)) => return self.ask_allocate(allocation, resource, ids),
                Ok(Choice::Ask(question, open)) => {
                    let step = AllocationStep::AskPreferred(question);
                    return self.wait(allocation, Waits::Preferred(open), step);
                }
                Err(error) => return AllocationStep::Refused(error.to_string()),
            }
        }
        if self.unwritten.contains(&allocation.uid) {
            return self.wait(allocation, Waits::Written, AllocationStep::WriteCheckpoint);
        }
        self.finish(&allocation)
    }

    fn ask_allocate(
        &mut self,
        allocation: Allocation,
        resource: ResourceName,
        ids: BTreeSet<String>,
    ) -> AllocationStep {
        let Some(endpoint) = self.inventory.endpoint(&resource) else {
            return AllocationStep::Refused(format!("unknown Device Plugin {resource}"));
        };
        let Some(connection) = endpoint.open() else { return AllocationStep::Refused(stopped(&resource)) };
        let question = AllocateQuestion { connection, resource: resource.clone(), ids: ids.clone() };
        let waits_for = Waits::Allocated { resource, ids };
        self.wait(allocation, waits_for, AllocationStep::AskAllocate(question))
    }

    /// Ends the allocation, and notes the devices that later containers of the pod may use.
    fn finish(&mut self, allocation: &Allocation) -> AllocationStep {
        let records = self.records.container(&allocation.uid, &allocation.container);
        let of_pod = self.reusable.entry(allocation.uid.clone()).or_default();
        for (resource, record) in records.into_iter().flatten() {
            let reusable = of_pod.entry(resource.clone()).or_default();
            match allocation.kind {
                Kind::Init => reusable.extend(record.devices()),
                Kind::Sidecar | Kind::App => {
                    reusable.retain(|id| !record.ids.values().flatten().any(|own| own == id))
                }
            }
        }
        AllocationStep::Done
    }
}

/// The refusal for an answer that the manager did not wait for: the allocation is given up, and nothing else changes.
fn out_of_turn() -> AllocationStep {
    AllocationStep::Refused("the device manager did not wait for this answer".to_owned())
}

#[cfg(test)]
mod tests;
