//! A collector over a fake runtime: removed images, remaining images, reports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use agent_core::images::pull_records;
use agent_kubelet_api::drivers::StoragePlaces;
use agent_kubelet_api::stats::RuntimeUsage;
use agent_kubelet_api::stats::disk::Layer;
use agent_types::credential::Credential;
use agent_types::failure::Class;
use agent_types::runtime::image::ImageInfo;
use agent_types::time::Wall;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::pods::status::StatusStore;
use crate::serving::metrics::Metrics;
use crate::tasks::mailbox::Inbox;
use crate::testing::VirtualClock;

#[derive(Default)]
struct Images {
    there: Mutex<BTreeMap<String, ImageInfo>>,
    used: Mutex<BTreeSet<String>>,
    stuck: Mutex<BTreeSet<String>>,
}

type DriverResult<T> = Result<T, DriverError>;

fn no<T>(operation: &'static str, object: &str) -> DriverResult<T> {
    let message = "refused".to_owned();
    Err(DriverError { operation, object: object.to_owned(), class: Class::Invalid, message })
}

impl ImageService for Images {
    async fn image_status(&self, image: &str) -> DriverResult<Option<ImageInfo>> {
        Ok(self.there.lock().unwrap().get(image).cloned())
    }
    async fn pull(&self, image: &str, _: Option<&Credential>) -> DriverResult<ImageInfo> {
        no("PullImage", image)
    }
    async fn list_images(&self) -> DriverResult<Vec<ImageInfo>> {
        Ok(self.there.lock().unwrap().values().cloned().collect())
    }
    async fn remove_image(&self, image: &str) -> DriverResult<()> {
        if self.stuck.lock().unwrap().contains(image) {
            return no("RemoveImage", image);
        }
        self.there.lock().unwrap().remove(image);
        Ok(())
    }
}

impl ImagesInUse for Images {
    async fn images_in_use(&self) -> DriverResult<BTreeSet<String>> {
        Ok(self.used.lock().unwrap().clone())
    }
}

impl Statistics for Images {
    async fn container_stats(&self) -> DriverResult<Vec<RuntimeUsage>> {
        Ok(Vec::new())
    }
    async fn image_filesystem(&self) -> DriverResult<Option<Layer>> {
        Ok(Some(Layer { at: Wall(0), mountpoint: "/".to_owned(), used_bytes: None, inodes_used: None }))
    }
    async fn storage_places(&self) -> DriverResult<StoragePlaces> {
        no("ImageFsInfo", "")
    }
}

struct GcFixture {
    images: Arc<Images>,
    uses: ImageUses,
    tasks: Tasks,
    gc: GarbageCollection,
    deleted: watch::Sender<u64>,
    manager: Inbox<ManagerEvent>,
    _root: tempfile::TempDir,
}

/// `high_percent` 0 makes any disk too full, 100 turns the timer off.
fn place(high_percent: u8, ids: &[&str]) -> GcFixture {
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let (images, uses) = (Arc::new(Images::default()), ImageUses::default());
    for id in ids {
        let info = ImageInfo {
            id: (*id).into(),
            uid: None,
            username: String::new(),
            size_bytes: 10,
            repo_tags: vec![format!("r.example/{id}:1")],
            repo_digests: Vec::new(),
            pinned: *id == "pause",
        };
        images.there.lock().unwrap().insert((*id).to_owned(), info);
    }
    let root = tempfile::tempdir().unwrap();
    let records = pull_records::Policy { verification: None, allowlist: Vec::new() };
    let (to_manager, manager) = tasks.mailbox();
    let (deleted, view) = watch::channel(0);
    let around = Surroundings {
        containers: UnusedContainers { manager: to_manager, deleted: view },
        images: images.clone(),
        uses: uses.clone(),
        records: PullRecords::start(root.path(), records, &tasks),
        node_events: NodeEvents::new(
            StatusStore::default(),
            Metrics::new(Arc::new(VirtualClock::new())),
            None,
            None,
            None,
        ),
        tasks: tasks.clone(),
    };
    let policy =
        Policy { high_percent, low_percent: 0, minimum_age: Duration::from_mins(2), maximum_age: None };
    let (gc, asked) = requests();
    start(policy, around, asked);
    GcFixture { gc, deleted, manager, images, uses, tasks, _root: root }
}

impl GcFixture {
    async fn pass(&self, minutes: u64) {
        self.tasks.wait_until(self.tasks.now().mono.after(Duration::from_mins(minutes))).await;
    }

    fn left(&self) -> Vec<String> {
        self.images.there.lock().unwrap().keys().cloned().collect()
    }

    fn uses(&self, id: &str) {
        self.images.used.lock().unwrap().insert(id.to_owned());
    }
}

#[tokio::test(start_paused = true)]
async fn on_demand_all_go_but_those_in_use_pinned_young_or_asked_for() {
    let p = place(100, &["a", "asked", "pause", "used"]);
    p.uses("used");
    assert_eq!(p.gc.delete_unused_images().await.unwrap(), 0, "all were seen a moment ago");
    p.pass(3).await;
    p.uses.ask("r.example/asked:1", || p.tasks.now().mono).await;
    assert_eq!(p.gc.delete_unused_images().await.unwrap(), 10);
    assert_eq!(p.left(), ["asked", "pause", "used"]);
    p.pass(3).await;
    assert_eq!(p.gc.delete_unused_images().await.unwrap(), 10);
    assert_eq!(p.left(), ["pause", "used"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_removed_keeps_no_other() {
    let p = place(100, &["a", "b", "c"]);
    p.images.stuck.lock().unwrap().insert("a".to_owned());
    p.pass(1).await;
    p.pass(2).await;
    let error = p.gc.delete_unused_images().await.unwrap_err();
    assert!(matches!(error, CollectError::Removal { freed_bytes: 20, failed: 1, .. }), "{error}");
    assert_eq!(p.left(), ["a"]);
}

#[tokio::test]
async fn a_full_disk_is_noticed_by_the_timer_and_a_disabled_timer_removes_nothing() {
    tokio::time::pause();
    let (full, off) = (place(0, &["a", "used"]), place(100, &["a", "used"]));
    full.uses("used");
    off.uses("used");
    for _ in 0..4 {
        // A thread looks at the disk; the clock of the test stands still meanwhile.
        full.pass(5).await;
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while full.left() != ["used"] && std::time::Instant::now() < deadline {
        full.pass(5).await;
    }
    assert_eq!((full.left(), off.left()), (vec!["used".to_owned()], vec!["a".to_owned(), "used".to_owned()]));
}

#[test]
fn the_configuration() {
    let made = policy(&KubeletConfiguration::default());
    assert_eq!((made.high_percent, made.low_percent, made.maximum_age), (85, 80, None));
    assert_eq!(made.minimum_age, Duration::from_mins(2));
}

#[tokio::test(start_paused = true)]
async fn dead_containers_are_waited_for_and_those_that_stay_are_told() {
    let mut p = place(100, &[]);
    let (asked, done) = tokio::join!(p.gc.delete_unused_containers(), async {
        let asked = p.manager.recv().await;
        p.deleted.send_modify(|times| *times += 1);
        asked
    });
    assert!(matches!(done, ManagerEvent::DeleteUnused));
    asked.unwrap();
    let error = p.gc.delete_unused_containers().await.unwrap_err();
    assert_eq!(error.to_string(), "dead containers of pods that are over are still there after 30 s");
}
