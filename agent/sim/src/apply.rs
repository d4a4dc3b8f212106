//! Effects of a call that reaches the runtime or the disk.
//!
//! In: a call. Out: the changed world and, unless the reply is lost or the agent dies first, its answer.

use std::sync::Arc;
use std::time::Duration;

use agent_core::checkers::TraceEvent;
use agent_core::pleg::PlegEvent;
use agent_core::pod_worker::effect::{Effect, EffectOk, EffectResult};
use agent_types::ids::{ContainerId, IdMapping, PodKey, PodUid};
use agent_types::runtime::observed::{ContainerState, PodSnapshot};

use crate::calls::{Ask, Call, CallAnswer, answered_effect};
use crate::defects::Defect;
use crate::fake_runtime::key;
use crate::ownership::waited;
use crate::world::{Event, World};

impl World {
    pub(crate) fn apply(&mut self, call: Call) {
        if let Some(ends) = self.waits_for_walk(&call) {
            return self.wait_for_walk(call, ends);
        }
        if self.ask_claims(&call) {
            return;
        }
        let mut extra = Duration::ZERO;
        let answer = match &call.ask {
            Ask::Effect { key, effect, .. } => {
                let (result, takes) = self.apply_effect(&key.clone(), &effect.clone(), &call);
                extra = takes;
                CallAnswer::Worker(result)
            }
            Ask::Persist { record, .. } => {
                self.disk.records.insert(record.pod.uid.clone(), record.clone());
                answered_effect(EffectOk::Done)
            }
            Ask::Allocated(all, managers) => {
                self.managers_written(managers);
                self.allocations_written(&all.clone());
                CallAnswer::Recorded(true)
            }
            Ask::Inspect(uid) => {
                let who = key("unknown", uid.as_str());
                let mut snapshot = self.runtime.snapshot(&who, call.issued);
                self.remember_amounts(&mut snapshot);
                CallAnswer::Pleg(PlegEvent::Inspected(Arc::new(snapshot)))
            }
            Ask::Relist => {
                let result = Ok(self.runtime.list());
                CallAnswer::Pleg(PlegEvent::Listed { as_of: call.issued, result })
            }
        };
        self.look();
        if call.ask.mutates() && call.incarnation == self.incarnation {
            if self.rng.chance(self.faults.crash_before_ack) {
                self.crash();
                return;
            }
            if self.rng.chance(self.faults.reply_lost) {
                self.time_out(call);
                return;
            }
        }
        let back = self.queue.now().after(extra + Duration::from_millis(self.rng.between(1, 5)));
        if call.deadline.is_some_and(|d| back > d) {
            self.time_out(call);
        } else {
            self.queue.at(back, Event::Answer(call, Box::new(answer)));
        }
    }

    /// The result of an effect, and the time until the answer is sent.
    fn apply_effect(&mut self, key: &PodKey, effect: &Effect, call: &Call) -> (EffectResult, Duration) {
        let now = self.now();
        match effect {
            Effect::CreatePodDirs { log_of, .. } => {
                self.disk.dirs.insert(key.uid.clone());
                return (Ok(self.files_of(&key.uid, log_of.as_deref())), Duration::ZERO);
            }
            Effect::RemovePodDirs { keep_logs } => {
                self.tear_down_volumes(&key.uid);
                self.disk.dirs.remove(&key.uid);
                self.disk.records.remove(&key.uid);
                self.disk.actuated.remove(&key.uid);
                self.disk.logs.retain(|(uid, _), _| *keep_logs || *uid != key.uid);
                // The pod's history on this node ends here, even if the agent dies before it can report the end.
                self.checks.note(self.queue.now(), &TraceEvent::PodForgotten { pod: key.uid.clone() });
                return (Ok(EffectOk::Done), Duration::ZERO);
            }
            Effect::ResolveClaim { claim } => return (self.resolve_claim(key, claim), Duration::ZERO),
            Effect::SetUpVolume { volume } => {
                let result = self.set_up_volume(key, volume);
                let takes = waited(result.as_ref().ok());
                return (result, takes);
            }
            // In a run without claims, every claim is prepared.
            Effect::PrepareClaims { .. } | Effect::FindClaims { .. } => {
                return (Ok(EffectOk::Claims(Box::default())), Duration::ZERO);
            }
            // The pod manager allocates devices.
            Effect::UnprepareClaims | Effect::MountSubPaths { .. } | Effect::AllocateDevices { .. } => {
                return (Ok(EffectOk::Done), Duration::ZERO);
            }
            Effect::PreStartDevices { calls } => return self.pre_start(calls),
            Effect::FetchObjects { objects } => {
                return (Ok(EffectOk::Objects(self.fetch_objects(key, objects))), Duration::ZERO);
            }
            // The agent writes files, or calls PID 1, which takes calls in order: a call of a dead agent does not overtake the
            // calls of its successor.
            Effect::EnsureCgroup { .. } if call.incarnation != self.incarnation => {
                return (Ok(EffectOk::Done), Duration::ZERO);
            }
            Effect::EnsureCgroup { cgroup, actuates } => {
                if let Some(own) = actuates {
                    self.actuate(key, None, own);
                }
                self.set_cgroup(key, cgroup);
                return (Ok(EffectOk::Done), Duration::ZERO);
            }
            Effect::RemoveCgroup => {
                self.remove_cgroup(key);
                return (Ok(EffectOk::Done), Duration::ZERO);
            }
            Effect::MapUsers { .. } => {
                let users = IdMapping { host_id: 131_072, container_id: 0, length: 65_536 };
                return (Ok(EffectOk::Users(users)), Duration::ZERO);
            }
            Effect::ReadEnvFiles { files } => {
                let read = files.iter().map(|file| (file.clone(), Err("no files here".to_owned()))).collect();
                return (Ok(EffectOk::EnvFiles(read)), Duration::ZERO);
            }
            Effect::TearDownVolumes => {
                self.tear_down_volumes(&key.uid);
                return (Ok(EffectOk::Done), Duration::ZERO);
            }
            Effect::Inspect => {
                let mut snapshot: PodSnapshot = self.runtime.snapshot(key, call.issued);
                self.remember_amounts(&mut snapshot);
                return (Ok(EffectOk::Snapshot(Box::new(snapshot))), Duration::ZERO);
            }
            Effect::Resize { steps } => return (self.resize(key, steps, call), Duration::ZERO),
            Effect::SetCpus { cpus } => return (self.set_cpus(cpus), Duration::ZERO),
            Effect::StopContainer { container, grace_s } => return self.stop(container, *grace_s),
            Effect::RunHook { call, .. } => return self.run_hook(call),
            _ => {}
        }
        self.wants_cgroup(key, effect);
        self.wants_claims(key, effect);
        let result = self.runtime.apply(now, effect);
        if let Effect::CreateContainer { actuates, .. } = effect {
            self.made_with(&result, actuates);
        }
        self.placed(key, effect, &result);
        self.equipped(key, effect, &result);
        if result.is_ok() {
            self.after_effect(effect, &result, &key.uid);
        }
        (result, Duration::ZERO)
    }

