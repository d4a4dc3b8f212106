//! Pods whose devices are being allocated: they wait for their plugins, and nothing else of the node does.
//!
//! ```text
//! start_waiting ──give──► question ──► DeviceAsks.waiting ──answer──► next question │ checkpoint │ refused │ all parts given
//!                                                                        start_waiting judges again and starts the pod ◄──┘
//! ```
//! In: [`DeviceEvent`], the time. Out: [`DeviceAction`]. Invariants: a pod that waits stays in the list of waiting pods, counts as one
//! that takes its requests, and keeps what it was given; a refused pod keeps nothing; a plugin that does not answer within
//! [`ASK_TIME`] has failed; one write of the checkpoint at a time, and a pod goes on after the write that has its devices. Containers
//! that lack devices at their start ask in the same way (`container_starts`).
//!
//! Departures from upstream: admission is not serial, so a plugin that hangs holds the pods that want its resource and no others; a
//! refusal takes processors, memory and devices back at once; a resource whose plugin is gone is removed on time and not at the next
//! computation of the status; devices that are taken back leave the checkpoint at once, so that the next agent does not hold them for
//! a pod that has ended. Upstream: pkg/kubelet/cm/devicemanager/manager.go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_managers::devices::allocation::{AllocateQuestion, AllocationStep};
use agent_managers::devices::choice::PreferredQuestion;
use agent_managers::devices::manager::DeviceManager;
use agent_managers::placement::PlaceStep;
use agent_types::ids::PodUid;
use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;

use super::container_starts::ContainerStart;
use super::{ManagerAction, PodManager};
use crate::admission::Rejection;
use crate::resource_managers::{ASK_TIME, ASK_TIMED_OUT, DeviceAction, DeviceEvent};

/// The event that a pod's placement, or the start of a container, waits for.
#[derive(Clone, Debug)]
pub(super) enum DeviceWait {
    /// The answer to a question.
    Answer {
        ask: u64,
        until: Mono,
        /// The question is `Allocate`, otherwise `GetPreferredAllocation`.
        allocates: bool,
    },
    /// A checkpoint of this version, or a later one.
    Checkpoint { version: u64 },
}

/// Writing the checkpoint.
#[derive(Clone, Debug, Default)]
struct CheckpointWrites {
    /// Counts the changes of the state.
    version: u64,
    /// The version that was written last, or could not be.
    written: u64,
    /// The version that is being written.
    writing: Option<u64>,
    /// Text of the last write; empty: there was none, or it failed.
    text: String,
}

/// Pods that wait for plugins, and the checkpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceAsks {
    waiting: BTreeMap<PodUid, (Arc<Pod>, DeviceWait)>,
    /// Pods with a container that is about to be created and lacks devices.
    starts: BTreeMap<PodUid, (ContainerStart, DeviceWait)>,
    /// Refused pods that were not started as such yet.
    refused: BTreeMap<PodUid, Rejection>,
    /// Pods that have waited and have all their parts: these are recorded before the pod starts.
    placed: BTreeSet<PodUid>,
    /// Pods that had running containers when the agent started, and were not admitted by it.
    ran: BTreeSet<PodUid>,
    /// The number of the last question.
    asks: u64,
    checkpoint: CheckpointWrites,
}

impl DeviceAsks {
    /// The pod waits for a plugin.
    pub(super) fn holds_up(&self, uid: &PodUid) -> bool {
        self.waiting.contains_key(uid)
    }

    /// Why the pod is refused after its plugins were asked; once.
    pub(super) fn take_refusal(&mut self, uid: &PodUid) -> Option<Rejection> {
        self.refused.remove(uid)
    }

    /// The pod has waited for its parts; once.
    pub(super) fn take_placed(&mut self, uid: &PodUid) -> bool {
        self.placed.remove(uid)
    }

    /// Containers of the pod ran when the agent started.
    pub(super) fn ran(&self, uid: &PodUid) -> bool {
        self.ran.contains(uid)
    }

    /// The first list of the runtime shows running containers of these pods.
    pub(super) fn note_running(&mut self, pods: BTreeSet<PodUid>) {
        self.ran = pods;
    }

    /// The pod is admitted or refused, or no source wants it any more.
    pub(super) fn settled(&mut self, uid: &PodUid) {
        self.ran.remove(uid);
        self.refused.remove(uid);
        self.placed.remove(uid);
    }

    /// Devices were taken back: the checkpoint is written if its text is another one.
    pub(super) fn note_change(&mut self) {
        self.checkpoint.version += 1;
    }

    /// Pods that wait, except this one: their requests are promised to them.
    pub(super) fn kept_for(&self, uid: &PodUid) -> impl Iterator<Item = &Pod> {
        self.waiting.iter().filter(move |(other, _)| *other != uid).map(|(_, (pod, _))| &**pod)
    }

    /// When the next plugin has failed to answer.
    fn deadline(&self) -> Option<Mono> {
        let until = |wait: &DeviceWait| match wait {
            DeviceWait::Answer { until, .. } => Some(*until),
            DeviceWait::Checkpoint { .. } => None,
        };
        self.waits().filter_map(|(_, wait)| until(wait)).min()
    }

