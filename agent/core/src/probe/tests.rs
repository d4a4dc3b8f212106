//! A pod's probes against scripts of answers: their targets, times and consequences.

use agent_types::ids::{PodKey, SandboxId};
use agent_types::runtime::observed::{SandboxObserved, SandboxState};
use agent_types::time::Wall;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SECOND: u64 = 1_000_000_000;
const EPOCH: i64 = 1_700_000_000_000_000_000;

/// One pod, its containers, and the answers to its probes.
struct World {
    now: Mono,
    pod: Arc<Pod>,
    containers: Vec<ContainerObserved>,
    probes: PodProbes,
    asked: BTreeMap<ProbeId, ProbeCall>,
    events: Vec<String>,
    agent_started: Now,
    terminating: bool,
    hooked: Option<ContainerId>,
}

fn now(mono: Mono) -> Now {
    Now { mono, wall: Wall(EPOCH + i64::try_from(mono.0).unwrap()) }
}

impl World {
    /// An agent that has been up for an hour, and a pod of this specification.
    fn new(spec: Value) -> World {
        let whole = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
        World {
            now: Mono(3600 * SECOND),
            pod: Arc::new(serde_json::from_value(whole).unwrap()),
            containers: Vec::new(),
            probes: PodProbes::default(),
            asked: BTreeMap::new(),
            events: Vec::new(),
            agent_started: now(Mono(0)),
            terminating: false,
            hooked: None,
        }
    }

    /// One container `c` with these probes.
    fn with(probes: Value) -> World {
        let mut container = probes;
        container["name"] = json!("c");
        World::new(json!({"containers": [container]}))
    }

    fn run(&mut self, name: &str, attempt: u32) -> ContainerId {
        for c in self.containers.iter_mut().filter(|c| c.name == name) {
            c.state = ContainerState::Exited;
        }
        let id = ContainerId::from(format!("{name}{attempt}"));
        let wall = now(self.now).wall;
        self.containers.push(ContainerObserved {
            state: ContainerState::Running,
            started: Some(wall),
            ..ContainerObserved::created(id.clone(), "s", name, attempt, wall)
        });
        self.look();
        id
    }

    fn look(&mut self) {
        let snapshot = PodSnapshot {
            pod: PodKey { namespace: "ns".into(), name: "p".into(), uid: "u".into() },
            as_of: self.now,
            sandboxes: vec![SandboxObserved {
                id: SandboxId::from("s"),
                attempt: 0,
                state: SandboxState::Ready,
                created: Wall(0),
                ips: vec!["10.0.0.7".to_owned()],
                host_network: false,
                runtime_handler: String::new(),
            }],
            containers: self.containers.clone().into(),
            actuated: None,
        };
        let pod = self.pod.clone();
        let hooked = self.hooked.clone();
        let view = View {
            pod: &pod,
            snapshot: &snapshot,
            terminating: self.terminating,
            hooked: hooked.as_ref(),
            agent_started: self.agent_started,
            pod_ip: "10.0.0.7",
            runtime_name: "tiny",
        };
        let mut out = Vec::new();
        self.probes.observe(&view, now(self.now), &mut out);
        self.perform(out);
    }

    fn perform(&mut self, actions: Vec<ProbeAction>) {
        for action in actions {
            match action {
                ProbeAction::Ask(id, call) => drop(self.asked.insert(id, *call)),
                ProbeAction::Cancel(id) => {
                    assert!(self.asked.remove(&id).is_some(), "only what is asked is cancelled");
                }
                ProbeAction::Event { reason, message, .. } => {
                    self.events.push(format!("{reason}: {message}"))
                }
            }
        }
        let mut flying: Vec<_> = self.asked.values().map(|c| (c.name.clone(), c.kind)).collect();
        flying.sort();
        flying.dedup();
        assert_eq!(flying.len(), self.asked.len(), "one question at a time: {:?}", self.asked);
        assert_eq!(flying.len(), self.probes.in_flight());
    }

