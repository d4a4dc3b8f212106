//! Allocations: written before the worker gets them, changed when resources are free.

use std::time::Duration;

use super::*;
use crate::allocation::{Allocations, PodAllocation};

const MINUTE: u64 = 60_000_000_000;

fn asks(uid: &str, cpu: &str) -> Arc<Pod> {
    let mut p = (*pod(uid, uid, "api")).clone();
    let spec = p.spec.as_mut().unwrap();
    spec.containers[0].resources = serde_json::from_value(json!({"requests": {"cpu": cpu}})).unwrap();
    Arc::new(p)
}

fn api(pods: &[&Arc<Pod>]) -> ManagerEvent {
    update(PodOp::Update, Source::Api, pods)
}

/// The allocation that the worker of `uid` gets, in thousandths of a core.
fn desired_cpu(manager: &mut PodManager, event: ManagerEvent, uid: &str) -> Option<i64> {
    let mut out = Outbox::new();
    manager.step(Now { mono: Mono(1), wall: Wall(1) }, event, &mut out);
    let desired = |action| match action {
        ManagerAction::Tell { uid: to, event: PodEvent::Desired(pod) } if to.as_str() == uid => Some(pod),
        _ => None,
    };
    let told: Vec<Arc<Pod>> = out.drain().filter_map(desired).collect();
    let pod = told.last()?;
    Some(PodAllocation::of(pod).amounts("c").cpu_request_milli)
}

fn beginning(pods: &[&Arc<Pod>], leftovers: Leftovers) -> PodManager {
    let mut m = manager(&[Source::Api], leftovers);
    act(&mut m, Mono(1), ManagerEvent::Node(None));
    act(&mut m, Mono(1), listed(&[]));
    step(&mut m, update(PodOp::Add, Source::Api, pods));
    m
}

fn actuated(m: &mut PodManager, pod: &Arc<Pod>) -> Vec<String> {
    act(m, Mono(1), ManagerEvent::Actuated(Arc::clone(pod)))
}

#[test]
fn nobody_is_told_before_it_is_on_disk() {
    let mut m = manager(&[Source::Api], Leftovers::default());
    act(&mut m, Mono(1), ManagerEvent::Node(None));
    act(&mut m, Mono(1), listed(&[]));
    let (a, none) = (asks("a", "400m"), asks("n", "0"));
    let words = act(&mut m, Mono(1), update(PodOp::Add, Source::Api, &[&a, &none]));
    assert_eq!(
        words,
        ["+a@0", "+n@0", "n:desired", "synced", "write2"],
        "who asks for nothing need not wait"
    );
    assert_eq!(act(&mut m, Mono(1), api(&[&a])), Vec::<String>::new());
    assert_eq!(desired_cpu(&mut m, ManagerEvent::Recorded(true), "a"), Some(400));
    // A larger request while it runs: the worker gets other changes with the present allocation.
    let words = act(&mut m, Mono(1), api(&[&asks("a", "900m")]));
    assert_eq!(words, ["Requested((\"cpu\", \"requests\", \"increase\"))", "a:desired", "write2"]);
    assert_eq!(desired_cpu(&mut m, api(&[&asks("a", "900m")]), "a"), Some(400));
    assert_eq!(desired_cpu(&mut m, ManagerEvent::Recorded(true), "a"), Some(900));
}

#[test]
fn what_a_pod_asks_for_itself_is_judged_at_once_and_written() {
    let whole = |cpu: &str| {
        let mut p = Pod::clone(&asks("a", "100m"));
        p.spec.as_mut().unwrap().resources =
            serde_json::from_value(json!({"requests": {"cpu": cpu}})).unwrap();
        Arc::new(p)
    };
    let mut m = beginning(&[&whole("400m")], Leftovers::default());
    act(&mut m, Mono(1), ManagerEvent::Recorded(true));
    assert_eq!(act(&mut m, Mono(1), api(&[&whole("900m")])), ["a:desired", "write1"]);
    assert_eq!(act(&mut m, Mono(1), ManagerEvent::Recorded(true)), ["a:desired"]);
    let words = act(&mut m, Mono(1), api(&[&whole("1900m")]));
    assert_eq!(words, ["a:desired", "a:Deferred"], "beyond what the node has");
}

