//! Processors and memory of their own: given at admission, recorded before the pod starts, taken back at its end.

use agent_managers::cpu_set::CpuSet;
use agent_managers::cpus::manager::CpuManager;
use agent_managers::cpus::options::CpuOptions;
use agent_managers::cpus::start::Reservation;
use agent_managers::placement::Managers;
use agent_managers::topology::{Cpu, CpuTopology};
use agent_types::runtime::placement::Placement;

use super::*;
use crate::resource_managers::ResourceManagers;

/// Four processors without siblings; 0 is reserved.
fn managers(record: Option<&str>) -> ResourceManagers {
    let cpu = |n: u32| (n, Cpu { core: n, socket: 0, node: 0, uncore: 0 });
    let topology = CpuTopology::new((0..4).map(cpu).collect(), 1);
    let reservation = Reservation { milli: 500, cpus: CpuSet::new() };
    let state = record.map(|text| agent_managers::checkpoint::cpus::read("static", text).unwrap());
    let cpus = CpuManager::start(topology, CpuOptions::default(), &reservation, state).unwrap();
    Managers { cpus: Some(cpus), ..Managers::default() }.into()
}

fn leftovers(record: Option<&str>) -> Leftovers {
    Leftovers { managers: managers(record), ..Leftovers::default() }
}

fn beginning(leftovers: Leftovers) -> PodManager {
    let mut m = PodManager::new([Source::File].into(), leftovers, Arc::default(), Ok(()));
    act(&mut m, Mono(1), listed(&[]));
    act(&mut m, Mono(1), file(PodOp::Add, &[]));
    m
}

/// A Guaranteed pod.
fn asks(uid: &str, cpus: &str) -> Arc<Pod> {
    let mut p = (*pod(uid, uid, "file")).clone();
    let amounts = json!({"cpu": cpus, "memory": "1Mi"});
    let resources = json!({"requests": amounts, "limits": amounts});
    p.spec.as_mut().unwrap().containers[0].resources = serde_json::from_value(resources).unwrap();
    Arc::new(p)
}

/// Actions of one event: words of [`act`] for placements, and the CPU manager's record where one is written.
fn placements(m: &mut PodManager, event: ManagerEvent) -> Vec<String> {
    let mut out = Outbox::new();
    m.step(Now { mono: Mono(1), wall: Wall(1) }, event, &mut out);
    let text = |of: &Placement| format!("{}/{}", of.cpus_of("c"), of.shared_cpus.as_deref().unwrap_or("-"));
    let word = |action| match action {
        ManagerAction::Tell { uid, event: PodEvent::Placed(placement) } => {
            Some(format!("{uid}:{}", text(&placement)))
        }
        ManagerAction::Tell { uid, event: PodEvent::Desired(_) } => Some(format!("{uid}:desired")),
        ManagerAction::Allocated(_, managers) => Some(format!("write {}", managers.cpus.is_some())),
        ManagerAction::Rejected { key, rejection, .. } => Some(format!("!{}:{}", key.uid, rejection.message)),
        _ => None,
    };
    out.drain().filter_map(word).collect()
}

fn records(m: &PodManager) -> String {
    m.resource_managers().records().cpus.unwrap()
}

