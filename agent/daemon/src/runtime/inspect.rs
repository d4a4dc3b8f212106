//! Inspects one pod in the runtime, and reads the termination messages of its ended containers.
//!
//! In: a pod's UID. Out: the runtime's observation, with termination messages in `message`.
//! [`agent_core::status::last_words`] chooses source and length. Invariants: only the file that the agent made for the
//! instance is read, not a path that a container names; if a message cannot be read, the message contains the error.

use std::path::Path;
use std::sync::Arc;

use agent_core::eviction::system_oom;
use agent_core::status::last_words::{self, TerminationMessageSources};
use agent_kubelet_api::drivers::{PodObservation, Runtime};
use agent_linux::files;
use agent_types::failure::{Class, DriverError};
use agent_types::ids::{PodKey, PodUid};
use agent_types::runtime::observed::{ContainerObserved, ListedPod};

use crate::node::system_oom::KernelKills;
use crate::pods::pod_dirs::PodDirs;
use crate::tasks::actor::Tasks;
use crate::tasks::stops::AgentStops;

/// The runtime and the pods' directories; clones share them.
pub struct Observer<R> {
    runtime: Arc<R>,
    dirs: Arc<PodDirs>,
    kills: KernelKills,
    tasks: Tasks,
}

impl<R> Clone for Observer<R> {
    fn clone(&self) -> Self {
        Observer {
            runtime: self.runtime.clone(),
            dirs: self.dirs.clone(),
            kills: self.kills.clone(),
            tasks: self.tasks.clone(),
        }
    }
}

impl<R: Runtime> Observer<R> {
    /// An observer of one runtime.
    pub fn new(runtime: Arc<R>, dirs: Arc<PodDirs>, tasks: Tasks) -> Observer<R> {
        Observer { runtime, dirs, kills: KernelKills::default(), tasks }
    }

    /// Its record of the kernel's OOM kills, to which the caller adds kills.
    #[must_use]
    pub fn kills(&self) -> KernelKills {
        self.kills.clone()
    }

    /// [`Runtime::list`].
    ///
    /// # Errors
    /// The runtime's.
    pub async fn list(&self) -> Result<Vec<ListedPod>, DriverError> {
        self.runtime.list().await
    }

    /// [`Runtime::inspect`], with termination messages, the resources that containers were given, and OOM kills.
    ///
    /// # Errors
    /// The runtime's, or that the agent stops.
    pub async fn inspect(&self, uid: &PodUid) -> Result<(Option<PodKey>, PodObservation), DriverError> {
        let (key, mut observation) = self.runtime.inspect(uid).await?;
        observation
            .containers
            .iter_mut()
            .filter(|c| self.kills.contains(&c.id))
            .for_each(system_oom::correct);
        observation.actuated = self.dirs.recall_actuated(uid, &mut observation.containers);
        if !observation.containers.iter().any(|c| last_words::places(c).is_some()) {
            return Ok((key, observation));
        }
        let (dirs, of) = (self.dirs.clone(), uid.clone());
        let read = move || {
            for container in observation.containers.iter_mut() {
                if let Some(places) = last_words::places(container) {
                    let words = words(&dirs, &of, container, places);
                    container.message = last_words::joined(&container.message, &words);
                }
            }
            observation
        };
        let stops = || DriverError {
            operation: "inspect",
            object: uid.to_string(),
            class: Class::Unavailable,
            message: AgentStops.into(),
        };
        Ok((key, self.tasks.blocking(read).await.ok_or_else(stops)?))
    }
}

fn words(
    dirs: &PodDirs,
    uid: &PodUid,
    container: &ContainerObserved,
    places: TerminationMessageSources,
) -> String {
    if places.file {
        let path = dirs.termination_log(uid, &container.name, container.attempt);
        let file = path.and_then(|path| Ok(files::read_end(&path, last_words::FILE_BYTES_MAX)?));
        match file {
            Ok((words, _)) if !words.is_empty() => return String::from_utf8_lossy(&words).into_owned(),
            Err(e) if e.class != Class::NotFound => {
                return format!("Error on reading termination log {}: {}", e.object, e.message);
            }
            Ok(_) | Err(_) => {}
        }
    }
    if !places.log || container.log_path.is_empty() {
        return String::new();
    }
    match files::read_end(Path::new(&container.log_path), last_words::LOG_READ_BYTES) {
        Ok((end, whole)) => last_words::of_log(&end, whole),
        Err(e) => {
            format!("Error on reading termination message from logs: {}", crate::pods::pod_dirs::chain(&e))
        }
    }
}

#[cfg(test)]
mod tests {
    use agent_types::runtime::labels;
    use agent_types::runtime::observed::ContainerState;
    use agent_types::time::Wall;

    use super::*;

    fn ended(log: &Path, policy: &str) -> ContainerObserved {
        let annotations = [
            (labels::TERMINATION_MESSAGE_PATH, "/dev/termination-log"),
            (labels::TERMINATION_MESSAGE_POLICY, policy),
        ];
        ContainerObserved {
            state: ContainerState::Exited,
            started: Some(Wall(1)),
            finished: Some(Wall(2)),
            exit_code: 3,
            log_path: log.display().to_string(),
            annotations: annotations.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..ContainerObserved::created("c", "s", "main", 2, Wall(1))
        }
    }

    fn words_of(dirs: &PodDirs, container: &ContainerObserved) -> String {
        words(dirs, &"u-1".into(), container, last_words::places(container).unwrap())
    }

    #[test]
    fn the_file_then_the_log_then_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = PodDirs::new(dir.path(), &dir.path().join("logs"), &dir.path().join("links"));
        let log = dir.path().join("0.log");
        let (file, fallback) = (ended(&log, "File"), ended(&log, "FallbackToLogsOnError"));
        assert_eq!(words_of(&dirs, &file), "");
        assert!(words_of(&dirs, &fallback).contains("0.log"), "says what cannot be read");
        std::fs::write(&log, "2026-11-21T04:00:00Z stderr F out of cheese\n").unwrap();
        assert_eq!(words_of(&dirs, &file), "");
        assert_eq!(words_of(&dirs, &fallback), "out of cheese\n");
        let own = dir.path().join("pods/u-1/containers/main/00000002");
        std::fs::create_dir_all(own.parent().unwrap()).unwrap();
        std::fs::write(&own, "").unwrap();
        assert_eq!(words_of(&dirs, &fallback), "out of cheese\n", "an empty file is none");
        std::fs::write(&own, format!("{}the end", "x".repeat(5000))).unwrap();
        let message = words_of(&dirs, &fallback);
        assert!(message.len() == 4096 && message.ends_with("the end"), "{message}");
    }

    #[test]
    fn a_link_in_the_place_of_the_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = PodDirs::new(dir.path(), &dir.path().join("logs"), &dir.path().join("links"));
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "secret").unwrap();
        let own = dir.path().join("pods/u-1/containers/main/00000002");
        std::fs::create_dir_all(own.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&secret, &own).unwrap();
        let message = words_of(&dirs, &ended(&dir.path().join("0.log"), "File"));
        assert!(message.starts_with("Error on reading termination log ") && !message.contains("secret\n"));
        let escape = ContainerObserved { name: "../../..".to_owned(), ..ended(&secret, "File") };
        assert!(words_of(&dirs, &escape).contains("outside of the pod's own directories"));
    }
}
