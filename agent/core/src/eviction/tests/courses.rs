//! Courses of the eviction machine over time.

use agent_types::resources::observation::{Observation, Observations};
use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

struct World {
    machine: Eviction,
    now: Now,
    pods: Vec<Arc<Pod>>,
    layout: Option<Layout>,
}

fn observed(available: i64, capacity: i64) -> Observation {
    Observation { at: Wall(7), available, capacity }
}

fn memory(available: i64) -> Observations {
    [(Signal::MemoryAvailable, observed(available * MI, 4096 * MI))].into()
}

impl World {
    fn new(config: Value, pods: Vec<Arc<Pod>>) -> World {
        let machine = Eviction::new(EvictionConfig::new(&kubelet(config)).unwrap());
        World { machine, now: Now::default(), pods, layout: Some(Layout::default()) }
    }

    fn step(&mut self, event: EvictionEvent) -> Vec<EvictionAction> {
        let mut out = Outbox::new();
        self.machine.step(self.now, event, &mut out);
        out.drain().collect()
    }

    fn wait(&mut self, seconds: u64) {
        self.now.mono.0 += seconds * SECOND;
    }

    /// Goes to the deadline; nothing happens before.
    fn due(&mut self) -> u64 {
        let deadline = self.machine.deadline().unwrap();
        let waited = deadline.0.saturating_sub(self.now.mono.0);
        self.now.mono = deadline.max(self.now.mono);
        waited
    }

    /// One look.
    fn look(&mut self, signals: Observations) -> Vec<EvictionAction> {
        if matches!(self.machine.phase, Phase::Idle { .. } | Phase::Waiting { .. }) {
            self.due();
            assert_eq!(self.step(EvictionEvent::Tick).last(), Some(&EvictionAction::Observe));
        }
        let (pods, layout) = (self.pods.clone(), self.layout);
        self.step(EvictionEvent::Observed(Box::new(Observed { signals, layout, pods })))
    }

    fn released(&mut self, uid: &str) -> Vec<EvictionAction> {
        self.pods.retain(|p| pod::name(p) != uid);
        self.step(EvictionEvent::Released(uid.into()))
    }
}

fn victims(actions: &[EvictionAction]) -> Vec<&Victim> {
    actions
        .iter()
        .filter_map(|action| if let EvictionAction::Evict(victim) = action { Some(&**victim) } else { None })
        .collect()
}

fn pressures(actions: &[EvictionAction]) -> Option<Pressures> {
    actions.iter().find_map(|a| if let EvictionAction::Pressures(p) = a { Some(*p) } else { None })
}

fn three() -> Vec<Arc<Pod>> {
    vec![
        pod_of("a", 0, &json!({})),
        pod_of("b", 0, &json!({})),
        pod_of("critical", 2_000_000_000, &json!({})),
    ]
}

fn hogs() -> Uses {
    let of = |memory: i64| using(memory * MI, 1, Space::default());
    uses([("a", of(100)), ("b", of(200)), ("critical", of(900))])
}