    /// All that is waited for.
    fn waits(&self) -> impl Iterator<Item = (&PodUid, &DeviceWait)> {
        let placements = self.waiting.iter().map(|(uid, (_, wait))| (uid, wait));
        placements.chain(self.starts.iter().map(|(uid, (_, wait))| (uid, wait)))
    }

    fn waits_for_answer(&self, uid: &PodUid, number: u64) -> bool {
        let is_number = |wait: &DeviceWait| matches!(wait, DeviceWait::Answer { ask, .. } if *ask == number);
        self.waits().any(|(of, wait)| of == uid && is_number(wait))
    }

    /// A container of the pod waits for devices.
    pub(super) fn has_start(&self, uid: &PodUid) -> bool {
        self.starts.contains_key(uid)
    }

    /// The container of the pod that waits for devices.
    pub(super) fn start_of(&self, uid: &PodUid) -> Option<&ContainerStart> {
        self.starts.get(uid).map(|(start, _)| start)
    }

    /// The container of the pod that waits for devices; it waits no more.
    pub(super) fn take_start(&mut self, uid: &PodUid) -> Option<ContainerStart> {
        self.starts.remove(uid).map(|(start, _)| start)
    }

    /// A container of the pod waits.
    pub(super) fn wait_for_start(&mut self, uid: &PodUid, start: ContainerStart, wait: DeviceWait) {
        self.starts.insert(uid.clone(), (start, wait));
    }

    /// Asks a plugin what it prefers.
    pub(super) fn ask_preferred(
        &mut self,
        uid: &PodUid,
        question: PreferredQuestion,
        now: Now,
        out: &mut Outbox<ManagerAction>,
    ) -> DeviceWait {
        let (ask, wait) = self.ask(false, now);
        out.push(ManagerAction::Devices(DeviceAction::AskPreferred { ask, uid: uid.clone(), question }));
        wait
    }

    /// Asks a plugin to allocate.
    pub(super) fn ask_allocate(
        &mut self,
        uid: &PodUid,
        question: AllocateQuestion,
        now: Now,
        out: &mut Outbox<ManagerAction>,
    ) -> DeviceWait {
        let (ask, wait) = self.ask(true, now);
        out.push(ManagerAction::Devices(DeviceAction::AskAllocate { ask, uid: uid.clone(), question }));
        wait
    }

    /// Number of the next question, and the wait for its answer.
    fn ask(&mut self, allocates: bool, now: Now) -> (u64, DeviceWait) {
        self.asks += 1;
        let wait = DeviceWait::Answer { ask: self.asks, until: now.mono.after(ASK_TIME), allocates };
        (self.asks, wait)
    }

    /// The checkpoint is to have the present state.
    pub(super) fn want_checkpoint(&mut self) -> DeviceWait {
        self.checkpoint.version += 1;
        DeviceWait::Checkpoint { version: self.checkpoint.version }
    }
}

impl PodManager {
    /// The placement of the pod waits for a device plugin, or for the checkpoint.
    #[must_use]
    pub fn waits_for_plugin(&self, uid: &PodUid) -> bool {
        self.devices.holds_up(uid)
    }

    /// The pod waits from now on for what `step` names.
    pub(super) fn wait_for_devices(
        &mut self,
        pod: &Arc<Pod>,
        step: PlaceStep,
        now: Now,
        out: &mut Outbox<ManagerAction>,
    ) {
        let uid = pod::key(pod).uid;
        let asks = &mut self.devices;
        let wait = match step {
            PlaceStep::AskPreferred(question) => asks.ask_preferred(&uid, question, now, out),
            PlaceStep::AskAllocate(question) => asks.ask_allocate(&uid, question, now, out),
            PlaceStep::WriteCheckpoint => asks.want_checkpoint(),
            PlaceStep::Placed => {
                asks.placed.insert(uid);
                return self.placing.note_change();
            }
            PlaceStep::Refused(refusal) => {
                // The state without the pod is written to the disk.
                asks.checkpoint.version += 1;
                asks.refused.insert(uid, refusal.into());
                self.allocating.record_later();
                return self.placing.note_change();
            }
        };
        asks.waiting.insert(uid, (Arc::clone(pod), wait));
        self.placing.note_change();
    }

    /// The pod's placement, or the start of its container, goes on with an answer.
    fn go_on(
        &mut self,
        uid: &PodUid,
        answer: impl FnOnce(&mut DeviceManager, &str) -> AllocationStep,
        now: Now,
        out: &mut Outbox<ManagerAction>,
    ) {
        if let Some(start) = self.devices.take_start(uid) {
            let step = self.placing.managers_mut().answered_at_start(uid, answer);
            return self.go_on_with_start(uid, start, step, now, out);
        }
        let Some((pod, _)) = self.devices.waiting.remove(uid) else { return };
        let runs = self.is_found_running(uid);
        if let Some(step) = self.placing.managers_mut().answered(uid, runs, answer) {
            self.wait_for_devices(&pod, step, now, out);
        }
    }

