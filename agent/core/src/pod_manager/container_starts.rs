//! Devices that a container lacks when it is about to be created: their plugin registered after the pod's admission.
//!
//! ```text
//! worker ──LacksDevices──► question to the plugin ──► checkpoint ──► Placed, then EffectDone ──► worker creates the container
//!        ──GiveUpStart───► EffectDone (an error)
//! ```
//! In: requests of workers, [`DeviceEvent`](crate::resource_managers::DeviceEvent)s. Out: questions, the answers of the workers' effects.
//! Invariants: a request is answered once, unless its worker has finished; a pod has one request at a time; a pod that is not active gets
//! nothing; a request that its worker cancels is answered at once; the worker's placement has the devices after they are on disk.
//! Departures from upstream: after a failure the container has what it had before (upstream keeps what other plugins have allocated); the
//! topology hint is computed again. Upstream: `GetDeviceRunContainerOptions` of pkg/kubelet/cm/devicemanager/manager.go.

use std::collections::BTreeSet;

use agent_managers::devices::allocation::AllocationStep;
use agent_types::failure::Class;
use agent_types::ids::PodUid;
use agent_types::machine::{EffectId, Outbox};
use agent_types::time::Now;

use super::{ManagerAction, PodManager, tell};
use crate::pod_worker::PodEvent;
use crate::pod_worker::effect::{EffectError, EffectOk, EffectResult};

/// A container that waits for devices.
#[derive(Clone, Debug)]
pub(super) struct ContainerStart {
    /// The worker's effect.
    id: EffectId,
    container: String,
    /// Resources of which it had devices before.
    had: BTreeSet<String>,
}

impl PodManager {
    /// Devices are being allocated for the start of a container of the pod.
    #[must_use]
    pub fn allocates_at_start(&self, uid: &PodUid) -> bool {
        self.devices.has_start(uid)
    }

    /// A container of the pod lacks devices: the worker's effect `id` waits for them.
    pub(super) fn allocate_at_start(
        &mut self,
        uid: &PodUid,
        container: &str,
        id: EffectId,
        now: Now,
        out: &mut Outbox<ManagerAction>,
    ) {
        self.give_up_start(uid, now, out);
        let Some(worker) = self.workers.get(uid) else { return };
        let Some(pod) = worker.pod.clone().filter(|_| worker.is_active()) else {
            return answer(uid, id, Err(not_any_more()), now, out);
        };
        let managers = self.placing.managers_mut();
        let had = managers.resources_of(uid, container);
        let step = managers.allocate_at_start(&pod, container);
        let start = ContainerStart { id, container: container.to_owned(), had };
        self.go_on_with_start(uid, start, step, now, out);
    }

    /// Takes the next step of an allocation for the start of a container.
    pub(super) fn go_on_with_start(
        &mut self,
        uid: &PodUid,
        start: ContainerStart,
        step: AllocationStep,
        now: Now,
        out: &mut Outbox<ManagerAction>,
    ) {
        self.placing.note_change();
        let wait = match step {
            AllocationStep::AskPreferred(question) => self.devices.ask_preferred(uid, question, now, out),
            AllocationStep::AskAllocate(question) => self.devices.ask_allocate(uid, question, now, out),
            AllocationStep::WriteCheckpoint => self.devices.want_checkpoint(),
            AllocationStep::Done => {
                self.tell_placement(uid, out);
                return answer(uid, start.id, Ok(EffectOk::Done), now, out);
            }
            AllocationStep::Refused(message) => {
                self.undo_start(uid, &start);
                return answer(uid, start.id, Err(EffectError { class: Class::Invalid, message }), now, out);
            }
        };
        self.devices.wait_for_start(uid, start, wait);
    }

    /// The container does not start, or another one of the pod does.
    pub(super) fn give_up_start(&mut self, uid: &PodUid, now: Now, out: &mut Outbox<ManagerAction>) {
        if let Some(start) = self.devices.take_start(uid) {
            self.undo_start(uid, &start);
            answer(uid, start.id, Err(not_any_more()), now, out);
        }
    }

    /// The worker has cancelled the effect `id`.
    pub(super) fn cancel_start(
        &mut self,
        uid: &PodUid,
        id: EffectId,
        now: Now,
        out: &mut Outbox<ManagerAction>,
    ) {
        if self.devices.start_of(uid).is_some_and(|start| start.id == id) {
            self.give_up_start(uid, now, out);
        }
    }

    /// The worker has finished, and waits for no answer.
    pub(super) fn forget_start(&mut self, uid: &PodUid) {
        if let Some(start) = self.devices.take_start(uid) {
            self.undo_start(uid, &start);
        }
    }

    fn undo_start(&mut self, uid: &PodUid, start: &ContainerStart) {
        self.placing.managers_mut().undo_start(uid, &start.container, &start.had);
        self.placing.note_change();
        self.devices.note_change();
    }
}

fn not_any_more() -> EffectError {
    EffectError { class: Class::Invalid, message: "the container does not start any more".to_owned() }
}

fn answer(uid: &PodUid, id: EffectId, result: EffectResult, now: Now, out: &mut Outbox<ManagerAction>) {
    tell(uid, PodEvent::EffectDone { id, completed_at: now.mono, result }, out);
}