    fn after_effect(&mut self, effect: &Effect, result: &EffectResult, uid: &PodUid) {
        if let Effect::StartContainer { container } = effect {
            self.look();
            self.write_log(container);
            self.schedule_exit(container);
            if self.defect == Some(Defect::StartsTwice) {
                self.rogue_instance(container);
            }
            if self.defect == Some(Defect::RunsInitAgain)
                && let Some(init) = self.init_container_beside(container)
            {
                self.rogue_instance(&init);
            }
        }
        if !matches!(result, Ok(EffectOk::Image(_) | EffectOk::Pulled { .. })) {
            self.hint(uid);
        }
    }

    /// An init container of the pod to which this regular container belongs.
    fn init_container_beside(&self, id: &ContainerId) -> Option<ContainerId> {
        let c = self.runtime.containers.get(id).filter(|c| c.observed.name.starts_with("app"))?;
        let mut all = self.runtime.containers.values();
        let init = all.find(|o| o.pod.uid == c.pod.uid && o.observed.name.starts_with("init"))?;
        Some(init.observed.id.clone())
    }

    fn schedule_exit(&mut self, id: &ContainerId) {
        let exits = self.runtime.containers.get(id).and_then(|c| c.program.exits);
        if let Some((after_ms, code)) = exits {
            self.queue.after(Duration::from_millis(after_ms), Event::Exit { container: id.clone(), code });
        }
    }

    /// Sends SIGTERM now, and SIGKILL when the grace period is over; the answer comes when the process has ended.
    fn stop(&mut self, id: &ContainerId, grace_s: u32) -> (EffectResult, Duration) {
        let Some(c) = self.runtime.containers.get(id) else { return (Ok(EffectOk::Done), Duration::ZERO) };
        if c.observed.state != ContainerState::Running {
            return (Ok(EffectOk::Done), Duration::ZERO);
        }
        let grace_ms = u64::from(grace_s) * 1000;
        let (after_ms, code) = match c.program.term_ms {
            Some(ms) if ms < grace_ms => (ms, 143),
            _ => (grace_ms, 137),
        };
        let wait = Duration::from_millis(after_ms);
        self.queue.after(wait, Event::Exit { container: id.clone(), code });
        (Ok(EffectOk::Done), wait + Duration::from_millis(1))
    }

    /// A defect of the agent: starts one more instance of the container `id`.
    pub(crate) fn rogue_instance(&mut self, id: &ContainerId) {
        let now = self.now();
        let Some(c) = self.runtime.containers.get(id).cloned() else { return };
        let mut twin = c.clone();
        twin.observed.id = ContainerId::from(format!("{id}x"));
        twin.observed.attempt += 1;
        twin.observed.state = ContainerState::Running;
        twin.observed.started = Some(now.wall);
        twin.observed.finished = None;
        let new = twin.observed.id.clone();
        self.runtime.containers.insert(new.clone(), twin);
        self.look();
        self.schedule_exit(&new);
    }
}
