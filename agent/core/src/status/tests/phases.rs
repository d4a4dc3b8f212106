//! Phases as a table.

use agent_types::ids::ContainerId;

use super::*;

#[test]
fn phases() {
    let half = vec![container("a", 0, St::Running, 0), container("b", 0, St::Exited, 1)];
    let table: Vec<(&str, &str, Vec<ContainerObserved>, &str)> = vec![
        ("nothing yet", "Always", vec![], "Pending"),
        ("one of two created", "Always", vec![container("a", 0, St::Running, 0)], "Pending"),
        ("created is waiting", "Always", both(St::Created, 0, 0), "Pending"),
        ("all running", "Always", both(St::Running, 0, 0), "Running"),
        ("one ended", "Never", half, "Running"),
        ("all ended well, Always", "Always", both(St::Exited, 0, 0), "Running"),
        ("all ended well, Never", "Never", both(St::Exited, 0, 0), "Succeeded"),
        ("one ended badly, Never", "Never", both(St::Exited, 0, 1), "Failed"),
        ("one ended badly, OnFailure", "OnFailure", both(St::Exited, 0, 1), "Running"),
        ("all ended well, OnFailure", "OnFailure", both(St::Exited, 0, 0), "Succeeded"),
    ];
    for (what, policy, containers, expected) in table {
        assert_eq!(Case::of(&two(policy), containers).phase(), expected, "{what}");
    }
}

#[test]
fn no_end_is_told_while_something_may_start() {
    let p = two("Never");
    let told = |may_start, previous: Option<&str>| {
        let previous = previous.map(|p| PodStatus { phase: Some(p.to_owned()), ..PodStatus::default() });
        Case { may_start, previous, ..Case::of(&p, both(St::Exited, 0, 1)) }.phase()
    };
    let seen = [told(false, None), told(true, None), told(true, Some("Running")), told(true, Some("Failed"))];
    assert_eq!(seen, ["Failed", "Pending", "Running", "Failed"]);
    // A restarted agent has published nothing yet: what the API shows stays.
    let mut shown = two("Never");
    shown.status = serde_json::from_value(json!({"phase": "Running"})).ok();
    assert_eq!(Case { may_start: true, ..Case::of(&shown, both(St::Exited, 0, 1)) }.phase(), "Running");
}

#[test]
fn init_containers_decide_the_phase_first() {
    let spec = |policy: &str| {
        pod_of(
            json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i"}], "initContainers": [
            {"name": "i1", "image": "i"}, {"name": "side", "image": "i", "restartPolicy": "Always"}]}),
            json!({}),
        )
    };
    let run = |n: &str| container(n, 0, St::Running, 0);
    let end = |n: &str, code| container(n, 0, St::Exited, code);
    let table: Vec<(&str, &str, Vec<ContainerObserved>, &str)> = vec![
        ("runs", "Always", vec![run("i1")], "Pending"),
        ("failed, Never", "Never", vec![end("i1", 1)], "Failed"),
        ("failed, Always", "Always", vec![end("i1", 1)], "Pending"),
        ("sidecar not up", "Always", vec![end("i1", 0)], "Pending"),
        ("all up", "Always", vec![end("i1", 0), run("side"), run("a")], "Running"),
        ("sidecar down later", "Always", vec![end("i1", 0), end("side", 1), run("a")], "Running"),
        ("record of init lost", "Always", vec![run("side"), run("a")], "Running"),
        ("init runs again", "Always", vec![run("i1"), run("side"), end("a", 1)], "Pending"),
        ("init fails again", "Always", vec![end("i1", 1), end("side", 0), end("a", 1)], "Running"),
        ("sidecar outlives", "Never", vec![end("i1", 0), run("side"), end("a", 0)], "Running"),
    ];
    for (what, policy, containers, expected) in table {
        assert_eq!(Case::of(&spec(policy), containers).phase(), expected, "{what}");
    }
    let waiting = Case::of(&spec("Always"), vec![]).status().container_statuses.unwrap();
    let reason = waiting[0].state.clone().and_then(|s| s.waiting).and_then(|w| w.reason);
    assert_eq!(reason.as_deref(), Some("PodInitializing"));
}

