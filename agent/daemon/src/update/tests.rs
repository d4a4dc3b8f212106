//! The driver of a standalone node over a record in memory, in virtual time.

use std::collections::BTreeMap;

use agent_core::events::RecorderEvent;
use agent_core::node_status::{NodeInput, NodeStatusEvent};
use agent_core::node_update::check::{CheckName, CheckSeen, GateFacts};
use agent_core::node_update::report::UpdateShown;
use agent_core::node_update::{UpdateWork, WorkResult};
use agent_types::api::{ApiCall, ApiError, ApiResult};
use agent_types::lock::Lock;
use futures_util::future::BoxFuture;
use orlop_config::node::Update;
use orlop_config::slots::SlotState;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::slots::SlotStore;
use super::*;
use crate::node::node_events::ApiMailboxes;
use crate::pods::status::StatusStore;
use crate::tasks::mailbox::Inbox;
use crate::testing::VirtualClock;

/// A record in memory.
struct FakeSlots {
    booted: SlotName,
    record: Lock<BootRecord>,
}

impl FakeSlots {
    fn change<E: ToString>(
        &self,
        change: impl FnOnce(&mut BootRecord) -> Result<(), E>,
    ) -> Result<(), String> {
        change(&mut self.record.lock()).map_err(|e| e.to_string())
    }
}

impl SlotStore for FakeSlots {
    fn booted(&self) -> SlotName {
        self.booted
    }

    fn version(&self) -> &str {
        "0.1.0"
    }

    fn record(&self) -> Result<BootRecord, String> {
        Ok(self.record.lock().clone())
    }

    fn order(&self, update: &str, deadline_s: u32) -> Result<(), String> {
        self.change(|record| record.order_trial(self.booted, update, deadline_s))
    }

    fn withdraw(&self) -> Result<(), String> {
        self.record.lock().withdraw_trial(self.booted);
        Ok(())
    }

    fn settle(&self, refused: Option<&str>) -> Result<(), String> {
        self.record.lock().settle_trial(self.booted, refused);
        Ok(())
    }

    fn is_ready(&self) -> Result<(), String> {
        self.record.lock().boot_is_ready(self.booted);
        Ok(())
    }

    fn ends(&self) -> Result<(), String> {
        self.record.lock().boot_ends();
        Ok(())
    }
}

/// All that a node needs is green, but for one check.
#[derive(Default)]
struct FakeSenses(Lock<Option<CheckName>>);

