//! Rotates the logs of running containers.
//!
//! ```text
//! PLEG's snapshots ─► RunningLogs ─► every containerLogMonitorInterval, a few at once: size ─► files (disk) ─► reopen (CRI)
//! ```
//! In: the logs that have a writer. Out: files in their directories, one `ReopenContainerLog` for each
//! rotation. Invariants: an agent that is killed at any point loses no line: the writer continues in its open
//! file until the runtime reopens the log, and the agent has a log without a file reopened; an idle node
//! sends the runtime no request. The decisions are in [`agent_kubelet_api::logs::rotation`]. Upstream:
//! pkg/kubelet/logs/container_log_manager.go.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_kubelet_api::drivers::ContainerLogs;
use agent_kubelet_api::logs::rotation::{Policy, RunningLog, RunningLogs};
use agent_linux::files::FilesError;
use agent_linux::log_rotation;
use agent_types::failure::Class;
use futures_util::{StreamExt as _, stream};
use orlop_config::kubelet::KubeletConfiguration;
use tokio::sync::watch;

use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;

/// When and how.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    policy: Policy,
    /// `containerLogMonitorInterval`.
    every: Duration,
    /// `containerLogMaxWorkers`.
    workers: usize,
}

impl Settings {
    /// `None` if logs are not rotated.
    #[must_use]
    pub fn of(kubelet: &KubeletConfiguration) -> Option<Settings> {
        let policy = Policy::new(kubelet.container_log_max_bytes(), kubelet.container_log_max_files)?;
        Some(Settings {
            policy,
            every: kubelet.container_log_monitor_interval.to_std(),
            workers: usize::try_from(kubelet.container_log_max_workers).unwrap_or(1).max(1),
        })
    }
}

