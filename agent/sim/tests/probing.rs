//! Seeds with probes and hooks: each runs twice and must leave the same trace; PROBE-OWN and HOOK-GRACE can fail.
#![allow(clippy::print_stdout)] // the figures of a run, for people

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_probing;

/// Seeds of a CI run; `ORLOP_SIM_SEEDS=5000` for a longer one.
fn seeds() -> u64 {
    std::env::var("ORLOP_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(25)
}

#[test]
fn every_seed_with_probes_keeps_every_promise_and_replays() {
    let (mut crashes, mut steps) = (0, 0);
    for seed in 0..seeds() {
        let first = run_probing(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        let second = run_probing(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(first, second, "seed {seed} does not replay");
        crashes += first.crashes;
        steps += first.steps;
    }
    println!("{} seeds with probes, {steps} steps, {crashes} crashes of the agent", seeds());
}

fn caught(defect: Defect, invariant: &str) {
    common::caught(run_probing, defect, invariant);
}

#[test]
fn probe_own_can_fail() {
    caught(Defect::MixesProbes, "PROBE-OWN");
}

#[test]
fn grace_can_fail() {
    caught(Defect::StopsWithMoreGrace, "HOOK-GRACE");
}