#[test]
fn a_disk_that_is_full_holds_up_resizes_and_not_pods() {
    let mut m = manager(&[Source::Api], Leftovers::default());
    act(&mut m, Mono(1), ManagerEvent::Node(None));
    act(&mut m, Mono(1), listed(&[]));
    act(&mut m, Mono(1), update(PodOp::Add, Source::Api, &[&asks("a", "400m")]));
    assert_eq!(desired_cpu(&mut m, ManagerEvent::Recorded(false), "a"), Some(400));
    act(&mut m, Mono(1), api(&[&asks("a", "500m")]));
    let due = m.deadline().unwrap();
    assert_eq!(due, Mono(1).after(Duration::from_secs(10)));
    assert_eq!(act(&mut m, due, ManagerEvent::Tick), ["write1"]);
    assert_eq!(desired_cpu(&mut m, ManagerEvent::Recorded(false), "a"), None, "it keeps what it has");
    let due = m.deadline().unwrap();
    assert_eq!(act(&mut m, due, ManagerEvent::Tick), ["write1"]);
    assert_eq!(desired_cpu(&mut m, ManagerEvent::Recorded(true), "a"), Some(500));
}

#[test]
fn who_goes_holds_nobody_up() {
    let (a, b) = (asks("a", "400m"), asks("b", "100m"));
    let mut m = beginning(&[&a], Leftovers::default());
    act(&mut m, Mono(1), ManagerEvent::Recorded(true));
    m.give_back(&PodUid::from("a"));
    assert_eq!(
        act(&mut m, Mono(2), ManagerEvent::Tick),
        Vec::<String>::new(),
        "nobody waits for that record"
    );
    let later = m.deadline().unwrap();
    assert_eq!(later, Mono(2).after(Duration::from_secs(30)));
    let words = act(&mut m, Mono(3), update(PodOp::Add, Source::Api, &[&b]));
    assert!(words.last().is_some_and(|word| word.starts_with("write")), "{words:?}");
    assert_eq!(desired_cpu(&mut m, ManagerEvent::Recorded(true), "b"), Some(100));
    assert_eq!(m.deadline().filter(|at| *at <= later), None, "and it is written by now");
}

/// The generation that the worker of `a` gets.
fn generation(m: &mut PodManager, event: ManagerEvent) -> Option<Option<i64>> {
    let mut out = Outbox::new();
    m.step(Now { mono: Mono(1), wall: Wall(1) }, event, &mut out);
    let desired = |action| match action {
        ManagerAction::Tell { uid, event: PodEvent::Desired(pod) } if uid.as_str() == "a" => Some(pod),
        _ => None,
    };
    let told: Vec<Arc<Pod>> = out.drain().filter_map(desired).collect();
    told.last().map(|pod| pod.metadata.generation)
}

