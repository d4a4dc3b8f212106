//! Seeds with changes of running pods: each runs twice and must leave the same trace; EPHEMERAL-ONCE and RESTART-ALL
//! can fail.

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_in_place;

#[test]
fn every_seed_with_changes_in_place_keeps_every_promise_and_replays() {
    common::every_seed(run_in_place, common::seeds(40), &[20592, 30274]);
}

#[test]
fn ephemeral_once_can_fail() {
    common::caught(run_in_place, Defect::RestartsDebuggers, "EPHEMERAL-ONCE");
}

#[test]
fn restart_all_can_fail() {
    common::caught(run_in_place, Defect::RemovesTheOneThatAsked, "RESTART-ALL");
}