/// Checks all logs periodically until the node stops.
pub async fn follow<L: ContainerLogs>(
    settings: Settings,
    running: watch::Receiver<RunningLogs>,
    runtime: Arc<L>,
    tasks: Tasks,
) {
    loop {
        let began = tasks.now().mono;
        let logs: Vec<(String, RunningLog)> = running
            .borrow()
            .iter()
            .flat_map(|(uid, logs)| logs.iter().map(|log| (uid.to_string(), log.clone())))
            .collect();
        stream::iter(logs)
            .for_each_concurrent(settings.workers, |(uid, log)| {
                let (policy, runtime, tasks) = (settings.policy, &*runtime, &tasks);
                async move {
                    if let Err(error) = look(policy, &log, runtime, tasks).await {
                        tracing::warn!(uid, container = log.name, path = log.path, error = %chain(&*error), "log not rotated");
                    }
                }
            })
            .await;
        tasks.wait_until(began.after(settings.every)).await;
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn look<L: ContainerLogs>(
    policy: Policy,
    log: &RunningLog,
    runtime: &L,
    tasks: &Tasks,
) -> Result<(), Failure> {
    let path = PathBuf::from(&log.path);
    match on_disk(tasks, &path, log_rotation::size).await? {
        Some(Some(size)) if size >= policy.size_max => rotate(policy, log, &path, runtime, tasks).await,
        // An earlier rotation ended between its two steps: the writer still uses the renamed file.
        Some(None) => Ok(runtime.reopen_log(&log.container).await?),
        _ => Ok(()),
    }
}

async fn rotate<L: ContainerLogs>(
    policy: Policy,
    log: &RunningLog,
    path: &Path,
    runtime: &L,
    tasks: &Tasks,
) -> Result<(), Failure> {
    let Some(tidied) = on_disk(tasks, path, move |path| log_rotation::tidy(path, &policy)).await? else {
        return Ok(());
    };
    for error in &tidied.failures {
        tracing::warn!(container = log.name, error = %chain(error), "a rotated log is not compressed");
    }
    let now = tasks.now().wall;
    let rotated = match on_disk(tasks, path, move |path| log_rotation::set_aside(path, now)).await {
        Ok(Some(rotated)) => rotated,
        Ok(None) => return Ok(()),
        // The container was removed meanwhile, or the last rotation was within this second.
        Err(error) if matches!(error.class(), Class::NotFound | Class::AlreadyExists) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let Err(refused) = runtime.reopen_log(&log.container).await else { return Ok(()) };
    // A call without an answer may have taken effect, or will: then the runtime has made a new log, or this file is the
    // log.
    let from = rotated.clone();
    match on_disk(tasks, path, move |path| log_rotation::put_back(&from, path)).await {
        Err(error) if error.class() != Class::NotFound => {
            tracing::warn!(container = log.name, rotated = %rotated.display(), error = %chain(&error), "log not moved back");
        }
        _ => {}
    }
    Err(refused.into())
}

/// `None` if the agent is ending.
async fn on_disk<T: Send + 'static>(
    tasks: &Tasks,
    path: &Path,
    work: impl FnOnce(&Path) -> Result<T, FilesError> + Send + 'static,
) -> Result<Option<T>, FilesError> {
    let path = path.to_owned();
    tasks.blocking(move || work(&path)).await.transpose()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use agent_types::failure::DriverError;
    use agent_types::ids::ContainerId;
    use tokio_util::sync::CancellationToken;

    use crate::node::log_rotation::*;
    use crate::testing::VirtualClock;

    /// A runtime with one container that writes to `log`.
    struct Writer {
        log: PathBuf,
        refuses: bool,
        makes: bool,
        calls: AtomicU32,
    }

    impl ContainerLogs for Writer {
        async fn reopen_log(&self, _container: &ContainerId) -> Result<(), DriverError> {
            self.calls.fetch_add(1, Ordering::SeqCst);
            if self.makes {
                std::fs::write(&self.log, "new").unwrap();
            }
            if !self.refuses {
                return Ok(());
            }
            Err(DriverError {
                operation: "ReopenContainerLog",
                object: "c".into(),
                class: Class::DeadlineExceeded,
                message: "no answer".into(),
            })
        }
    }

    struct RotationFixture {
        dir: tempfile::TempDir,
        tasks: Tasks,
        writer: Writer,
    }

    impl RotationFixture {
        fn new(makes: bool, refuses: bool) -> RotationFixture {
            let dir = tempfile::tempdir().unwrap();
            let log = dir.path().join("0.log");
            std::fs::write(&log, "0123456789").unwrap();
            let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
            RotationFixture { dir, tasks, writer: Writer { log, refuses, makes, calls: AtomicU32::new(0) } }
        }

        async fn look(&self, size_max: i64) -> Result<(), Failure> {
            let log = RunningLog {
                container: "c".into(),
                name: "main".into(),
                path: self.writer.log.display().to_string(),
            };
            look(Policy::new(size_max, 5).unwrap(), &log, &self.writer, &self.tasks).await
        }

        fn files(&self) -> Vec<String> {
            let mut contents: Vec<String> = std::fs::read_dir(self.dir.path())
                .unwrap()
                .map(|e| std::fs::read_to_string(e.unwrap().path()).unwrap())
                .collect();
            contents.sort();
            contents
        }
    }

    #[tokio::test(start_paused = true)]
    async fn large_ones_only_and_a_missing_one_is_opened_anew() {
        let p = RotationFixture::new(true, false);
        p.look(11).await.unwrap();
        assert_eq!((p.files(), p.writer.calls.load(Ordering::SeqCst)), (vec!["0123456789".to_owned()], 0));
        p.look(10).await.unwrap();
        assert_eq!(p.files(), ["0123456789", "new"]);
        std::fs::remove_file(&p.writer.log).unwrap();
        p.look(10).await.unwrap();
        assert_eq!((p.files().len(), p.writer.calls.load(Ordering::SeqCst)), (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reopening_that_fails_leaves_no_log_without_its_name_and_replaces_none() {
        let p = RotationFixture::new(false, true);
        p.look(10).await.unwrap_err();
        assert_eq!(std::fs::read_to_string(&p.writer.log).unwrap(), "0123456789");
        assert_eq!(p.files().len(), 1);
        // The runtime did it, but the answer was lost.
        let p = RotationFixture::new(true, true);
        p.look(10).await.unwrap_err();
        assert_eq!(p.files(), ["0123456789", "new"]);
    }

    #[test]
    fn a_negative_size_turns_it_off() {
        let kubelet = |size: &str| KubeletConfiguration {
            container_log_max_size: size.to_owned(),
            ..KubeletConfiguration::default()
        };
        assert!(Settings::of(&kubelet("-1")).is_none());
        let settings = Settings::of(&kubelet("1Ki")).unwrap();
        assert_eq!((settings.policy.size_max, settings.policy.files_max), (1024, 5));
        assert_eq!((settings.every, settings.workers), (Duration::from_secs(10), 1));
    }
}