    /// Lets the time pass, second by second, asking what is due.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now.0 += SECOND;
            if self.probes.deadline().is_some_and(|due| due <= self.now) {
                let mut out = Vec::new();
                self.probes.tick(now(self.now), &mut out);
                self.perform(out);
            }
        }
    }

    /// Passes time until something is asked, at most `limit` seconds.
    fn until_asked(&mut self, limit: u64) -> Option<u64> {
        for second in 0..=limit {
            if !self.asked.is_empty() {
                return Some(second);
            }
            self.pass(1);
        }
        None
    }

    /// Answers everything that is asked of `kind`; true if the verdicts changed.
    fn answer(&mut self, kind: Kind, outcome: &Outcome) -> bool {
        let ids: Vec<ProbeId> =
            self.asked.iter().filter(|(_, call)| call.kind == kind).map(|(id, _)| *id).collect();
        assert!(!ids.is_empty(), "{kind} is being asked");
        let mut changed = false;
        for id in ids {
            self.asked.remove(&id);
            let mut out = Vec::new();
            changed |= self.probes.answered(id, outcome.clone(), now(self.now), &mut out);
            self.perform(out);
        }
        if changed {
            self.look();
        }
        changed
    }

    fn is_ready(&self, id: &ContainerId) -> bool {
        let v = self.probes.verdicts();
        !v.starting.contains(id) && !v.unready.contains(id)
    }

    fn status(&mut self, ready: bool, started: bool, id: &ContainerId) {
        let status = json!({"containerStatuses": [{"name": "c", "ready": ready, "started": started,
            "containerID": format!("tiny://{id}"), "image": "", "imageID": "", "restartCount": 0}]});
        Arc::make_mut(&mut self.pod).status = Some(serde_json::from_value(status).unwrap());
    }
}

fn exec(more: Value) -> Value {
    let mut probe = json!({"exec": {"command": ["x"]}, "periodSeconds": 5});
    for (key, value) in more.as_object().unwrap() {
        probe[key] = value.clone();
    }
    probe
}

fn bad() -> Outcome {
    Outcome::Failure("no".to_owned())
}

#[test]
fn without_probes_everything_is_ready_and_no_timer_runs() {
    let mut w = World::with(json!({}));
    let id = w.run("c", 0);
    assert!(w.is_ready(&id));
    assert_eq!((w.probes.deadline(), w.asked.len()), (None, 0));
    assert_eq!(w.probes.verdicts(), Verdicts::NONE);
}

#[test]
fn readiness_begins_unready_is_asked_at_once_and_flaps_by_its_thresholds() {
    let mut w =
        World::with(json!({"readinessProbe": exec(json!({"successThreshold": 2, "failureThreshold": 3}))}));
    let id = w.run("c", 0);
    assert!(!w.is_ready(&id));
    assert_eq!(w.until_asked(0), Some(0), "at once");
    // The answer, and whether it is ready then.
    let script = [
        (true, false),
        (true, true),
        (false, true),
        (false, true),
        (true, true),
        (false, true),
        (false, true),
        (false, false),
        (true, false),
        (false, false),
        (true, false),
        (true, true),
    ];
    for (n, (good, ready)) in script.into_iter().enumerate() {
        w.answer(Kind::Readiness, &if good { Outcome::Success } else { bad() });
        assert_eq!(w.is_ready(&id), ready, "after answer {n}");
        assert_eq!(w.until_asked(9), Some(5), "a period later");
    }
    assert_eq!(w.events.len(), 6);
    assert_eq!(w.events[0], "Unhealthy: Readiness probe failed: no");
    assert!(w.probes.verdicts().failed.is_empty());
}

