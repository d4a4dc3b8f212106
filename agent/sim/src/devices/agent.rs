//! Events and questions between the agent and plugins, and the defects of a broken agent.
//!
//! In: events of plugins, questions of the pod manager. Out: the same events and questions, changed by a [`Defect`].

use std::collections::{BTreeMap, BTreeSet};

use agent_core::pod_manager::ManagerEvent;
use agent_core::pod_source::PodUpdate;
use agent_core::pod_worker::effect::Effect;
use agent_core::resource_managers::{DeviceAction, DeviceEvent};
use agent_managers::devices::plugin::{HEALTHY, PluginDevice};
use agent_types::ids::PodUid;
use agent_types::time::Now;

use super::answers;
use crate::defects::Defect;
use crate::node::{Node, NodeRequest};

/// Number of devices that a broken agent invents.
const GHOSTS: usize = 12;

/// State that a broken agent needs for its defect.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentDevices {
    /// The last question for each pod.
    asked: BTreeMap<PodUid, u64>,
    /// Questions without an answer.
    unanswered: BTreeSet<u64>,
    /// Requested devices with their resource and pod.
    given: Vec<(String, PodUid, BTreeSet<String>)>,
    /// Updates that wait because a plugin does not answer.
    held: Vec<PodUpdate>,
}

impl Node {
    /// True if the pod, or the start of a container of it, waits for a plugin or for the checkpoint.
    pub(crate) fn waits(&self, uid: &PodUid) -> bool {
        self.manager.resource_managers().managers().unfinished.contains_key(uid.as_str())
            || self.manager.allocates_at_start(uid)
    }

    /// Handles an event of a plugin, changed according to the configured defect.
    pub(crate) fn of_plugin(&mut self, now: Now, mut event: DeviceEvent) {
        if let DeviceEvent::Preferred { ask, .. } | DeviceEvent::Allocated { ask, .. } = &event {
            self.devices.unanswered.remove(ask);
        }
        match (self.defect, &mut event) {
            (Some(Defect::TakesOldAnswers), DeviceEvent::Allocated { ask, uid, .. }) => {
                if let Some(last) = self.devices.asked.get(uid) {
                    *ask = *last;
                }
            }
            (Some(Defect::CountsTooMuch), DeviceEvent::Listed { devices, .. }) => {
                let ghost = |n: usize| PluginDevice {
                    id: format!("a-ghost{n}"),
                    health: HEALTHY.to_owned(),
                    nodes: BTreeSet::new(),
                };
                devices.extend((0..GHOSTS).map(ghost));
            }
            _ => {}
        }
        self.manage(now, ManagerEvent::Devices(event));
        if self.devices.unanswered.is_empty() {
            for update in std::mem::take(&mut self.devices.held) {
                self.manage(now, ManagerEvent::Update(update));
            }
        }
    }

    /// Passes pods of a source to the pod manager; a broken agent holds them back while other pods wait for a plugin.
    pub(crate) fn deliver(&mut self, now: Now, update: PodUpdate) {
        if self.defect == Some(Defect::WaitsForAllPlugins) && !self.devices.unanswered.is_empty() {
            self.devices.held.push(update);
        } else {
            self.manage(now, ManagerEvent::Update(update));
        }
    }

    /// Handles a question of the pod manager to plugins, or a write of the checkpoint.
    pub(crate) fn ask_plugin(&mut self, now: Now, mut action: DeviceAction) {
        let is_write = matches!(action, DeviceAction::WriteCheckpoint(_));
        match &mut action {
            DeviceAction::AskPreferred { ask, uid, .. } => self.note_question(uid, *ask),
            DeviceAction::AskAllocate { ask, uid, question } => {
                self.note_question(&uid.clone(), *ask);
                let of_other = |(resource, other, ids): &&(String, PodUid, BTreeSet<String>)| {
                    *resource == question.resource && *other != *uid && ids.len() == question.ids.len()
                };
                if self.defect == Some(Defect::GivesDevicesTwice)
                    && let Some((.., ids)) = self.devices.given.iter().rev().find(of_other)
                {
                    question.ids.clone_from(ids);
                }
                self.devices.given.push((question.resource.clone(), uid.clone(), question.ids.clone()));
            }
            DeviceAction::WriteCheckpoint(_) => {}
        }
        self.out.push(NodeRequest::Devices(action));
        if is_write && self.defect == Some(Defect::StartsBeforeTheCheckpoint) {
            self.manage(now, ManagerEvent::Devices(DeviceEvent::Written(Ok(()))));
        }
    }

    fn note_question(&mut self, uid: &PodUid, ask: u64) {
        self.devices.asked.insert(uid.clone(), ask);
        self.devices.unanswered.insert(ask);
    }

    /// A broken agent removes the devices from a container's configuration.
    pub(crate) fn strip_devices(&self, effect: &mut Effect) {
        if let (Some(Defect::StartsWithoutDevices), Effect::CreateContainer { config, .. }) =
            (self.defect, effect)
        {
            answers::strip(config);
        }
    }
}
