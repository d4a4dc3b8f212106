//! Ephemeral containers: starts, forbidden starts, and targets.

use super::*;

fn debugged(spec: serde_json::Value, status: serde_json::Value) -> Pod {
    let mut p = pod_of(spec);
    let debugger = json!([{"name": "d", "image": "i:1", "targetContainerName": "a"}]);
    p.spec.as_mut().unwrap().ephemeral_containers = serde_json::from_value(debugger).unwrap();
    p.status = serde_json::from_value(status).unwrap();
    p
}

fn on_single(policy: &str) -> Pod {
    debugged(json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i:1"}]}), json!({}))
}

fn shown(state: serde_json::Value) -> Pod {
    let statuses =
        json!([{"name": "d", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
    debugged(
        json!({"restartPolicy": "Always", "containers": [{"name": "a", "image": "i:1"}]}),
        json!({"ephemeralContainerStatuses": statuses}),
    )
}

#[test]
fn one_is_started_once() {
    let up = || container("a", 0, 0, St::Running, 0);
    let with = |d: ContainerObserved| vec![up(), d];
    let ready = || vec![sandbox(0, READY)];
    let init = json!({"initContainers": [{"name": "i1", "image": "i:1"}], "containers": [{"name": "a", "image": "i:1"}]});
    let table: Vec<Row> = vec![
        ("added", on_single("Always"), ready(), vec![up()], "keep s0 +d/0"),
        (
            "before init containers are through",
            debugged(init, json!({})),
            ready(),
            vec![],
            "keep s0 +d/0 +i1/0",
        ),
        ("runs", on_single("Always"), ready(), with(container("d", 0, 0, St::Running, 0)), "keep s0"),
        ("ended", on_single("Always"), ready(), with(container("d", 0, 0, St::Exited, 1)), "keep s0"),
        ("made", on_single("Always"), ready(), with(container("d", 0, 0, St::Created, 0)), "keep s0 =d/0"),
        ("unknown", on_single("Always"), ready(), with(container("d", 0, 0, St::Unknown, 0)), "keep s0 -d0"),
        ("ran, forgotten", shown(json!({"running": {}})), ready(), vec![up()], "keep s0"),
        ("ended, forgotten", shown(json!({"terminated": {"exitCode": 1}})), ready(), vec![up()], "keep s0"),
        ("never ran", shown(json!({"waiting": {}})), ready(), vec![up()], "keep s0 +d/0"),
        (
            "ended in an earlier sandbox",
            on_single("Always"),
            vec![sandbox(0, DOWN), sandbox(1, READY)],
            vec![container("a", 1, 1, St::Running, 0), container("d", 0, 0, St::Exited, 137)],
            "keep s1",
        ),
        (
            "made in an earlier sandbox",
            on_single("Always"),
            vec![sandbox(0, DOWN), sandbox(1, READY)],
            vec![container("a", 1, 1, St::Running, 0), container("d", 0, 0, St::Created, 0)],
            "keep s1 xd0",
        ),
        (
            "keeps no pod alive",
            on_single("Never"),
            ready(),
            vec![container("a", 0, 0, St::Exited, 0), container("d", 0, 0, St::Running, 0)],
            "stop -d0",
        ),
        (
            "is not started for a pod that is over",
            on_single("Never"),
            ready(),
            vec![container("a", 0, 0, St::Exited, 0)],
            "stop",
        ),
    ];
    for (what, p, s, c, expected) in table {
        assert_eq!(short(&plan(&p, s, c)), expected, "{what}");
    }
}

#[test]
fn it_enters_the_newest_live_instance_of_its_target() {
    let p = on_single("Always");
    let look = |containers: Vec<ContainerObserved>| {
        let snapshot = PodSnapshot {
            pod: pod::key(&p),
            as_of: Mono(1),
            sandboxes: vec![],
            containers: containers.into(),
            actuated: None,
        };
        target(&p, "d", &snapshot)
    };
    let two = vec![container("a", 0, 0, St::Exited, 0), container("a", 1, 0, St::Running, 0)];
    assert_eq!(look(two), Ok(Some("a1".into())));
    assert_eq!(look(vec![]), Err("unable to find target container a".to_owned()));
    let aimless = single("Always");
    let snapshot = PodSnapshot {
        pod: pod::key(&p),
        as_of: Mono(1),
        sandboxes: vec![],
        containers: vec![].into(),
        actuated: None,
    };
    assert_eq!(target(&aimless, "d", &snapshot), Ok(None));
}