#[test]
fn a_generation_is_known_when_it_is_decided_what_it_is_given() {
    let asks = |cpu: &str, generation: i64| {
        let mut p = Pod::clone(&asks("a", cpu));
        p.metadata.generation = Some(generation);
        Arc::new(p)
    };
    let mut m = beginning(&[&asks("400m", 1)], Leftovers::default());
    assert_eq!(generation(&mut m, api(&[&asks("400m", 1)])), Some(Some(1)));
    // Given, and not on disk yet: its status must not look as if the resize were done.
    assert_eq!(generation(&mut m, api(&[&asks("500m", 2)])), Some(Some(1)));
    assert_eq!(generation(&mut m, ManagerEvent::Recorded(true)), Some(Some(2)));
    // The disk is full, and another change arrives.
    assert_eq!(generation(&mut m, api(&[&asks("600m", 3)])), Some(Some(2)));
    assert_eq!(generation(&mut m, ManagerEvent::Recorded(false)), None);
    assert_eq!(generation(&mut m, api(&[&asks("600m", 4)])), Some(Some(2)));
    let due = m.deadline().unwrap();
    assert_eq!(act(&mut m, due, ManagerEvent::Tick), ["write1"]);
    assert_eq!(generation(&mut m, ManagerEvent::Recorded(true)), Some(Some(4)));
    // What is refused is decided, too, also when it is asked for again with something else.
    assert_eq!(generation(&mut m, api(&[&asks("9000m", 5)])), Some(Some(5)));
    assert_eq!(generation(&mut m, api(&[&asks("9000m", 6)])), Some(Some(6)));
    // A withdrawn request, and a request equal to the allocation, are decided, too.
    assert_eq!(generation(&mut m, api(&[&asks("600m", 7)])), Some(Some(7)));
    assert_eq!(generation(&mut m, api(&[&asks("600m", 8)])), Some(Some(8)));
    // A change that never came to the disk is taken back.
    assert_eq!(generation(&mut m, api(&[&asks("700m", 9)])), Some(Some(8)));
    assert_eq!(generation(&mut m, ManagerEvent::Recorded(false)), None);
    assert_eq!(generation(&mut m, api(&[&asks("600m", 10)])), Some(Some(10)));
}

#[test]
fn what_does_not_fit_waits_for_room() {
    let (a, b) = (asks("a", "400m"), asks("b", "400m"));
    let mut m = beginning(&[&a, &b], Leftovers::default());
    assert!(actuated(&mut m, &a).is_empty() && actuated(&mut m, &b).is_empty());
    let more = "Requested((\"cpu\", \"requests\", \"increase\"))";
    let words = act(&mut m, Mono(1), api(&[&asks("a", "700m")]));
    assert_eq!(words, [more, "a:desired", "a:Deferred"]);
    assert_eq!(act(&mut m, Mono(1), api(&[&asks("a", "700m")])), ["a:desired"], "told once");
    // Released resources count once no container has them.
    let words = act(&mut m, Mono(1), api(&[&asks("b", "100m")])).join(" ");
    assert!(words.ends_with("b:desired write2"), "{words}");
    assert_eq!(act(&mut m, Mono(1), ManagerEvent::Recorded(true)), ["b:desired"]);
    let words = actuated(&mut m, &asks("b", "100m"));
    assert_eq!(words, ["DeferredAccepted(\"pod_resized\")", "write2"], "it waits until that is on disk");
    assert_eq!(act(&mut m, Mono(1), ManagerEvent::Recorded(true)), ["a:desired", "a:settled"]);
}

#[test]
fn what_waits_is_judged_again_now_and_then_and_when_a_pod_ends() {
    let (a, b) = (asks("a", "400m"), asks("b", "400m"));
    let mut m = beginning(&[&a, &b], Leftovers::default());
    act(&mut m, Mono(1), api(&[&asks("a", "700m")]));
    let due = m.deadline().unwrap();
    assert_eq!(due, Mono(1).after(Duration::from_secs(180)));
    assert_eq!(act(&mut m, due, ManagerEvent::Tick), Vec::<String>::new());
    assert_eq!(m.deadline(), Some(Mono(due.0 + 3 * MINUTE)));
    let words = act(&mut m, Mono(1), ManagerEvent::Ended(PodUid::from("b"))).join(" ");
    assert!(words.contains("DeferredAccepted(\"pod_terminated\")") && words.ends_with("write2"), "{words}");
    // Taken back while it waits.
    let mut m = beginning(&[&a, &b], Leftovers::default());
    act(&mut m, Mono(1), api(&[&asks("a", "700m")]));
    let words = act(&mut m, Mono(1), api(&[&a])).join(" ");
    assert!(words.contains("a:settled"), "{words}");
    assert_eq!(m.deadline(), None);
}

