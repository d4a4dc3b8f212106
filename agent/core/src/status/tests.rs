//! Conditions and container statuses as tables.

mod phases;

use agent_types::ids::SandboxId;
use agent_types::runtime::observed::{
    ContainerObserved, ContainerState as St, PodSnapshot, SandboxObserved, SandboxState,
};
use agent_types::time::Mono;
use serde_json::{Value, json};

use super::*;
use crate::probe::Verdicts;

const NOW: Wall = Wall(1_700_000_000_000_000_000);

fn pod_of(spec: Value, annotations: Value) -> Pod {
    let meta =
        json!({"name": "p", "namespace": "d", "uid": "u", "generation": 3, "annotations": annotations});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
}

fn two(policy: &str) -> Pod {
    pod_of(
        json!({"restartPolicy": policy, "containers": [{"name": "b", "image": "i"}, {"name": "a", "image": "i"}]}),
        json!({}),
    )
}

fn container(name: &str, attempt: u32, state: St, code: i32) -> ContainerObserved {
    ContainerObserved {
        state,
        started: (state != St::Created).then_some(NOW),
        finished: (state == St::Exited).then_some(NOW),
        exit_code: code,
        image: "docker.io/i:latest".to_owned(),
        image_ref: "i@sha256:1".to_owned(),
        ..ContainerObserved::created(format!("{name}{attempt}"), "s0", name, attempt, NOW)
    }
}

fn world(containers: Vec<ContainerObserved>) -> PodSnapshot {
    let sandbox = SandboxObserved {
        id: SandboxId::from("s0"),
        attempt: 0,
        state: SandboxState::Ready,
        created: NOW,
        ips: vec!["10.0.0.1".to_owned(), "fd00::1".to_owned()],
        host_network: false,
        runtime_handler: String::new(),
    };
    PodSnapshot {
        pod: pod::key(&two("Always")),
        as_of: Mono(1),
        sandboxes: vec![sandbox],
        containers: containers.into(),
        actuated: None,
    }
}

/// Calls `f` with what a status of `p` is made from.
pub(super) fn shown(
    p: &Pod,
    previous: Option<&PodStatus>,
    whole: PodCgroupState<'_>,
    f: impl FnOnce(&StatusInputs<'_>),
) {
    f(&StatusInputs {
        pod: p,
        snapshot: None,
        waiting: &BTreeMap::new(),
        previous,
        terminating: false,
        may_start: false,
        verdict: None,
        probes: Verdicts::NONE,
        resetting: false,
        replaced: &Replaced::new(),
        resize: ResizeShown { whole: Some(whole), ..ResizeShown::default() },
        stop_signals: false,
        devices: None,
        recursive_read_only: false,
        host_ips: &[],
        ipv6_first: false,
        runtime_name: "containerd",
        start_time: NOW,
        now: NOW,
    });
}

struct Case<'a> {
    pod: &'a Pod,
    snapshot: Option<PodSnapshot>,
    waiting: Vec<(&'a str, &'a str)>,
    previous: Option<PodStatus>,
    terminating: bool,
    may_start: bool,
    resetting: bool,
    replaced: Replaced,
    stop_signals: bool,
    verdict: Option<Verdict>,
    probes: &'a Verdicts,
    now: Wall,
}

