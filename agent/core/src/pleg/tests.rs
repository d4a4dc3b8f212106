//! PLEG: hints coalesce, losses are found by relists, nothing is asked twice.

use std::collections::BTreeMap;

use agent_types::ids::SandboxId;
use agent_types::runtime::observed::{ContainerObserved, SandboxObserved, SandboxState};
use agent_types::time::Wall;

use super::*;

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

struct Bench {
    pleg: Pleg,
    now: Mono,
}

fn key(uid: &str) -> PodKey {
    PodKey { namespace: "d".into(), name: uid.into(), uid: PodUid::from(uid) }
}

fn listed(uid: &str, ready: bool) -> ListedPod {
    let sandboxes = BTreeMap::from([(SandboxId::from(format!("s-{uid}")), ready)]);
    ListedPod { pod: key(uid), sandboxes, containers: BTreeMap::new() }
}

fn snapshot(uid: &str, as_of: Mono, ready: Option<bool>) -> PlegEvent {
    let sandboxes = ready.map(|ready| SandboxObserved {
        id: SandboxId::from(format!("s-{uid}")),
        attempt: 0,
        state: if ready { SandboxState::Ready } else { SandboxState::NotReady },
        created: Wall(0),
        ips: Vec::new(),
        host_network: true,
        runtime_handler: String::new(),
    });
    let sandboxes = sandboxes.into_iter().collect();
    PlegEvent::Inspected(Arc::new(PodSnapshot {
        pod: key(uid),
        as_of,
        sandboxes,
        containers: Vec::new().into(),
        actuated: None,
    }))
}

fn hint(uid: &str) -> PlegEvent {
    PlegEvent::Hint(RuntimeHint { uid: PodUid::from(uid) })
}

impl Bench {
    fn new() -> Bench {
        Bench { pleg: Pleg::new(Config::default()), now: Mono(S) }
    }

    /// Relisted with these pods, stream up, every pod inspected: at rest.
    fn at_rest(pods: &[&str]) -> Bench {
        let mut b = Bench::new();
        b.step(PlegEvent::StreamUp);
        b.list(pods.iter().map(|p| listed(p, true)).collect());
        for p in pods {
            let as_of = b.now;
            b.step(snapshot(p, as_of, Some(true)));
        }
        assert_eq!(b.pleg.pending(), 0);
        b
    }

    fn step(&mut self, event: PlegEvent) -> Vec<PlegAction> {
        self.now.0 += MS;
        let mut out = Outbox::new();
        self.pleg.step(Now { mono: self.now, wall: Wall(0) }, event, &mut out);
        out.drain().collect()
    }

    fn list(&mut self, pods: Vec<ListedPod>) -> Vec<PlegAction> {
        let as_of = self.now;
        self.step(PlegEvent::Listed { as_of, result: Ok(pods) })
    }

    /// Fires the timer; returns the requests and the elapsed time.
    fn timer(&mut self) -> (Vec<PlegAction>, Duration) {
        let due = self.pleg.deadline().expect("a timer is armed");
        let waited = due.since(self.now);
        self.now = self.now.max(Mono(due.0.saturating_sub(MS)));
        (self.step(PlegEvent::Tick), waited)
    }
}

fn inspects<'a>(actions: &'a [PlegAction]) -> Vec<&'a str> {
    let uid = |a: &'a PlegAction| match a {
        PlegAction::Inspect { uid } => Some(uid.as_str()),
        _ => None,
    };
    actions.iter().filter_map(uid).collect()
}

#[test]
fn it_begins_with_a_relist_and_inspects_what_is_there() {
    let mut b = Bench::new();
    assert!(b.pleg.health(b.now).is_err_and(|e| e == "pleg has yet to be successful"));
    assert_eq!(b.step(PlegEvent::Tick), [PlegAction::Relist]);
    assert!(b.step(PlegEvent::Tick).is_empty(), "one relist in flight");
    let actions = b.list(vec![listed("u1", true), listed("u2", false)]);
    assert_eq!(inspects(&actions), ["u1", "u2"]);
    let as_of = b.now;
    assert!(matches!(b.step(snapshot("u1", as_of, Some(true)))[..], [PlegAction::Changed(_)]));
    let live: Vec<bool> = b.pleg.pods().map(|(_, live)| live).collect();
    assert_eq!(live, [true]);
    assert!(b.pleg.health(b.now).is_ok());
}

#[test]
fn with_the_stream_up_nothing_is_asked_for_five_minutes() {
    let mut b = Bench::at_rest(&["u1"]);
    // StreamUp came while the first list was under way, so one more follows at once.
    let (actions, _) = b.timer();
    assert_eq!(actions, [PlegAction::Relist]);
    assert!(b.list(vec![listed("u1", true)]).is_empty(), "nothing changed, nothing is inspected");
    let (actions, waited) = b.timer();
    assert_eq!((actions, waited), (vec![PlegAction::Relist], Duration::from_secs(300)));
}