#[test]
fn liveness_kills_after_its_threshold_and_is_silent_until_the_successor_runs() {
    let mut w = World::with(json!({"livenessProbe": exec(json!({"failureThreshold": 2}))}));
    let first = w.run("c", 0);
    assert!(w.is_ready(&first));
    w.until_asked(9).unwrap();
    assert!(!w.answer(Kind::Liveness, &bad()));
    assert!(w.probes.verdicts().failed.is_empty());
    w.until_asked(9).unwrap();
    assert!(w.answer(Kind::Liveness, &bad()));
    assert_eq!(w.probes.verdicts().failed.get(&first), Some(&Kind::Liveness));
    assert_eq!(w.until_asked(60), None, "nothing is asked of what is being killed");
    let second = w.run("c", 1);
    assert!(w.probes.verdicts().failed.is_empty(), "the successor is innocent");
    w.until_asked(9).unwrap();
    assert!(!w.answer(Kind::Liveness, &bad()), "its own failures are counted from one");
    assert!(w.is_ready(&second));
}

#[test]
fn initial_delay_counts_from_the_start_of_the_container() {
    for (kind, key) in [
        (Kind::Liveness, "livenessProbe"),
        (Kind::Readiness, "readinessProbe"),
        (Kind::Startup, "startupProbe"),
    ] {
        let mut w = World::with(json!({key: exec(json!({"initialDelaySeconds": 7}))}));
        w.pass(2);
        w.run("c", 0);
        let after = w.until_asked(20).unwrap();
        // Readiness exactly then, the others at the next tick of their period.
        let expected = if kind == Kind::Readiness { 7..=7 } else { 7..=12 };
        assert!(expected.contains(&after), "{kind} after {after} s");
    }
}

#[test]
fn startup_gates_the_others_and_is_asked_until_it_succeeds_once() {
    let mut w = World::with(json!({"startupProbe": exec(json!({})), "livenessProbe": exec(json!({})),
        "readinessProbe": exec(json!({}))}));
    let id = w.run("c", 0);
    assert!(w.probes.verdicts().starting.contains(&id));
    w.until_asked(9).unwrap();
    assert_eq!(w.asked.values().map(|c| c.kind).collect::<Vec<_>>(), [Kind::Startup]);
    w.answer(Kind::Startup, &bad());
    w.until_asked(9).unwrap();
    assert_eq!(w.asked.len(), 1);
    assert!(w.answer(Kind::Startup, &Outcome::Success));
    assert!(w.probes.verdicts().starting.is_empty());
    assert!(w.asked.values().any(|c| c.kind == Kind::Readiness), "asked at once");
    w.pass(60);
    assert!(w.asked.values().all(|c| c.kind != Kind::Startup), "never again");
    assert!(w.asked.values().any(|c| c.kind == Kind::Liveness));
    // The successor starts its probes again; the machine drops the probes of the first container.
    let second = w.run("c", 1);
    assert!(w.probes.verdicts().starting.contains(&second));
    assert!(w.asked.values().all(|c| c.kind == Kind::Startup && c.container == second), "{:?}", w.asked);
}

#[test]
fn startup_that_fails_too_often_kills() {
    let mut w = World::with(json!({"startupProbe": exec(json!({"failureThreshold": 1}))}));
    let id = w.run("c", 0);
    w.until_asked(9).unwrap();
    assert!(w.answer(Kind::Startup, &bad()));
    assert_eq!(w.probes.verdicts().failed.get(&id), Some(&Kind::Startup));
    assert_eq!(w.until_asked(60), None);
}

#[test]
fn a_probe_that_the_pod_has_no_more_is_cancelled() {
    let mut w = World::with(json!({"livenessProbe": exec(json!({}))}));
    w.run("c", 0);
    w.until_asked(20).unwrap();
    w.look();
    assert_eq!(w.asked.len(), 1, "the same pod changes nothing");
    w.pod = World::new(json!({"containers": [{"name": "c"}]})).pod;
    w.look();
    assert!(w.asked.is_empty(), "{:?}", w.asked);
    assert_eq!(w.probes.deadline(), None);
}

#[test]
fn a_sidecar_is_probed_and_an_init_container_is_not() {
    let mut w = World::new(json!({"containers": [{"name": "c"}], "initContainers": [
        {"name": "i", "readinessProbe": exec(json!({}))},
        {"name": "s", "restartPolicy": "Always", "startupProbe": exec(json!({}))}]}));
    w.run("i", 0);
    let s = w.run("s", 0);
    assert_eq!(w.probes.verdicts().starting, BTreeSet::from([s]));
    assert!(w.probes.verdicts().unready.is_empty());
}

