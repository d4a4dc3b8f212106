//! Events that no call causes: the faults of each second, containers that exit, hints of the runtime's event stream.

use std::time::Duration;

use agent_core::pleg::PlegEvent;
use agent_types::ids::{ContainerId, PodUid, SandboxId};
use agent_types::runtime::observed::{ContainerState, RuntimeHint};

use super::{Event, World};
use crate::defects::Defect;
use crate::in_place::is_ephemeral;
use crate::node::NodeEvent;

impl World {
    /// The faults that no call causes, once a second.
    pub(super) fn second(&mut self) {
        self.queue.after(Duration::from_secs(1), Event::Second);
        self.api_second();
        self.objects_change();
        self.drivers_second();
        self.claims_second();
        self.plugins_second();
        self.sweep_cgroups();
        if self.rng.chance(self.faults.container_killed) {
            let running: Vec<ContainerId> = self.ids_in(ContainerState::Running);
            if let Some(id) = self.rng.pick(&running).cloned() {
                self.disturb();
                self.exit(&id, 137);
            }
        }
        if self.rng.chance(self.faults.sandbox_dies) {
            let all: Vec<SandboxId> = self.runtime.sandboxes.keys().cloned().collect();
            if let Some(id) = self.rng.pick(&all).cloned() {
                self.disturb();
                let now = self.now();
                self.runtime.sandbox_dies(now, &id);
                if let Some(uid) = self.runtime.sandboxes.get(&id).map(|s| s.pod.uid.clone()) {
                    self.hint(&uid);
                }
            }
        }
        if self.rng.chance(self.faults.stream_drop) {
            self.stream_up = false;
            self.tell(NodeEvent::Pleg(PlegEvent::StreamDown));
        } else if !self.stream_up {
            self.stream_up = true;
            self.tell(NodeEvent::Pleg(PlegEvent::StreamUp));
        }
        if self.rng.chance(self.faults.reboot) {
            self.reboot();
        }
    }

    fn ids_in(&self, state: ContainerState) -> Vec<ContainerId> {
        let of = |c: &&crate::fake_runtime::FakeContainer| c.observed.state == state;
        self.runtime.containers.values().filter(of).map(|c| c.observed.id.clone()).collect()
    }

    /// A container's process ends.
    pub(crate) fn exit(&mut self, id: &ContainerId, code: i32) {
        let now = self.now();
        self.note_asked(id, code);
        self.runtime.exit(now, id, code, if code == 0 { "Completed" } else { "Error" });
        if let Some(uid) = self.runtime.containers.get(id).map(|c| c.pod.uid.clone()) {
            self.hint(&uid);
        }
        if self.defect == Some(Defect::IgnoresBackOff) {
            self.rogue_instance(id);
        }
        let debugger = self.runtime.containers.get(id).is_some_and(|c| is_ephemeral(&c.observed.name));
        if self.defect == Some(Defect::RemovesTheOneThatAsked) && self.asks_for_all(id) {
            self.runtime.containers.remove(id);
        }
        if debugger && self.defect == Some(Defect::RestartsDebuggers) {
            self.rogue_instance(id);
        }
    }

    /// The event stream sends a hint about a pod, if the stream is up and the hint is not lost.
    pub(crate) fn hint(&mut self, uid: &PodUid) {
        let copies = if !self.stream_up || self.rng.chance(self.faults.hint_lost) {
            0
        } else if self.rng.chance(self.faults.hint_duplicated) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let wait = Duration::from_millis(self.rng.between(1, 50));
            let event = PlegEvent::Hint(RuntimeHint { uid: uid.clone() });
            self.queue.after(wait, Event::ToPleg { incarnation: self.incarnation, event });
        }
    }
}
