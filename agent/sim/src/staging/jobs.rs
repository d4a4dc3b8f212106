//! The agent in the world of volumes: its table of stages, and the tasks of volumes, one step at a time.
//!
//! In: a task that takes a step. Out: the state of disk and driver afterwards. Invariant: all state here ends with the
//! agent; the steps are carried out like those of the daemon's `pods::execute::csi` and `volumes::csi::volume_table`, and the
//! module decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use agent_types::failure::Class;
use agent_types::ids::PodUid;
use agent_volumes::attach::{OnDisk, VolumeOnDisk};
use agent_volumes::csi::failures::{CallFailed, Failure, StagedAs};
use agent_volumes::csi::publishing::{End, Facts, Paths, PublishAnswer, PublishStep, Publishing};
use agent_volumes::csi::request::Capabilities;
use agent_volumes::csi::unpublishing::{self, Unpublishing};
use agent_volumes::csi::unstaging::{self, Unstaging};
use agent_volumes::csi::{CsiVolume, VolumeData};
use agent_volumes::key::VolumeKey;
use agent_volumes::volume_table::{Order, Published, Subject, Ticket, VolumeTable};
use serde_json::json;

use super::model::{Call, Fate, STAGER, target, volume_of};
use super::{StagingDefect, World};
use crate::checks::Violation;

/// Goal of a task.
enum TaskDirection {
    ToPod(Box<Publishing>),
    FromPod { way: Unpublishing, volume: String, data: Option<VolumeData> },
    ToDriver { way: Unstaging, key: VolumeKey },
}

/// A task of the agent.
pub(super) struct Job {
    /// The pod; `None` for the unstaging of a volume.
    pub(super) pod: Option<PodUid>,
    /// Number of the volume in the list of volumes, for the set-up of a pod's volume.
    pub(super) number: Option<usize>,
    way: TaskDirection,
    ticket: Option<Ticket>,
    /// The task waits for its turn.
    pub(super) waits: bool,
    /// A call of the driver is under way.
    call: Option<Call>,
}

/// State that ends with the agent.
#[derive(Default)]
pub(super) struct Agent {
    pub(super) table: VolumeTable,
    pub(super) jobs: BTreeMap<u32, Job>,
    next: u32,
    /// The table has requested a read of the disk.
    pub(super) reads: bool,
    /// Volumes in use as the API server knows them.
    pub(super) in_use: BTreeSet<String>,
    /// Volumes that were reported to workers as mounted.
    pub(super) mounted: BTreeSet<(PodUid, usize)>,
}

impl Agent {
    fn add(&mut self, job: Job) {
        self.jobs.insert(self.next, job);
        self.next += 1;
    }
}

fn io_error() -> Failure {
    Failure { class: Class::Retryable { after_ms: 0 }, message: "an error of the disk".to_owned() }
}

impl World {
    /// A worker requests the set-up of a volume.
    pub(super) fn set_up(&mut self, pod: &PodUid, number: usize) {
        let csi = volume_of(number, pod, self.label(pod, number));
        let paths = Paths { target: target(pod, &csi.volume), staging: format!("/stages/{}", csi.handle) };
        let settled = self.agent.table.is_settled(&paths.target);
        let way = Publishing::new(&csi, pod, paths, None);
        let way = if settled { way.settled() } else { way };
        let way = TaskDirection::ToPod(Box::new(way));
        let (pod, number) = (Some(pod.clone()), Some(number));
        self.agent.add(Job { pod, number, way, ticket: None, waits: false, call: None });
    }

    /// A worker requests the tear-down of all volumes of a pod. True if none is left.
    pub(super) fn tear_down(&mut self, pod: &PodUid) -> bool {
        let all = self.disk.of_pod(pod);
        if all.is_empty() {
            self.agent.table.forget(pod);
            self.carry_out();
            return true;
        }
        for (volume, data, device) in all {
            let way = match (&data, device) {
                (Some(data), false) => Unpublishing::of_files(data),
                (data, _) => Unpublishing::of_device(data.as_ref()),
            };
            let (pod, way) = (Some(pod.clone()), TaskDirection::FromPod { way, volume, data });
            self.agent.add(Job { pod, number: None, way, ticket: None, waits: false, call: None });
        }
        false
    }

