//! `computePodActions` as a table: a state of the runtime, and the actions that must follow.

mod ephemeral;
mod many;
mod reset;

use std::collections::BTreeMap;

use agent_types::restart::Exit;
use agent_types::runtime::labels;
use agent_types::runtime::observed::ContainerState as St;
use agent_types::time::{Now, Wall};
use serde_json::json;

use super::*;
use crate::pod_actions::ended::back_off_key;
use crate::probe::{Kind, Verdicts};

fn pod_of(spec: serde_json::Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": spec}))
        .unwrap()
}

/// One container `a`, image `i:1`.
fn single(policy: &str) -> Pod {
    pod_of(json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i:1"}]}))
}

fn with_init(policy: &str) -> Pod {
    pod_of(json!({"restartPolicy": policy,
        "initContainers": [
            {"name": "i1", "image": "i:1"},
            {"name": "side", "image": "i:1", "restartPolicy": "Always"},
            {"name": "i2", "image": "i:1"}],
        "containers": [{"name": "a", "image": "i:1"}]}))
}

fn sandbox(attempt: u32, state: SandboxState) -> SandboxObserved {
    SandboxObserved {
        id: SandboxId::from(format!("s{attempt}")),
        attempt,
        state,
        created: Wall(i64::from(attempt)),
        ips: vec!["10.0.0.1".to_owned()],
        host_network: false,
        runtime_handler: String::new(),
    }
}

/// Container `name`/`attempt` in sandbox `s<home>`, made from `i:1`, in `state`; `code` matters if exited.
fn container(name: &str, attempt: u32, home: u32, state: St, code: i32) -> ContainerObserved {
    let annotations = BTreeMap::from([(labels::CONTAINER_HASH.to_owned(), format!("{name}@i:1"))]);
    let (id, sandbox) = (format!("{name}{attempt}"), format!("s{home}"));
    ContainerObserved {
        state,
        started: (state != St::Created).then_some(Wall(1)),
        finished: (state == St::Exited).then_some(Wall(2)),
        exit_code: code,
        image: "i:1".to_owned(),
        annotations,
        ..ContainerObserved::created(id, sandbox, name, attempt, Wall(i64::from(attempt)))
    }
}

fn plan_with(p: &Pod, s: Vec<SandboxObserved>, c: Vec<ContainerObserved>, replaced: &[&str]) -> PodActions {
    let snapshot =
        PodSnapshot { pod: pod::key(p), as_of: Mono(1), sandboxes: s, containers: c.into(), actuated: None };
    let replaced = replaced.iter().map(|id| (ContainerId::from(*id), None)).collect();
    compute(&Inputs {
        pod: p,
        snapshot: &snapshot,
        back_off: &BackOff::default(),
        replaced: &replaced,
        probes: Verdicts::NONE,
        hook_failed: &BTreeSet::new(),
        resized: &BTreeSet::new(),
        hash: &|name, image| format!("{name}@{image}"),
        now: Mono(5),
    })
}

fn plan(p: &Pod, s: Vec<SandboxObserved>, c: Vec<ContainerObserved>) -> PodActions {
    plan_with(p, s, c, &[])
}

/// The plan in short: sandbox, starts, kills, removals.
fn short(a: &PodActions) -> String {
    let sandbox = match &a.sandbox {
        SandboxPlan::Keep(id) => format!("keep {id}"),
        SandboxPlan::Create { attempt, .. } => format!("create {attempt}"),
        SandboxPlan::Stop => "stop".to_owned(),
    };
    let starts = a
        .start
        .iter()
        .map(|s| format!("{}{}/{}", if s.created.is_some() { "=" } else { "+" }, s.slot.name, s.attempt));
    let kills = a.kill.iter().map(|k| format!("-{}{}", k.id, if k.replace { "!" } else { "" }));
    let removes = a.remove.iter().map(|(_, id)| format!("x{id}"));
    let old = a.remove_sandboxes.iter().map(|id| format!("x{id}"));
    let parts: Vec<String> =
        std::iter::once(sandbox).chain(starts).chain(kills).chain(removes).chain(old).collect();
    parts.join(" ")
}

const READY: SandboxState = SandboxState::Ready;
const DOWN: SandboxState = SandboxState::NotReady;

/// What it is about, the pod, what is there, what must follow.
type Row = (&'static str, Pod, Vec<SandboxObserved>, Vec<ContainerObserved>, &'static str);

#[test]
fn sandbox_rules() {
    let up = |c: St| vec![container("a", 0, 0, c, 0)];
    let no_ip = SandboxObserved { ips: Vec::new(), ..sandbox(0, READY) };
    let host = SandboxObserved { host_network: true, ips: Vec::new(), ..sandbox(0, READY) };
    let table: Vec<Row> = vec![
        ("nothing there", single("Always"), vec![], vec![], "create 0"),
        ("in order", single("Always"), vec![sandbox(0, READY)], up(St::Running), "keep s0"),
        ("not ready", single("Always"), vec![sandbox(0, DOWN)], vec![], "create 1"),
        (
            "not ready, live container",
            single("Always"),
            vec![sandbox(0, DOWN)],
            up(St::Running),
            "create 1 -a0!",
        ),
        (
            "not ready, live container that restarts on failure",
            single("OnFailure"),
            vec![sandbox(0, DOWN)],
            up(St::Running),
            "create 1 -a0!",
        ),
        (
            "not ready, created container",
            single("Always"),
            vec![sandbox(0, DOWN)],
            up(St::Created),
            "create 1 xa0",
        ),
        ("two ready", single("Always"), vec![sandbox(1, READY), sandbox(0, READY)], vec![], "create 2"),
        ("no address", single("Always"), vec![no_ip], vec![], "create 1"),
        ("network mode changed", single("Always"), vec![host], vec![], "create 1"),
        ("never, nothing existed", single("Never"), vec![sandbox(0, DOWN)], vec![], "create 1"),
        ("never, it existed", single("Never"), vec![sandbox(0, DOWN)], up(St::Running), "stop -a0"),
        ("succeeded", single("OnFailure"), vec![sandbox(0, DOWN)], up(St::Exited), "stop"),
        (
            "old empty sandbox",
            single("Always"),
            vec![sandbox(1, READY), sandbox(0, DOWN)],
            vec![container("a", 1, 1, St::Running, 0)],
            "keep s1 xs0",
        ),
        (
            "old sandbox in use",
            single("Always"),
            vec![sandbox(1, READY), sandbox(0, DOWN)],
            vec![container("a", 1, 1, St::Running, 0), container("a", 0, 0, St::Exited, 1)],
            "keep s1",
        ),
    ];
    for (what, p, s, c, expected) in table {
        assert_eq!(short(&plan(&p, s, c)), expected, "{what}");
    }
}

#[test]
fn regular_container_rules() {
    let table: Vec<(&str, &str, Vec<ContainerObserved>, &str)> = vec![
        ("absent", "Always", vec![], "keep s0 +a/0"),
        ("running", "Always", vec![container("a", 0, 0, St::Running, 0)], "keep s0"),
        ("created", "Always", vec![container("a", 3, 0, St::Created, 0)], "keep s0 =a/3"),
        ("exited 0, Always", "Always", vec![container("a", 0, 0, St::Exited, 0)], "keep s0 +a/1"),
        ("exited 0, OnFailure", "OnFailure", vec![container("a", 0, 0, St::Exited, 0)], "stop"),
        ("exited 1, OnFailure", "OnFailure", vec![container("a", 0, 0, St::Exited, 1)], "keep s0 +a/1"),
        ("exited 1, Never", "Never", vec![container("a", 0, 0, St::Exited, 1)], "stop"),
        ("unknown", "Always", vec![container("a", 0, 0, St::Unknown, 0)], "keep s0 -a0!"),
        (
            "two dead",
            "Always",
            vec![container("a", 1, 0, St::Exited, 1), container("a", 0, 0, St::Exited, 1)],
            "keep s0 +a/2 xa0",
        ),
        (
            "one dead behind a live one",
            "Always",
            vec![container("a", 1, 0, St::Running, 0), container("a", 0, 0, St::Exited, 1)],
            "keep s0",
        ),
        (
            "an older one lives",
            "Always",
            vec![container("a", 1, 0, St::Exited, 1), container("a", 0, 0, St::Running, 0)],
            "keep s0 -a0",
        ),
        (
            "an older one could be started",
            "Always",
            vec![container("a", 1, 0, St::Exited, 1), container("a", 0, 0, St::Created, 0)],
            "keep s0 xa0",
        ),
        (
            "not of this pod",
            "Always",
            vec![container("a", 0, 0, St::Running, 0), container("z", 0, 0, St::Running, 0)],
            "keep s0 -z0",
        ),
    ];
    for (what, policy, c, expected) in table {
        assert_eq!(short(&plan(&single(policy), vec![sandbox(0, READY)], c)), expected, "{what}");
    }
}

/// The runtime lost its records, or the API server was put back to before the pod's end (simulation, seed 163).
#[test]
fn what_the_api_shows_as_ended_for_good_does_not_run_again() {
    for (policy, code, expected) in [
        ("Always", 0, "keep s0 +a/0 +b/0"),
        ("OnFailure", 1, "keep s0 +a/0 +b/0"),
        ("OnFailure", 0, "keep s0 +b/0"),
        ("Never", 1, "keep s0 +b/0"),
    ] {
        let mut p = pod_of(json!({"restartPolicy": policy, "containers": [
            {"name": "a", "image": "i:1"}, {"name": "b", "image": "i:1"}]}));
        let status = json!({"phase": "Pending", "containerStatuses": [
            {"name": "a", "image": "i:1", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": code}}}]});
        p.status = serde_json::from_value(status).unwrap();
        assert_eq!(short(&plan(&p, vec![], vec![])), "create 0", "{policy} {code}");
        let a = plan(&p, vec![sandbox(0, READY)], vec![]);
        assert_eq!(short(&a), expected, "{policy} {code}");
    }
}

#[test]
fn a_changed_definition_replaces_whatever_the_policy_is() {
    for policy in ["Always", "OnFailure", "Never"] {
        let p = pod_of(json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i:2"}]}));
        let a = plan(&p, vec![sandbox(0, READY)], vec![container("a", 0, 0, St::Running, 0)]);
        let text = "Container a definition changed, will be restarted";
        assert_eq!((short(&a).as_str(), a.kill[0].message.as_str()), ("keep s0 -a0!", text), "{policy}");
        // A container that was killed for that starts again, however it ended.
        for code in [0, 137] {
            let exited = vec![container("a", 0, 0, St::Exited, code)];
            let back = short(&plan_with(&p, vec![sandbox(0, READY)], exited, &["a0"]));
            assert_eq!(back, "keep s0 +a/1", "{policy}, {code}");
        }
    }
    let p = pod_of(json!({"initContainers": [{"name": "side", "image": "i:2", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "i:1"}]}));
    let both = vec![container("a", 0, 0, St::Running, 0), container("side", 0, 0, St::Running, 0)];
    let a = plan(&p, vec![sandbox(0, READY)], both);
    let text = "Init container side definition changed";
    assert_eq!((short(&a).as_str(), a.kill[0].message.as_str()), ("keep s0 -side0!", text));
}

#[test]
fn a_process_that_the_kernel_killed_makes_a_failure_of_init_containers_alone() {
    let killed = |name: &str| ContainerObserved {
        reason: "OOMKilled".to_owned(),
        ..container(name, 0, 0, St::Exited, 0)
    };
    let of = |p: Pod, name: &str| short(&plan(&p, vec![sandbox(0, READY)], vec![killed(name)]));
    assert_eq!(of(single("OnFailure"), "a"), "stop");
    assert_eq!(of(with_init("OnFailure"), "i1"), "keep s0 +i1/1");
}

#[test]
fn init_and_sidecar_rules() {
    let done = |n: &str| container(n, 0, 0, St::Exited, 0);
    let up = |n: &str| container(n, 0, 0, St::Running, 0);
    let failed = container("i1", 0, 0, St::Exited, 4);
    let dead_side = container("side", 0, 0, St::Exited, 1);
    let table: Vec<(&str, &str, Vec<ContainerObserved>, &str)> = vec![
        ("first", "Always", vec![], "keep s0 +i1/0"),
        ("first runs", "Always", vec![up("i1")], "keep s0"),
        ("first done", "Always", vec![done("i1")], "keep s0 +side/0"),
        ("sidecar up", "Always", vec![done("i1"), up("side")], "keep s0 +i2/0"),
        ("all done", "Always", vec![done("i1"), up("side"), done("i2")], "keep s0 +a/0"),
        ("failed, Always", "Always", vec![failed.clone()], "keep s0 +i1/1"),
        ("failed, Never", "Never", vec![failed.clone()], "stop"),
        ("record of the first lost", "Always", vec![up("side"), done("i2")], "keep s0 +a/0"),
        (
            "sidecar dies while init runs",
            "Always",
            vec![done("i1"), dead_side.clone(), up("i2")],
            "keep s0 +side/1",
        ),
        (
            "sidecar dies while the pod runs",
            "Never",
            vec![done("i1"), dead_side, done("i2"), up("a")],
            "keep s0 +side/1",
        ),
        ("init never runs again", "Always", vec![failed, up("side"), up("a")], "keep s0"),
        (
            "sidecars do not keep a pod",
            "Never",
            vec![done("i1"), up("side"), done("i2"), done("a")],
            "stop -side0",
        ),
    ];
    for (what, policy, c, expected) in table {
        assert_eq!(short(&plan(&with_init(policy), vec![sandbox(0, READY)], c)), expected, "{what}");
    }
}

#[test]
fn after_a_new_sandbox_init_containers_run_again_and_keep_counting() {
    let old = vec![
        container("i1", 0, 0, St::Exited, 0),
        container("side", 0, 0, St::Exited, 137),
        container("i2", 0, 0, St::Exited, 0),
        container("a", 0, 0, St::Exited, 137),
    ];
    let a = plan(&with_init("Always"), vec![sandbox(1, READY), sandbox(0, DOWN)], old);
    assert_eq!(short(&a), "keep s1 +i1/1");
}

#[test]
fn container_restart_rules_come_before_the_policies() {
    let p = pod_of(json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "i:1",
        "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}]}));
    for (code, expected) in [(42, "keep s0 +a/1"), (1, "stop"), (0, "stop")] {
        let c = vec![container("a", 0, 0, St::Exited, code)];
        assert_eq!(short(&plan(&p, vec![sandbox(0, READY)], c)), expected, "exit {code}");
    }
    let own = pod_of(json!({"restartPolicy": "Never", "containers": [
        {"name": "a", "image": "i:1", "restartPolicy": "OnFailure"}]}));
    let c = vec![container("a", 0, 0, St::Exited, 1)];
    assert_eq!(short(&plan(&own, vec![sandbox(0, READY)], c)), "keep s0 +a/1");
}

#[test]
fn what_failed_its_probe_is_killed_and_a_sidecar_gates_until_it_has_started() {
    let judged = |p: &Pod, c: Vec<ContainerObserved>, failed: &[(&str, Kind)], starting: &[&str]| {
        let snapshot = PodSnapshot {
            pod: pod::key(p),
            as_of: Mono(1),
            sandboxes: vec![sandbox(0, READY)],
            containers: c.into(),
            actuated: None,
        };
        let id = |id: &&str| ContainerId::from(*id);
        let verdicts = Verdicts {
            failed: failed.iter().map(|(c, kind)| (id(c), *kind)).collect(),
            starting: starting.iter().map(id).collect(),
            unready: BTreeSet::new(),
        };
        compute(&Inputs {
            pod: p,
            snapshot: &snapshot,
            back_off: &BackOff::default(),
            replaced: &Replaced::new(),
            probes: &verdicts,
            hook_failed: &BTreeSet::new(),
            resized: &BTreeSet::new(),
            hash: &|name, image| format!("{name}@{image}"),
            now: Mono(5),
        })
    };
    let graced = |policy: &str| {
        pod_of(json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i:1",
            "livenessProbe": {"terminationGracePeriodSeconds": 7}, "startupProbe": {}}]}))
    };
    let up = |name: &str| container(name, 0, 0, St::Running, 0);
    let table = [
        (
            "Always",
            Kind::Liveness,
            "keep s0 -a0!",
            "Container a failed liveness probe, will be restarted",
            Some(7),
        ),
        (
            "Always",
            Kind::Startup,
            "keep s0 -a0!",
            "Container a failed startup probe, will be restarted",
            None,
        ),
        (
            "OnFailure",
            Kind::Startup,
            "keep s0 -a0!",
            "Container a failed startup probe, will be restarted",
            None,
        ),
        // Nothing else is left to run: the pod ends as a whole.
        ("Never", Kind::Liveness, "stop -a0", "Stopping container a", None),
    ];
    for (policy, kind, expected, message, grace_s) in table {
        let a = judged(&graced(policy), vec![up("a")], &[("a0", kind)], &[]);
        assert_eq!(short(&a), expected, "{policy} {kind}");
        assert_eq!((a.kill[0].message.as_str(), a.kill[0].grace_s), (message, grace_s));
    }
    // An instance that ended is beyond that.
    let ended = vec![container("a", 0, 0, St::Exited, 0)];
    assert_eq!(short(&judged(&graced("Always"), ended, &[("a0", Kind::Liveness)], &[])), "keep s0 +a/1");
    let p = with_init("Always");
    let done = || container("i1", 0, 0, St::Exited, 0);
    let sidecar =
        |failed: &[(&str, Kind)], starting: &[&str]| judged(&p, vec![done(), up("side")], failed, starting);
    assert_eq!(short(&sidecar(&[], &["side0"])), "keep s0");
    assert_eq!(short(&sidecar(&[], &[])), "keep s0 +i2/0");
    let killed = sidecar(&[("side0", Kind::Startup)], &["side0"]);
    assert_eq!(short(&killed), "keep s0 -side0!");
    assert_eq!(killed.kill[0].message, "Init container side failed startup probe");
}

#[test]
fn a_container_in_an_unknown_state_is_killed_in_upstreams_words() {
    let unknown = |name: &str| vec![container(name, 0, 0, St::Unknown, 0)];
    let message = |p: &Pod, c: Vec<ContainerObserved>| {
        let a = plan(p, vec![sandbox(0, READY)], c);
        a.kill[0].message.clone()
    };
    let words = "in \"unknown\" state, try killing it before restart";
    assert_eq!(message(&single("Always"), unknown("a")), format!("Container is {words}"));
    assert_eq!(message(&with_init("Always"), unknown("i1")), format!("Init container is {words}"));
}

/// The plan while `c`, seen together with `others`, is in its crash-loop back-off, and the plan when that is over.
fn in_back_off(p: &Pod, c: &ContainerObserved, others: Vec<ContainerObserved>) -> (PodActions, PodActions) {
    in_back_off_with(p, c, others, vec![sandbox(0, READY)])
}

/// The same, with these sandboxes.
fn in_back_off_with(
    p: &Pod,
    c: &ContainerObserved,
    others: Vec<ContainerObserved>,
    sandboxes: Vec<SandboxObserved>,
) -> (PodActions, PodActions) {
    let snapshot = PodSnapshot {
        pod: pod::key(p),
        as_of: Mono(1),
        sandboxes,
        containers: [others, vec![c.clone()]].concat().into(),
        actuated: None,
    };
    let mut back_off = BackOff::default();
    let key = back_off_key(p, &Slot::of(p, &c.name));
    back_off.restarted(&key, Now::default());
    let exit = Exit { instance: &c.id, finished: Wall(2), killed_after: None };
    back_off.observe_exit(&key, exit, Now { mono: Mono(3), wall: Wall(3) });
    let inputs = Inputs {
        pod: p,
        snapshot: &snapshot,
        back_off: &back_off,
        replaced: &Replaced::new(),
        probes: Verdicts::NONE,
        hook_failed: &BTreeSet::new(),
        resized: &BTreeSet::new(),
        hash: &|name, image| format!("{name}@{image}"),
        now: Mono(5),
    };
    let waits = compute(&inputs);
    let later = compute(&Inputs { now: waits.waiting[0].until, ..inputs });
    (waits, later)
}

#[test]
fn a_crash_loop_waits_and_keeps_the_sandbox() {
    let (a, later) = in_back_off(&single("Always"), &container("a", 1, 0, St::Exited, 1), vec![]);
    assert_eq!((short(&a).as_str(), a.waiting.len(), a.waiting[0].delay.as_secs()), ("keep s0", 1, 10));
    assert_eq!(short(&later), "keep s0 +a/2");
}