#[test]
fn a_scrape_causes_a_list_if_the_last_one_is_older_than_rules_can_use() {
    let mut b = Bench::at_rest(&["u1"]);
    b.timer();
    b.list(vec![listed("u1", true)]);
    assert!(b.step(PlegEvent::Scraped).is_empty(), "the last list is new");
    b.now.0 += 98 * S;
    assert!(b.step(PlegEvent::Scraped).is_empty(), "and still new enough");
    b.now.0 += 2 * S;
    assert_eq!(b.step(PlegEvent::Scraped), [PlegAction::Relist]);
    assert!(b.step(PlegEvent::Scraped).is_empty(), "one list in flight");
    b.list(vec![listed("u1", true)]);
    let (actions, waited) = b.timer();
    assert_eq!(
        (actions, waited),
        (vec![PlegAction::Relist], Duration::from_secs(300)),
        "nobody scrapes any more"
    );
}

#[test]
fn scrapes_do_not_hurry_lists_that_fail() {
    let mut b = Bench::at_rest(&["u1"]);
    b.now.0 += 200 * S;
    assert_eq!(b.step(PlegEvent::Scraped), [PlegAction::Relist]);
    let as_of = b.now;
    b.step(PlegEvent::Listed { as_of, result: Err("away".to_owned()) });
    let due = b.pleg.deadline();
    assert!(b.step(PlegEvent::Scraped).is_empty(), "the list that failed is new");
    assert_eq!(b.pleg.deadline(), due);
}

/// With scrapes every 15, 30, 60 or 120 seconds no two lists lie further apart than the samples of five minutes: the rate sees one of
/// them at any time, also if a list takes twelve seconds.
#[test]
fn scrapes_of_usual_intervals_find_a_list_in_any_five_minutes() {
    for interval in [15, 30, 60, 120] {
        for took in [0, 12] {
            let mut b = Bench::at_rest(&["u1"]);
            b.timer();
            b.list(vec![listed("u1", true)]);
            let start = b.now.0;
            // The count of lists that each scrape tells, and the time of the list that is under way.
            let (mut count, mut ends): (u64, Option<u64>) = (0, None);
            let mut told = Vec::new();
            for scrape in 1..40 {
                let at = start + scrape * interval * S;
                if let Some(end) = ends.filter(|end| *end <= at) {
                    b.now.0 = end - MS;
                    b.list(vec![listed("u1", true)]);
                    (count, ends) = (count + 1, None);
                }
                told.push(count);
                b.now.0 = at - MS;
                if b.step(PlegEvent::Scraped) == [PlegAction::Relist] {
                    ends = Some(at + took * S + MS);
                }
            }
            let samples = usize::try_from(300 / interval).unwrap();
            for window in told.windows(samples) {
                assert!(window[0] < window[samples - 1], "every {interval} s, {took} s long: {told:?}");
            }
            assert!(count <= 39 * interval / 100, "no more lists than needed: {count} every {interval} s");
        }
    }
}

#[test]
fn hints_of_one_pod_coalesce() {
    let mut b = Bench::at_rest(&["u1"]);
    b.timer();
    for _ in 0..5 {
        assert!(b.step(hint("u1")).is_empty());
    }
    let (actions, waited) = b.timer();
    assert_eq!(inspects(&actions), ["u1"]);
    assert!(waited <= Duration::from_millis(20));
    let asked = b.now;
    assert!(b.step(hint("u1")).is_empty(), "being inspected");
    // The answer is older than the last hint: it settles nothing.
    assert_eq!(inspects(&b.step(snapshot("u1", asked, Some(true)))), ["u1"]);
    let asked = b.now;
    assert!(b.step(snapshot("u1", asked, Some(true))).is_empty(), "no news, no questions");
    assert_eq!(b.pleg.pending(), 0);
}

/// Hundreds of containers start one after another, each with a hint: the pod is inspected as often as by
/// upstream.
#[test]
fn a_pod_of_many_containers_is_inspected_less_often() {
    let with = |b: &mut Bench, n: u32| {
        let containers: Vec<ContainerObserved> =
            (0..n).map(|i| ContainerObserved::created(format!("c{i}"), "s-u1", "c", 0, Wall(0))).collect();
        let PlegEvent::Inspected(bare) = snapshot("u1", b.now, Some(true)) else { unreachable!() };
        b.step(PlegEvent::Inspected(Arc::new(PodSnapshot {
            containers: containers.into(),
            ..(*bare).clone()
        })))
    };
    for (n, least, most) in [(1, 0, 20), (20, 10, 20), (500, 490, 500)] {
        let mut b = Bench::at_rest(&["u1"]);
        b.timer();
        with(&mut b, n);
        assert!(b.step(hint("u1")).is_empty());
        let (actions, waited) = b.timer();
        assert_eq!(inspects(&actions), ["u1"]);
        assert!(waited <= Duration::from_millis(most), "{n} containers: first after {waited:?}");
        assert!(waited >= Duration::from_millis(least), "{n} containers: first after {waited:?}");
        // Another one starts while it is looked at.
        b.step(hint("u1"));
        let again = inspects(&with(&mut b, n)).len();
        if again == 0 {
            let (actions, waited) = b.timer();
            assert_eq!(inspects(&actions), ["u1"]);
            assert!(waited >= Duration::from_millis(least), "{n} containers: again after {waited:?}");
            assert!(waited <= Duration::from_millis(most), "{n} containers: again after {waited:?}");
        }
        assert_eq!(again == 0, n > 1, "one container waits for nothing");
    }
}