#[test]
fn an_answer_about_an_earlier_instance_is_nobodys() {
    let mut w = World::with(json!({"readinessProbe": exec(json!({}))}));
    w.run("c", 0);
    let (old, _) = w.asked.iter().next().map(|(id, call)| (*id, call.clone())).unwrap();
    let second = w.run("c", 1);
    let mut out = Vec::new();
    assert!(!w.probes.answered(old, Outcome::Success, now(w.now), &mut out));
    assert!(out.is_empty() && !w.is_ready(&second));
}

#[test]
fn an_answer_that_breaks_off_is_called_a_failure_and_counts_for_nothing() {
    let mut w = World::with(json!({"livenessProbe": exec(json!({"failureThreshold": 1}))}));
    w.run("c", 0);
    w.until_asked(9).unwrap();
    for _ in 0..3 {
        assert!(!w.answer(Kind::Liveness, &Outcome::Broken("unexpected EOF".to_owned())));
    }
    assert_eq!(w.events, ["Unhealthy: Liveness probe errored and resulted in failure state: unexpected EOF"]);
    assert!(w.probes.verdicts().failed.is_empty());
}

#[test]
fn a_prober_that_fails_is_asked_three_times_and_nothing_follows() {
    let mut w = World::with(json!({"livenessProbe": exec(json!({"failureThreshold": 1}))}));
    w.run("c", 0);
    w.until_asked(9).unwrap();
    for tries in [1, 2, 3] {
        assert_eq!((w.asked.len(), w.events.len()), (1, 0), "try {tries}");
        assert!(!w.answer(Kind::Liveness, &Outcome::Error("ExecSync c0: broken".to_owned())));
    }
    assert_eq!(
        w.events,
        ["Unhealthy: Liveness probe errored and resulted in unknown state: ExecSync c: broken"],
        "without the id"
    );
    assert!(w.asked.is_empty() && w.probes.verdicts().failed.is_empty());
    assert_eq!(w.until_asked(9), Some(5));
}

#[test]
fn a_probe_that_cannot_be_asked_is_told_once_a_period() {
    let mut w = World::with(json!({"readinessProbe": {"tcpSocket": {"port": "web"}, "periodSeconds": 5}}));
    w.run("c", 0);
    let text = "Unhealthy: Readiness probe errored and resulted in unknown state: port web not found";
    assert_eq!(w.events, [text]);
    w.pass(9);
    assert_eq!(w.events.len(), 2);
    assert!(w.asked.is_empty());
}

#[test]
fn a_warning_is_a_success_that_is_told() {
    let mut w = World::with(json!({"readinessProbe": exec(json!({}))}));
    let id = w.run("c", 0);
    assert!(w.answer(Kind::Readiness, &Outcome::Warning("moved".to_owned())));
    assert!(w.is_ready(&id));
    assert_eq!(w.events, ["ProbeWarning: Readiness probe warning: moved"]);
}

#[test]
fn while_terminating_only_readiness_goes_on() {
    let mut w = World::with(json!({"livenessProbe": exec(json!({})), "readinessProbe": exec(json!({}))}));
    let id = w.run("c", 0);
    w.answer(Kind::Readiness, &Outcome::Success);
    w.until_asked(9).unwrap();
    w.terminating = true;
    w.look();
    w.pass(60);
    assert_eq!(w.asked.values().map(|c| c.kind).collect::<Vec<_>>(), [Kind::Readiness]);
    for _ in 0..3 {
        w.until_asked(9).unwrap();
        w.answer(Kind::Readiness, &bad());
    }
    assert!(!w.is_ready(&id));
    let mut out = Vec::new();
    w.until_asked(9).unwrap();
    w.probes.stop(&mut out);
    w.perform(out);
    assert!(w.asked.is_empty() && w.probes.deadline().is_none());
}

