//! Seeds with static managers: each runs twice and must leave the same trace; ALLOC-EXCL, ALLOC-CAP, ALLOC-DURABLE and the placement at
//! rest can fail.

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_placing;

#[test]
fn every_seed_with_static_managers_keeps_every_promise_and_replays() {
    common::every_seed(run_placing, common::seeds(40), &[]);
}

#[test]
fn alloc_excl_can_fail() {
    common::caught(run_placing, Defect::MovesAllToOne, "ALLOC-EXCL");
}

#[test]
fn alloc_cap_can_fail() {
    common::caught(run_placing, Defect::CountsTooMuch, "ALLOC-CAP");
}

#[test]
fn alloc_durable_can_fail() {
    common::caught(run_placing, Defect::ActsBeforeItIsWritten, "ALLOC-DURABLE");
}

#[test]
fn a_container_that_is_not_moved_is_found() {
    common::caught(run_placing, Defect::MovesNoContainer, "LIVENESS");
}

#[test]
fn processors_of_a_pod_whose_containers_still_end_are_missed() {
    common::caught_within(run_placing, Defect::FreesPartsEarly, "ALLOC-EXCL", 400);
}