#[test]
fn a_sidecar_that_comes_up_again_does_not_undo_a_running_pod_in_its_sandbox() {
    let p = pod_of(
        json!({"containers": [{"name": "a", "image": "i"}], "initContainers": [{"name": "side", "image": "i",
            "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["x"]}}}]}),
        json!({}),
    );
    let probes = Verdicts { starting: [ContainerId::from("side1")].into(), ..Verdicts::default() };
    let phase = |sandbox: &str| {
        let mut a = container("a", 0, St::Running, 0);
        a.sandbox = SandboxId::from(sandbox);
        Case { probes: &probes, ..Case::of(&p, vec![container("side", 1, St::Running, 0), a]) }.phase()
    };
    assert_eq!((phase("s0").as_str(), phase("earlier").as_str()), ("Running", "Pending"));
}

#[test]
fn a_container_that_runs_once_and_was_lost_is_over() {
    let table = [("Always", "Running"), ("OnFailure", "Running"), ("Never", "Failed")];
    for (policy, expected) in table {
        let p = two(policy);
        let previous = Some(Case::of(&p, both(St::Running, 0, 0)).status());
        assert_eq!(Case { previous, ..Case::of(&p, vec![]) }.phase(), expected, "{policy}");
    }
}

#[test]
fn what_others_say_of_a_phase_stays_with_it() {
    let mut p = two("Always");
    p.status =
        serde_json::from_value(json!({"phase": "Running", "reason": "NodeLost", "message": "away"})).ok();
    let words = |s: PodStatus| (s.phase.unwrap(), s.reason, s.message);
    let same = words(Case::of(&p, both(St::Running, 0, 0)).status());
    assert_eq!(same, ("Running".to_owned(), Some("NodeLost".to_owned()), Some("away".to_owned())));
    let other = words(Case { terminating: true, ..Case::of(&p, both(St::Exited, 0, 0)) }.status());
    assert_eq!(other, ("Succeeded".to_owned(), None, None));
}

#[test]
fn of_a_refused_pod_no_container_is_said_to_be_made() {
    let p = two("Always");
    let verdict = Some(Verdict {
        reason: "OutOfcpu".to_owned(),
        message: "Pod was rejected: x".to_owned(),
        disruption: None,
    });
    let refused = |previous: Option<PodStatus>, containers| {
        Case { verdict: verdict.clone(), terminating: true, previous, ..Case::of(&p, containers) }.status()
    };
    let seen = refused(None, vec![]);
    assert_eq!((seen.phase.as_deref(), seen.reason.as_deref()), (Some("Failed"), Some("OutOfcpu")));
    assert!(seen.container_statuses.is_none(), "kubectl would show ContainerCreating");
    assert_eq!(refused(Some(seen.clone()), vec![]), seen);
    // What ran is shown, also when the runtime has forgotten it.
    let ran = Case::of(&p, both(St::Running, 0, 0)).status();
    assert!(refused(Some(ran), vec![]).container_statuses.is_some());
    assert!(refused(None, both(St::Exited, 0, 1)).container_statuses.is_some());
}

#[test]
fn an_initialized_pod_stays_so_and_needs_one_good_sandbox() {
    let p = pod_of(
        json!({"containers": [{"name": "a", "image": "i"}], "initContainers": [{"name": "i1", "image": "i"}]}),
        json!({}),
    );
    let up =
        Case::of(&p, vec![container("i1", 0, St::Exited, 0), container("a", 0, St::Running, 0)]).status();
    assert_eq!(condition(&up, "Initialized").status, "True");
    let again = Case { previous: Some(up), ..Case::of(&p, vec![container("i1", 1, St::Running, 0)]) };
    assert_eq!(condition(&again.status(), "Initialized").status, "True", "also while it begins anew");
    let mut two_ready = world(vec![]);
    let other = SandboxObserved { id: SandboxId::from("s1"), attempt: 1, ..two_ready.sandboxes[0].clone() };
    two_ready.sandboxes.push(other);
    let doubled = Case { snapshot: Some(two_ready), ..Case::of(&p, vec![]) }.status();
    assert_eq!(condition(&doubled, "PodReadyToStartContainers").status, "False");
}

#[test]
fn the_end_alone_is_that_of_the_whole_status() {
    let states = [St::Created, St::Running, St::Exited, St::Unknown];
    let verdict = Verdict { reason: "Evicted".into(), message: String::new(), disruption: None };
    for policy in ["Always", "OnFailure", "Never"] {
        let p = two(policy);
        let running = Case::of(&p, both(St::Running, 0, 0)).status();
        let failed = PodStatus { phase: Some("Failed".into()), ..PodStatus::default() };
        for (a, b) in states.into_iter().flat_map(|a| states.map(|b| (a, b))) {
            for previous in [None, Some(running.clone()), Some(failed.clone())] {
                for flags in 0..8 {
                    let containers = vec![container("a", 0, a, 0), container("b", 0, b, 1)];
                    let case = Case {
                        previous: previous.clone(),
                        terminating: flags & 1 != 0,
                        may_start: flags & 2 != 0,
                        verdict: (flags & 4 != 0).then(|| verdict.clone()),
                        ..Case::of(&p, containers)
                    };
                    let whole = Phase::end(&case.status());
                    assert_eq!(case.with(ended), whole, "{policy} {a:?} {b:?} {previous:?} {flags}");
                }
            }
        }
    }
}
