//! One result for each effect in every case: the driver answers, fails, never answers, or the effect is cancelled.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use agent_core::images::pull_records::Policy;
use agent_core::lifecycle_hooks::{Hook, HookAction, HookCall, HookFailure};
use agent_core::pod_worker::effect::{EffectOk, ImageUser};
use agent_core::probe::check::Check;
use agent_core::probe::{Kind, Outcome};
use agent_kubelet_api::drivers::PodObservation;
use agent_types::credential::Credential;
use agent_types::failure::{Class, DriverError};
use agent_types::ids::{ContainerId, ImageId, PodUid, SandboxId};
use agent_types::node_context::CgroupDriver;
use agent_types::runtime::config::{ContainerConfig, LinuxResources, SandboxConfig};
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, ListedPod, ListedSandbox};
use agent_types::runtime::status::{RuntimeStatus, RuntimeVersion};
use futures_util::future::BoxFuture;
use tokio::sync::Notify;

use super::*;
use crate::images::pulls::PullLimits;
use crate::node::NodeHandles;
use crate::node::node_events::NodeEvents;
use crate::pods::status::StatusStore;
use crate::tasks::mailbox::Inbox;
use crate::testing::VirtualClock;

type DriverResult<T> = Result<T, DriverError>;

/// Answers `stop_container` when `open` is notified, images at once or never, everything else with an error.
#[derive(Default)]
pub(super) struct Slow {
    open: Notify,
    pulls_open: Notify,
    pulling: AtomicUsize,
    pulling_max: AtomicUsize,
    dropped: AtomicBool,
    /// The containers of every pod.
    containers: Mutex<Vec<ContainerObserved>>,
}

fn no<T>(operation: &'static str) -> DriverResult<T> {
    Err(DriverError {
        operation,
        object: "x".to_owned(),
        class: Class::Unavailable,
        message: "down".to_owned(),
    })
}

/// The API server of a standalone node: refuses every call.
struct NoServer;

impl agent_types::api::ApiServer for NoServer {
    async fn call(&self, call: &agent_types::api::ApiCall) -> agent_types::api::ApiResult {
        panic!("{}", call.describe());
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Runtime for Slow {
    async fn version(&self) -> DriverResult<RuntimeVersion> {
        no("version")
    }
    async fn status(&self) -> DriverResult<RuntimeStatus> {
        no("status")
    }
    async fn cgroup_driver(&self) -> DriverResult<Option<CgroupDriver>> {
        no("cgroup_driver")
    }
    async fn list(&self) -> DriverResult<Vec<ListedPod>> {
        no("list")
    }
    async fn inspect(&self, _: &PodUid) -> DriverResult<(Option<PodKey>, PodObservation)> {
        let containers = self.containers.lock().unwrap().clone().into();
        Ok((None, PodObservation { containers, ..PodObservation::default() }))
    }
    async fn run_sandbox(&self, _: &SandboxConfig) -> DriverResult<SandboxId> {
        no("run_sandbox")
    }
    async fn stop_sandbox(&self, _: &SandboxId) -> DriverResult<()> {
        no("stop_sandbox")
    }
    async fn remove_sandbox(&self, _: &SandboxId) -> DriverResult<()> {
        no("remove_sandbox")
    }
    async fn create_container(
        &self,
        _: &SandboxId,
        _: &ContainerConfig,
        _: &SandboxConfig,
    ) -> DriverResult<ContainerId> {
        no("create_container")
    }
    async fn start_container(&self, _: &ContainerId) -> DriverResult<()> {
        no("start_container")
    }
    async fn stop_container(&self, _: &ContainerId, _: u32) -> DriverResult<()> {
        let _dropped = SetOnDrop(&self.dropped);
        self.open.notified().await;
        Ok(())
    }
    async fn remove_container(&self, _: &ContainerId) -> DriverResult<()> {
        no("remove_container")
    }
}

impl agent_kubelet_api::drivers::Sandboxes for Slow {
    async fn sandboxes(&self) -> DriverResult<Vec<ListedSandbox>> {
        Ok(Vec::new())
    }
}

impl agent_kubelet_api::drivers::Amounts for Slow {
    async fn update_container(&self, _: &ContainerId, _: &LinuxResources) -> DriverResult<()> {
        no("update_container")
    }
    async fn update_sandbox(
        &self,
        _: &SandboxId,
        _: &LinuxResources,
        _: &LinuxResources,
    ) -> DriverResult<()> {
        Ok(())
    }
    async fn memory_in_use(&self, _: &[ContainerId]) -> DriverResult<BTreeMap<ContainerId, u64>> {
        Ok([("a".into(), 5)].into())
    }
}

impl ImageService for Slow {
    async fn image_status(&self, _: &str) -> DriverResult<Option<ImageInfo>> {
        Ok(None)
    }
    async fn pull(&self, image: &str, _: Option<&Credential>) -> DriverResult<ImageInfo> {
        let now = self.pulling.fetch_add(1, Ordering::AcqRel) + 1;
        self.pulling_max.fetch_max(now, Ordering::AcqRel);
        self.pulls_open.notified().await;
        self.pulling.fetch_sub(1, Ordering::AcqRel);
        Ok(ImageInfo {
            id: ImageId::from(image),
            uid: None,
            username: String::new(),
            size_bytes: 1,
            repo_tags: Vec::new(),
            repo_digests: Vec::new(),
            pinned: false,
        })
    }
    async fn list_images(&self) -> DriverResult<Vec<ImageInfo>> {
        no("list_images")
    }
    async fn remove_image(&self, _: &str) -> DriverResult<()> {
        no("remove_image")
    }
}

/// Never answers a probe of a container named `mute`.
struct Hanging;

impl Handlers for Hanging {
    fn probe<'a>(&'a self, call: &'a ProbeCall) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match call.name.as_str() {
                "mute" => std::future::pending().await,
                _ => Outcome::Success,
            }
        })
    }

    fn hook<'a>(&'a self, _: &'a HookCall) -> BoxFuture<'a, Result<Option<String>, HookFailure>> {
        Box::pin(std::future::pending())
    }
}