    /// Drops a task at an await: no task receives the end of its call.
    pub(super) fn drop_job(&mut self, id: u32) {
        let Some(job) = self.agent.jobs.remove(&id) else { return };
        if let Some(call) = job.call {
            let done = if self.rng.chance(500) { Fate::LostDone } else { Fate::LostUndone };
            drop(self.driver.end(&call, done));
        }
        if let Some(ticket) = job.ticket.filter(|_| self.defect != Some(StagingDefect::KeepsTurns)) {
            self.agent.table.end(ticket);
        }
        self.carry_out();
    }

    /// Carries out the orders of the table.
    pub(super) fn carry_out(&mut self) {
        for order in self.agent.table.orders() {
            match order {
                Order::ReadDisk => self.agent.reads = true,
                Order::Report(names) => self.agent.in_use = names.into_iter().collect(),
                Order::Grant(ticket) => {
                    let mut waiting = self.agent.jobs.values_mut().filter(|job| job.ticket == Some(ticket));
                    if let Some(job) = waiting.next() {
                        job.waits = false;
                    }
                }
                Order::Unstage(key, ticket) => {
                    let way = TaskDirection::ToDriver { way: Unstaging::default(), key };
                    let ticket = Some(ticket);
                    self.agent.add(Job { pod: None, number: None, way, ticket, waits: false, call: None });
                }
            }
        }
    }

    /// Reads the disk for the table.
    pub(super) fn read_disk(&mut self) {
        self.agent.reads = false;
        let found = (!self.fails()).then(|| self.disk.on_disk());
        self.agent.table.disk(found, self.now);
        self.carry_out();
    }

    /// A task takes one step.
    pub(super) fn go_on(&mut self, id: u32) -> Result<(), Violation> {
        let Some(mut job) = self.agent.jobs.remove(&id) else { return Ok(()) };
        let ended = match &mut job.way {
            TaskDirection::ToPod(_) => self.step_to_pod(&mut job)?,
            TaskDirection::FromPod { .. } => self.step_from_pod(&mut job)?,
            TaskDirection::ToDriver { .. } => self.step_to_driver(&mut job)?,
        };
        match (ended, job.ticket) {
            (false, _) => drop(self.agent.jobs.insert(id, job)),
            (true, Some(ticket)) => self.agent.table.end(ticket),
            (true, None) => {}
        }
        self.carry_out();
        Ok(())
    }

    /// Takes the first half of a call, or the second half with its answer.
    fn call(&mut self, job: &mut Job, call: Call) -> Result<Option<Result<(), CallFailed>>, Violation> {
        if job.call.is_none() {
            self.driver.begin(&call)?;
            job.call = Some(call);
            return Ok(None);
        }
        job.call = None;
        let fate = self.fate();
        let end = self.driver.end(&call, fate);
        Ok(Some(end.map_err(|mut e| {
            e.is_final |= self.defect == Some(StagingDefect::TakesLostForRefused);
            e
        })))
    }

    /// Requests a turn; true if the task has it.
    fn turn(&mut self, job: &mut Job, key: &VolumeKey) -> bool {
        if job.ticket.is_none() {
            let ticket = self.agent.table.ask(Subject::Volume(key.clone()));
            job.ticket = Some(ticket);
            let granted = |order: &Order| *order == Order::Grant(ticket);
            let orders = self.agent.table.orders();
            job.waits = !orders.iter().any(granted) && self.defect != Some(StagingDefect::IgnoresTurns);
            debug_assert!(orders.iter().all(granted));
        }
        !job.waits
    }

