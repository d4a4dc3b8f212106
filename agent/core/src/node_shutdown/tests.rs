//! Shutdowns in a short notation, and the budget as a property.

use agent_types::kill::{KillReason, TerminatingRecord};
use agent_types::time::Wall;
use proptest::prelude::*;
use serde_json::json;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn group(priority: i32, period_s: u64) -> Group {
    Group { priority, period: Duration::from_secs(period_s) }
}

fn pod(uid: &str, priority: i32) -> LeavingPod {
    let key = PodKey { namespace: "ns".into(), name: uid.into(), uid: PodUid::from(uid) };
    LeavingPod { key, priority }
}

fn at(mono: u64) -> Now {
    Now { mono: Mono(mono), wall: Wall(i64::try_from(1_700_000_000 * SECOND + mono).unwrap()) }
}

struct World {
    machine: NodeShutdown,
    now: u64,
    receipts: Vec<Receipt>,
}

impl World {
    fn new(groups: &[Group]) -> World {
        World::with(groups, None)
    }

    fn with(groups: &[Group], last: Option<Receipt>) -> World {
        let machine = NodeShutdown::new(groups.to_vec(), "boot", last, at(0));
        World { machine, now: 0, receipts: Vec::new() }
    }

    /// `uid<grace` end, `node+`, `node-`, `write` (with an end: `written`), others by name.
    fn step(&mut self, event: ShutdownEvent) -> String {
        let mut out = Outbox::new();
        self.machine.step(at(self.now), event, &mut out);
        let receipts = &mut self.receipts;
        let words = out.drain().map(|action| match action {
            ShutdownAction::End { uid, grace_s } => format!("{uid}<{grace_s}"),
            ShutdownAction::Node(Ok(())) => "node+".to_owned(),
            ShutdownAction::Node(Err(_)) => "node-".to_owned(),
            ShutdownAction::Event(text) => format!("event {}", text.rsplit(' ').next().unwrap()),
            ShutdownAction::Write(receipt) => {
                let ended = receipt.end_time.is_some();
                receipts.push(receipt);
                if ended { "written".to_owned() } else { "write".to_owned() }
            }
            other => format!("{other:?}").to_lowercase(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    fn prepare_for_shutdown(&mut self, stopping: bool) -> String {
        self.prepare_for_shutdown_of(stopping, "reboot")
    }

    fn prepare_for_shutdown_of(&mut self, stopping: bool, kind: &str) -> String {
        self.step(ShutdownEvent::Told { stopping, kind: kind.to_owned() })
    }

    fn leaving(&mut self, pods: &[LeavingPod]) -> String {
        self.step(ShutdownEvent::Leaving(pods.to_vec()))
    }

    fn released(&mut self, uid: &str) -> String {
        self.step(ShutdownEvent::Released(PodUid::from(uid)))
    }

    fn untold(&mut self, uids: &[&str]) -> String {
        self.step(ShutdownEvent::Untold(uids.iter().map(|uid| PodUid::from(*uid)).collect()))
    }

    /// Until the deadline.
    fn wait(&mut self) -> String {
        self.now = self.machine.deadline().expect("something is waited for").0;
        self.step(ShutdownEvent::Tick)
    }

    /// `uid` with `+` for a pod that ended and `!` for one that was reported.
    fn last_receipt(&self) -> String {
        let pods = &self.receipts.last().unwrap().pods;
        let mark = |yes, mark| if yes { mark } else { "" };
        let words = pods.iter().map(|p| format!("{}{}{}", p.uid, mark(p.ended, "+"), mark(p.told, "!")));
        words.collect::<Vec<_>>().join(" ")
    }
}

const BEGIN: &str = "event event node- write close";

#[test]
fn groups_of_a_configuration() {
    let kubelet = |text: &str| {
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        orlop_config::kubelet::load_kubelet_config(&format!("{head}{text}"), "k").unwrap()
    };
    assert_eq!(groups(&kubelet(""), true), [], "pods are not waited for");
    assert_eq!(
        groups(&kubelet("shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n"), true),
        [group(0, 20), group(2_000_000_000, 10)]
    );
    let by_priority = "shutdownGracePeriodByPodPriority:\n- {priority: 1000, shutdownGracePeriodSeconds: 5}\n\
        - {priority: 0, shutdownGracePeriodSeconds: 7}\n";
    assert_eq!(groups(&kubelet(by_priority), false), [], "the gate is off");
    let by_priority = groups(&kubelet(by_priority), true);
    assert_eq!(by_priority, [group(0, 7), group(1000, 5)]);
    assert_eq!(budget(&by_priority), Duration::from_secs(12));
}

#[test]
fn a_static_pod_of_a_systems_class_ends_with_the_critical_pods() {
    let of = |source: &str, priority_: Option<i32>, class: Option<&str>| {
        let spec = json!({"containers": [], "priority": priority_, "priorityClassName": class});
        let meta = json!({"name": "p", "annotations": {"kubernetes.io/config.source": source}});
        priority(&serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap())
    };
    let (node, cluster) = (Some("system-node-critical"), Some("system-cluster-critical"));
    assert_eq!(of("file", None, node), 2_000_001_000);
    assert_eq!(of("http", None, cluster), 2_000_000_000);
    assert_eq!(of("file", None, Some("of-the-user")), 0, "its value is in the API");
    assert_eq!(of("file", None, None), 0);
    assert_eq!(of("file", Some(7), node), 7);
    assert_eq!(of("api", None, node), 0, "the API server fills it in");
    assert_eq!(of("api", Some(2_000_001_000), node), 2_000_001_000);
}

#[test]
fn a_pod_goes_to_the_highest_group_that_it_reaches() {
    let groups = [group(10, 1), group(100, 2), group(1000, 3)];
    for (priority, period_s) in
        [(-5, 1), (9, 1), (10, 1), (99, 1), (100, 2), (999, 2), (1000, 3), (i32::MAX, 3)]
    {
        let stages = stages(&groups, vec![pod("a", priority)]);
        assert_eq!(stages.len(), 1);
        assert_eq!(stages[0].period, Duration::from_secs(period_s), "priority {priority}");
    }
    let order = stages(&groups, vec![pod("c", 1000), pod("a", 0), pod("b", 0)]);
    let uids: Vec<Vec<&str>> =
        order.iter().map(|stage| stage.pods.iter().map(|pod| pod.key.uid.as_str()).collect()).collect();
    assert_eq!(uids, [vec!["a", "b"], vec!["c"]]);
}

#[test]
fn all_goes_well() {
    let mut w = World::new(&[group(0, 20), group(1000, 10)]);
    assert_eq!(w.prepare_for_shutdown(false), "hold", "the first word after a connection");
    assert_eq!(w.prepare_for_shutdown(true), BEGIN);
    assert_eq!(w.prepare_for_shutdown(true), "", "the other signal of the same shutdown");
    assert_eq!(w.leaving(&[pod("high", 5000), pod("a", 0), pod("b", -1)]), "a<20 b<20");
    assert_eq!(w.released("a"), "");
    assert_eq!(w.released("b"), "high<10", "the rest of a period is nobody's");
    assert_eq!(w.released("high"), "asktold");
    assert_eq!(w.untold(&["b", "stranger"]), "");
    assert_eq!(w.untold(&["stranger"]), "written");
    assert_eq!(w.last_receipt(), "a+! b+! high+!");
    assert!(w.receipts.last().unwrap().is_of("boot") && !w.receipts[0].is_of("boot"));
    assert_eq!(w.receipts[0].kind, "reboot");
    assert_eq!(w.step(ShutdownEvent::Written), "release");
    assert_eq!((w.wait_for_nothing(), w.prepare_for_shutdown(true)), (true, String::new()));
}

/// logind did not wait for the pods: the service manager stops the agent, while logind starts and stops.
#[test]
fn units_that_stop_are_word_enough() {
    let down = |kind: &str| ShutdownEvent::GoingDown { kind: kind.to_owned() };
    let mut w = World::new(&[group(0, 20)]);
    assert_eq!(w.step(down("reboot")), BEGIN, "logind was never heard");
    assert_eq!(w.receipts[0].kind, "reboot");
    assert_eq!(w.prepare_for_shutdown(false), "", "a logind that has forgotten it, or was never asked");
    assert_eq!(w.leaving(&[pod("a", 0)]), "a<20");
    assert!(!w.machine.is_over());
    assert_eq!(w.released("a"), "asktold");
    assert_eq!(w.untold(&[]), "written");
    assert_eq!(w.step(ShutdownEvent::Written), "release");
    assert!(w.machine.is_over() && w.receipts.last().unwrap().is_of("boot"));
    assert_eq!((w.prepare_for_shutdown(false), w.step(down("reboot"))), (String::new(), String::new()));

    // In the middle of one that logind announced, and whose lock ran out.
    let mut w = World::new(&[group(0, 20)]);
    assert_eq!(
        (w.prepare_for_shutdown(false), w.prepare_for_shutdown_of(true, "")),
        ("hold".to_owned(), BEGIN.to_owned())
    );
    assert_eq!(w.leaving(&[pod("a", 0)]), "a<20");
    assert_eq!(w.step(down("poweroff")), "");
    assert_eq!(w.prepare_for_shutdown(false), "", "it is not called off any more");
    assert_eq!((w.wait(), w.untold(&[])), ("asktold".to_owned(), "written".to_owned()));
    assert_eq!((w.receipts.last().unwrap().kind.as_str(), w.last_receipt().as_str()), ("poweroff", "a"));

    // All was over before: nothing is asked for again.
    let mut w = World::new(&[group(0, 20)]);
    w.prepare_for_shutdown(true);
    w.leaving(&[]);
    w.untold(&[]);
    assert_eq!(w.step(ShutdownEvent::Written), "release");
    assert_eq!(w.step(down("reboot")), "");
    assert!(w.machine.is_over());

    // An agent that was started again in the middle of it, before it heard logind.
    let begun = Receipt::begin("boot", "reboot", at(0).wall);
    let mut w = World::with(&[group(0, 20)], Some(begun));
    assert!(w.machine.is_resumed());
    assert_eq!(w.step(down("")), BEGIN);
    assert_eq!(w.receipts[0].kind, "reboot");
}

impl World {
    fn wait_for_nothing(&self) -> bool {
        self.machine.deadline().is_none()
    }
}

#[test]
fn deaf_pods_and_a_silent_server_cost_the_budget_and_a_second() {
    let mut w = World::new(&[group(0, 20), group(1000, 10)]);
    w.prepare_for_shutdown(true);
    assert_eq!(w.leaving(&[pod("deaf", 0), pod("high", 1000)]), "deaf<20");
    assert_eq!(w.wait(), "high<10");
    assert_eq!(w.now, 20 * SECOND);
    assert_eq!(w.released("deaf"), "", "late, and of another stage");
    assert_eq!(w.wait(), "asktold");
    assert_eq!(w.untold(&["deaf"]), "", "it ended after all, and is not told");
    assert_eq!(w.wait(), "written");
    assert_eq!(w.now, 31 * SECOND);
    assert_eq!(w.last_receipt(), "deaf+ high");
    assert_eq!(w.wait(), "release", "a disk that does not answer");
    assert_eq!(w.now, 32 * SECOND);
}

#[test]
fn nobody_is_there() {
    let mut w = World::new(&[group(0, 20)]);
    w.prepare_for_shutdown(true);
    assert_eq!(w.leaving(&[]), "asktold");
    assert_eq!(w.untold(&[]), "written");
    assert_eq!(w.step(ShutdownEvent::Written), "release");
}

#[test]
fn a_shutdown_that_does_not_come_about() {
    let groups = [group(0, 20)];
    let cancelled = "event cancellation node+ written hold open";
    let far = |w: &mut World, steps: usize| {
        w.prepare_for_shutdown(true);
        let all: [fn(&mut World) -> String; 4] = [
            |w| w.leaving(&[pod("a", 0)]),
            |w| w.released("a"),
            |w| w.untold(&[]),
            |w| w.step(ShutdownEvent::Written),
        ];
        for step in &all[..steps] {
            step(w);
        }
    };
    for steps in 0..=4 {
        let mut w = World::new(&groups);
        far(&mut w, steps);
        assert_eq!(w.prepare_for_shutdown(false), cancelled, "after {steps} steps");
        assert!(!w.receipts.last().unwrap().is_of("boot"), "the boot did not end with it");
        assert!(w.wait_for_nothing());
        assert_eq!((w.released("a"), w.untold(&[]), w.step(ShutdownEvent::Written)), Default::default());
        assert_eq!(w.prepare_for_shutdown(true), BEGIN, "another one");
    }
}

#[test]
fn an_agent_that_was_killed_meanwhile() {
    let groups = [group(0, 20)];
    let begun = Receipt::begin("boot", "poweroff", at(0).wall);
    let resumed = |receipt: &Receipt| World::with(&groups, Some(receipt.clone()));
    let mut w = resumed(&begun);
    assert!(w.machine.is_resumed());
    assert_eq!(w.prepare_for_shutdown(true), BEGIN);
    assert_eq!(w.receipts[0], begun, "it began when it began");
    assert_eq!(w.leaving(&[pod("a", 0)]), "a<20");
    let mut w = resumed(&begun);
    // The manager is closed before logind is heard, and answers.
    assert_eq!(w.leaving(&[pod("a", 0)]), "");
    assert_eq!(w.prepare_for_shutdown(false), "event cancellation node+ written hold open");
    let of_another_boot = Receipt { boot_id: "before".to_owned(), ..begun.clone() };
    let long_ago = Receipt::begin("boot", "", Wall(at(0).wall.0 - 81_000_000_000));
    let ended = Receipt { end_time: Some(begun.start_time.clone()), ..begun };
    for (over, hears) in [(of_another_boot, "hold"), (long_ago, "hold"), (ended, "hold written")] {
        let mut w = resumed(&over);
        assert!(!w.machine.is_resumed(), "{over:?}");
        assert_eq!(w.prepare_for_shutdown(false), hears);
    }
}

#[test]
fn a_plan_for_each_kind() {
    let all = [group(0, 300)];
    for (kind, comes_back, waits_s) in [
        ("reboot", true, 15),
        ("kexec", true, 15),
        ("soft-reboot", true, 15),
        ("poweroff", false, 296),
        ("halt", false, 296),
        ("factory-reset", false, 296),
        ("", false, 296),
    ] {
        assert_eq!(Kind::of(kind).comes_back(), comes_back, "{kind}");
        let mut w = World::new(&all);
        assert_eq!(w.prepare_for_shutdown_of(true, kind), BEGIN, "{kind}: upstream makes no difference");
        assert_eq!(w.leaving(&[pod("a", 0)]), "a<300");
        w.now = 4 * SECOND;
        assert_eq!(w.released("a"), "asktold");
        assert_eq!(w.untold(&["a"]), "");
        assert_eq!(w.wait(), "written");
        assert_eq!(w.now, (4 + waits_s) * SECOND, "{kind}: how long the API server is waited for");
        assert_eq!((w.receipts[1].kind.as_str(), w.last_receipt().as_str()), (kind, "a+"));
        assert_eq!(w.step(ShutdownEvent::Written), "release");
    }
    // No kind has less than the least, or more than the budget.
    for kind in ["reboot", "poweroff"] {
        for (used_s, ends_s) in [(295, 300), (300, 301)] {
            let mut w = World::new(&all);
            w.prepare_for_shutdown_of(true, kind);
            w.leaving(&[pod("a", 0)]);
            w.now = used_s * SECOND;
            w.released("a");
            assert_eq!(w.wait(), "written");
            assert_eq!(w.now, ends_s * SECOND, "{kind} after {used_s} s");
        }
    }
}

#[test]
fn the_kind_is_learnt_from_whichever_signal_says_it() {
    for (first, second) in [("kexec", ""), ("", "kexec")] {
        let mut w = World::new(&[group(0, 300)]);
        w.prepare_for_shutdown_of(true, first);
        assert_eq!(w.prepare_for_shutdown_of(true, second), "");
        assert_eq!(w.leaving(&[]), "asktold");
        assert_eq!(w.wait(), "written");
        assert_eq!((w.now, w.receipts[1].kind.as_str()), (15 * SECOND, "kexec"));
    }
    // logind reports to an agent that starts later only that the machine stops: the kind is in the receipt.
    let mut w = World::with(&[group(0, 20)], Some(Receipt::begin("boot", "halt", at(0).wall)));
    w.prepare_for_shutdown_of(true, "");
    assert_eq!(w.receipts[0].kind, "halt");
}

#[test]
fn a_boot_that_goes_on_takes_its_receipt_back() {
    let ended = |boot: &str, kind: &str| {
        let begun = Receipt::begin(boot, kind, at(0).wall);
        Receipt {
            end_time: Some(begun.start_time.clone()),
            pods: vec![PodReceipt::of(&pod("a", 0).key)],
            ..begun
        }
    };
    // The userspace of a soft-reboot, or of a stop that came to nothing while no agent listened.
    for kind in ["soft-reboot", "reboot", "poweroff", "halt", "kexec"] {
        let mut w = World::with(&[group(0, 20)], Some(ended("boot", kind)));
        assert!(!w.machine.is_resumed());
        assert_eq!(w.prepare_for_shutdown(false), "hold written", "{kind}");
        let receipt = &w.receipts[0];
        assert!(!receipt.is_of("boot") && receipt.boot_went_on, "how the boot ends is open again");
        assert_eq!(
            (receipt.kind.as_str(), receipt.pods.len()),
            (kind, 1),
            "and what became of the pods stays known"
        );
        assert_eq!(w.step(ShutdownEvent::Written), "");
        assert_eq!(w.prepare_for_shutdown(false), "hold", "once");
    }
    // The machine is still about to stop, and only the agent was started again: it writes a receipt of its own.
    let mut w = World::with(&[group(0, 20)], Some(ended("boot", "reboot")));
    assert_eq!(w.prepare_for_shutdown(true), BEGIN);
    assert_eq!(w.prepare_for_shutdown(false), "event cancellation node+ written hold open");
    // A boot of its own, as after a reboot, a power-off or a kexec: the receipt speaks of the one before.
    let mut w = World::with(&[group(0, 20)], Some(ended("before", "kexec")));
    assert_eq!(w.prepare_for_shutdown(false), "hold");
    // It is not taken back twice.
    let mut w =
        World::with(&[group(0, 20)], Some(Receipt { boot_went_on: true, ..ended("boot", "soft-reboot") }));
    assert_eq!(w.prepare_for_shutdown(false), "hold");
}

#[test]
fn a_receipt_is_upstreams_file_with_more_in_it() {
    let upstream = r#"{"startTime":"2026-11-22T19:00:00Z","endTime":"2026-11-22T19:00:30Z"}"#;
    let read: Receipt = serde_json::from_str(upstream).unwrap();
    assert_eq!((read.boot_id.as_str(), read.pods.len(), read.end_time.is_some()), ("", 0, true));
    let mut own = Receipt::begin("boot", "reboot", at(0).wall);
    own.pods.push(PodReceipt::of(&pod("a", 0).key));
    let text = serde_json::to_string(&own).unwrap();
    assert!(text.contains(r#""startTime":"2023-11-14T22:13:20Z""#), "{text}");
    assert_eq!(serde_json::from_str::<Receipt>(&text).unwrap(), own);
}

/// Remains of a static pod that is being removed would pass for a run of the new one.
#[test]
fn a_static_pod_begins_anew_after_the_shutdown_unless_it_is_being_removed() {
    let record = |reason, ended| TerminatingRecord {
        pod: pod("s", 0).key,
        reason,
        grace_s: 1,
        since: Wall(1),
        remove: ended,
        ended,
    };
    let shutdown = |again| KillReason::Shutdown { again };
    for (reason, ended, resumed, anew) in [
        (shutdown(true), false, false, true),
        (shutdown(true), false, true, false),
        (shutdown(true), true, false, false),
        (shutdown(false), false, false, false),
        (KillReason::Removed, false, false, false),
    ] {
        assert_eq!(begins_anew(&record(reason.clone(), ended), resumed), anew, "{reason:?}");
    }
}

proptest! {
    /// The lock is given back within the budget, a second for the reports and one for the receipt, in every course of
    /// the pods and the API server; every pod is asked to end exactly once, none before one of a lower group was given
    /// its time.
    #[test]
    fn within_the_budget(
        periods in proptest::collection::vec(0_u64..20, 1..4),
        pods in proptest::collection::vec((0_i32..4, 0_u64..30), 0..12),
        tells in 0_u64..60,
    ) {
        let groups: Vec<Group> =
            (0_i32..).zip(&periods).map(|(priority, period)| group(priority, *period)).collect();
        let mut w = World::new(&groups);
        w.prepare_for_shutdown(true);
        let list: Vec<LeavingPod> =
            pods.iter().enumerate().map(|(i, (priority, _))| pod(&format!("p{i}"), *priority)).collect();
        let mut ended: Vec<String> = Vec::new();
        let mut due: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        let mut words = w.leaving(&list);
        let mut released_at = None;
        for second in 0..200 {
            w.now = second * SECOND;
            let mut said = vec![std::mem::take(&mut words), w.step(ShutdownEvent::Tick)];
            for i in due.remove(&second).unwrap_or_default() {
                said.push(w.released(&format!("p{i}")));
            }
            if second >= tells {
                said.push(w.untold(&[]));
            }
            for word in said.iter().flat_map(|said| said.split(' ')) {
                if let Some((uid, _)) = word.split_once('<') {
                    ended.push(uid.to_owned());
                    let index: usize = uid[1..].parse().unwrap();
                    due.entry(second + 1 + pods[index].1).or_default().push(index);
                }
                if word == "release" {
                    released_at.get_or_insert(second);
                }
            }
        }
        let last = released_at.expect("the lock is given back");
        prop_assert!(last <= periods.iter().sum::<u64>() + 2, "after {last} s");
        let priority = |uid: &String| pods[uid[1..].parse::<usize>().unwrap()].0.min(i32::try_from(groups.len()).unwrap() - 1);
        let order: Vec<i32> = ended.iter().map(priority).collect();
        prop_assert!(order.is_sorted(), "{order:?}");
        let mut once = ended.clone();
        once.sort();
        once.dedup();
        prop_assert_eq!(once.len(), pods.len());
        prop_assert_eq!(ended.len(), pods.len());
    }
}
