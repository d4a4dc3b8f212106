//! The steps of an allocation, refusals and what they free, and devices that containers of one pod use again.

use super::*;
use crate::devices::plugin::PluginOptions;
use crate::devices::testing::{
    GPU, NIC, app, container, device, devices, gpus, manager, plug, plug_with, response, run, seconds, serve,
    set,
};

fn asks_allocate(step: AllocationStep) -> AllocateQuestion {
    match step {
        AllocationStep::AskAllocate(question) => question,
        other => panic!("no question: {other:?}"),
    }
}

fn refused(message: &str) -> AllocationStep {
    AllocationStep::Refused(message.to_owned())
}

#[test]
fn a_container_with_two_resources_takes_each_in_turn_and_writes_once() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a", "b", "c"]));
    plug(&mut manager, NIC, vec![device("n", &[0, 2])]);
    let wants = app("c", &[(GPU, 2), (NIC, 1), ("example.com/unknown", 9), ("cpu", 1)]);
    let question = asks_allocate(manager.begin("p", &wants, None, false));
    assert_eq!((question.resource.as_str(), &question.ids), (GPU, &set(&["a", "b"])));
    assert_eq!(question.connection, Connection(1));
    assert!(manager.available(GPU) == set(&["c"]), "the choice is reserved");
    let question = asks_allocate(manager.allocated("p", Ok(Some(response(&question)))));
    assert_eq!((question.resource.as_str(), &question.ids), (NIC, &set(&["n"])));
    let step = manager.allocated("p", Ok(Some(response(&question))));
    assert_eq!(step, AllocationStep::WriteCheckpoint);
    assert_eq!(manager.written("p", Ok(())), AllocationStep::Done);
    let record = &manager.records().container("p", "c").unwrap()[NIC];
    assert_eq!(record.ids.keys().copied().collect::<Vec<i64>>(), [0, 2], "under each of its nodes");
    assert_eq!(record.response.encoded, b"n");
    let record = &manager.records().container("p", "c").unwrap()[GPU];
    assert_eq!(record.ids.keys().copied().collect::<Vec<i64>>(), [-1], "without topology");
    assert_eq!(manager.begin("p", &wants, None, false), AllocationStep::Done, "nothing to do again");
}

#[test]
fn nothing_is_asked_for_resources_that_nobody_registered_or_that_a_claim_provides() {
    let mut manager = manager();
    let mut wants = app("c", &[(GPU, 1)]);
    assert_eq!(manager.begin("p", &wants, None, false), AllocationStep::Done);
    manager.connect(GPU, PluginOptions::default());
    assert_eq!(manager.begin("p", &wants, None, false), AllocationStep::Done, "no list yet");
    plug(&mut manager, GPU, devices(&["a"]));
    wants.devices.claimed.insert(GPU.to_owned());
    assert_eq!(manager.begin("p", &wants, None, false), AllocationStep::Done);
    wants.devices.claimed.clear();
    asks_allocate(manager.begin("p", &wants, None, false));
}

#[test]
fn the_plugins_preference_is_asked_first() {
    let mut manager = manager();
    let options = PluginOptions { preferred_allocation: true, ..PluginOptions::default() };
    let connection = plug_with(&mut manager, GPU, options, devices(&["a", "b", "c"]));
    let step = manager.begin("p", &app("c", &[(GPU, 1)]), None, false);
    let question = PreferredQuestion {
        connection,
        resource: GPU.to_owned(),
        available: set(&["a", "b", "c"]),
        must_include: set(&[]),
        size: 1,
    };
    assert_eq!(step, AllocationStep::AskPreferred(question));
    let question = asks_allocate(manager.preferred("p", Ok(set(&["c"]))));
    assert_eq!(question.ids, set(&["c"]));
    let step = manager.allocated("p", Ok(Some(response(&question))));
    assert_eq!(run(&mut manager, "p", step), Ok(()));
    assert_eq!(gpus(&manager, "p", "c"), ["c"]);
    manager.begin("q", &app("c", &[(GPU, 1)]), None, false);
    let message = "device plugin GetPreferredAllocation rpc failed with err: no";
    assert_eq!(manager.preferred("q", Err("no".to_owned())), refused(message));
    assert_eq!(manager.available(GPU), set(&["a", "b"]));
}