impl GateSenses for FakeSenses {
    fn facts(&self, probes: bool) -> BoxFuture<'_, GateFacts> {
        let mut checks: BTreeMap<CheckName, CheckSeen> =
            [CheckName::StatePartition, CheckName::Integrity, CheckName::Runtime, CheckName::NodeApi]
                .map(|check| (check, CheckSeen::Green))
                .into();
        if probes {
            checks.insert(CheckName::ProbePod, CheckSeen::Green);
        }
        if let Some(red) = *self.0.lock() {
            checks.insert(red, CheckSeen::Red("it is down".to_owned()));
        }
        std::future::ready(GateFacts { checks, ..GateFacts::default() }).boxed()
    }

    fn rest(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

struct NoServer;

impl ApiServer for NoServer {
    async fn call(&self, call: &ApiCall) -> ApiResult {
        Err(ApiError::without_status(call, Class::Unavailable, "a standalone node asked"))
    }
}

struct Driven {
    slots: Arc<FakeSlots>,
    senses: Arc<FakeSenses>,
    reboots: mpsc::UnboundedReceiver<()>,
    node: Inbox<NodeStatusEvent>,
    dir: tempfile::TempDir,
    tasks: Tasks,
}

impl Driven {
    /// A node with version 0.2.0 in slot B.
    fn start(booted: SlotName, change: impl FnOnce(&mut BootRecord)) -> Driven {
        let clock = Arc::new(VirtualClock::new());
        let tasks = Tasks::new(clock.clone(), CancellationToken::new());
        let mut record = BootRecord::new(SlotName::A);
        (record.a.version, record.b.version) = ("0.1.0".into(), "0.2.0".into());
        record.b.state = SlotState::Staged;
        change(&mut record);
        let slots = Arc::new(FakeSlots { booted, record: Lock::new(record) });
        let senses = Arc::new(FakeSenses::default());
        let (node_mail, node) = tasks.mailbox();
        let api = ApiMailboxes {
            status: tasks.mailbox().0,
            mirrors: tasks.mailbox().0,
            recorder: tasks.mailbox().0,
            node: node_mail,
            read_node: Arc::new(Notify::new()),
        };
        let node_events = NodeEvents::new(StatusStore::default(), Metrics::new(clock), Some(api), None, None);
        let dir = tempfile::tempdir().unwrap();
        let (asks, reboots) = mpsc::unbounded_channel();
        let update: Update = serde_json::from_str(r#"{"policy": "automatic"}"#).unwrap();
        let files = UpdateFiles {
            plan: dir.path().join("kept/plan.json"),
            baseline: dir.path().join("kept/baseline.json"),
        };
        let (words, updater) = (dir.path().to_owned(), dir.path().join("update.sock"));
        start(Deps {
            settings: UpdateSettings::new(&update, false),
            slots: Slots::new(slots.clone(), &tasks),
            cluster: None::<ClusterSide<NoServer>>,
            senses: senses.clone(),
            can_probe: true,
            desired: watch::channel(DesiredPods::new()).1,
            active: watch::channel(ActivePods::default()).1,
            statuses: watch::channel(PodViews::new()).1,
            node_events,
            host: Host::new(tasks.clone(), dir.path(), None),
            reboot: Arc::new(move || {
                let asked = asks.send(()).map_err(|e| e.to_string());
                std::future::ready(asked).boxed()
            }),
            paths: UpdatePaths {
                files,
                words,
                problems: dir.path().join("update-problems.json"),
                updater,
                kept: dir.path().join("kept"),
            },
            tasks: tasks.clone(),
        });
        Driven { slots, senses, reboots, node, dir, tasks }
    }

    fn json(&self, name: &str) -> Value {
        let text = std::fs::read(self.dir.path().join(name)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Waits, at most an hour.
    async fn until(&self, what: &str, is: impl Fn(&Driven) -> bool) {
        for _ in 0..720 {
            if is(self) {
                return;
            }
            let next = self.tasks.now().mono.after(Duration::from_secs(5));
            self.tasks.wait_until(next).await;
        }
        panic!("{what}: not within an hour");
    }

    /// What the Node shows last.
    async fn shown(&mut self) -> UpdateShown {
        let mut last = UpdateShown::default();
        while let Some(event) = self.node.recv().now_or_never() {
            if let NodeStatusEvent::Input(NodeInput::Update(shown)) = event {
                last = shown;
            }
        }
        last
    }
}

#[tokio::test(start_paused = true)]
async fn a_staged_version_is_armed_and_the_machine_is_asked_to_reboot() {
    let mut node = Driven::start(SlotName::A, |_| {});
    let asked = timeout(Duration::from_secs(3600), node.reboots.recv()).await;
    assert_eq!(asked.expect("within an hour"), Some(()));
    let record = node.slots.record.lock().clone();
    let trial = record.trial.expect("ordered");
    assert!(trial.update.starts_with("0.2.0-") && trial.deadline_s == 600, "{trial:?}");
    assert_eq!(node.json("kept/baseline.json")["checks"]["runtime"], "green");
    assert_eq!(node.json("kept/plan.json")["version"], "0.2.0");
    let shown = node.shown().await;
    assert_eq!((shown.version.as_str(), shown.failed), ("0.1.0", None));
    assert_eq!(shown.progressing.map(|(reason, _)| reason), Some("Rebooting"));
    node.tasks.stop().cancel();
}

#[tokio::test(start_paused = true)]
async fn a_trial_is_committed_once_its_gate_was_green_for_the_soak() {
    let ordered = |record: &mut BootRecord| record.order_trial(SlotName::A, "0.2.0-7", 600).expect("staged");
    let mut node = Driven::start(SlotName::B, ordered);
    node.until("a word", |node| node.json("verdict.json")["verdict"] == "wait").await;
    assert_eq!(node.shown().await.progressing.map(|(reason, _)| reason), Some("OnTrial"));
    node.until("a commit", |node| node.json("verdict.json")["verdict"] == "commit").await;
    // The guard commits.
    node.slots.change(|record| record.commit_trial(SlotName::B, None)).expect("on trial");
    let is_over = |node: &Driven| {
        let plan = node.json("kept/plan.json");
        (plan["phase"].as_str(), plan["version"].as_str()) == (Some("idle"), Some("0.2.0"))
    };
    node.until("the end", is_over).await;
    let shown = node.shown().await;
    assert_eq!((shown.version.as_str(), shown.state.as_str()), ("0.2.0", "Idle"));
    assert!(node.reboots.try_recv().is_err(), "nothing is to be rebooted");
    node.tasks.stop().cancel();
}

#[tokio::test(start_paused = true)]
async fn a_version_without_its_runtime_goes_back_and_is_refused_by_the_slot_before() {
    let ordered = |record: &mut BootRecord| record.order_trial(SlotName::A, "0.2.0-7", 600).expect("staged");
    let node = Driven::start(SlotName::B, ordered);
    *node.senses.0.lock() = Some(CheckName::Runtime);
    node.until("a return", |node| node.json("verdict.json")["verdict"] == "return").await;
    let said = node.json("verdict.json");
    assert_eq!((said["check"].as_str(), said["words"].as_str()), (Some("runtime"), Some("it is down")));
    node.tasks.stop().cancel();
    // The guard has gone back; the old slot makes the same check, and passes it.
    let mut back = Driven::start(SlotName::A, |record| {
        ordered(record);
        record.return_from_trial(SlotName::B, "runtime", "it is down").expect("on trial");
    });
    back.until("a refusal", |back| back.slots.record.lock().b.state == SlotState::Refused).await;
    let is_over = |back: &Driven| back.json("kept/plan.json")["phase"] == "idle";
    back.until("the end", is_over).await;
    let failed = back.shown().await.failed.unwrap_or_default();
    assert!(
        failed.contains("0.2.0") && failed.contains("runtime") && failed.contains("it is down"),
        "{failed}"
    );
    back.tasks.stop().cancel();
}

#[tokio::test(start_paused = true)]
async fn a_baseline_is_taken_late_enough_and_once_for_an_order() {
    let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
    let mut record = BootRecord::new(SlotName::A);
    record.b.state = SlotState::Staged;
    let slots = FakeSlots { booted: SlotName::A, record: Lock::new(record) };
    let dir = tempfile::tempdir().unwrap();
    let (plan, baseline) = (dir.path().join("plan.json"), dir.path().join("baseline.json"));
    let began = tasks.now().mono;
    let worker = UpdateWorker {
        slots: Slots::new(Arc::new(slots), &tasks),
        cluster: None::<ClusterSide<NoServer>>,
        desired: watch::channel(DesiredPods::new()).1,
        active: watch::channel(ActivePods::default()).1,
        statuses: watch::channel(PodViews::new()).1,
        senses: Arc::new(FakeSenses::default()),
        files: UpdateFiles { plan, baseline: baseline.clone() },
        reboot: Arc::new(|| std::future::ready(Ok::<(), String>(())).boxed()),
        look: Arc::new(Notify::new()),
        began,
        tasks: tasks.clone(),
    };
    let arm = || UpdateWork::Arm { update: "0.2.0-7".to_owned(), deadline: Duration::from_secs(600) };
    assert_eq!(worker.work(arm(), tasks.now().wall).await, WorkResult::Done);
    assert!(tasks.now().mono.since(began) >= Duration::from_secs(45), "an agent that has just begun");
    // The agent dies behind the order; the next one sees less.
    std::fs::write(&baseline, "{}").unwrap();
    assert_eq!(worker.work(arm(), tasks.now().wall).await, WorkResult::Done);
    assert_eq!(std::fs::read_to_string(&baseline).unwrap(), "{}");
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_orders_nothing_is_said_once() {
    let clock = Arc::new(VirtualClock::new());
    let tasks = Tasks::new(clock.clone(), CancellationToken::new());
    let (recorder, mut said) = tasks.mailbox();
    let api = ApiMailboxes {
        status: tasks.mailbox().0,
        mirrors: tasks.mailbox().0,
        recorder,
        node: tasks.mailbox().0,
        read_node: Arc::new(Notify::new()),
    };
    let node_events = NodeEvents::new(StatusStore::default(), Metrics::new(clock), Some(api), None, None);
    let annotated = |annotations: Value| {
        let node: Node = serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap();
        Some(Arc::new(node))
    };
    let (node, seen) = watch::channel(annotated(json!({"orlop.org/update-paused": "yes"})));
    let mut known = BootRecord::new(SlotName::A);
    known.a.version = "0.1.0".into();
    let (_record, record) = watch::channel(Some(known));
    let (to, mut orders) = tasks.mailbox();
    let watched = OrderWatch { node: Some(seen), record, pin: None, booted: SlotName::A, node_events, to };
    tasks.start(watched.follow());
    let UpdateEvent::Orders(first) = orders.recv().await else { panic!("no orders") };
    assert_eq!(first, UpdateOrders::default());
    let RecorderEvent::Record(fact) = said.recv().await else { panic!("no event") };
    assert_eq!(fact.reason, "UpdateOrderRefused");
    assert!(fact.message.contains(r#"orlop.org/update-paused="yes""#), "{}", fact.message);
    // Another annotation comes; the wrong one stays.
    let both = json!({"orlop.org/update-paused": "yes", "orlop.org/update-to": "0.2.0"});
    node.send_replace(annotated(both));
    let UpdateEvent::Orders(next) = orders.recv().await else { panic!("no orders") };
    assert_eq!(next.update_to.as_deref(), Some("0.2.0"));
    assert!(said.recv().now_or_never().is_none(), "it is said again");
    tasks.stop().cancel();
}
