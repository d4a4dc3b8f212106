//! Questions about many containers at once.

use super::*;

#[test]
fn of_dead_instances_those_go_that_a_newer_one_which_ran_supersedes() {
    let unstarted = ContainerObserved { started: None, ..container("c", 3, 0, St::Exited, 1) };
    let containers = vec![
        container("a", 0, 0, St::Exited, 1),
        container("a", 1, 0, St::Exited, 1),
        container("a", 2, 0, St::Running, 0),
        container("ab", 0, 0, St::Exited, 0),
        container("b", 0, 0, St::Exited, 0),
        container("b", 1, 0, St::Exited, 0),
        container("b", 2, 0, St::Created, 0),
        container("c", 2, 0, St::Exited, 0),
        unstarted,
    ];
    let snapshot = PodSnapshot {
        pod: pod::key(&single("Always")),
        as_of: Mono(1),
        sandboxes: Vec::new(),
        containers: containers.into(),
        actuated: None,
    };
    let ids: Vec<String> = superseded(&snapshot).iter().map(|c| c.id.to_string()).collect();
    assert_eq!(ids, ["a0", "b0"]);
}

#[test]
fn slots_by_name_are_those_of_a_name() {
    let p = with_init("Always");
    let by_name = Slots::of(&p);
    for name in ["i1", "side", "i2", "a", "nobody"] {
        assert_eq!(by_name.get(name), Slot::of(&p, name), "{name}");
    }
}