pub(super) struct Rig {
    driver: Arc<Slow>,
    pub(super) executor: Executor<Slow, Slow>,
    tasks: Tasks,
    to: Sender<PodEvent>,
    answers: Inbox<PodEvent>,
    pleg: Inbox<PlegEvent>,
    pub(super) dir: tempfile::TempDir,
}

fn rig(pulls: usize) -> Rig {
    rig_in(tempfile::tempdir().unwrap(), pulls)
}

pub(super) fn rig_in(dir: tempfile::TempDir, pulls: usize) -> Rig {
    rig_within(dir, PullLimits { at_once: pulls, qps: 0, burst: 0 })
}

fn rig_within(dir: tempfile::TempDir, pulls: PullLimits) -> Rig {
    let driver = Arc::new(Slow::default());
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let dirs = Arc::new(PodDirs::new(dir.path(), &dir.path().join("logs"), &dir.path().join("links")));
    let (to_pleg, pleg) = tasks.mailbox();
    let off = Policy { verification: None, allowlist: Vec::new() };
    let records = PullRecords::start(dir.path(), off, &tasks);
    let handlers = Arc::new(Hanging);
    let flex = crate::volumes::flex::Drivers::new(&dir.path().join("drivers"));
    let csi = crate::volumes::csi::Csi { flex, ..crate::volumes::csi::Csi::new(&tasks) };
    crate::volumes::csi::volume_table::start(dirs.clone(), csi.clone(), None, &tasks).unwrap();
    let sources = crate::pods::pod_values::of_cluster::<NoServer>(None, csi, &tasks);
    let metrics = Metrics::new(Arc::new(VirtualClock::new()));
    let plugins = Plugins::new(dir.path(), Vec::new(), sources.clone(), metrics.clone(), tasks.clone());
    let images = Images { service: driver.clone(), pulls, records, plugins: Arc::new(plugins) };
    let node_events = NodeEvents::new(StatusStore::default(), metrics.clone(), None, None, None);
    let node = NodeHandles { manager: tasks.mailbox().0, node_events, tasks: tasks.clone() };
    let device_plugins = DevicePlugins::new(dir.path().join("device-plugins"), &node);
    let executor = Executor::new(Deps {
        runtime: driver.clone(),
        images,
        handlers,
        amounts: driver.clone(),
        shims: SharedShims::new(driver.clone(), 1),
        dirs,
        sources,
        cgroups: None,
        plugins: device_plugins,
        claims: Arc::new(NoClaims),
        pleg: to_pleg,
        metrics,
        tasks: tasks.clone(),
    });
    let (to, answers) = tasks.mailbox();
    Rig { driver, executor, tasks, to, answers, pleg, dir }
}

impl Rig {
    fn start(&self, id: u64, effect: Effect, seconds: Option<u64>) -> CancellationToken {
        self.start_of(&key(), id, effect, seconds)
    }

    pub(super) fn start_of(
        &self,
        key: &PodKey,
        id: u64,
        effect: Effect,
        seconds: Option<u64>,
    ) -> CancellationToken {
        let cancel = CancellationToken::new();
        let deadline = seconds.map(|s| self.tasks.now().mono.after(Duration::from_secs(s)));
        self.executor.start(key, EffectId(id), effect, deadline, cancel.clone(), self.to.clone());
        cancel
    }