impl<'a> Case<'a> {
    fn of(pod: &'a Pod, containers: Vec<ContainerObserved>) -> Case<'a> {
        let snapshot = Some(world(containers));
        Case {
            pod,
            snapshot,
            waiting: Vec::new(),
            previous: None,
            terminating: false,
            may_start: false,
            resetting: false,
            replaced: Replaced::new(),
            stop_signals: false,
            verdict: None,
            probes: Verdicts::NONE,
            now: NOW,
        }
    }

    fn status(&self) -> PodStatus {
        self.with(generate)
    }

    fn with<T>(&self, take: impl FnOnce(&StatusInputs<'_>) -> T) -> T {
        let reason = |r: &str| WaitingReason { reason: r.to_owned(), message: format!("{r} detail") };
        let waiting = self.waiting.iter().map(|(c, r)| ((*c).to_owned(), reason(r))).collect();
        take(&StatusInputs {
            pod: self.pod,
            snapshot: self.snapshot.as_ref(),
            waiting: &waiting,
            previous: self.previous.as_ref(),
            terminating: self.terminating,
            may_start: self.may_start,
            verdict: self.verdict.as_ref(),
            probes: self.probes,
            resetting: self.resetting,
            replaced: &self.replaced,
            resize: ResizeShown::default(),
            stop_signals: self.stop_signals,
            devices: None,
            recursive_read_only: false,
            host_ips: &["192.0.2.1".to_owned()],
            ipv6_first: false,
            runtime_name: "containerd",
            start_time: NOW,
            now: self.now,
        })
    }

    fn phase(&self) -> String {
        self.status().phase.unwrap()
    }
}

fn both(state: St, code_a: i32, code_b: i32) -> Vec<ContainerObserved> {
    vec![container("a", 0, state, code_a), container("b", 0, state, code_b)]
}

#[test]
fn a_terminating_pod_ends_in_a_terminal_phase_unless_it_is_static() {
    let api = two("Always");
    let fixed = pod_of(
        json!({"containers": [{"name": "a", "image": "i"}]}),
        json!({"kubernetes.io/config.source": "file"}),
    );
    let ended = || vec![container("a", 0, St::Exited, 143), container("b", 0, St::Exited, 0)];
    let terminating = |p| Case { terminating: true, ..Case::of(p, ended()) }.phase();
    assert_eq!((terminating(&api).as_str(), terminating(&fixed).as_str()), ("Failed", "Running"));
}

#[test]
fn a_verdict_is_withheld_while_something_runs_and_never_reverts() {
    let p = two("Always");
    let verdict =
        Some(Verdict { reason: "Evicted".to_owned(), message: "low on memory".to_owned(), disruption: None });
    let before = Case::of(&p, both(St::Running, 0, 0)).status();
    let dying = Case {
        verdict: verdict.clone(),
        terminating: true,
        previous: Some(before),
        ..Case::of(&p, both(St::Running, 0, 0))
    };
    assert_eq!((dying.phase().as_str(), dying.status().reason), ("Running", None));
    let dead = Case { verdict, terminating: true, ..Case::of(&p, both(St::Exited, 0, 0)) }.status();
    assert_eq!((dead.phase.as_deref(), dead.reason.as_deref()), (Some("Failed"), Some("Evicted")));
    assert!(!dead.conditions.iter().flatten().any(|c| c.type_ == DISRUPTION_TARGET));
    let after = Case { previous: Some(dead), ..Case::of(&p, both(St::Running, 0, 0)) }.status();
    assert_eq!((after.phase.as_deref(), after.reason.as_deref()), (Some("Failed"), Some("Evicted")));
}

#[test]
fn the_node_says_that_it_ended_a_pod_for_its_own_sake() {
    let mut p = two("Always");
    let scheduler = json!({"type": DISRUPTION_TARGET, "status": "False", "reason": "PreemptionByScheduler"});
    p.status = serde_json::from_value(json!({"conditions": [scheduler]})).unwrap();
    let verdict = |disruption: Option<&str>| {
        let disruption = disruption.map(str::to_owned);
        Some(Verdict { reason: "Preempting".to_owned(), message: "m".to_owned(), disruption })
    };
    let told = |disruption: Option<&str>| {
        let verdict = verdict(disruption);
        let status = Case { verdict, terminating: true, ..Case::of(&p, both(St::Exited, 0, 0)) }.status();
        let all = status.conditions.into_iter().flatten().filter(|c| c.type_ == DISRUPTION_TARGET);
        all.map(|c| (c.status, c.reason.unwrap(), c.message.unwrap_or_default())).collect::<Vec<_>>()
    };
    let of = |status: &str, reason: &str, message: &str| vec![(status.into(), reason.into(), message.into())];
    assert_eq!(told(Some("no room")), of("True", "TerminationByKubelet", "no room"));
    assert_eq!(told(None), of("False", "PreemptionByScheduler", ""), "that of others stays");
}

#[test]
fn container_statuses_show_the_two_newest_instances() {
    let p = two("Always");
    let containers = vec![
        container("a", 2, St::Running, 0),
        container("a", 1, St::Exited, 3),
        container("b", 0, St::Exited, 1),
    ];
    let case = Case { waiting: vec![("b", "CrashLoopBackOff")], ..Case::of(&p, containers) };
    let s = case.status().container_statuses.unwrap();
    assert_eq!([s[0].name.as_str(), s[1].name.as_str()], ["a", "b"], "by name");
    assert_eq!((s[0].restart_count, s[0].ready, s[0].started), (2, true, Some(true)));
    assert_eq!(s[0].container_id.as_deref(), Some("containerd://a2"));
    let last = s[0].last_state.clone().and_then(|l| l.terminated).unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (3, Some("Error")));
    let waiting = s[1].state.clone().and_then(|x| x.waiting).unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
    assert_eq!(s[1].last_state.clone().and_then(|l| l.terminated).map(|t| t.exit_code), Some(1));
}

#[test]
fn a_container_that_vanished_while_running_is_reported_lost() {
    let p = two("Always");
    let before = Case::of(&p, both(St::Running, 0, 0)).status();
    let gone = vec![container("a", 0, St::Running, 0)];
    let lost = Case { previous: Some(before.clone()), ..Case::of(&p, gone.clone()) }.status();
    let b = lost.container_statuses.clone().unwrap()[1].clone();
    assert_eq!(b.restart_count, 1);
    let last = b.last_state.and_then(|l| l.terminated).unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    // Said once: the next status repeats it, and does not count again.
    let again = Case { previous: Some(lost.clone()), ..Case::of(&p, gone.clone()) }.status();
    assert_eq!(again.container_statuses, lost.container_statuses);
    let dying = Case { previous: Some(before), terminating: true, ..Case::of(&p, gone) }.status();
    let b = dying.container_statuses.unwrap()[1].clone();
    assert_eq!((b.restart_count, b.state.and_then(|s| s.terminated).map(|t| t.exit_code)), (0, Some(137)));
}

#[test]
fn an_instance_of_which_the_runtime_knows_nothing_is_lost_and_counted_once() {
    let p = two("Always");
    let unknown = |previous: Option<PodStatus>| {
        let of = vec![container("a", 0, St::Running, 0), container("b", 0, St::Unknown, 0)];
        Case { previous, ..Case::of(&p, of) }.status()
    };
    let ran = Case::of(&p, both(St::Running, 0, 0)).status();
    let first = unknown(Some(ran));
    let b = first.container_statuses.clone().unwrap().remove(1);
    let over = b.state.unwrap().terminated.unwrap();
    assert_eq!(
        (over.reason.as_deref(), over.exit_code, b.restart_count),
        (Some("ContainerStatusUnknown"), 137, 1)
    );
    assert_eq!(unknown(Some(first.clone())), first);
    assert_eq!(unknown(None).container_statuses.unwrap()[1].restart_count, 0);
}

#[test]
fn an_end_that_the_runtime_has_forgotten_is_the_last_state_of_what_follows() {
    let p = two("Always");
    let ended =
        Case::of(&p, vec![container("a", 0, St::Exited, 3), container("b", 0, St::Running, 0)]).status();
    for (attempt, restarts) in [(0, 1), (1, 1), (7, 7)] {
        let mut next = container("a", attempt, St::Running, 0);
        next.id = "anew".into();
        let of = |previous: &PodStatus| {
            let all = vec![next.clone(), container("b", 0, St::Running, 0)];
            Case { previous: Some(previous.clone()), ..Case::of(&p, all) }.status()
        };
        let follows = of(&ended);
        let a = &follows.container_statuses.as_ref().unwrap()[0];
        let last = a.last_state.clone().unwrap().terminated.unwrap();
        assert_eq!((last.exit_code, a.restart_count), (3, restarts), "attempt {attempt}");
        assert_eq!(of(&follows), follows, "counted once");
    }
}

fn condition<'a>(s: &'a PodStatus, name: &str) -> &'a k8s_openapi::api::core::v1::PodCondition {
    s.conditions.iter().flatten().find(|c| c.type_ == name).unwrap()
}