#[test]
fn two_pods_whose_plugin_prefers_the_same_devices_get_different_ones() {
    let mut manager = manager();
    let options = PluginOptions { preferred_allocation: true, ..PluginOptions::default() };
    plug_with(&mut manager, GPU, options, devices(&["a", "b", "c"]));
    for uid in ["p", "q"] {
        let step = manager.begin(uid, &app("c", &[(GPU, 1)]), None, false);
        assert!(matches!(step, AllocationStep::AskPreferred(of) if of.available == set(&["a", "b", "c"])));
    }
    let of_p = asks_allocate(manager.preferred("p", Ok(set(&["a"]))));
    let again = manager.preferred("q", Ok(set(&["a"])));
    assert!(matches!(again, AllocationStep::AskPreferred(of) if of.available == set(&["b", "c"])));
    let step = manager.allocated("p", Ok(Some(response(&of_p))));
    assert_eq!(run(&mut manager, "p", step), Ok(()));
    let of_q = asks_allocate(manager.preferred("q", Ok(set(&["c"]))));
    let step = manager.allocated("q", Ok(Some(response(&of_q))));
    assert_eq!(run(&mut manager, "q", step), Ok(()));
    assert_eq!(
        (gpus(&manager, "p", "c"), gpus(&manager, "q", "c")),
        (vec!["a".to_owned()], vec!["c".to_owned()])
    );
}

#[test]
fn the_last_device_goes_to_one_of_two_pods() {
    let mut manager = manager();
    let options = PluginOptions { preferred_allocation: true, ..PluginOptions::default() };
    plug_with(&mut manager, GPU, options, devices(&["a", "b", "c"]));
    for uid in ["p", "q"] {
        manager.begin(uid, &app("c", &[(GPU, 2)]), None, false);
    }
    asks_allocate(manager.preferred("p", Ok(set(&["a", "b"]))));
    let message = "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1";
    assert_eq!(manager.preferred("q", Ok(set(&["b", "c"]))), refused(message));
}

#[test]
fn a_refusal_frees_the_choice_and_leaves_devices_that_a_plugin_allocated() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a"]));
    plug(&mut manager, NIC, devices(&["n"]));
    let wants = app("c", &[(GPU, 1), (NIC, 1)]);
    let question = asks_allocate(manager.begin("p", &wants, None, false));
    asks_allocate(manager.allocated("p", Ok(Some(response(&question)))));
    assert_eq!(
        manager.allocated("p", Err("rpc error: code = Unknown desc = no".to_owned())),
        refused("rpc error: code = Unknown desc = no")
    );
    assert_eq!(gpus(&manager, "p", "c"), ["a"], "until the pod is not active");
    assert_eq!(manager.available(NIC), set(&["n"]));
    assert!(manager.keep_only(|uid| uid != "p"));
    assert_eq!(manager.available(GPU), set(&["a"]));
    manager.begin("p", &wants, None, false);
    assert_eq!(manager.allocated("p", Ok(None)), refused("no containers return in allocation response "));
    assert_eq!(manager.available(GPU), set(&["a"]));
}

#[test]
fn a_checkpoint_that_cannot_be_written_refuses_the_pod() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a"]));
    let question = asks_allocate(manager.begin("p", &app("c", &[(GPU, 1)]), None, false));
    manager.allocated("p", Ok(Some(response(&question))));
    assert_eq!(
        manager.written("p", Err("disk full".to_owned())),
        refused("failed to write checkpoint file \"kubelet_internal_checkpoint\": disk full")
    );
    assert_eq!(gpus(&manager, "p", "c"), ["a"], "until the pod is not active");
}

#[test]
fn a_plugin_that_went_away_while_it_stated_its_preference() {
    let mut manager = manager();
    let options = PluginOptions { preferred_allocation: true, ..PluginOptions::default() };
    let connection = plug_with(&mut manager, GPU, options, devices(&["a", "b"]));
    let wants = app("c", &[(GPU, 1)]);
    manager.begin("p", &wants, None, false);
    manager.end(connection, seconds(0));
    assert_eq!(manager.preferred("p", Ok(set(&["a"]))), refused("endpoint example.com/gpu has been stopped"));
    let connection = plug_with(&mut manager, GPU, options, devices(&["a", "b"]));
    manager.begin("p", &wants, None, false);
    manager.end(connection, seconds(0));
    manager.node_devices(seconds(301));
    assert_eq!(manager.preferred("p", Ok(set(&["a"]))), refused("unknown Device Plugin example.com/gpu"));
}

#[test]
fn a_device_that_vanishes_while_it_is_allocated_counts_as_one_without_topology() {
    let mut manager = manager();
    let connection = plug(&mut manager, GPU, vec![device("a", &[1])]);
    let question = asks_allocate(manager.begin("p", &app("c", &[(GPU, 1)]), None, false));
    manager.list(connection, devices(&["b"])).unwrap();
    manager.allocated("p", Ok(Some(response(&question))));
    assert_eq!(manager.records().container("p", "c").unwrap()[GPU].ids.keys().collect::<Vec<_>>(), [&-1]);
}

#[test]
fn garbage_collection_leaves_the_choice_that_waits() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a", "b"]));
    serve(&mut manager, "old", &app("c", &[(GPU, 1)])).unwrap();
    let question = asks_allocate(manager.begin("p", &app("c", &[(GPU, 1)]), None, false));
    assert!(manager.keep_only(|uid| uid == "p"));
    assert_eq!(manager.available(GPU), set(&["a"]));
    let step = manager.allocated("p", Ok(Some(response(&question))));
    assert_eq!(run(&mut manager, "p", step), Ok(()));
    assert_eq!(gpus(&manager, "p", "c"), ["b"]);
}