    fn step_to_pod(&mut self, job: &mut Job) -> Result<bool, Violation> {
        let (TaskDirection::ToPod(way), Some(pod), Some(number)) = (&job.way, job.pod.clone(), job.number)
        else {
            return Ok(true);
        };
        let (mut way, step) = (way.clone(), way.step());
        let csi = way.volume().clone();
        let (key, target) = (csi.key(), target(&pod, &csi.volume));
        let answer = match step {
            PublishStep::End(End::Published { .. }) => {
                self.agent.mounted.insert((pod, number));
                return Ok(true);
            }
            PublishStep::End(_) => return Ok(true),
            PublishStep::Turn => match self.turn(job, &key) {
                true => Some(PublishAnswer::Facts(self.facts(&key, &target))),
                false => None,
            },
            PublishStep::Stage(_) => self.call(job, Call::Stage(key))?.map(PublishAnswer::Called),
            PublishStep::Unstage => self.call(job, Call::Unstage(key))?.map(PublishAnswer::Called),
            PublishStep::Publish(_) => self.call(job, Call::Publish(key, target))?.map(PublishAnswer::Called),
            PublishStep::Staged(is) => {
                if let Some(ticket) = job.ticket {
                    self.agent.table.set_staged(ticket, is);
                }
                Some(PublishAnswer::Done)
            }
            step => Some(self.plain_step(&step, &pod, &way, &csi)),
        };
        if let Some(answer) = answer {
            way.answered(answer);
        }
        job.way = TaskDirection::ToPod(way);
        Ok(false)
    }

    fn facts(&self, key: &VolumeKey, target: &str) -> Facts {
        let staged = self.agent.table.is_staged(key) || self.defect == Some(StagingDefect::SkipsStaging);
        Facts { staged, published: self.agent.table.is_published(target), walked: false }
    }

    /// Carries out a step that ends at once.
    fn plain_step(
        &mut self,
        step: &PublishStep,
        pod: &PodUid,
        way: &Publishing,
        csi: &CsiVolume,
    ) -> PublishAnswer {
        let (key, fails) = (csi.key(), self.fails());
        let disk = |done: bool| if fails { Err(io_error()) } else { Ok(done) };
        match step {
            PublishStep::Object => {
                let attach = csi.driver == STAGER;
                let spec = json!({"volumeLifecycleModes": ["Persistent"], "attachRequired": attach,
                    "seLinuxMount": self.labelled});
                let object = json!({"metadata": {"name": csi.driver}, "spec": spec});
                PublishAnswer::Object(serde_json::from_value(object).map(Some).map_err(|e| e.to_string()))
            }
            PublishStep::Wish { attach } => {
                let attached = self.agent.table.wish(pod, &key, *attach);
                PublishAnswer::Attached(attached)
            }
            PublishStep::Attachment => {
                let found = json!({"metadata": {}, "status": {"attached": true},
                    "spec": {"attacher": "", "nodeName": "", "source": {}}});
                PublishAnswer::Attachment(serde_json::from_value(found).map_err(|e| e.to_string()))
            }
            PublishStep::Driver => PublishAnswer::Found(!fails),
            PublishStep::Capabilities => {
                let stages = csi.driver == STAGER;
                PublishAnswer::Capabilities(Ok(Capabilities { stages, ..Capabilities::default() }))
            }
            PublishStep::Facts => PublishAnswer::Facts(self.facts(&key, &target(pod, &csi.volume))),
            PublishStep::ReadDisk => {
                PublishAnswer::Held(disk(true).map(|_| self.disk.on_disk().remove(&key).unwrap_or_default()))
            }
            PublishStep::Record if fails => PublishAnswer::Recorded(Err(io_error())),
            PublishStep::Record if self.defect == Some(StagingDefect::WritesNoTarget) => {
                PublishAnswer::Recorded(Ok(true))
            }
            PublishStep::Record => {
                PublishAnswer::Recorded(Ok(self.disk.record(pod, csi, csi.data(way.terms()))))
            }
            PublishStep::RecordStage(_) if fails => PublishAnswer::Recorded(Err(io_error())),
            PublishStep::RecordStage(_) if self.defect == Some(StagingDefect::WritesNoStage) => {
                PublishAnswer::Recorded(Ok(true))
            }
            PublishStep::RecordStage(staged) => {
                let data = csi.staged_data(way.terms());
                PublishAnswer::Recorded(Ok(self.disk.record_stage(staged, data)))
            }
            PublishStep::ForgetStage(staged) => {
                if !fails {
                    self.disk.forget_stage(staged, &key);
                }
                PublishAnswer::Node(disk(true).map(drop))
            }
            PublishStep::Release => {
                if !fails {
                    self.disk.release(pod, &csi.volume);
                }
                PublishAnswer::Node(disk(true).map(drop))
            }
            PublishStep::Keep => PublishAnswer::Node(disk(true).map(drop)),
            PublishStep::Published { again } => {
                let of = Published { pod: pod.clone(), name: csi.volume.clone(), key, again: *again };
                self.agent.table.set_published(&target(pod, &csi.volume), Some(of));
                PublishAnswer::Done
            }
            // Volumes of this world have no Secrets, tokens or groups, and do not grow.
            _ => PublishAnswer::Done,
        }
    }