#[test]
fn a_resize_waits_for_a_node_that_would_take_the_pod() {
    let larger = api(&[&asks("a", "500m")]);
    let disk = Pressures { disk: true, ..Pressures::default() };
    let taint = Taint { key: "k".into(), effect: "NoExecute".into(), ..Taint::default() };
    let tainted = NodeMarks { taints: vec![taint], ..NodeMarks::default() };
    let cases = [
        (ManagerEvent::Pressures(disk), ManagerEvent::Pressures(Pressures::default())),
        (ManagerEvent::Node(Some(tainted)), ManagerEvent::Node(Some(NodeMarks::default()))),
        (ManagerEvent::Shutdown(ShutdownOrder::Close), ManagerEvent::Shutdown(ShutdownOrder::Open)),
    ];
    for (refuses, takes) in cases {
        let mut m = beginning(&[&asks("a", "400m")], Leftovers::default());
        act(&mut m, Mono(1), refuses.clone());
        let words = act(&mut m, Mono(1), larger.clone());
        assert_eq!(words, [MORE, "a:desired", "a:Deferred"], "{refuses:?}");
        let words = act(&mut m, Mono(1), takes);
        assert_eq!(words, ["DeferredAccepted(\"periodic_retry\")", "write1"], "{refuses:?}");
    }
}

#[test]
fn a_critical_pod_makes_no_room_on_a_node_that_would_not_take_it() {
    let mut m = beside_a_critical_pod();
    act(&mut m, Mono(1), ManagerEvent::Shutdown(ShutdownOrder::Close));
    assert_eq!(act(&mut m, Mono(1), api(&[&critical("500m")])), [MORE, "c:desired", "c:Deferred"]);
    let words = act(&mut m, Mono(1), ManagerEvent::Shutdown(ShutdownOrder::Open)).join(" ");
    assert!(words.contains("!a:Preempting for cpu"), "{words}");
}

#[test]
fn nobody_has_the_room_of_a_pod_that_has_not_shrunk_yet() {
    let (a, b) = (asks("a", "600m"), asks("b", "300m"));
    let mut m = beginning(&[&a], Leftovers::default());
    act(&mut m, Mono(1), api(&[&asks("a", "100m")]));
    assert_eq!(act(&mut m, Mono(1), ManagerEvent::Recorded(true)), ["a:desired"]);
    // The scheduler may count with the allocation: it will be true in a moment.
    let late = update(PodOp::Add, Source::Api, &[&asks("late", "500m")]);
    assert_eq!(act(&mut m, Mono(1), late.clone()), Vec::<String>::new());
    let never = update(PodOp::Add, Source::Api, &[&asks("never", "950m")]);
    assert!(step(&mut m, never).contains("!never:OutOfcpu"), "there is not so much");
    let mut stays_large = m.clone();
    let words = actuated(&mut m, &asks("a", "100m")).join(" ");
    assert!(words.contains("+late@0") && !words.contains("OutOfcpu"), "{words}");
    assert!(step(&mut m, update(PodOp::Add, Source::Api, &[&b])).contains("+b@0"));

    let due = stays_large.deadline().unwrap();
    assert_eq!(due, Mono(1).after(Duration::from_secs(120)));
    let words = act(&mut stays_large, due, ManagerEvent::Tick).join(" ");
    assert!(words.contains("!late:OutOfcpu"), "it has waited for long enough: {words}");
    assert_ne!(stays_large.deadline(), Some(due));
}

/// Simulation: resizing, seed 62709. The manager's deadline stayed in the past, and the agent called it again without end.
#[test]
fn a_wait_that_is_over_has_no_deadline_though_a_shutdown_holds_the_pod_up() {
    let mut m = beginning(&[&asks("a", "600m")], Leftovers::default());
    act(&mut m, Mono(1), api(&[&asks("a", "100m")]));
    act(&mut m, Mono(1), ManagerEvent::Recorded(true));
    let mut late = Pod::clone(&asks("late", "500m"));
    late.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    act(&mut m, Mono(1), update(PodOp::Add, Source::File, &[&Arc::new(late)]));
    let due = m.deadline().unwrap();
    assert_eq!(due, Mono(1).after(Duration::from_secs(120)));
    act(&mut m, Mono(2), ManagerEvent::Shutdown(ShutdownOrder::Close));
    assert_eq!(act(&mut m, due, ManagerEvent::Tick), Vec::<String>::new());
    assert!(m.deadline().is_none_or(|next| next > due), "{:?}", m.deadline());
    // Afterwards the pod is judged at once, because it has waited for long enough: a static pod preempts.
    let words = act(&mut m, due, ManagerEvent::Shutdown(ShutdownOrder::Open)).join(" ");
    assert!(words.contains("!a:Preempting for cpu"), "{words}");
}