#[test]
fn a_pod_gets_its_processors_after_they_are_on_disk() {
    let mut m = beginning(leftovers(None));
    assert_eq!(placements(&mut m, file(PodOp::Add, &[&asks("a", "2")])), ["write true"]);
    assert_eq!(placements(&mut m, ManagerEvent::Recorded(true)), ["a:1-2/0,3", "a:desired"]);
    assert!(records(&m).contains(r#""entries":{"a":{"c":"1-2"}}"#), "{}", records(&m));
}

#[test]
fn pods_that_share_move_away_at_once() {
    let mut m = beginning(leftovers(None));
    placements(&mut m, file(PodOp::Add, &[&asks("s", "500m")]));
    assert_eq!(placements(&mut m, ManagerEvent::Recorded(true)), ["s:0-3/0-3", "s:desired"]);
    let words = placements(&mut m, file(PodOp::Add, &[&asks("a", "1")]));
    assert_eq!(words, ["s:0,2-3/0,2-3", "write true"]);
}

#[test]
fn a_pod_for_which_there_are_too_few_is_refused_and_leaves_nothing() {
    let mut m = beginning(leftovers(None));
    placements(&mut m, file(PodOp::Add, &[&asks("a", "2")]));
    placements(&mut m, ManagerEvent::Recorded(true));
    let refused = placements(&mut m, file(PodOp::Add, &[&asks("b", "2")]));
    let message = "Allocate failed due to not enough cpus available to satisfy request: requested=2, available=1, which \
                   is unexpected";
    assert!(refused.contains(&format!("!b:{message}")), "{refused:?}");
    assert!(!records(&m).contains("\"b\""), "{}", records(&m));
    let counts = m.resource_managers().counts();
    assert_eq!((counts.cpus.all, counts.cpus.failed, counts.admissions.all), (2, 1, 2));
}

#[test]
fn the_processors_of_an_ended_pod_are_shared_again() {
    let mut m = beginning(leftovers(None));
    for (uid, cpus) in [("a", "2"), ("s", "500m")] {
        placements(&mut m, file(PodOp::Add, &[&asks(uid, cpus)]));
        placements(&mut m, ManagerEvent::Recorded(true));
    }
    // A pod that no source wants any more keeps its processors until its containers have ended.
    assert_eq!(placements(&mut m, file(PodOp::Remove, &[&asks("a", "2")])), Vec::<String>::new());
    let words = placements(&mut m, ManagerEvent::Ended("a".into()));
    assert!(words.contains(&"s:0-3/0-3".to_owned()), "{words:?}");
    placements(&mut m, finished("a"));
    assert!(!records(&m).contains("entries"), "{}", records(&m));
}

#[test]
fn a_later_agent_gives_a_pod_the_same_processors_and_keeps_those_of_pods_that_no_source_has_named() {
    let record = r#"{"policyName":"static","defaultCpuSet":"0-1","entries":{"a":{"c":"3"},"o":{"c":"2"}},"checksum":0}"#;
    let mut m = PodManager::new([Source::File].into(), leftovers(Some(record)), Arc::default(), Ok(()));
    let (a, o) = (asks("a", "1"), asks("o", "1"));
    placements(&mut m, active::containers_run(&["a", "o"]));
    placements(&mut m, listed(&[&a, &o]));
    // `o` still runs, but its manifest is gone.
    let words = placements(&mut m, file(PodOp::Add, &[&a, &asks("b", "1")]));
    assert!(words.iter().any(|word| word == "write true"), "{words:?}");
    let words = placements(&mut m, ManagerEvent::Recorded(true));
    assert!(words.contains(&"a:3/0".to_owned()) && words.contains(&"b:1/0".to_owned()), "{words:?}");
    placements(&mut m, ManagerEvent::Ended("o".into()));
    assert!(records(&m).contains(r#""defaultCpuSet":"0,2""#), "{}", records(&m));
}

#[test]
fn a_record_that_cannot_be_written_does_not_keep_a_pod_from_its_processors() {
    let mut m = beginning(leftovers(None));
    placements(&mut m, file(PodOp::Add, &[&asks("a", "1")]));
    assert_eq!(placements(&mut m, ManagerEvent::Recorded(false)), ["a:1/0,2-3", "a:desired"]);
}

const STALE: &str =
    r#"{"policyName":"static","defaultCpuSet":"0,3","entries":{"gone":{"c":"1-2"}},"checksum":0}"#;

#[test]
fn parts_of_a_pod_that_is_nowhere_any_more_are_free_before_new_pods_are_judged() {
    let mut m = PodManager::new([Source::File].into(), leftovers(Some(STALE)), Arc::default(), Ok(()));
    placements(&mut m, listed(&[]));
    let words = placements(&mut m, file(PodOp::Add, &[&asks("b", "3")]));
    assert_eq!(words, ["write true"], "{}", records(&m));
}

#[test]
fn a_refused_pod_that_runs_keeps_its_processors_until_it_has_ended() {
    let record = STALE.replace("gone", "a");
    let mut m = PodManager::new([Source::File].into(), leftovers(Some(&record)), Arc::default(), Ok(()));
    let mut a = (*asks("a", "2")).clone();
    a.spec.as_mut().unwrap().node_name = Some("another".to_owned());
    let a = Arc::new(a);
    placements(&mut m, active::containers_run(&["a"]));
    placements(&mut m, listed(&[&a]));
    let words = placements(&mut m, file(PodOp::Add, &[&a]));
    assert!(words.iter().any(|word| word.starts_with("!a:Predicate NodeName failed")), "{words:?}");
    let words = placements(&mut m, file(PodOp::Add, &[&asks("b", "2")]));
    assert!(words.iter().any(|word| word.starts_with("!b:Allocate failed")), "{words:?}");
    placements(&mut m, ManagerEvent::Ended("a".into()));
    assert!(placements(&mut m, file(PodOp::Add, &[&asks("c", "2")])).contains(&"write true".to_owned()));
}

fn over(pod: &Pod) -> Arc<Pod> {
    let mut over = pod.clone();
    over.status = Some(serde_json::from_value(json!({"phase": "Failed"})).unwrap());
    Arc::new(over)
}

/// The agent stopped after the pod's status reached the API, and before the record of its processors was written again; the scheduler
/// has sent the next pod.
#[test]
fn dead_containers_of_a_pod_that_has_ended_keep_no_processors_from_a_new_pod() {
    let (a, b) = (over(&asks("a", "2")), asks("b", "2"));
    let record = |ended| TerminatingRecord {
        pod: pod::key(&a),
        reason: KillReason::Ended,
        grace_s: 5,
        since: Wall(1),
        remove: false,
        ended,
    };
    for ending in [vec![], vec![record(false)], vec![record(true)]] {
        // The second list: no source wants `a` any more.
        for wanted in [vec![&b, &a], vec![&b]] {
            for listed_first in [true, false] {
                let directories = BTreeSet::from([PodUid::from("a")]);
                let leftovers = leftovers(Some(&STALE.replace("gone", "a")));
                let leftovers = Leftovers { records: ending.clone(), directories, ..leftovers };
                let mut m = PodManager::new([Source::File].into(), leftovers, Arc::default(), Ok(()));
                let (list, pods) = (listed(&[&a]), file(PodOp::Add, &wanted));
                let mut words = placements(&mut m, active::containers_run(&[]));
                let events = if listed_first { [list, pods] } else { [pods, list] };
                for event in events {
                    words.extend(placements(&mut m, event));
                }
                assert!(!words.iter().any(|word| word.starts_with("!b")), "{words:?}");
                assert!(records(&m).contains(r#""entries":{"b":{"c":"1-2"}}"#), "{}", records(&m));
            }
        }
    }
}

#[test]
fn a_refused_pod_with_dead_containers_keeps_no_processors() {
    let record = STALE.replace("gone", "a");
    let mut m = PodManager::new([Source::File].into(), leftovers(Some(&record)), Arc::default(), Ok(()));
    let mut a = (*asks("a", "2")).clone();
    a.spec.as_mut().unwrap().node_name = Some("another".to_owned());
    let a = Arc::new(a);
    placements(&mut m, listed(&[&a]));
    let words = placements(&mut m, file(PodOp::Add, &[&a]));
    assert!(words.iter().any(|word| word.starts_with("!a:Predicate NodeName failed")), "{words:?}");
    assert!(!records(&m).contains("entries"), "{}", records(&m));
}

#[test]
fn a_pod_that_is_over_keeps_its_processors_until_its_containers_have_ended() {
    let record = STALE.replace("gone", "a");
    let mut m = PodManager::new([Source::File].into(), leftovers(Some(&record)), Arc::default(), Ok(()));
    let a = over(&asks("a", "2"));
    placements(&mut m, active::containers_run(&["a"]));
    placements(&mut m, listed(&[&a]));
    placements(&mut m, file(PodOp::Add, &[&a]));
    let words = placements(&mut m, file(PodOp::Add, &[&asks("b", "2")]));
    assert!(words.iter().any(|word| word.starts_with("!b:Allocate failed")), "{words:?}");
    placements(&mut m, ManagerEvent::Ended("a".into()));
    assert!(placements(&mut m, file(PodOp::Add, &[&asks("c", "2")])).contains(&"write true".to_owned()));
}

#[test]
fn a_pod_that_got_its_parts_during_a_write_waits_for_the_next_one() {
    // Its requests are on disk from an earlier agent, its processors are new.
    let (a, b) = (asks("a", "1"), asks("b", "1"));
    let given = |p: &Arc<Pod>| (PodUid::from(pod::uid(p)), crate::allocation::PodAllocation::of(p));
    let allocated = [given(&a), given(&b)].into();
    let mut m = beginning(Leftovers { allocated, ..leftovers(None) });
    assert_eq!(placements(&mut m, file(PodOp::Add, &[&a])), ["write true"]);
    assert_eq!(placements(&mut m, file(PodOp::Add, &[&b])), Vec::<String>::new());
    let words = placements(&mut m, ManagerEvent::Recorded(true));
    assert!(words.contains(&"a:desired".to_owned()) && !words.contains(&"b:desired".to_owned()), "{words:?}");
    assert!(words.contains(&"write true".to_owned()), "{words:?}");
    assert!(placements(&mut m, ManagerEvent::Recorded(true)).contains(&"b:desired".to_owned()));
}