    pub(super) async fn answer(&mut self) -> (u64, EffectResult, Mono) {
        match self.answers.recv().await {
            PodEvent::EffectDone { id, completed_at, result } => (id.0, result, completed_at),
            other => panic!("{other:?}"),
        }
    }
}

fn key() -> PodKey {
    PodKey { namespace: "ns".into(), name: "web".into(), uid: "u-1".into() }
}

fn stop() -> Effect {
    Effect::StopContainer { container: "c".into(), grace_s: 30 }
}

fn pull(image: &str) -> Effect {
    Effect::PullImage {
        image: image.to_owned(),
        user: ImageUser { written: image.to_owned(), ..ImageUser::default() },
    }
}

fn class(result: &EffectResult) -> Option<Class> {
    result.as_ref().err().map(|e| e.class)
}

#[tokio::test(start_paused = true)]
async fn the_answer_is_stamped_after_the_call() {
    let mut rig = rig(1);
    let start = rig.tasks.now().mono;
    rig.start(7, stop(), Some(60));
    rig.tasks.wait_until(start.after(Duration::from_secs(3))).await;
    rig.driver.open.notify_one();
    let (id, result, completed_at) = rig.answer().await;
    assert_eq!((id, result), (7, Ok(EffectOk::Done)));
    assert!(completed_at >= start.after(Duration::from_secs(3)));
}

#[tokio::test(start_paused = true)]
async fn no_call_outlives_its_deadline() {
    let mut rig = rig(1);
    let start = rig.tasks.now().mono;
    rig.start(1, stop(), Some(5));
    let (_, result, completed_at) = rig.answer().await;
    assert_eq!(class(&result), Some(Class::DeadlineExceeded));
    assert_eq!(completed_at.since(start).as_secs(), 5);
    assert!(rig.driver.dropped.load(Ordering::Acquire), "the call goes on");
    rig.driver.dropped.store(false, Ordering::Release);
    rig.start(2, stop(), Some(0));
    assert_eq!(class(&rig.answer().await.1), Some(Class::DeadlineExceeded));
    assert!(!rig.driver.dropped.load(Ordering::Acquire), "the call was begun");
}

#[tokio::test(start_paused = true)]
async fn cancelling_drops_the_call_and_answers() {
    let mut rig = rig(1);
    let cancel = rig.start(1, pull("a"), None);
    rig.tasks.wait_until(rig.tasks.now().mono.after(Duration::from_secs(3600))).await;
    cancel.cancel();
    assert_eq!(class(&rig.answer().await.1), Some(Class::DeadlineExceeded));
}

#[tokio::test(start_paused = true)]
async fn a_failure_keeps_its_class() {
    let mut rig = rig(1);
    rig.start(1, Effect::StartContainer { container: "c".into() }, Some(60));
    let (_, result, _) = rig.answer().await;
    assert_eq!(class(&result), Some(Class::Unavailable));
    assert_eq!(result.unwrap_err().message, "down");
}