#[test]
fn nothing_is_asked_while_the_post_start_hook_runs() {
    let mut w = World::with(json!({"readinessProbe": exec(json!({}))}));
    w.hooked = Some(ContainerId::from("c0"));
    let id = w.run("c", 0);
    w.pass(60);
    assert!(w.asked.is_empty() && w.probes.verdicts().starting.contains(&id));
    w.hooked = None;
    w.look();
    assert_eq!(w.asked.len(), 1);
    assert!(w.probes.verdicts().starting.is_empty());
}

#[test]
fn what_the_last_agent_knew_stays_until_an_answer_says_otherwise() {
    let probes = json!({"startupProbe": exec(json!({})), "readinessProbe": exec(json!({}))});
    // Ready and started in the status; whether it is about this instance; ready now.
    for (ready, started, this, expected) in
        [(true, true, true, true), (false, true, true, false), (true, true, false, false)]
    {
        let mut w = World::with(probes.clone());
        let id = ContainerId::from(if this { "c0" } else { "c9" });
        w.status(ready, started, &id);
        w.agent_started = now(Mono(3602 * SECOND));
        let id = {
            // It started before the agent did, which looks at it only now.
            let probes = std::mem::take(&mut w.probes);
            let id = w.run("c", 0);
            w.now = Mono(3603 * SECOND);
            (w.probes, w.asked) = (probes, BTreeMap::new());
            w.look();
            id
        };
        assert_eq!(w.is_ready(&id), expected, "{ready} {started} {this}");
        assert_eq!(w.probes.verdicts().starting.is_empty(), this);
        let after = w.until_asked(9).unwrap();
        assert!(after <= 5, "within one period of the agent's start: {after} s");
        let asked = if this { Kind::Readiness } else { Kind::Startup };
        assert!(w.asked.values().all(|c| c.kind == asked));
        if expected {
            for _ in 0..2 {
                w.until_asked(9).unwrap();
                w.answer(Kind::Readiness, &bad());
                assert!(w.is_ready(&id), "not before its threshold");
            }
            w.until_asked(9).unwrap();
            w.answer(Kind::Readiness, &bad());
            assert!(!w.is_ready(&id));
        }
    }
}

#[test]
fn probes_of_a_young_agent_are_spread() {
    let names: Vec<String> = (0..50).map(|n| format!("c{n}")).collect();
    let containers: Vec<Value> = names
        .iter()
        .map(|n| json!({"name": n, "livenessProbe": exec(json!({"periodSeconds": 100}))}))
        .collect();
    let mut w = World::new(json!({ "containers": containers }));
    w.agent_started = now(w.now);
    for name in &names {
        w.run(name, 0);
    }
    let mut after = Vec::new();
    for second in 0..=100 {
        let before = w.asked.len();
        w.pass(1);
        after.extend(std::iter::repeat_n(second, w.asked.len() - before));
    }
    assert_eq!(after.len(), 50, "all within one period");
    let per_quarter = |q: u64| after.iter().filter(|s| (q * 25..(q + 1) * 25).contains(*s)).count();
    assert!((0..4).all(|q| per_quarter(q) >= 5), "{after:?}");
}

#[test]
fn a_slow_answer_is_followed_by_the_tick_it_missed() {
    let mut w = World::with(json!({"livenessProbe": exec(json!({"periodSeconds": 1, "timeoutSeconds": 4}))}));
    w.run("c", 0);
    w.until_asked(2).unwrap();
    w.pass(3);
    assert_eq!(w.asked.len(), 1, "one at a time");
    w.answer(Kind::Liveness, &Outcome::Success);
    assert_eq!(w.asked.len(), 1, "the next at once");
}

#[derive(Clone, Debug)]
enum ProbeStep {
    Run,
    Exit,
    Pass(u64),
    Answer(usize, u8),
    Late(u64),
    Terminate,
    Hook(bool),
}