#[test]
fn memory_runs_out_and_one_goes_at_a_time() {
    let mut w = World::new(json!({"evictionHard": {"memory.available": "100Mi"}}), three());
    assert!(w.look(memory(100)).is_empty(), "as much as must be");
    let actions = w.look(memory(99));
    assert_eq!(pressures(&actions), Some(Pressures { memory: true, ..Pressures::default() }));
    assert!(actions.contains(&EvictionAction::ThresholdMet("Attempting to reclaim memory".to_owned())));
    assert_eq!(actions.last(), Some(&EvictionAction::Measure(Measure::Memory)));
    assert_eq!(w.machine.deadline(), None);
    let actions = w.step(EvictionEvent::Measured(hogs()));
    let [victim] = victims(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!((victim.key.uid.as_str(), victim.grace_s, victim.disrupted), ("b", Some(1), true));
    assert_eq!(victim.signal, "memory.available");
    assert!(actions.contains(&EvictionAction::Decided(Signal::MemoryAvailable, Wall(7))));
    assert!(w.step(EvictionEvent::Pressed).is_empty(), "its room is waited for");
    assert_eq!(w.released("b"), [EvictionAction::Observe]);
    let actions = w.look(memory(50));
    assert_eq!(pressures(&actions), None, "said already");
    let actions = w.step(EvictionEvent::Measured(hogs()));
    assert_eq!(victims(&actions)[0].key.uid.as_str(), "a");
    assert_eq!(w.released("a"), [EvictionAction::Observe]);
    w.look(memory(50));
    let actions = w.step(EvictionEvent::Measured(hogs()));
    assert_eq!(actions.last(), Some(&EvictionAction::Report(EvictionReport::Nobody(Resource::Memory))));
    assert!(w.step(EvictionEvent::Pressed).is_empty(), "nothing can be done");
    assert_eq!(w.due(), 10 * SECOND);
}

#[test]
fn who_is_not_gone_in_time_is_passed_over() {
    let mut w = World::new(json!({"evictionHard": {"memory.available": "100Mi"}}), three());
    w.look(memory(9));
    w.step(EvictionEvent::Measured(hogs()));
    assert_eq!(w.due(), 31 * SECOND, "30 s and its grace");
    let actions = w.step(EvictionEvent::Tick);
    assert_eq!(
        actions,
        [EvictionAction::Report(EvictionReport::TimedOut("b".into())), EvictionAction::Observe]
    );
    w.look(memory(9));
    let actions = w.step(EvictionEvent::Measured(hogs()));
    assert_eq!(victims(&actions)[0].key.uid.as_str(), "a");
}

#[test]
fn who_was_told_to_go_before_a_restart_is_waited_for() {
    let mut w = World::new(json!({"evictionHard": {"memory.available": "100Mi"}}), three());
    w.machine = w.machine.waiting_for(["b".into()].into(), w.now.mono);
    assert!(w.step(EvictionEvent::Tick).is_empty() && w.step(EvictionEvent::Pressed).is_empty());
    assert_eq!(w.released("b"), [EvictionAction::Observe]);
    w.look(memory(9));
    assert_eq!(victims(&w.step(EvictionEvent::Measured(hogs())))[0].key.uid.as_str(), "a");
    let mut w = World::new(json!({"evictionHard": {"memory.available": "100Mi"}}), three());
    w.machine = w.machine.waiting_for(["b".into()].into(), w.now.mono);
    assert_eq!(w.due(), 30 * SECOND, "and no longer");
    let mut fresh = World::new(json!({"evictionHard": {"memory.available": "100Mi"}}), three());
    fresh.machine = fresh.machine.waiting_for(BTreeSet::new(), fresh.now.mono);
    assert_eq!(fresh.due(), 0, "nobody was told");
}

#[test]
fn soft_thresholds_wait_for_their_grace_and_give_some() {
    let config = json!({"evictionSoft": {"memory.available": "500Mi"}, "evictionHard": {"memory.available": "100Mi"},
        "evictionSoftGracePeriod": {"memory.available": "7s"}, "evictionMaxPodGracePeriod": 20});
    let mut w = World::new(config, three());
    let actions = w.look(memory(400));
    assert!(pressures(&actions).is_some_and(|p| p.memory), "the condition does not wait");
    assert_eq!(actions.len(), 1);
    let since = w.now.mono;
    while !w.look(memory(400)).contains(&EvictionAction::Measure(Measure::Memory)) {}
    assert_eq!(w.now.mono.since(since), Duration::from_secs(7), "to the point");
    let actions = w.step(EvictionEvent::Measured(hogs()));
    assert_eq!(victims(&actions)[0].grace_s, Some(20));
    w.released("b");
    assert!(victims(&w.look(memory(600))).is_empty());
    let met_anew = w.look(memory(400));
    assert!(!met_anew.contains(&EvictionAction::Measure(Measure::Memory)), "it begins anew");
    let hard = w.look(memory(99));
    assert!(hard.contains(&EvictionAction::Measure(Measure::Memory)));
    let actions = w.step(EvictionEvent::Measured(hogs()));
    assert_eq!(victims(&actions)[0].grace_s, Some(1), "the hard one first");
}

#[test]
fn conditions_last_for_the_transition_period() {
    let mut w = World::new(
        json!({"evictionHard": {"memory.available": "100Mi"}, "evictionPressureTransitionPeriod": "30s"}),
        Vec::new(),
    );
    assert!(pressures(&w.look(memory(9))).is_some_and(|p| p.memory));
    w.step(EvictionEvent::Measured(Uses::new()));
    let since = w.now.mono;
    let cleared = loop {
        if let Some(pressures) = pressures(&w.look(memory(4000))) {
            break pressures;
        }
    };
    assert_eq!(cleared, Pressures::default());
    let took = w.now.mono.since(since);
    assert!(took >= Duration::from_secs(30) && took <= Duration::from_secs(40), "{took:?}");
}

#[test]
fn what_must_be_free_beyond_the_threshold_once_it_was_met() {
    let config = json!({"evictionHard": {"memory.available": "100Mi"}, "evictionMinimumReclaim": {"memory.available": "50Mi"}});
    let mut w = World::new(config, three());
    w.look(memory(120));
    w.look(memory(90));
    w.step(EvictionEvent::Measured(hogs()));
    w.released("b");
    assert!(w.look(memory(149)).contains(&EvictionAction::Measure(Measure::Memory)));
    w.step(EvictionEvent::Measured(hogs()));
    w.released("a");
    assert!(w.look(memory(150)).is_empty());
    assert!(w.look(memory(120)).is_empty(), "resolved is resolved");
}

fn disk(available: i64) -> Observations {
    [
        (Signal::NodefsAvailable, observed(available, 1000)),
        (Signal::ImagefsAvailable, observed(available, 1000)),
    ]
    .into()
}

#[test]
fn a_disk_is_cleared_before_somebody_goes() {
    let both = EvictionAction::Reclaim(Reclaim { containers: true, images: true });
    let mut w = World::new(json!({"evictionHard": {"nodefs.available": "10%"}}), three());
    assert_eq!(w.look(disk(99)).last(), Some(&both));
    assert_eq!(w.step(EvictionEvent::Reclaimed), [EvictionAction::Observe]);
    let actions = w.look(disk(100));
    assert_eq!(actions, [EvictionAction::Report(EvictionReport::Resolved(Resource::EphemeralStorage))]);
    assert_eq!(w.look(disk(99)).last(), Some(&both));
    w.step(EvictionEvent::Reclaimed);
    assert_eq!(w.look(disk(99)), [EvictionAction::Measure(Measure::Storage)]);
    let found = uses([("a", using(0, 1, space(9, 1))), ("b", using(0, 1, space(8, 1)))]);
    let actions = w.step(EvictionEvent::Measured(found));
    let [victim] = victims(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!((victim.key.uid.as_str(), victim.signal), ("a", "nodefs.available"));
    assert!(pressures(&w.look(disk(99))).is_none());
}

#[test]
fn what_is_cleared_is_on_the_disk_that_is_full() {
    let images = Layout { dedicated_images: true, split_containers: false };
    let split = Layout { dedicated_images: true, split_containers: true };
    let reclaimed = |containers, images| Some(Reclaim { containers, images });
    for (signal, layout, expected) in [
        (Signal::MemoryAvailable, Layout::default(), None),
        (Signal::PidAvailable, Layout::default(), None),
        (Signal::NodefsInodesFree, Layout::default(), reclaimed(true, true)),
        (Signal::NodefsAvailable, images, None),
        (Signal::ImagefsAvailable, images, reclaimed(true, true)),
        (Signal::ContainerfsAvailable, images, reclaimed(true, true)),
        (Signal::NodefsAvailable, split, reclaimed(true, false)),
        (Signal::ContainerfsInodesFree, split, reclaimed(true, false)),
        (Signal::ImagefsAvailable, split, reclaimed(false, true)),
    ] {
        assert_eq!(reclaim(signal, layout), expected, "{signal:?} {layout:?}");
    }
}

#[test]
fn disks_are_not_judged_before_it_is_known_which_there_are() {
    let mut w =
        World::new(json!({"evictionHard": {"nodefs.available": "10%", "memory.available": "1Mi"}}), three());
    w.layout = None;
    assert!(w.look(disk(1)).is_empty());
    w.layout = Some(Layout::default());
    assert!(pressures(&w.look(disk(1))).is_some_and(|p| p.disk && !p.memory));
}

fn limited(name: &str) -> Arc<Pod> {
    let volumes = json!([{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]);
    pod_with(name, json!({"volumes": volumes, "containers": [{"name": "c"}]}))
}

fn filled(bytes: i64) -> PodUse {
    let volume = VolumeUse { name: "v".to_owned(), space: space(bytes, 1), ephemeral: true };
    PodUse { volumes: vec![volume], ..using(0, 1, Space::default()) }
}

#[test]
fn limits_are_measured_beside_everything_else() {
    let mut pods = three();
    pods.extend([limited("x"), limited("y")]);
    let mut w = World::new(json!({"evictionHard": {"memory.available": "100Mi"}}), pods);
    let both: BTreeSet<PodUid> = ["x", "y"].map(PodUid::from).into();
    assert_eq!(w.look(memory(4000)), [EvictionAction::MeasureLimited(both.clone())]);
    assert!(w.look(memory(4000)).is_empty(), "one walk at a time");
    w.wait(1);
    let now = w.now.mono;
    let actions = w.step(EvictionEvent::Limited(uses([("x", filled(MI)), ("y", filled(MI + 1))])));
    let [victim] = victims(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!((victim.key.uid.as_str(), victim.signal, victim.disrupted), ("y", "emptydirfs.limit", false));
    w.released("y");
    let mut looks = 0;
    while w.look(memory(4000)).is_empty() {
        looks += 1;
    }
    assert!(
        w.now.mono.since(now) >= Duration::from_secs(20),
        "a walk that took long is not repeated soon: {looks}"
    );
    // Memory is short at the same time: a pod is evicted for it, and the limit has to wait.
    w.look(memory(9));
    w.step(EvictionEvent::Measured(hogs()));
    assert!(w.step(EvictionEvent::Limited(uses([("x", filled(2 * MI))]))).is_empty());
}

#[test]
fn who_fills_a_disk_beyond_his_limit_goes_first() {
    let mut pods = three();
    pods.push(limited("x"));
    let mut w = World::new(json!({"evictionHard": {"nodefs.available": "10%"}}), pods);
    w.look(disk(1));
    w.step(EvictionEvent::Reclaimed);
    w.look(disk(1));
    let found = uses([("a", using(0, 1, space(9 * MI, 1))), ("x", filled(2 * MI))]);
    let actions = w.step(EvictionEvent::Measured(found));
    assert_eq!(victims(&actions)[0].signal, "emptydirfs.limit");
}

#[test]
fn the_next_look_comes_before_memory_can_be_used_up() {
    let mut w = World::new(json!({"evictionHard": {"memory.available": "100Mi"}}), three());
    for (available, waited) in [(4096 + 100, 4_000_000_000), (100 + 512, 500_000_000), (101, 200_000_000)] {
        w.look(memory(available));
        assert_eq!(w.due(), waited);
    }
    assert_eq!(w.step(EvictionEvent::Tick), [EvictionAction::Observe]);
    w.look(memory(99_999));
    assert_eq!(w.step(EvictionEvent::Pressed), [EvictionAction::Observe], "or when the kernel says so");
    w.look(Observations::new());
    assert_eq!(w.due(), 10 * SECOND);
}

proptest! {
    /// For any shortage and any answers: never a critical pod, never two victims at a time for one shortage,
    /// and every victim exists.
    #[test]
    fn nobody_goes_who_must_not(
        looks in proptest::collection::vec((0..300_i64, 0..200_i64, 0..30_i64, any::<bool>()), 1..40),
    ) {
        let config = json!({"evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%", "pid.available": "10"}});
        let mut pods = three();
        pods.extend((0..4).map(|n| pod_of(&format!("p{n}"), n, &json!({}))));
        let mut w = World::new(config, pods);
        let mut going: Option<PodUid> = None;
        for (mebi, left, pids, release) in looks {
            let mut signals = memory(mebi);
            signals.extend(disk(left));
            signals.insert(Signal::PidAvailable, observed(pids, 100));
            let mut actions = match (&w.machine.phase, going.take()) {
                (Phase::Waiting { .. }, Some(uid)) if release => w.released(uid.as_str()),
                (Phase::Waiting { .. }, waiting) => { w.due(); going = waiting; w.step(EvictionEvent::Tick) }
                _ => { w.due(); w.step(EvictionEvent::Tick) }
            };
            let mut rounds = 0;
            while let Some(last) = actions.last().cloned() {
                rounds += 1;
                prop_assert!(rounds < 9, "it comes to rest");
                let told = victims(&actions).len();
                prop_assert!(told <= 1);
                if let Some(victim) = victims(&actions).first() {
                    prop_assert!(!victim.key.uid.as_str().starts_with("critical"));
                    prop_assert!(w.pods.iter().any(|p| pod::key(p).uid == victim.key.uid));
                    prop_assert!(mebi < 100 || left < 100 || pids < 10);
                    going = Some(victim.key.uid.clone());
                    break;
                }
                actions = match last {
                    EvictionAction::Observe => w.look(signals.clone()),
                    EvictionAction::Measure(_) => w.step(EvictionEvent::Measured(hogs())),
                    EvictionAction::Reclaim(_) => w.step(EvictionEvent::Reclaimed),
                    _ => break,
                };
            }
            prop_assert!(w.machine.deadline().is_some(), "it goes on by itself");
        }
    }
}
