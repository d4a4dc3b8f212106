//! Incarnations of the agent: it is killed, the machine reboots, the next agent starts with what is on disk.
//!
//! In: a crash or a reboot. Out: an agent that starts a moment later. Calls of a dead agent may still reach the runtime and the
//! API server.

use std::sync::Arc;
use std::time::Duration;

use agent_core::checkers::TraceEvent;
use agent_core::pleg::PlegEvent;
use agent_core::pod_manager::Leftovers;
use agent_core::pod_worker::effect::Effect;
use agent_core::pod_worker::{WorkerContext, longest_call};
use agent_types::machine::EffectId;
use agent_types::runtime::observed::ContainerState;
use agent_types::time::Mono;

use super::{Event, World, millis};
use crate::api_calls::ApiEvent;
use crate::api_side::WATCHES;
use crate::calls::Ask;
use crate::cgroups::removes_nothing;
use crate::cluster::Cluster;
use crate::defects::Defect;
use crate::node::{Node, NodeEvent};

impl World {
    /// `kill -9` of the agent in a world at rest: the next incarnation must not start, stop or remove anything.
    pub fn crash_at_rest(&mut self) {
        self.quiet = true;
        self.crash();
    }

    /// `kill -9` of the agent. Calls in flight may still reach the runtime until their deadlines.
    pub fn crash(&mut self) {
        self.forget_ends();
        (self.node, self.armed) = (None, None);
        self.incarnation += 1;
        if let Some(volumes) = &mut self.volumes {
            volumes.drivers.forget();
            if let Some(ownership) = &mut volumes.ownership {
                ownership.forget(self.queue.now());
            }
        }
        self.forget_claims();
        if let Some(api) = &mut self.api {
            for which in WATCHES {
                api.watches.close(which);
            }
        }
        let longest = longest_call(self.context.request_timeout, Duration::from_secs(60));
        self.fence_until = self.queue.now().after(longest);
        self.forget_questions();
        self.lock_is_lost();
        self.unit_died();
        let (dead, zombies) = (self.incarnation, self.faults.zombie_applies);
        let (mut kept, mut under_way) = (Vec::new(), Vec::new());
        let cgroups = &self.disk.cgroups;
        self.queue.retain(|event| match event {
            Event::Apply(call) if call.incarnation < dead => {
                // Work of the agent's own process on disk ends with the process; only the runtime continues.
                if call.ask.is_remote() && !removes_nothing(&call.ask, cgroups) {
                    kept.push(call.clone());
                }
                false
            }
            Event::Api(ApiEvent::Arrive(flight)) if flight.incarnation < dead => {
                under_way.push(flight.clone());
                false
            }
            Event::Api(ApiEvent::Answer(..) | ApiEvent::Heard { .. }) => false,
            _ => true,
        });
        // Calls on their way may still arrive; their answers are ignored.
        for flight in under_way {
            if self.rng.chance(zombies) {
                let wait = Duration::from_millis(self.rng.below(10_000));
                self.queue.after(wait, Event::Api(ApiEvent::Arrive(flight)));
            }
        }
        for call in kept {
            if self.rng.chance(zombies) {
                let left = call.deadline.unwrap_or(self.queue.now()).since(self.queue.now());
                let wait = Duration::from_millis(self.rng.below(millis(left)));
                self.queue.after(wait, Event::Apply(call));
            }
        }
        let down = Duration::from_millis(self.rng.between(100, 5_000));
        self.queue.after(down, Event::AgentStart { incarnation: self.incarnation });
    }

    /// The machine loses power and comes back: nothing runs, no call is in flight, the disk is kept.
    pub fn reboot(&mut self) {
        self.ensure_taken_back();
        self.crash();
        self.disturb();
        self.fence_until = Mono(0);
        self.runtime.reboot(self.now());
        self.forget_mounts();
        self.logind_boots();
        self.disk.cgroups.clear();
        // A reboot takes longer than a call on its way to the server.
        self.queue.retain(|e| {
            !matches!(
                e,
                Event::Apply(_)
                    | Event::Exit { .. }
                    | Event::Answer(..)
                    | Event::Claims { .. }
                    | Event::Api(ApiEvent::Arrive(_))
            )
        });
    }

    pub(super) fn start_agent(&mut self) {
        let (shutdown, records) = self.begin_shutdown();
        let leftovers = Leftovers {
            records,
            directories: self.disk.dirs.clone(),
            fence_until: self.fence_until,
            allocated: self.disk.allocated.clone(),
            actuated: self.disk.actuated.clone(),
            managers: self.managers(),
        };
        let cluster = self.api.is_some().then(|| Cluster::new(u64::from(self.incarnation)));
        let context = WorkerContext { agent_started: self.now(), ..(*self.context).clone() };
        let mut node = Node::new(Arc::new(context), leftovers, self.allocatable(), cluster, self.defect);
        node.shutdown = shutdown;
        self.node = Some(node);
        self.start_claims();
        let undisturbed = self.quiet && !self.a_pod_lacks_devices();
        self.checks.note(self.queue.now(), &TraceEvent::AgentStarted { undisturbed });
        for pod in std::mem::take(&mut self.added_again) {
            self.checks.note(self.queue.now(), &TraceEvent::PodForgotten { pod });
        }
        self.tell(NodeEvent::Start(self.disk.manifests.values().cloned().collect()));
        self.start_api();
        self.socket_is_served();
        if self.stream_up {
            self.tell(NodeEvent::Pleg(PlegEvent::StreamUp));
        }
        if self.defect == Some(Defect::StopsOnStart) && self.incarnation > 0 {
            let running =
                |c: &&crate::fake_runtime::FakeContainer| c.observed.state == ContainerState::Running;
            if let Some(c) = self.runtime.containers.values().find(running) {
                let (key, container) = (c.pod.clone(), c.observed.id.clone());
                let effect = Effect::StopContainer { container, grace_s: 2 };
                self.checks.issued(self.queue.now(), &key, &effect);
                self.send(Ask::Effect { key, id: EffectId(u64::MAX), effect }, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use agent_types::resources::cgroups::CgroupValues;

    use super::*;
    use crate::fake_runtime::key;
    use crate::faults::Faults;
    use crate::scenario::context;

    /// Stopping, seed 60171: the removal of a cgroup that did not exist came half a minute later, after the next agent had made it.
    #[test]
    fn a_removal_outlives_its_agent_only_if_the_cgroup_existed() {
        for exists in [false, true] {
            let faults = Faults { zombie_applies: 1000, ..Faults::default() };
            let mut world = World::new(1, faults, context(), None);
            let pod = key("pod1", "uid-1");
            if exists {
                world.disk.cgroups.insert(pod.uid.clone(), CgroupValues::default());
            }
            let deadline = world.queue.now().after(Duration::from_secs(60));
            let ask = Ask::Effect { key: pod, id: EffectId(1), effect: Effect::RemoveCgroup };
            world.send(ask, Some(deadline));
            world.crash();
            let mut under_way = 0;
            world.queue.retain(|event| {
                under_way += usize::from(matches!(event, Event::Apply(_)));
                true
            });
            assert_eq!(under_way, usize::from(exists), "the cgroup existed: {exists}");
        }
    }
}
