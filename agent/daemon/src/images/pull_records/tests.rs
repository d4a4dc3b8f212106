//! The task that has the records: pulls without a waiting caller, a request that takes long, the end of the node.

use std::sync::mpsc;

use agent_types::credential::Origin;
use futures_util::FutureExt;
use orlop_config::kubelet::enums::ImagePullCredentialsVerificationPolicy as Verification;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::testing::VirtualClock;

const ID: &str = "sha256:aa";

struct RecordsFixture {
    records: PullRecords,
    tasks: Tasks,
    _root: tempfile::TempDir,
}

fn fixture() -> RecordsFixture {
    let root = tempfile::tempdir().unwrap();
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let verification = Some(Verification::NeverVerifyPreloadedImages);
    let records = PullRecords::start(root.path(), Policy { verification, allowlist: Vec::new() }, &tasks);
    RecordsFixture { records, tasks, _root: root }
}

fn image() -> String {
    "a:1".to_owned()
}

impl RecordsFixture {
    async fn check(&self, credentials: Vec<Credential>) -> Check {
        self.records.check(image(), ID.into(), credentials, Wall(1)).await.check
    }

    async fn begin(&self) -> PullInProgress {
        self.records.begin(image()).await.unwrap().0.unwrap()
    }
}

#[tokio::test]
async fn a_pull_from_its_intent_to_its_record() {
    let f = fixture();
    assert!(f.records.are_empty().await && !f.records.is_off());
    assert_eq!(f.check(Vec::new()).await, Check::PolicyAllowed);
    let (pull, sizes) = f.records.begin(image()).await.unwrap();
    assert_eq!((f.check(Vec::new()).await, sizes), (Check::MustAuthenticate, (1, 0)));
    let text = |text: &str| text.to_owned();
    let origin = Origin { uid: text("u"), namespace: text("n"), name: text("s"), credential_hash: text("h") };
    let source = Some(Source::Secret(origin));
    let own = Credential { username: text("u"), password: text("p"), source: source.clone() };
    assert_eq!(pull.unwrap().end(Ok((ID.into(), source)), Wall(1)).await, Some((0, 1)));
    assert_eq!(f.check(Vec::new()).await, Check::MustAuthenticate);
    assert_eq!(f.check(vec![own]).await, Check::RecordFound);
    f.records.prune(Vec::new(), Wall(5_000_000_000)).await;
    assert_eq!(f.records.sizes().await, Some((0, 0)));
}

#[tokio::test]
async fn a_pull_that_is_dropped_leaves_its_intent_and_is_not_under_way() {
    let f = fixture();
    drop(f.begin().await);
    assert_eq!((f.check(Vec::new()).await, f.records.sizes().await), (Check::MustAuthenticate, Some((1, 0))));
    // Nor is a pull whose caller no longer waits for its beginning.
    assert!(f.records.begin(image()).now_or_never().is_none());
    let last = f.begin().await;
    assert_eq!(last.end(Err(()), Wall(1)).await, Some((0, 0)), "no other pull is under way");
}

#[tokio::test]
async fn requests_that_wait_hold_no_thread_and_keep_their_order() {
    let f = fixture();
    let (release, released) = mpsc::channel::<()>();
    let mut slow = Box::pin(f.records.ask(move |_| released.recv().is_ok()));
    assert!((&mut slow).now_or_never().is_none());
    let mut waiting: Vec<_> = (0..20).map(|_| Box::pin(f.records.begin(image()))).collect();
    assert!(waiting.iter_mut().all(|begin| begin.now_or_never().is_none()));
    // The node's own work goes on, also on the other threads of its pool.
    let own = (0..8).map(|n| f.tasks.blocking(move || n));
    assert_eq!(futures_util::future::join_all(own).await.into_iter().flatten().sum::<i32>(), 28);
    release.send(()).unwrap();
    assert_eq!(slow.await, Some(true));
    let begun = futures_util::future::join_all(waiting).await;
    assert!(begun.into_iter().flatten().all(|(pull, sizes)| pull.is_ok() && sizes == (1, 0)));
}

#[tokio::test]
async fn nobody_uses_an_image_when_the_node_stops() {
    let f = fixture();
    f.tasks.stop().cancel();
    assert!(f.tasks.drain(Duration::from_secs(5)).await);
    assert_eq!(f.check(Vec::new()).await, Check::MustAuthenticate);
    assert!(f.records.begin(image()).await.is_none());
    assert!(f.records.sizes().await.is_none());
}