#[test]
fn answers_out_of_turn_and_allocations_that_are_given_up() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a"]));
    let out_of_turn = refused("the device manager did not wait for this answer");
    assert_eq!(manager.written("p", Ok(())), out_of_turn);
    manager.begin("p", &app("c", &[(GPU, 1)]), None, false);
    assert_eq!(manager.preferred("p", Ok(set(&[]))), out_of_turn);
    assert_eq!(manager.available(GPU), set(&["a"]));
    manager.begin("p", &app("c", &[(GPU, 1)]), None, false);
    assert_eq!(manager.available(GPU), set(&[]));
    manager.give_up("p");
    assert_eq!(manager.available(GPU), set(&["a"]));
    manager.begin("p", &app("c", &[(GPU, 1)]), None, false);
    let too_few = "requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0";
    assert_eq!(
        manager.begin("q", &app("c", &[(GPU, 1)]), None, false),
        refused(too_few),
        "p's choice is reserved"
    );
}

#[test]
fn pods_wait_for_their_plugins_at_the_same_time() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a", "b"]));
    plug(&mut manager, NIC, devices(&["n"]));
    let first = asks_allocate(manager.begin("p", &app("c", &[(GPU, 1)]), None, false));
    let second = asks_allocate(manager.begin("q", &app("c", &[(GPU, 1)]), None, false));
    assert_eq!((&first.ids, &second.ids), (&set(&["a"]), &set(&["b"])));
    serve(&mut manager, "r", &app("c", &[(NIC, 1)])).unwrap();
    let step = manager.allocated("q", Ok(Some(response(&second))));
    assert_eq!(run(&mut manager, "q", step), Ok(()));
    assert_eq!(manager.allocated("p", Err("no".to_owned())), refused("no"));
    assert_eq!(manager.available(GPU), set(&["a"]));
    assert_eq!((gpus(&manager, "p", "c").len(), gpus(&manager, "q", "c")), (0, vec!["b".to_owned()]));
}

#[test]
fn a_container_that_runs_since_before_the_start_passes_while_its_plugin_is_away() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a"]));
    let wants = app("c", &[(GPU, 1)]);
    serve(&mut manager, "p", &wants).unwrap();
    let mut manager = DeviceManager::start(NodeMask::of([0]), Some(manager.state()), seconds(0));
    let message = "no healthy devices present; cannot allocate unhealthy devices example.com/gpu";
    assert_eq!(manager.begin("p", &wants, None, false), refused(message));
    assert_eq!(manager.begin("p", &wants, None, true), AllocationStep::Done);
    assert_eq!(gpus(&manager, "p", "c"), ["a"]);
}

#[test]
fn init_containers_leave_their_devices_to_later_containers_and_sidecars_do_not() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a", "b", "c", "d", "e", "f"]));
    for (name, kind, count, ids) in [
        ("init1", Kind::Init, 2, &["a", "b"][..]),
        ("init2", Kind::Init, 3, &["a", "b", "c"]),
        ("sidecar", Kind::Sidecar, 1, &["a"]),
        ("init3", Kind::Init, 1, &["b"]),
        ("app1", Kind::App, 1, &["b"]),
        ("app2", Kind::App, 2, &["c", "d"]),
        ("app3", Kind::App, 1, &["e"]),
    ] {
        serve(&mut manager, "p", &container(name, kind, &[(GPU, count)])).unwrap();
        assert_eq!(gpus(&manager, "p", name), ids, "{name}");
    }
    assert_eq!(manager.available(GPU), set(&["f"]));
}

#[test]
fn only_the_pod_that_is_being_admitted_uses_devices_again() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a", "b"]));
    serve(&mut manager, "p", &container("init", Kind::Init, &[(GPU, 1)])).unwrap();
    serve(&mut manager, "q", &app("c", &[(GPU, 1)])).unwrap();
    assert_eq!(gpus(&manager, "q", "c"), ["b"], "another pod has none of them");
    manager.forget_reusable("p");
    let message =
        "requested number of devices unavailable for example.com/gpu. Requested: 1, Available: 0".to_owned();
    assert_eq!(serve(&mut manager, "p", &app("c", &[(GPU, 1)])), Err(message), "p's admission is over");
}

#[test]
fn a_pod_that_is_admitted_again_uses_the_same_devices_again() {
    let mut manager = manager();
    plug(&mut manager, GPU, devices(&["a", "b"]));
    let containers = [container("init", Kind::Init, &[(GPU, 1)]), app("c", &[(GPU, 2)])];
    for _ in 0..2 {
        for container in &containers {
            serve(&mut manager, "p", container).unwrap();
        }
        assert_eq!(gpus(&manager, "p", "init"), ["a"]);
        assert_eq!(gpus(&manager, "p", "c"), ["a", "b"]);
        serve(&mut manager, "other", &app("c", &[])).unwrap();
    }
}