#[test]
fn conditions_follow_and_keep_their_transition_time() {
    let p = two("Always");
    let pending = Case::of(&p, vec![container("a", 0, St::Running, 0)]).status();
    let ready = condition(&pending, "Ready");
    assert_eq!((ready.status.as_str(), ready.reason.as_deref()), ("False", Some("ContainersNotReady")));
    assert_eq!(ready.message.as_deref(), Some("containers with unready status: [b]"));
    assert_eq!(ready.observed_generation, Some(3));
    assert_eq!(condition(&pending, "PodReadyToStartContainers").status, "True");
    let later = Wall(NOW.0 + 60_000_000_000);
    let running =
        Case { previous: Some(pending.clone()), now: later, ..Case::of(&p, both(St::Running, 0, 0)) }
            .status();
    assert_eq!(condition(&running, "Ready").status, "True");
    assert_eq!(condition(&running, "Ready").last_transition_time, api_time(later));
    assert_eq!(condition(&running, "PodScheduled").last_transition_time, api_time(NOW));
    let done = Case::of(&two("Never"), both(St::Exited, 0, 0)).status();
    assert_eq!(condition(&done, "Ready").reason.as_deref(), Some("PodCompleted"));
    assert_eq!(condition(&done, "Initialized").status, "True");
}

