//! Seeds with long changes of volumes' groups: each runs twice and must leave the same trace; VOL-OWNED can fail, and
//! LIVENESS if walks end with their effects.

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_ownership;

#[test]
fn every_seed_with_long_walks_keeps_every_promise_and_replays() {
    common::every_seed(run_ownership, common::seeds(25), &[]);
}

#[test]
fn vol_owned_can_fail() {
    common::caught(run_ownership, Defect::StartsDuringWalks, "VOL-OWNED");
}

#[test]
fn vol_owned_can_fail_where_each_effect_begins_a_walk() {
    common::caught(run_ownership, Defect::WalksAgain, "VOL-OWNED");
}

#[test]
fn walks_that_end_with_their_effects_begin_again() {
    common::caught(run_ownership, Defect::WaitsForWalks, "VOL-OWNED");
}