#[test]
fn a_workers_own_snapshot_answers_the_hint() {
    let mut b = Bench::at_rest(&["u1"]);
    b.timer();
    b.step(hint("u1"));
    b.now.0 += MS;
    let as_of = b.now;
    b.step(snapshot("u1", as_of, Some(true)));
    assert_eq!(b.pleg.pending(), 0);
}

#[test]
fn an_older_answer_never_replaces_a_newer_one() {
    let mut b = Bench::at_rest(&["u1"]);
    let new = b.now.after(Duration::from_millis(2));
    b.now = new;
    assert!(matches!(b.step(snapshot("u1", new, Some(false)))[..], [PlegAction::Changed(_)]));
    assert!(b.step(snapshot("u1", Mono(S), Some(true))).is_empty());
    // Neither does an older list.
    b.timer();
    let actions = b.step(PlegEvent::Listed { as_of: Mono(S), result: Ok(vec![listed("u1", true)]) });
    assert!(inspects(&actions).is_empty());
}

#[test]
fn without_the_stream_relists_slow_down_until_something_changes() {
    let mut b = Bench::at_rest(&["u1"]);
    b.timer();
    b.list(vec![listed("u1", true)]);
    assert_eq!(b.step(PlegEvent::StreamDown), [PlegAction::Relist], "what was lost is looked for at once");
    let mut waits = Vec::new();
    for _ in 0..6 {
        b.list(vec![listed("u1", true)]);
        waits.push(b.timer().1.as_secs());
    }
    assert_eq!(waits, [2, 4, 8, 10, 10, 10]);
    b.list(vec![listed("u1", false)]);
    let as_of = b.now;
    b.step(snapshot("u1", as_of, Some(false)));
    let (actions, waited) = b.timer();
    assert!(waited <= Duration::from_secs(1) && actions == [PlegAction::Relist]);
}

#[test]
fn a_pod_that_is_gone_is_reported_once_and_forgotten() {
    let mut b = Bench::at_rest(&["u1", "u2"]);
    b.timer();
    let actions = b.list(vec![listed("u2", true)]);
    assert_eq!(inspects(&actions), ["u1"]);
    let as_of = b.now;
    let actions = b.step(snapshot("u1", as_of, None));
    assert!(matches!(&actions[..], [PlegAction::Changed(s)] if s.sandboxes.is_empty()));
    assert_eq!(b.pleg.pods().count(), 1);
    b.step(hint("u1"));
    b.timer();
    let as_of = b.now;
    assert!(b.step(snapshot("u1", as_of, None)).is_empty());
    assert_eq!((b.pleg.pods().count(), b.pleg.pending()), (1, 0));
}

#[test]
fn inspections_in_flight_are_bounded() {
    let mut b = Bench::new();
    b.step(PlegEvent::StreamUp);
    let pods: Vec<ListedPod> = (0..40).map(|n| listed(&format!("u{n:02}"), true)).collect();
    let first = b.list(pods);
    assert_eq!(inspects(&first).len(), 16);
    let as_of = b.now;
    let next = b.step(snapshot("u00", as_of, Some(true)));
    assert_eq!(inspects(&next), ["u16"], "the next one in line");
}

#[test]
fn a_failed_inspection_is_repeated() {
    let mut b = Bench::at_rest(&["u1"]);
    b.timer();
    b.list(vec![listed("u1", true)]);
    b.step(hint("u1"));
    b.timer();
    assert!(b.step(PlegEvent::InspectFailed { uid: PodUid::from("u1") }).is_empty());
    let (actions, waited) = b.timer();
    assert_eq!((inspects(&actions), waited.as_secs()), (vec!["u1"], 1));
}

#[test]
fn failing_relists_make_it_unhealthy_after_three_minutes() {
    let mut b = Bench::new();
    b.step(PlegEvent::Tick);
    b.list(Vec::new());
    for _ in 0..40 {
        b.timer();
        let as_of = b.now;
        b.step(PlegEvent::Listed { as_of, result: Err("connection refused".to_owned()) });
    }
    let why = b.pleg.health(b.now).expect_err("six minutes without a list");
    assert!(
        why.starts_with("PLEG is not healthy: pleg was last seen active ")
            && why.ends_with("threshold is 3m0s"),
        "{why}"
    );
}