    /// The pod waits for no plugin any more, because no source wants it, or because it is to end: takes back what it was given.
    pub(super) fn give_up_devices(&mut self, uid: &PodUid) {
        let waited = self.devices.waiting.remove(uid).is_some() || self.devices.placed.contains(uid);
        self.devices.settled(uid);
        if waited {
            self.placing.managers_mut().give_up(uid);
            self.devices.checkpoint.version += 1;
            self.allocating.record_later();
            self.placing.note_change();
        }
    }

    /// News of a plugin.
    pub(super) fn of_plugin(&mut self, event: DeviceEvent, now: Now, out: &mut Outbox<ManagerAction>) {
        let managers = self.placing.managers_mut();
        match event {
            DeviceEvent::Connected { connection, resource, options } => {
                if managers.connected(connection, &resource, options, now) {
                    self.devices.checkpoint.version += 1;
                }
                self.placing.note_change();
            }
            DeviceEvent::Listed { connection, devices } => {
                if managers.listed(connection, devices, now) {
                    self.devices.checkpoint.version += 1;
                    self.placing.note_change();
                }
            }
            DeviceEvent::Ended { connection } => {
                if managers.ended(connection, now) {
                    self.placing.note_change();
                }
            }
            DeviceEvent::Preferred { ask, uid, answer } => {
                if self.devices.waits_for_answer(&uid, ask) {
                    self.go_on(&uid, |devices, uid| devices.preferred(uid, answer), now, out);
                }
            }
            DeviceEvent::Allocated { ask, uid, answer } => {
                if self.devices.waits_for_answer(&uid, ask) {
                    self.go_on(&uid, |devices, uid| devices.allocated(uid, answer), now, out);
                }
            }
            DeviceEvent::Written(outcome) => self.checkpoint_written(&outcome, now, out),
        }
    }

    fn checkpoint_written(
        &mut self,
        outcome: &Result<(), String>,
        now: Now,
        out: &mut Outbox<ManagerAction>,
    ) {
        let checkpoint = &mut self.devices.checkpoint;
        let Some(written) = checkpoint.writing.take() else { return };
        checkpoint.written = written;
        if outcome.is_err() {
            checkpoint.text.clear();
        }
        let is_over =
            |wait: &DeviceWait| matches!(wait, DeviceWait::Checkpoint { version } if *version <= written);
        let waiting = self.devices.waits().filter(|(_, wait)| is_over(wait));
        let waiting: Vec<PodUid> = waiting.map(|(uid, _)| uid.clone()).collect();
        for uid in waiting {
            self.go_on(&uid, |devices, uid| devices.written(uid, outcome.clone()), now, out);
        }
    }

    /// Plugins that did not answer in time have failed, and resources whose plugins are away for too long are removed.
    pub(super) fn end_waits_for_plugins(&mut self, now: Now, out: &mut Outbox<ManagerAction>) {
        let late = |wait: &DeviceWait| match wait {
            DeviceWait::Answer { until, allocates, .. } => (*until <= now.mono).then_some(*allocates),
            DeviceWait::Checkpoint { .. } => None,
        };
        let waits = self.devices.waits();
        let late: Vec<(PodUid, bool)> =
            waits.filter_map(|(uid, wait)| Some((uid.clone(), late(wait)?))).collect();
        for (uid, allocates) in late {
            let failed = || ASK_TIMED_OUT.to_owned();
            let answer = |devices: &mut DeviceManager, uid: &str| {
                if allocates {
                    devices.allocated(uid, Err(failed()))
                } else {
                    devices.preferred(uid, Err(failed()))
                }
            };
            self.go_on(&uid, answer, now, out);
        }
        let is_due = self.placing.managers_mut().next_removal().is_some_and(|at| at <= now.mono);
        if is_due && self.placing.managers_mut().remove_expired(now) {
            self.devices.checkpoint.version += 1;
            self.placing.note_change();
        }
    }

    /// At the end of a step: writes the checkpoint if the state changed.
    pub(super) fn write_devices(&mut self, out: &mut Outbox<ManagerAction>) {
        let CheckpointWrites { version, written, writing, .. } = &self.devices.checkpoint;
        if writing.is_some() || version == written {
            return;
        }
        let text = self.placing.resource_managers().device_checkpoint();
        let is_awaited = self.devices.waits().any(|(_, wait)| matches!(wait, DeviceWait::Checkpoint { .. }));
        let checkpoint = &mut self.devices.checkpoint;
        if text == checkpoint.text && !is_awaited {
            checkpoint.written = checkpoint.version;
            return;
        }
        checkpoint.writing = Some(checkpoint.version);
        checkpoint.text.clone_from(&text);
        out.push(ManagerAction::Devices(DeviceAction::WriteCheckpoint(text)));
    }

    /// When to look again.
    pub(super) fn devices_deadline(&self) -> Option<Mono> {
        let removal = self.placing.resource_managers().next_removal();
        self.devices.deadline().into_iter().chain(removal).min()
    }
}
