//! Seeds with device plugins that hang, lie, vanish and come back: each runs twice and must leave the same trace; ALLOC-EXCL, ALLOC-CAP,
//! ALLOC-DURABLE, ASK-OWN and the promise that a plugin holds up its own pods only can fail.

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_devices;

#[test]
fn every_seed_with_device_plugins_keeps_every_promise_and_replays() {
    common::every_seed(run_devices, common::seeds(40), &[]);
}

#[test]
fn a_device_that_is_given_twice_is_found() {
    common::caught(run_devices, Defect::GivesDevicesTwice, "ALLOC-EXCL");
}

#[test]
fn devices_that_are_not_there_are_found() {
    common::caught(run_devices, Defect::CountsTooMuch, "ALLOC-CAP");
}

#[test]
fn a_container_without_its_devices_is_found() {
    common::caught(run_devices, Defect::StartsWithoutDevices, "ALLOC-CAP");
}

#[test]
fn a_start_before_the_checkpoint_is_found() {
    common::caught(run_devices, Defect::StartsBeforeTheCheckpoint, "ALLOC-DURABLE");
}

#[test]
fn devices_that_a_restart_forgets_are_found() {
    common::caught(run_devices, Defect::ForgetsDevices, "ALLOC-DURABLE");
}

#[test]
fn an_answer_to_an_old_question_is_found() {
    common::caught_within(run_devices, Defect::TakesOldAnswers, "ASK-OWN", 400);
}

#[test]
fn a_plugin_that_holds_up_all_pods_is_found() {
    common::caught(run_devices, Defect::WaitsForAllPlugins, "LIVENESS");
}

#[test]
fn devices_of_a_pod_whose_containers_still_end_are_missed() {
    common::caught(run_devices, Defect::FreesPartsEarly, "ALLOC-DURABLE");
}
