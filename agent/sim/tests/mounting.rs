//! Seeds with volumes: each runs twice and must leave the same trace; VOL-HELD, LEAK and SECRET-SCOPE can fail.
#![allow(clippy::print_stdout)] // the figures of a run, for people

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_mounting;

/// Seeds of a CI run; `ORLOP_SIM_SEEDS=5000` for a longer one.
fn seeds() -> u64 {
    std::env::var("ORLOP_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(25)
}

#[test]
fn every_seed_with_volumes_keeps_every_promise_and_replays() {
    let (mut crashes, mut steps) = (0, 0);
    for seed in 0..seeds() {
        let first = run_mounting(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        let second = run_mounting(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(first, second, "seed {seed} does not replay");
        crashes += first.crashes;
        steps += first.steps;
    }
    println!("{} seeds with volumes, {steps} steps, {crashes} crashes of the agent", seeds());
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
fn secret_scope_of_volumes_can_fail() {
    caught(Defect::MountsForeign, "SECRET-SCOPE");
}
