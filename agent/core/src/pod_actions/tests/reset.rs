//! RestartAllContainers: removals, their order, and waits.

use super::*;

/// Init container `i1`, sidecar `side`, regular `a` (whose exit code 42 makes all containers start again) and `b`.
fn anew(policy: &str) -> Pod {
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let mut p = pod_of(json!({"restartPolicy": policy,
        "initContainers": [{"name": "i1", "image": "i:1"}, {"name": "side", "image": "i:1", "restartPolicy": "Always"}],
        "containers": [
            {"name": "a", "image": "i:1", "restartPolicy": policy, "restartPolicyRules": [rule]},
            {"name": "b", "image": "i:1"}]}));
    p.spec.as_mut().unwrap().ephemeral_containers =
        serde_json::from_value(json!([{"name": "d", "image": "i:1"}])).unwrap();
    p
}

#[test]
fn the_one_that_asked_goes_last() {
    let run = |name: &str| container(name, 0, 0, St::Running, 0);
    let end = |name: &str, code| container(name, 0, 0, St::Exited, code);
    let ready = || vec![sandbox(0, READY)];
    let mut twice = vec![end("a", 42), end("b", 1), container("b", 1, 0, St::Exited, 0)];
    twice.extend([end("i1", 0), end("side", 0), run("d")]);
    let table: Vec<Row> = vec![
        (
            "all run",
            anew("Never"),
            ready(),
            vec![end("i1", 0), run("side"), run("a"), run("b"), run("d")],
            "keep s0",
        ),
        (
            "one asks",
            anew("Never"),
            ready(),
            vec![end("i1", 0), run("side"), end("a", 42), run("b"), run("d")],
            "keep s0 -b0 -side0 xi10",
        ),
        ("older instances go too", anew("Never"), ready(), twice, "keep s0 xb1 xb0 xi10 xside0"),
        (
            "one was made and not started",
            anew("Never"),
            ready(),
            vec![end("a", 42), container("b", 0, 0, St::Created, 0), run("d")],
            "keep s0 xb0",
        ),
        ("nothing else is left", anew("Never"), ready(), vec![end("a", 42), run("d")], "keep s0 last a0"),
        ("all begins anew", anew("Never"), ready(), vec![run("d")], "keep s0 +i1/0"),
        (
            "another end asks for nothing",
            anew("Never"),
            ready(),
            vec![end("i1", 0), run("side"), end("a", 41), run("b"), run("d")],
            "keep s0",
        ),
        (
            "what ended long ago asks for nothing",
            anew("Always"),
            ready(),
            vec![
                end("i1", 0),
                run("side"),
                end("a", 42),
                container("a", 1, 0, St::Running, 0),
                run("b"),
                run("d"),
            ],
            "keep s0",
        ),
    ];
    for (what, p, s, c, expected) in table {
        let a = plan(&p, s, c);
        let last: Vec<String> = a.remove_last.iter().map(|(_, id)| format!(" last {id}")).collect();
        let is = format!("{}{}", short(&a), last.concat());
        assert_eq!(is, expected, "{what}");
    }
}

#[test]
fn one_that_asks_again_and_again_waits_for_its_back_off() {
    let others = vec![
        container("i1", 0, 0, St::Exited, 0),
        container("side", 0, 0, St::Running, 0),
        container("b", 0, 0, St::Running, 0),
        container("d", 0, 0, St::Running, 0),
    ];
    let (waits, due) = in_back_off(&anew("Never"), &container("a", 1, 0, St::Exited, 42), others);
    assert_eq!((short(&waits).as_str(), waits.waiting.len(), waits.resetting), ("keep s0", 1, false));
    assert_eq!((short(&due).as_str(), due.resetting), ("keep s0 -b0 -side0 xi10", true));
}

#[test]
fn one_that_waits_to_ask_is_not_replaced_in_another_sandbox() {
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let mut p = anew("Always");
    p.spec.as_mut().unwrap().ephemeral_containers = None;
    let init = &mut p.spec.as_mut().unwrap().init_containers.as_mut().unwrap()[0];
    init.restart_policy = Some("OnFailure".into());
    init.restart_policy_rules = serde_json::from_value(json!([rule])).unwrap();
    // The sandbox of its instance is down: another one was made.
    let asked = container("i1", 1, 0, St::Exited, 42);
    let (waits, due) = in_back_off_with(&p, &asked, vec![], vec![sandbox(0, DOWN), sandbox(1, READY)]);
    assert_eq!((short(&waits).as_str(), waits.waiting.len(), waits.resetting), ("keep s1", 1, false));
    assert_eq!((due.resetting, due.remove_last.len(), due.start.len()), (true, 1, 0));
}
