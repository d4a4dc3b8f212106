//! Jobs whose walks go on until a test releases them, or until they are ended.

use std::io;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use futures_util::FutureExt;

use super::*;
use crate::testing::VirtualClock;

/// Walks that go on until they are let go.
struct Slow {
    tasks: Tasks,
    ownership: Ownership,
    /// Names of directories whose walks have begun.
    begun: Receiver<String>,
    /// Each message ends one walk.
    release: Sender<()>,
}

impl Slow {
    fn new() -> Slow {
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let (begin, begun) = channel();
        let (release, released) = channel();
        let released = Mutex::new(released);
        let giver = move |path: &Path, _: u32, progress: &Progress| {
            progress.step();
            begin.send(path.display().to_string()).unwrap();
            loop {
                if progress.is_ended() {
                    let source = io::ErrorKind::Interrupted.into();
                    return Err(FilesError { operation: "give", path: path.to_owned(), source });
                }
                match released.lock().unwrap().recv_timeout(Duration::from_millis(5)) {
                    Ok(()) => return Ok(()),
                    Err(_) => std::thread::yield_now(),
                }
            }
        };
        Slow { tasks, ownership: Ownership::by(Arc::new(giver)), begun, release }
    }

    /// Asks for a job that gives `/<name>` of a pod, which is volume `shared`.
    async fn run(
        &self,
        uid: &str,
        name: &'static str,
        shared: &str,
    ) -> Result<Result<Option<String>, OwnershipProgress>, EffectError> {
        let work = move |give: SetFsGroup<'_>| {
            give(&Path::new("/").join(name), 7)?;
            Ok(Some(format!("{name} is given")))
        };
        self.ownership.run(&self.tasks, &uid.into(), name, shared, work).await
    }

    /// The directory whose walk begins next, if no other one begins meanwhile.
    async fn begins(&self) -> String {
        loop {
            if let Ok(begun) = self.begun.try_recv() {
                return begun;
            }
            tokio::task::yield_now().await;
        }
    }

    fn jobs(&self) -> usize {
        self.ownership.jobs.lock().len()
    }
}

/// Lets a walk take longer than any caller waits: the clock of a test stands still while a thread is busy.
async fn impatient<T>(asks: impl Future<Output = T>) -> T {
    tokio::join!(asks, tokio::time::advance(PATIENCE)).0
}

#[tokio::test(start_paused = true)]
async fn a_walk_that_takes_longer_than_its_askers_wait_goes_on_and_is_not_begun_again() {
    let slow = Slow::new();
    // The first asker gives up, as an effect does at its deadline.
    assert!(slow.run("u", "v", "shared").now_or_never().is_none());
    assert_eq!(slow.begins().await, "/v");
    let going = impatient(slow.run("u", "v", "shared")).await.unwrap().unwrap_err();
    assert_eq!((going.entries, going.took), (1, PATIENCE));
    let going = impatient(slow.ownership.wait(&slow.tasks, &"u".into(), "v")).await.unwrap();
    assert_eq!((going.entries, going.took), (1, 2 * PATIENCE));
    slow.release.send(()).unwrap();
    while slow.ownership.wait(&slow.tasks, &"u".into(), "v").await.is_some() {}
    assert!(slow.ownership.has(&"u".into(), "v"), "no effect has heard the answer");
    let answer = slow.run("u", "v", "shared").await;
    assert_eq!(answer, Ok(Ok(Some("v is given".to_owned()))));
    assert!(slow.begun.try_recv().is_err(), "it was begun once");
    assert_eq!(slow.jobs(), 0, "an answer is given once");
    slow.release.send(()).unwrap();
    assert_eq!(slow.run("u", "v", "shared").await, answer, "a new one");
    assert_eq!(slow.begins().await, "/v");
}

#[tokio::test(start_paused = true)]
async fn one_pod_at_a_time_walks_through_a_volume_and_other_volumes_are_not_kept_waiting() {
    let slow = Slow::new();
    assert!(slow.run("u1", "first", "shared").now_or_never().is_none());
    assert_eq!(slow.begins().await, "/first");
    assert!(slow.run("u2", "second", "shared").now_or_never().is_none());
    assert!(slow.run("u2", "other", "other").now_or_never().is_none());
    assert_eq!(slow.begins().await, "/other");
    let going = impatient(slow.run("u2", "second", "shared")).await.unwrap().unwrap_err();
    assert_eq!(going.entries, 0, "it waits for the first");
    // Whichever of the two walks is let go first.
    slow.release.send(()).unwrap();
    slow.release.send(()).unwrap();
    assert_eq!(slow.run("u1", "first", "shared").await, Ok(Ok(Some("first is given".to_owned()))));
    assert_eq!(slow.begins().await, "/second");
    slow.release.send(()).unwrap();
    assert_eq!(slow.run("u2", "second", "shared").await, Ok(Ok(Some("second is given".to_owned()))));
    assert_eq!(slow.run("u2", "other", "other").await, Ok(Ok(Some("other is given".to_owned()))));
}

#[tokio::test(start_paused = true)]
async fn nothing_walks_for_a_pod_whose_volumes_are_taken_away() {
    let slow = Slow::new();
    assert!(slow.run("u1", "first", "shared").now_or_never().is_none());
    assert_eq!(slow.begins().await, "/first");
    assert!(slow.run("u2", "second", "shared").now_or_never().is_none());
    // A job that waits for another pod's walk can be ended at once.
    slow.ownership.end(&"u2".into()).await;
    assert!(!slow.ownership.has(&"u2".into(), "second") && slow.ownership.has(&"u1".into(), "first"));
    slow.ownership.end(&"u1".into()).await;
    assert_eq!(slow.jobs(), 0);
    assert!(slow.begun.try_recv().is_err(), "the second was not begun");
    // Both may come again.
    slow.release.send(()).unwrap();
    assert_eq!(slow.run("u2", "second", "shared").await, Ok(Ok(Some("second is given".to_owned()))));
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_once_and_walks_end_with_the_agent() {
    let slow = Slow::new();
    let fails = |_: SetFsGroup<'_>| Err(VolumeError::Refused("no".to_owned()));
    let failed = slow.ownership.run(&slow.tasks, &"u".into(), "v", "shared", fails).await;
    assert_eq!(failed.unwrap_err().message, "no");
    assert!(slow.run("u", "v", "shared").now_or_never().is_none());
    assert_eq!(slow.begins().await, "/v");
    slow.tasks.stop().cancel();
    assert!(slow.tasks.drain(Duration::from_secs(1)).await, "a walk keeps no agent from its end");
}
