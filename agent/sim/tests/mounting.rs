//! Seeds with volumes: each runs twice and must leave the same trace; VOL-HELD, LEAK and SECRET-SCOPE can fail.

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_mounting;

#[test]
fn every_seed_with_volumes_keeps_every_promise_and_replays() {
    common::every_seed(run_mounting, common::seeds(25), &[20162, 30013]);
}

fn caught(defect: Defect, invariant: &str) {
    common::caught(run_mounting, defect, invariant);
}

#[test]
fn vol_held_can_fail() {
    caught(Defect::TearsDownEarly, "VOL-HELD");
}

#[test]
fn leaks_of_mounts_are_found() {
    caught(Defect::LeavesMounts, "LEAK");
}

#[test]
fn vol_held_of_a_drivers_volumes_can_fail() {
    caught(Defect::UnstagesUnderPods, "VOL-HELD");
}

#[test]
fn leaks_of_a_drivers_volumes_are_found() {
    caught(Defect::KeepsStages, "LEAK");
}

#[test]
fn secret_scope_of_volumes_can_fail() {
    caught(Defect::MountsForeign, "SECRET-SCOPE");
}