    fn step_from_pod(&mut self, job: &mut Job) -> Result<bool, Violation> {
        use unpublishing::UnpublishStep;
        let (TaskDirection::FromPod { way, volume, data }, Some(pod)) = (&job.way, job.pod.clone()) else {
            return Ok(true);
        };
        let (mut way, volume, data) = (way.clone(), volume.clone(), data.clone());
        let at = target(&pod, &volume);
        let key = data.as_ref().map(VolumeData::key);
        let done = if self.fails() { Err(io_error()) } else { Ok(()) };
        match (way.step(), key) {
            (UnpublishStep::Turn, Some(key)) => {
                if self.turn(job, &key) {
                    way.done(Ok(()));
                }
            }
            (UnpublishStep::Driver, _) => way.found(done.is_ok()),
            (UnpublishStep::Unpublished, _) => {
                self.agent.table.set_published(&at, None);
                way.done(Ok(()));
            }
            (UnpublishStep::Unpublish, Some(key)) => {
                if let Some(called) = self.call(job, Call::Unpublish(key, at))? {
                    way.called(called.map_err(|e| e.words));
                }
            }
            (UnpublishStep::Release, _) => {
                if done.is_ok() {
                    self.disk.release(&pod, &volume);
                }
                if let Some(key) = data.as_ref().map(VolumeData::key)
                    && self.defect == Some(StagingDefect::UnstagesUnderPods)
                {
                    let way = TaskDirection::ToDriver { way: Unstaging::default(), key };
                    let ticket = None;
                    self.agent.add(Job { pod: None, number: None, way, ticket, waits: false, call: None });
                }
                way.done(done);
            }
            (UnpublishStep::Leave, _) => way.done(done),
            (UnpublishStep::Done | UnpublishStep::Failed(_), _) | (_, None) => return Ok(true),
        }
        job.way = TaskDirection::FromPod { way, volume, data };
        Ok(false)
    }

    fn step_to_driver(&mut self, job: &mut Job) -> Result<bool, Violation> {
        use unstaging::UnstageStep;
        let TaskDirection::ToDriver { way, key } = &job.way else { return Ok(true) };
        let (mut way, key) = (way.clone(), key.clone());
        let fails = self.fails();
        let io = || if fails { Err(io_error().message) } else { Ok(()) };
        match way.step() {
            UnstageStep::Look => {
                let disk = self.disk.on_disk();
                let idle = self.may_unstage(&key, &disk);
                way.looked(io().map(|()| idle.then(|| held(&disk, &key))));
            }
            UnstageStep::IsThere(volume) => way.is_there(io().map(|()| self.disk.is_device_staged(&volume))),
            UnstageStep::Unstage(_) => {
                if let Some(called) = self.call(job, Call::Unstage(key.clone()))? {
                    way.done(called.map_err(|e| e.words));
                }
            }
            UnstageStep::Forget(staged) => {
                if !fails {
                    match &staged {
                        StagedAs::Files => self.disk.forget_stage(&staged, &key),
                        StagedAs::Device(volume) => self.disk.forget_device(volume),
                    }
                }
                way.done(io());
            }
            end @ (UnstageStep::Done | UnstageStep::InUse | UnstageStep::Failed(_)) => {
                if let Some(ticket) = job.ticket.take() {
                    self.agent.table.unstaged(&key, ticket, end == UnstageStep::Done, self.now);
                }
                return Ok(true);
            }
        }
        job.way = TaskDirection::ToDriver { way, key };
        Ok(false)
    }

    fn may_unstage(&mut self, key: &VolumeKey, disk: &OnDisk) -> bool {
        self.agent.table.may_unstage(key, disk) || self.defect == Some(StagingDefect::UnstagesUnderPods)
    }
}

fn held(disk: &OnDisk, key: &VolumeKey) -> VolumeOnDisk {
    disk.get(key).cloned().unwrap_or_default()
}
