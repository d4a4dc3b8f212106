//! Seeds with pods that are changed while they live: each runs twice and must leave the same trace; EPHEMERAL-ONCE and
//! RESTART-ALL can fail.
#![allow(clippy::print_stdout)] // the figures of a run, for people

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_in_place;

/// Seeds of a CI run; `ORLOP_SIM_SEEDS=5000` for a longer one.
fn seeds() -> u64 {
    std::env::var("ORLOP_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(40)
}

#[test]
fn every_seed_with_changes_in_place_keeps_every_promise_and_replays() {
    let (mut crashes, mut steps) = (0, 0);
    for seed in 0..seeds() {
        let first = run_in_place(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        let second = run_in_place(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(first, second, "seed {seed} does not replay");
        crashes += first.crashes;
        steps += first.steps;
    }
    println!("{} seeds with changes in place, {steps} steps, {crashes} crashes of the agent", seeds());
}

#[test]
fn ephemeral_once_can_fail() {
    common::caught(run_in_place, Defect::RestartsDebuggers, "EPHEMERAL-ONCE");
}

#[test]
fn restart_all_can_fail() {
    common::caught(run_in_place, Defect::RemovesTheOneThatAsked, "RESTART-ALL");
}
