//! Change of a volume's group (`fsGroup`): each walk through the files is a job of its own.
//!
//! ```text
//! set-up effect ──run──► job: waits for the volume's earlier walk, then a thread ──► answer ──► the next effect
//!       ▲  waits PATIENCE at most, then "still going on"      ▲ end: the pod goes, or the agent stops
//! ```
//! In: a pod's volume, and the work on its files. Out: the result, or the progress of the work. Invariants: one job for
//! a volume of a pod, and one walk at a time through a volume that several pods use; a job outlives the effect that
//! began it, so a walk that takes longer than an effect's deadline is not started again and ends; a result is delivered
//! once; when a pod's volumes are torn down its jobs are over, because a walk holds directories open. Upstream:
//! pkg/volume/volume_linux.go.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_core::pod_worker::effect::EffectError;
use agent_linux::files::FilesError;
use agent_linux::volumes::ownership::{self, Progress};
use agent_linux::volumes::{SetFsGroup, VolumeError};
use agent_types::failure::Class;
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_types::time::Mono;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::tasks::actor::Tasks;

/// How long an effect waits for a job. Short, because a pod that ends waits for its effects.
const PATIENCE: Duration = Duration::from_secs(10);

/// A volume of a pod: UID, name.
type Key = (PodUid, String);
/// Result of a set-up: a warning about the volume, or the error.
type SetUpResult = Result<Option<String>, EffectError>;
/// Gives a directory and everything in it to a group.
type Giver = dyn Fn(&Path, u32, &Progress) -> Result<(), FilesError> + Send + Sync;

/// A job that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnershipProgress {
    /// Number of entries that the walk has visited.
    pub(crate) entries: u64,
    /// Time since the start of the job.
    pub(crate) took: Duration,
}

/// The jobs of a node; clones share them.
#[derive(Clone)]
pub(crate) struct Ownership {
    jobs: Arc<Lock<BTreeMap<Key, Arc<Job>>>>,
    giver: Arc<Giver>,
}

struct Job {
    began: Mono,
    progress: Arc<Progress>,
    end: CancellationToken,
    answer: watch::Receiver<Option<SetUpResult>>,
}

impl Default for Ownership {
    fn default() -> Self {
        Ownership::by(Arc::new(|path: &Path, group, progress: &Progress| {
            ownership::give(path, group, false, progress)
        }))
    }
}

impl Job {
    /// Its result; `None` if the job's task ended without one.
    async fn answer(&self) -> Option<SetUpResult> {
        let mut answer = self.answer.clone();
        // No await holds the lock that the value is behind.
        answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone())
    }

    fn going(&self, now: Mono) -> OwnershipProgress {
        OwnershipProgress { entries: self.progress.entries(), took: now.since(self.began) }
    }
}

impl Ownership {
    /// An owner of jobs with another function that changes groups.
    pub(crate) fn by(giver: Arc<Giver>) -> Ownership {
        Ownership { jobs: Arc::default(), giver }
    }

    fn job(&self, uid: &PodUid, name: &str) -> Option<Arc<Job>> {
        self.jobs.lock().get(&(uid.clone(), name.to_owned())).cloned()
    }

    /// True if the volume has a job, or a result that was not delivered to an effect.
    pub(crate) fn has(&self, uid: &PodUid, name: &str) -> bool {
        self.job(uid, name).is_some()
    }

    /// Waits a while for the volume's job, if there is one. `Some`: the job goes on.
    pub(crate) async fn wait(&self, tasks: &Tasks, uid: &PodUid, name: &str) -> Option<OwnershipProgress> {
        let job = self.job(uid, name)?;
        match timeout(PATIENCE, job.answer()).await {
            Ok(_) => None,
            Err(_) => Some(job.going(tasks.now().mono)),
        }
    }

    /// Runs `work` as the job of a pod's volume, unless there is one already, and waits a while for its result.
    /// `volume` is the name of the volume that several pods may use: one of them at a time works on it.
    ///
    /// # Errors
    /// The error of the work, or that the job was ended.
    pub(crate) async fn run(
        &self,
        tasks: &Tasks,
        uid: &PodUid,
        name: &str,
        volume: &str,
        work: impl FnOnce(SetFsGroup<'_>) -> Result<Option<String>, VolumeError> + Send + 'static,
    ) -> Result<Result<Option<String>, OwnershipProgress>, EffectError> {
        let key = (uid.clone(), name.to_owned());
        let job = match self.jobs.lock().entry(key.clone()) {
            std::collections::btree_map::Entry::Occupied(there) => there.get().clone(),
            std::collections::btree_map::Entry::Vacant(none) => {
                none.insert(Arc::new(self.begin(tasks, volume.to_owned(), work))).clone()
            }
        };
        let Ok(answer) = timeout(PATIENCE, job.answer()).await else {
            return Ok(Err(job.going(tasks.now().mono)));
        };
        self.forget(&key, &job);
        answer.unwrap_or_else(|| Err(ended())).map(Ok)
    }

    fn begin(
        &self,
        tasks: &Tasks,
        volume: String,
        work: impl FnOnce(SetFsGroup<'_>) -> Result<Option<String>, VolumeError> + Send + 'static,
    ) -> Job {
        let (said, answer) = watch::channel(None);
        let progress = Arc::new(Progress::default());
        let end = tasks.stop().child_token();
        let job = Job { began: tasks.now().mono, progress: progress.clone(), end: end.clone(), answer };
        let (giver, walked) = (self.giver.clone(), progress.clone());
        let work = move || work(&|path: &Path, group| giver(path, group, &walked));
        let at = tasks.clone();
        tasks.finish(async move {
            let mut walk = std::pin::pin!(at.blocking_walk(&volume, &end, work));
            let done = tokio::select! {
                biased;
                done = &mut walk => done,
                () = end.cancelled() => {
                    // A thread cannot be dropped: it is asked to end, and waited for.
                    progress.end();
                    walk.await
                }
            };
            let answer =
                done.map_or_else(|| Err(ended()), |done| crate::pods::execute::volume_answer(Some(done)));
            said.send_replace(Some(answer));
        });
        job
    }

    /// Ends all jobs of a pod, and waits until none is left.
    pub(crate) async fn end(&self, uid: &PodUid) {
        let of_pod = |(key, job): (&Key, &Arc<Job>)| (key.0 == *uid).then(|| (key.clone(), job.clone()));
        let all: Vec<_> = self.jobs.lock().iter().filter_map(of_pod).collect();
        for (_, job) in &all {
            job.end.cancel();
        }
        for (key, job) in &all {
            job.answer().await;
            self.forget(key, job);
        }
    }

    fn forget(&self, key: &Key, job: &Arc<Job>) {
        let mut jobs = self.jobs.lock();
        if jobs.get(key).is_some_and(|there| Arc::ptr_eq(there, job)) {
            jobs.remove(key);
        }
    }
}

fn ended() -> EffectError {
    let message = "setting the group of the volume's files was ended".to_owned();
    EffectError { class: Class::Retryable { after_ms: 0 }, message }
}

#[cfg(test)]
mod tests;