fn steps() -> impl Strategy<Value = Vec<ProbeStep>> {
    let step = prop_oneof![
        2 => Just(ProbeStep::Run),
        1 => Just(ProbeStep::Exit),
        6 => (0u64..15).prop_map(ProbeStep::Pass),
        8 => (0usize..4, 0u8..4).prop_map(|(n, o)| ProbeStep::Answer(n, o)),
        1 => (0u64..40).prop_map(ProbeStep::Late),
        1 => Just(ProbeStep::Terminate),
        1 => any::<bool>().prop_map(ProbeStep::Hook),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// In all cases: one question at a time, of the instance that runs; a verdict is about an instance that
    /// runs, and comes from its own answers; nothing is asked before the container has started.
    #[test]
    fn verdicts_belong_to_the_instance_that_was_asked(steps in steps(), failures in 1i32..4, delay in 0i32..8) {
        let probe = exec(json!({"failureThreshold": failures, "initialDelaySeconds": delay}));
        let mut w = World::with(json!({"startupProbe": probe, "livenessProbe": probe, "readinessProbe": probe}));
        let mut attempt = 0;
        // Answers for each (instance, kind), good or bad.
        let mut given: BTreeMap<(ContainerId, Kind), Vec<bool>> = BTreeMap::new();
        for step in steps {
            match step {
                ProbeStep::Run => { w.run("c", attempt); attempt += 1; }
                ProbeStep::Exit => {
                    w.containers.iter_mut().for_each(|c| c.state = ContainerState::Exited);
                    w.look();
                }
                ProbeStep::Pass(seconds) => w.pass(seconds),
                ProbeStep::Terminate => { w.terminating = true; w.look(); }
                ProbeStep::Hook(on) => {
                    w.hooked = on.then(|| ContainerId::from(format!("c{}", attempt.saturating_sub(1))));
                    w.look();
                }
                ProbeStep::Late(id) => {
                    let id = ProbeId(id);
                    if !w.asked.contains_key(&id) {
                        let before = w.probes.verdicts().clone();
                        let mut out = Vec::new();
                        prop_assert!(!w.probes.answered(id, bad(), now(w.now), &mut out));
                        prop_assert!(out.is_empty());
                        prop_assert_eq!(w.probes.verdicts(), &before);
                    }
                }
                ProbeStep::Answer(n, outcome) => {
                    let Some((id, call)) = w.asked.iter().nth(n).map(|(id, c)| (*id, c.clone())) else { continue };
                    let outcome = match outcome {
                        0 => Outcome::Success,
                        1 => Outcome::Warning(String::new()),
                        2 => bad(),
                        _ => Outcome::Error(String::new()),
                    };
                    let good = matches!(outcome, Outcome::Success | Outcome::Warning(_));
                    if !matches!(outcome, Outcome::Error(_)) {
                        given.entry((call.container, call.kind)).or_default().push(good);
                    }
                    w.asked.remove(&id);
                    let mut out = Vec::new();
                    if w.probes.answered(id, outcome, now(w.now), &mut out) {
                        w.perform(out);
                        w.look();
                    } else {
                        w.perform(out);
                    }
                }
            }
            let running = w.containers.iter().find(|c| c.state == ContainerState::Running);
            for call in w.asked.values() {
                prop_assert_eq!(Some(&call.container), running.map(|c| &c.id));
                let started = given.get(&(call.container.clone(), Kind::Startup)).is_some_and(|a| a.contains(&true));
                prop_assert_eq!(call.kind == Kind::Startup, !started);
            }
            let verdicts = w.probes.verdicts();
            for (id, kind) in &verdicts.failed {
                let answers = given.get(&(id.clone(), *kind)).map_or(&[][..], Vec::as_slice);
                let last = answers.iter().rev().take_while(|good| !**good).count();
                prop_assert!(last >= usize::try_from(failures).unwrap());
            }
            if let Some(c) = running {
                let answers = given.get(&(c.id.clone(), Kind::Readiness)).map_or(&[][..], Vec::as_slice);
                prop_assert!(w.is_ready(&c.id) <= answers.contains(&true), "ready without an answer that said so");
            }
        }
    }
}
