//! Set-up of CSI volumes. The tear-down is in `super::csi_tear_down`.
//!
//! In: a [`CsiVolume`]. Out: calls of the driver, each with upstream's time limit; records on disk; the effect's
//! result. Invariant: the module decides nothing: [`Publishing`] names the next step; the owner of the table of stages
//! (`crate::volumes::csi::volume_table`) grants turns, and cleans up volumes that no pod uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult, Mounted};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_linux::volumes::{SetFsGroup, VolumeError};
use agent_plugins::PluginError;
use agent_types::failure::{Class, DriverError};
use agent_types::ids::PodKey;
use agent_types::objects::{ObjectRef, Objects, look_up};
use agent_types::time::Wall;
use agent_volumes::SetUp;
use agent_volumes::csi::failures::{CallFailed, Failure, StagedAs};
use agent_volumes::csi::publishing::{
    End, Facts, Paths, PublishAnswer, PublishStep, Publishing, SecretFor, Tokens,
};
use agent_volumes::csi::request::{DriverToken, Publish, Stage};
use agent_volumes::csi::source::SecretRef;
use agent_volumes::csi::{CsiVolume, Terms};
use agent_volumes::volume_table::Published;

use super::Executor;
use super::results::error;
use super::volumes::{RENEW_MIN, answer, given};
use crate::tasks::stops::AgentStops;
use crate::volumes::csi::Csi;
use crate::volumes::csi::volumes::Turn;

/// Period of republishing for drivers that require it, and of looks at a claim (upstream: between 60 and 90 s).
pub(super) const AGAIN: Duration = Duration::from_secs(75);

/// The set-up of one volume of one pod.
pub(super) struct Job<'a, R, I> {
    pub(super) executor: &'a Executor<R, I>,
    key: &'a PodKey,
    set_up: &'a SetUp,
    node: Csi,
    pub(super) paths: Paths,
    /// The driver's socket, once it is looked up.
    pub(super) endpoint: PathBuf,
    /// The volume's turn, when it is granted.
    turn: Option<Turn>,
    /// Files that are still being given to their group.
    giving: Option<EffectOk>,
}

/// Publishes a volume; the first pod of the node that uses it stages it first.
pub(super) async fn set_up<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    set_up: &SetUp,
    csi: &CsiVolume,
) -> EffectResult {
    let (dirs, node) = (&executor.dirs, executor.sources.csi());
    let (target, staging) = match csi.block {
        Some(_) => {
            (dirs.device_target(&key.uid, &csi.volume).display().to_string(), dirs.device_stage(&csi.volume))
        }
        None => (set_up.path.clone(), dirs.stage_of(&csi.key())),
    };
    let paths = Paths { target, staging: staging.display().to_string() };
    let mut way = Publishing::new(csi, &key.uid, paths.clone(), set_up.fs_group);
    if node.volumes.is_settled(&paths.target).await {
        way = way.settled();
    }
    let endpoint = PathBuf::new();
    let mut job = Job { executor, key, set_up, node, paths, endpoint, turn: None, giving: None };
    loop {
        match way.step() {
            PublishStep::End(end) => return job.end(end),
            step => {
                let answer = job.take(step, &way).await?;
                way.answered(answer);
            }
        }
    }
}