#[test]
fn a_new_agent_goes_by_what_is_on_disk() {
    let given = |cpu: &str| -> Allocations { [("a".into(), PodAllocation::of(&asks("a", cpu)))].into() };
    // It was given 300, asks for 1100 by now, and its containers have 200 yet.
    let leftovers = Leftovers { allocated: given("300m"), actuated: given("200m"), ..Leftovers::default() };
    let mut m = manager(&[Source::Api], leftovers.clone());
    act(&mut m, Mono(1), ManagerEvent::Node(None));
    act(&mut m, Mono(1), listed(&[]));
    let words = act(&mut m, Mono(1), update(PodOp::Add, Source::Api, &[&asks("a", "1100m")])).join(" ");
    assert_eq!(words, "+a@0 a:desired synced a:Deferred");
    assert_eq!(desired_cpu(&mut m, api(&[&asks("a", "1200m")]), "a"), Some(300), "it is not refused");
    // Containers that have more take that room.
    let leftovers = Leftovers { actuated: given("900m"), ..leftovers };
    let mut m = beginning(&[&asks("a", "300m")], leftovers);
    let words = step(&mut m, update(PodOp::Add, Source::Api, &[&asks("b", "200m")]));
    assert!(!words.contains("+b") && !words.contains("!b"), "it waits for them to have less: {words}");
    // A record without a pod is dropped.
    let leftovers = Leftovers { allocated: given("300m"), ..Leftovers::default() };
    let mut m = beginning(&[&asks("b", "100m")], leftovers);
    let due = m.deadline().map_or(Mono(MINUTE), |at| at);
    let words = act(&mut m, due, ManagerEvent::Tick).join(" ");
    assert!(words.is_empty() || words == "write1", "{words}");
}

/// Three pods of an agent before this one: one still has more than it was given, one asks for more, and one has no room
/// until the first has shrunk (simulation, resizing, seed 1156: it was refused, and ended).
#[test]
fn who_asks_for_more_does_not_get_the_room_of_a_running_pod_that_waits() {
    let given = |amounts: &[(&str, &str)]| -> Allocations {
        amounts.iter().map(|(uid, cpu)| ((*uid).into(), PodAllocation::of(&asks(uid, cpu)))).collect()
    };
    let leftovers = Leftovers {
        allocated: given(&[("a", "200m"), ("b", "300m"), ("c", "400m")]),
        actuated: given(&[("a", "400m"), ("b", "300m"), ("c", "400m")]),
        ..Leftovers::default()
    };
    let mut m = manager(&[Source::Api], leftovers);
    act(&mut m, Mono(1), ManagerEvent::Node(None));
    let pods = [asks("a", "200m"), asks("b", "450m"), asks("c", "400m")];
    let pods: Vec<_> = pods.iter().collect();
    act(&mut m, Mono(1), listed(&pods));
    let words = act(&mut m, Mono(1), update(PodOp::Add, Source::Api, &pods)).join(" ");
    assert!(words.contains("b:Deferred") && !words.contains("+c"), "{words}");
    let words = actuated(&mut m, pods[0]).join(" ");
    assert!(words.contains("+c@0") && !words.contains("OutOfcpu") && !words.contains("Accepted"), "{words}");
}

/// One of a node of 1000m.
fn ranked(uid: &str, cpu: &str, priority: i32) -> Arc<Pod> {
    let mut p = Pod::clone(&asks(uid, cpu));
    p.spec.as_mut().unwrap().priority = Some(priority);
    Arc::new(p)
}