#[tokio::test(start_paused = true)]
async fn pulls_are_serialised_when_they_must_be() {
    for (pulls, at_once) in [(1, 1), (2, 2), (usize::MAX, 3)] {
        let mut rig = rig(pulls);
        for (id, image) in [(1, "a"), (2, "b"), (3, "c")] {
            rig.start(id, pull(image), None);
        }
        for _ in 0..3 {
            rig.tasks.wait_until(rig.tasks.now().mono.after(Duration::from_secs(1))).await;
            rig.driver.pulls_open.notify_one();
            let (_, result, _) = rig.answer().await;
            assert!(matches!(result, Ok(EffectOk::Pulled { .. })), "{result:?}");
        }
        assert_eq!(rig.driver.pulling_max.load(Ordering::Acquire), at_once, "{pulls}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_beyond_the_rate_fails_at_once_and_a_later_one_begins() {
    let mut rig = rig_within(tempfile::tempdir().unwrap(), PullLimits { at_once: 3, qps: 1, burst: 1 });
    rig.start(1, pull("a"), None);
    rig.tasks.wait_until(rig.tasks.now().mono.after(Duration::from_millis(1))).await;
    rig.start(2, pull("b"), None);
    let (id, result, _) = rig.answer().await;
    assert_eq!((id, result.unwrap_err().message.as_str()), (2, "pull QPS exceeded"));
    rig.tasks.wait_until(rig.tasks.now().mono.after(Duration::from_secs(1))).await;
    rig.start(3, pull("b"), None);
    for _ in 0..2 {
        rig.tasks.wait_until(rig.tasks.now().mono.after(Duration::from_millis(1))).await;
        rig.driver.pulls_open.notify_one();
        let (_, result, _) = rig.answer().await;
        assert!(matches!(result, Ok(EffectOk::Pulled { .. })), "{result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_inspection_is_stamped_before_and_answers_pleg_too() {
    let mut rig = rig(1);
    let before = rig.tasks.now().mono;
    rig.start(1, Effect::Inspect, Some(60));
    let (_, result, completed_at) = rig.answer().await;
    let Ok(EffectOk::Snapshot(snapshot)) = result else { panic!("{result:?}") };
    assert_eq!(snapshot.pod, key());
    assert!(snapshot.as_of >= before && snapshot.as_of <= completed_at);
    let PlegEvent::Inspected(seen) = rig.pleg.recv().await else { panic!("not told") };
    assert_eq!(*seen, *snapshot);
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_a_moment_for_calls_that_change_something_and_for_no_others() {
    let mut rig = rig(1);
    rig.start(1, pull("a"), None);
    rig.start(2, stop(), Some(60));
    rig.tasks.stop().cancel();
    assert_eq!(rig.answer().await.0, 1, "the pull is given up at once");
    rig.driver.open.notify_one();
    assert!(rig.executor.settle(Duration::from_secs(2)).await);
    assert_eq!(rig.answer().await.1, Ok(EffectOk::Done));
}

#[tokio::test(start_paused = true)]
async fn a_call_given_up_at_the_end_is_not_a_clean_stop() {
    let mut rig = rig(1);
    rig.start(1, stop(), Some(60));
    rig.tasks.stop().cancel();
    assert!(!rig.executor.settle(Duration::from_secs(2)).await);
    assert_eq!(class(&rig.answer().await.1), Some(Class::DeadlineExceeded));
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_hangs_ends_at_its_deadline_or_when_it_is_cancelled() {
    let mut rig = rig(1);
    let hook = || Effect::RunHook {
        call: Box::new(HookCall {
            container: ContainerId::from("c"),
            name: "c".to_owned(),
            hook: Hook::PreStop,
            action: HookAction::Sleep { seconds: 0 },
        }),
        within_s: Some(5),
    };
    rig.start(1, hook(), Some(5));
    rig.start(2, hook(), None).cancel();
    let mut given_up = Vec::new();
    for _ in 0..2 {
        let PodEvent::EffectDone { id, result: Err(e), .. } = rig.answers.recv().await else {
            panic!("an end")
        };
        given_up.push((id.0, e.class));
    }
    assert_eq!(given_up, [(2, Class::DeadlineExceeded), (1, Class::DeadlineExceeded)]);
}

#[tokio::test(start_paused = true)]
async fn a_probe_is_answered_once_unless_it_is_cancelled() {
    let mut rig = rig(1);
    let ask = |rig: &Rig, id: u64, name: &str| {
        let cancel = CancellationToken::new();
        let call = ProbeCall {
            container: ContainerId::from("c"),
            name: name.to_owned(),
            kind: Kind::Liveness,
            check: Check::Exec { command: Vec::new() },
            timeout: Duration::from_secs(1),
        };
        rig.executor.probe(ProbeId(id), call, cancel.clone(), rig.to.clone());
        cancel
    };
    let mute = ask(&rig, 1, "mute");
    ask(&rig, 2, "c");
    let PodEvent::ProbeDone { id, outcome } = rig.answers.recv().await else { panic!("an answer") };
    assert_eq!((id, outcome), (ProbeId(2), Outcome::Success));
    mute.cancel();
    // The task is gone without an answer.
    rig.tasks.stop().cancel();
    assert!(rig.tasks.drain(Duration::from_secs(1)).await);
    assert!(rig.to.send(PodEvent::Tick));
    assert!(matches!(rig.answers.recv().await, PodEvent::Tick));
}

#[tokio::test]
async fn who_was_killed_by_the_kernel_is_told_also_if_the_runtime_missed_it() {
    let rig = rig(1);
    let killed = |id: &str| ContainerObserved {
        state: ContainerState::Exited,
        exit_code: 137,
        reason: "Error".to_owned(),
        ..ContainerObserved::created(id, "s", id, 0, agent_types::time::Wall(1))
    };
    *rig.driver.containers.lock().unwrap() = vec![killed("of-the-kernel"), killed("of-somebody")];
    let observer = rig.executor.observer();
    observer.kills().add("of-the-kernel".into());
    let (_, seen) = observer.inspect(&"u-1".into()).await.unwrap();
    let reasons: Vec<_> = seen.containers.iter().map(|c| (c.name.as_str(), c.reason.as_str())).collect();
    assert_eq!(reasons, [("of-somebody", "Error"), ("of-the-kernel", "OOMKilled")]);
}