impl<R: Runtime, I: ImageService> Job<'_, R, I> {
    /// Takes a step. The error means that the agent stops.
    async fn take(&mut self, step: PublishStep, way: &Publishing) -> Result<PublishAnswer, EffectError> {
        Ok(match step {
            PublishStep::Object => {
                let object = self.executor.sources.csi_driver(way.volume().driver.clone()).await;
                PublishAnswer::Object(object.map(|object| object.map(Box::new)))
            }
            PublishStep::Attachment => self.attachment(way.volume()).await,
            PublishStep::Secret(of) => PublishAnswer::Secret(self.secret_for(of).await),
            PublishStep::Tokens => PublishAnswer::Tokens(self.tokens(way.terms()).await),
            PublishStep::Driver => {
                let endpoint = self.node.registered.endpoint(&way.volume().driver);
                let found = endpoint.is_some();
                self.endpoint = endpoint.unwrap_or_default();
                PublishAnswer::Found(found)
            }
            PublishStep::AskLimits => {
                let csi = way.volume();
                tracing::info!(driver = csi.driver, volume = csi.handle, "the node has no room for a volume");
                self.node.limits.ask(&csi.driver).await;
                self.executor.metrics.no_room_for_volume();
                PublishAnswer::Done
            }
            PublishStep::Grow { staged, in_use } => {
                PublishAnswer::Grown(self.expand(way, staged, in_use).await)
            }
            PublishStep::Give(group) => {
                let given = self.give(group, way.volume()).await;
                PublishAnswer::Given(
                    given
                        .map(|given| match given {
                            Ok(_) => true,
                            Err(giving) => {
                                self.giving = Some(giving);
                                false
                            }
                        })
                        .map_err(failure),
                )
            }
            PublishStep::Capabilities
            | PublishStep::Unstage
            | PublishStep::Stage(_)
            | PublishStep::Publish(_) => self.call(step, way.volume()).await,
            PublishStep::Wish { .. }
            | PublishStep::Turn
            | PublishStep::Facts
            | PublishStep::Staged(_)
            | PublishStep::Published { .. } => self.of_table(step, way.volume()).await?,
            step => self.write(step, way).await,
        })
    }

    /// The driver is asked.
    async fn call(&self, step: PublishStep, csi: &CsiVolume) -> PublishAnswer {
        match step {
            PublishStep::Capabilities => {
                let driver = agent_plugins::capabilities(&self.endpoint).await;
                PublishAnswer::Capabilities(driver.map_err(|e| {
                    tracing::debug!(driver = csi.driver, error = %e, "a driver does not say what it can do");
                    e.words()
                }))
            }
            PublishStep::Unstage => {
                let at = self.executor.dirs.stage_of(&csi.key());
                PublishAnswer::Called(
                    agent_plugins::unstage(&self.endpoint, &csi.handle, &at).await.map_err(call_failed),
                )
            }
            PublishStep::Stage(request) => PublishAnswer::Called(self.stage(&request, csi).await),
            PublishStep::Publish(request) => PublishAnswer::Called(self.publish(&request, csi).await),
            _ => PublishAnswer::Done,
        }
    }

    async fn stage(&self, request: &Stage, csi: &CsiVolume) -> Result<(), CallFailed> {
        agent_plugins::stage(&self.endpoint, request).await.map_err(|e| {
            tracing::warn!(driver = csi.driver, volume = csi.handle, error = %e, "volume is not staged");
            call_failed(e)
        })
    }

    async fn publish(&self, request: &Publish, csi: &CsiVolume) -> Result<(), CallFailed> {
        agent_plugins::publish(&self.endpoint, request).await.map_err(|e| {
            tracing::warn!(driver = csi.driver, volume = csi.handle, error = %e, "volume is not published");
            call_failed(e)
        })
    }

    /// Steps that need the owner of the table of stages.
    async fn of_table(&mut self, step: PublishStep, csi: &CsiVolume) -> Result<PublishAnswer, EffectError> {
        let (volumes, key, pod) = (&self.node.volumes, csi.key(), &self.key.uid);
        Ok(match step {
            PublishStep::Wish { attach } => PublishAnswer::Attached(volumes.wish(pod, &key, attach).await),
            PublishStep::Turn => {
                self.turn = Some(volumes.turn(&key).await.ok_or(AgentStops)?);
                self.facts(csi).await?
            }
            PublishStep::Facts => self.facts(csi).await?,
            PublishStep::Staged(is) => {
                if let Some(turn) = &self.turn {
                    turn.set_staged(is);
                }
                PublishAnswer::Done
            }
            PublishStep::Published { again } => {
                let (pod, name) = (pod.clone(), self.set_up.name.clone());
                volumes.published(&self.paths.target, Published { pod, name, key, again });
                PublishAnswer::Done
            }
            _ => PublishAnswer::Done,
        })
    }

    async fn facts(&self, csi: &CsiVolume) -> Result<PublishAnswer, EffectError> {
        let facts = self.node.volumes.facts(&csi.key(), &self.paths.target).await;
        let facts = facts.ok_or(AgentStops)?;
        let walked = self.executor.ownership.has(&self.key.uid, &self.set_up.name);
        Ok(PublishAnswer::Facts(Facts { walked, ..facts }))
    }

    /// The disk is read or written.
    async fn write(&self, step: PublishStep, way: &Publishing) -> PublishAnswer {
        let (tasks, at) = (&self.executor.tasks, self.executor.dirs.clone());
        let (csi, uid, target) = (way.volume(), self.key.uid.clone(), self.paths.target.clone());
        let (key, device) = (csi.key(), csi.block.as_ref().map(|_| csi.volume.clone()));
        match step {
            PublishStep::ReadDisk => {
                let read = tasks.blocking(move || at.csi_on_disk()).await;
                let held = of_disk(read).map(|mut all| all.remove(&key).unwrap_or_default());
                PublishAnswer::Held(held)
            }
            PublishStep::Record => {
                let data = csi.data(way.terms());
                let recorded = tasks.blocking_of_pod(&self.key.uid, move || match device {
                    Some(volume) => at.prepare_device(&uid, &volume, &data),
                    None => at.prepare_target(&uid, &target, &data),
                });
                PublishAnswer::Recorded(of_volume(recorded.await))
            }
            PublishStep::RecordStage(staged) => {
                let data = csi.staged_data(way.terms());
                let recorded = tasks.blocking_of_volume(&csi.handle, move || match staged {
                    StagedAs::Device(volume) => at.prepare_device_stage(&volume),
                    StagedAs::Files => at.prepare_stage(&key, &data),
                });
                PublishAnswer::Recorded(of_volume(recorded.await).map(|(_, new)| new))
            }
            PublishStep::ForgetStage(staged) => {
                let forgotten = tasks.blocking_of_volume(&csi.handle, move || match staged {
                    StagedAs::Device(volume) => at.device_unstaged(&volume),
                    StagedAs::Files => at.unstaged(&key),
                });
                PublishAnswer::Node(of_disk(forgotten.await))
            }
            PublishStep::Release => {
                let released = tasks.blocking_of_pod(&self.key.uid, move || match device {
                    Some(volume) => at.release_device(&uid, &volume),
                    None => at.release_target(&uid, Path::new(&target)),
                });
                PublishAnswer::Node(of_disk(released.await))
            }
            PublishStep::Keep => {
                let volume = csi.volume.clone();
                let kept = tasks.blocking_of_pod(&self.key.uid, move || at.keep_device(&uid, &volume));
                PublishAnswer::Node(of_volume(kept.await))
            }
            _ => PublishAnswer::Done,
        }
    }

    /// The answer of the effect.
    fn end(&mut self, end: End) -> EffectResult {
        match end {
            End::Published { renew_after, again, resize, labelled } => {
                // There is no watch on claims: look again later whether the claim has grown.
                let renew_after = [renew_after, again.then_some(AGAIN)].into_iter().flatten().min();
                Ok(EffectOk::Volume(Mounted { renew_after, warning: None, resize, labelled }))
            }
            End::Unattached { full } => Ok(EffectOk::Unattached { full }),
            End::Unprocessed { why } => Ok(EffectOk::Unprocessed { why }),
            End::Giving => self.giving.take().ok_or_else(|| refusal("nothing is given".to_owned())),
            End::Failed(Failure { class, message }) => Err(EffectError { class, message }),
        }
    }

    async fn attachment(&self, csi: &CsiVolume) -> PublishAnswer {
        let name = csi.attachment();
        let found = self.executor.sources.attachment(name.clone()).await;
        PublishAnswer::Attachment(found.map(Box::new).inspect_err(|why| {
            tracing::debug!(volume = csi.handle, attachment = name, why, "VolumeAttachment is not read");
        }))
    }

    /// Changes the group of the published files.
    async fn give(
        &self,
        group: u32,
        csi: &CsiVolume,
    ) -> Result<Result<Option<String>, EffectOk>, EffectError> {
        let executor = self.executor;
        let (at, uid, target) = (executor.dirs.clone(), self.key.uid.clone(), self.paths.target.clone());
        let by_root = csi.by_root;
        let work =
            move |give: SetFsGroup<'_>| at.give_target(&uid, &target, group, by_root, give).map(|()| None);
        let shared = format!("{}/{}", csi.driver, csi.handle);
        given(executor, self.key, self.set_up, &shared, work).await
    }

    async fn secret_for(&self, of: SecretFor) -> Result<BTreeMap<String, String>, String> {
        match of {
            SecretFor::Inline(of) => self.watched_secret(of).await,
            SecretFor::Publish(of) | SecretFor::Stage(of) => self.secret(&of).await,
        }
    }

    /// A Secret of a PersistentVolume.
    pub(super) async fn secret(&self, of: &SecretRef) -> Result<BTreeMap<String, String>, String> {
        self.executor.sources.secret(of.clone()).await.map(|found| text(found.data))
    }

    async fn watched_secret(&self, of: ObjectRef) -> Result<BTreeMap<String, String>, String> {
        let known = Objects::from([(of.clone(), self.executor.sources.fetch(of.clone()).await)]);
        let found = look_up(&known, &of, false)?;
        Ok(text(found.map(|found| found.data.clone()).unwrap_or_default()))
    }

    /// The driver's tokens, and the renewal time of the first one.
    async fn tokens(&self, terms: &Terms) -> Result<Tokens, String> {
        let now = self.executor.tasks.now().wall;
        let (mut given, mut renew) = (Vec::new(), None::<Wall>);
        for token in &terms.tokens {
            let held = self.executor.sources.token(token.clone()).await?;
            // Only a driver with `requiresRepublish` gets the next token.
            if terms.again {
                renew = Some(renew.map_or(held.renew, |at| at.min(held.renew)));
            }
            given.push(DriverToken { audience: token.audience.clone(), text: held.text, ends: held.ends });
        }
        Ok(Tokens { given, renew_after: renew.map(|at| at.since(now).max(RENEW_MIN)) })
    }
}

fn text(data: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, String> {
    data.into_iter().map(|(k, v)| (k, String::from_utf8_lossy(&v).into_owned())).collect()
}

fn call_failed(e: PluginError) -> CallFailed {
    CallFailed { words: e.words(), is_final: e.is_final() }
}

pub(super) fn failure(EffectError { class, message }: EffectError) -> Failure {
    Failure { class, message }
}

/// The end of work on a volume's files.
fn of_volume<T>(done: Option<Result<T, VolumeError>>) -> Result<T, Failure> {
    answer(done).map_err(failure)
}

/// The end of other work on the disk.
pub(super) fn of_disk<T>(done: Option<Result<T, DriverError>>) -> Result<T, Failure> {
    let Some(done) = done else { return Err(failure(AgentStops.into())) };
    done.map_err(|e| failure(error(e)))
}

pub(super) fn refusal(message: String) -> EffectError {
    EffectError { class: Class::Retryable { after_ms: 0 }, message }
}