fn critical(cpu: &str) -> Arc<Pod> {
    ranked("c", cpu, CRITICAL)
}

/// A critical pod next to two others, all with their requests allocated.
fn beside_a_critical_pod() -> PodManager {
    let all = [&critical("300m"), &ranked("a", "200m", 0), &ranked("b", "400m", 0)];
    let mut m = beginning(&all, Leftovers::default());
    act(&mut m, Mono(1), ManagerEvent::Recorded(true));
    for pod in all {
        actuated(&mut m, pod);
    }
    m
}

const MORE: &str = "Requested((\"cpu\", \"requests\", \"increase\"))";

#[test]
fn a_critical_pod_is_given_more_once_room_is_made_for_it() {
    let mut m = beside_a_critical_pod();
    let words = act(&mut m, Mono(1), api(&[&critical("500m")]));
    assert_eq!(
        words,
        [MORE, "c:desired", "a:Failed", "!a:Preempting for cpu"],
        "the smallest that is enough"
    );
    assert_eq!(act(&mut m, Mono(1), ManagerEvent::Tick), Vec::<String>::new());
    // Meanwhile the resources are reserved: 500m for itself, 400m and, until it has ended, 200m.
    assert!(step(&mut m, update(PodOp::Add, Source::Api, &[&asks("n", "100m")])).contains("!n:OutOfcpu"));
    let words = act(&mut m, Mono(1), ManagerEvent::Ended(PodUid::from("a")));
    assert_eq!(words, ["write3"], "granted, and on its way to the disk");
    assert_eq!(desired_cpu(&mut m, ManagerEvent::Recorded(true), "c"), Some(500));
    // What it has now is counted once: 500m, 400m.
    assert!(step(&mut m, update(PodOp::Add, Source::Api, &[&asks("o", "150m")])).contains("!o:OutOfcpu"));
    assert!(step(&mut m, update(PodOp::Add, Source::Api, &[&asks("l", "100m")])).contains("+l@0"));
}

#[test]
fn room_for_a_resize_that_is_taken_back_is_everybodys() {
    for taken_back in [api(&[&critical("300m")]), update(PodOp::Remove, Source::Api, &[&critical("500m")])] {
        let mut m = beside_a_critical_pod();
        assert!(step(&mut m, api(&[&critical("500m")])).contains("!a:Preempting"));
        step(&mut m, taken_back);
        step(&mut m, ManagerEvent::Ended(PodUid::from("a")));
        let next = step(&mut m, update(PodOp::Add, Source::Api, &[&asks("l", "300m")]));
        assert!(next.contains("+l@0 l:desired") && !next.contains("OutOfcpu"), "{next}");
    }
}

#[test]
fn another_request_of_a_critical_pod_is_judged_anew() {
    let mut m = beside_a_critical_pod();
    assert!(step(&mut m, api(&[&critical("500m")])).contains("!a:Preempting"));
    let words = step(&mut m, api(&[&critical("900m")]));
    assert!(words.contains("!b:Preempting for cpu"), "the other one is needed, too: {words}");
    act(&mut m, Mono(1), ManagerEvent::Ended(PodUid::from("a")));
    act(&mut m, Mono(1), ManagerEvent::Ended(PodUid::from("b")));
    assert_eq!(desired_cpu(&mut m, ManagerEvent::Recorded(true), "c"), Some(900));
}

#[test]
fn nobody_ends_for_a_resize_that_cannot_be() {
    let mut m = beside_a_critical_pod();
    let other = ranked("d", "100m", CRITICAL);
    act(&mut m, Mono(1), update(PodOp::Add, Source::Api, &[&other]));
    act(&mut m, Mono(1), ManagerEvent::Recorded(true));
    let words = act(&mut m, Mono(1), api(&[&critical("950m")]));
    assert_eq!(words, [MORE, "c:desired", "c:Deferred"], "another critical pod is in its way");
}