#[test]
fn readiness_gates_and_foreign_conditions() {
    let mut p = pod_of(
        json!({"containers": [{"name": "a", "image": "i"}],
        "readinessGates": [{"conditionType": "x/y"}, {"conditionType": "x/z"}]}),
        json!({}),
    );
    p.status = serde_json::from_value(json!({"conditions": [{"type": "x/z", "status": "False"}]})).ok();
    let s = Case::of(&p, vec![container("a", 0, St::Running, 0)]).status();
    assert_eq!(condition(&s, "ContainersReady").status, "True");
    let ready = condition(&s, "Ready");
    assert_eq!(ready.reason.as_deref(), Some("ReadinessGatesNotReady"));
    assert_eq!(
        ready.message.as_deref(),
        Some(
            "corresponding condition of pod readiness gate \"x/y\" does not exist., the status of pod readiness \
              gate \"x/z\" is not \"True\", but False"
        )
    );
    assert_eq!(condition(&s, "x/z").status, "False", "carried over");
    let order: Vec<&str> = s.conditions.iter().flatten().map(|c| c.type_.as_str()).collect();
    assert_eq!(
        order,
        ["x/z", "PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
    );
}

#[test]
fn a_condition_of_a_resize_has_the_time_at_which_it_was_set() {
    let p = two("Always");
    let later = Wall(NOW.0 + 60_000_000_000);
    let of = |message: &str, previous: Option<&PodStatus>, now: Wall| {
        let pending = PendingResize {
            reason: "Deferred".to_owned(),
            message: message.to_owned(),
            generation: Some(3),
            event: String::new(),
        };
        let mut status = None;
        shown(&p, previous, PodCgroupState::default(), |inputs| {
            let resize = ResizeShown { pending: Some(&pending), ..inputs.resize };
            status = Some(generate(&StatusInputs { resize, now, ..*inputs }));
        });
        status.unwrap()
    };
    let times = |s: &PodStatus| {
        let c = condition(s, "PodResizePending");
        (c.last_probe_time.clone(), c.last_transition_time.clone())
    };
    let first = of("no room", None, NOW);
    assert_eq!(times(&first), (api_time(NOW), api_time(NOW)));
    assert_eq!(times(&of("no room", Some(&first), later)), (api_time(NOW), api_time(NOW)));
    assert_eq!(times(&of("less room", Some(&first), later)), (api_time(later), api_time(NOW)));
}

#[test]
fn an_ended_container_whose_record_is_gone_keeps_the_image_that_it_ran() {
    let p = two("Always");
    let ended = Case::of(&p, both(St::Exited, 0, 1)).status();
    let later = Case { previous: Some(ended), ..Case::of(&p, vec![]) }.status();
    for c in later.container_statuses.unwrap() {
        assert_eq!(
            (c.image.as_str(), c.image_id.as_str()),
            ("docker.io/i:latest", "i@sha256:1"),
            "{}",
            c.name
        );
    }
}

#[test]
fn the_last_status_changes_nothing_of_a_container_but_its_state() {
    let p = two("Always");
    let before: PodStatus = serde_json::from_value(json!({"phase": "Running", "containerStatuses": [
        {"name": "a", "image": "i", "imageID": "", "ready": true, "started": true, "restartCount": 0,
            "state": {"running": {}}}]}))
    .unwrap();
    let a = terminated_status(&p, &before).container_statuses.unwrap().remove(0);
    assert_eq!((a.ready, a.started), (true, Some(true)));
    let over = a.state.unwrap().terminated.unwrap();
    assert_eq!((over.exit_code, over.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
}

#[test]
fn addresses_outlive_the_sandbox() {
    let p = two("Always");
    let up = Case::of(&p, both(St::Running, 0, 0)).status();
    assert_eq!(up.pod_ip.as_deref(), Some("10.0.0.1"));
    assert_eq!((up.pod_ips.as_ref().map(Vec::len), up.host_ip.as_deref()), (Some(2), Some("192.0.2.1")));
    let mut down = world(both(St::Exited, 0, 0));
    down.sandboxes[0].ips.clear();
    let after = Case { snapshot: Some(down), previous: Some(up), ..Case::of(&p, vec![]) }.status();
    assert_eq!(after.pod_ip.as_deref(), Some("10.0.0.1"));
}

#[test]
fn an_ephemeral_container_is_shown_and_decides_nothing() {
    let mut p = two("Always");
    let debugger = json!([{"name": "d", "image": "i"}]);
    p.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(debugger).unwrap();
    let with = |d: Option<ContainerObserved>| {
        let mut all = both(St::Running, 0, 0);
        all.extend(d);
        Case::of(&p, all)
    };
    for state in [None, Some((St::Created, 0)), Some((St::Running, 0)), Some((St::Exited, 9))] {
        let status = with(state.map(|(state, code)| container("d", 0, state, code))).status();
        assert_eq!(status.phase.as_deref(), Some("Running"), "{state:?}");
        let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(ready.status, "True", "{state:?}");
        let shown = status.ephemeral_container_statuses.unwrap();
        assert_eq!((shown.len(), shown[0].name.as_str(), shown[0].ready), (1, "d", false));
        assert_eq!((shown[0].started, shown[0].restart_count), (None, 0));
        let of = shown[0].state.clone().unwrap();
        match state {
            Some((St::Running, _)) => assert!(of.running.is_some()),
            Some((St::Exited, code)) => assert_eq!(of.terminated.unwrap().exit_code, code),
            _ => assert_eq!(of.waiting.unwrap().reason.as_deref(), Some("ContainerCreating")),
        }
    }
    // The runtime lost it while it ran: it is over, and does not come back.
    let previous = Some(with(Some(container("d", 0, St::Running, 0))).status());
    let lost = Case { previous, ..with(None) }.status().ephemeral_container_statuses.unwrap();
    let over = lost[0].state.clone().unwrap().terminated.unwrap();
    assert_eq!(
        (over.exit_code, over.reason.as_deref(), lost[0].restart_count),
        (137, Some("ContainerStatusUnknown"), 0)
    );
}

#[test]
fn all_containers_begin_anew() {
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let p = pod_of(
        json!({"restartPolicy": "Never", "initContainers": [{"name": "i1", "image": "i"}], "containers": [
            {"name": "a", "image": "i", "restartPolicy": "Never", "restartPolicyRules": [rule]},
            {"name": "b", "image": "i"}]}),
        json!({}),
    );
    let anew = |s: &PodStatus| {
        let c =
            s.conditions.iter().flatten().find(|c| c.type_ == "AllContainersRestarting").cloned().unwrap();
        (c.status, c.reason.unwrap_or_default())
    };
    let truth = |s: &PodStatus, name: &str| {
        s.conditions.iter().flatten().find(|c| c.type_ == name).map(|c| c.status.clone()).unwrap()
    };
    let at = |containers: Vec<ContainerObserved>, previous: Option<&PodStatus>, resetting: bool| {
        Case { previous: previous.cloned(), resetting, ..Case::of(&p, containers) }.status()
    };
    let (end, run) =
        (|n: &str, code| container(n, 0, St::Exited, code), |n: &str, k| container(n, k, St::Running, 0));
    let up = at(vec![end("i1", 0), run("a", 0), run("b", 0)], None, false);
    assert_eq!(
        (anew(&up), truth(&up, "Initialized")),
        (("False".to_owned(), String::new()), "True".to_owned())
    );
    let begun = at(vec![end("i1", 0), end("a", 42), run("b", 0)], Some(&up), true);
    assert_eq!(anew(&begun), ("True".to_owned(), "RestartAllContainersStarted".to_owned()));
    assert_eq!(begun.phase.as_deref(), Some("Running"));
    let half = at(vec![end("a", 42)], Some(&begun), true);
    let gone = at(vec![], Some(&half), false);
    assert_eq!((anew(&gone).0, gone.phase.as_deref()), ("False".to_owned(), Some("Running")));
    for (list, name) in [
        (&gone.init_container_statuses, "i1"),
        (&gone.container_statuses, "a"),
        (&gone.container_statuses, "b"),
    ] {
        let s = list.iter().flatten().find(|s| s.name == name).unwrap();
        let last = s.last_state.clone().unwrap().terminated.unwrap();
        assert_eq!(
            (last.exit_code, last.reason.as_deref()),
            (137, Some("RestartingAllContainers")),
            "{name}"
        );
        assert!(s.state.as_ref().unwrap().waiting.is_some() && s.restart_count == 1, "{name}: {s:?}");
    }
    let again = at(vec![container("i1", 1, St::Exited, 0), run("a", 1), run("b", 1)], Some(&gone), false);
    assert_eq!((again.phase.as_deref(), truth(&again, "Initialized")), (Some("Running"), "True".to_owned()));
    let a = again.container_statuses.unwrap().remove(0);
    let last = a.last_state.unwrap().terminated.unwrap();
    assert_eq!((a.restart_count, last.reason.as_deref()), (1, Some("RestartingAllContainers")));
}

#[test]
fn a_container_that_the_runtime_lost_keeps_the_end_that_is_known() {
    let p = two("Always");
    let b = || container("b", 0, St::Running, 0);
    for (before, exit_code, count) in [
        (vec![container("a", 2, St::Running, 0), container("a", 1, St::Exited, 1), b()], 1, 2),
        (vec![container("a", 2, St::Running, 0), b()], 137, 3),
    ] {
        let shown = Case::of(&p, before).status();
        let lost = Case { previous: Some(shown), ..Case::of(&p, vec![b()]) }.status();
        let a = lost.container_statuses.unwrap().into_iter().find(|c| c.name == "a").unwrap();
        let last = a.last_state.and_then(|s| s.terminated).unwrap();
        assert_eq!((last.exit_code, a.restart_count), (exit_code, count));
        assert_eq!(last.finished_at.is_some(), exit_code == 1, "nobody knows when");
    }
}

#[test]
fn what_nobody_knows_the_state_of_has_ended_only_if_it_was_seen_to_run() {
    let p = two("Always");
    let b = || container("b", 0, St::Running, 0);
    let unknown = || vec![container("a", 0, St::Unknown, 0), b()];
    let first = Case::of(&p, unknown()).status();
    let running = Case::of(&p, vec![container("a", 0, St::Running, 0), b()]).status();
    let later = Case { previous: Some(running), ..Case::of(&p, unknown()) }.status();
    let again = Case { previous: Some(later.clone()), ..Case::of(&p, unknown()) }.status();
    for (status, ended) in [(first, false), (later, true), (again, true)] {
        let a = status.container_statuses.unwrap().into_iter().find(|c| c.name == "a").unwrap();
        let state = a.state.unwrap();
        assert_eq!((state.terminated.is_some(), state.waiting.is_some()), (ended, !ended));
        assert_eq!(status.phase.as_deref() == Some("Pending"), !ended);
    }
}

#[test]
fn the_nodes_own_family_comes_first_and_each_once() {
    let owned = |list: &[&str]| list.iter().map(|ip| (*ip).to_owned()).collect::<Vec<_>>();
    for (ips, ipv6_first, shown) in [
        (&["10.0.0.1", "fd00::1"][..], false, &["10.0.0.1", "fd00::1"][..]),
        (&["fd00::1", "10.0.0.1"], false, &["10.0.0.1", "fd00::1"]),
        (&["10.0.0.1", "fd00::1"], true, &["fd00::1", "10.0.0.1"]),
        (&["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"], false, &["10.0.0.1", "fd00::1"]),
        (&["FD00:0:0::0001", "::ffff:10.0.0.1", "x"], false, &["10.0.0.1", "fd00::1"]),
        (&["fd00::1"], false, &["fd00::1"]),
        (&[], false, &[]),
    ] {
        assert_eq!(one_of_each_family(&owned(ips), ipv6_first), owned(shown), "{ips:?}, {ipv6_first}");
    }
}

#[test]
fn the_stop_signal_is_shown_where_the_node_has_the_feature() {
    let pod = two("Always");
    let mut snapshot = both(St::Running, 0, 0);
    snapshot[0].stop_signal = Some("SIGQUIT".to_owned());
    let shown = |case: &Case<'_>| -> Vec<Option<String>> {
        let statuses = case.status().container_statuses.unwrap();
        statuses.into_iter().map(|s| s.stop_signal).collect()
    };
    let mut case = Case::of(&pod, snapshot);
    assert_eq!(shown(&case), [None, None]);
    case.stop_signals = true;
    assert_eq!(shown(&case), [Some("SIGQUIT".to_owned()), None], "the runtime says nothing of the other");
    case.previous = Some(case.status());
    case.snapshot = None;
    assert_eq!(shown(&case), [None, None], "another instance may come with another one");
}

#[test]
fn one_that_was_killed_to_come_back_waits_however_it_ended() {
    let ended = container("a", 0, St::Exited, 0);
    for (policy, replaced, waits) in [
        ("OnFailure", true, true),
        ("OnFailure", false, false),
        ("Never", true, true),
        ("Never", false, false),
    ] {
        let p = two(policy);
        let killed = if replaced { Replaced::from([(ended.id.clone(), None)]) } else { Replaced::new() };
        let both = vec![ended.clone(), container("b", 0, St::Running, 0)];
        let status = Case { replaced: killed, ..Case::of(&p, both) }.status();
        let all = status.container_statuses.unwrap();
        let a = all.iter().find(|c| c.name == "a").unwrap();
        let state = a.state.as_ref().unwrap();
        let last = a.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        assert_eq!((state.waiting.is_some(), last.is_some()), (waits, waits), "{policy}, {replaced}");
    }
}
