//! The seeds of CI: each runs twice and must leave the same trace; every checker is proved able to fail.
#![allow(clippy::print_stdout)] // the figures of a run, for people

use std::collections::BTreeSet;

use agent_sim::defects::Defect;
use agent_sim::scenario::{Failure, Report, run};

/// Seeds of a CI run; `ORLOP_SIM_SEEDS=5000` for a longer one.
fn seeds() -> u64 {
    std::env::var("ORLOP_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(60)
}

fn must(outcome: Result<Report, Failure>) -> Report {
    match outcome {
        Ok(report) => report,
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn every_seed_keeps_every_promise_and_replays() {
    let (mut crashes, mut steps) = (0, 0);
    let mut hashes = BTreeSet::new();
    for seed in 0..seeds() {
        let first = must(run(seed, None));
        let second = must(run(seed, None));
        assert_eq!(first, second, "seed {seed} does not replay");
        crashes += first.crashes;
        steps += first.steps;
        hashes.insert(first.hash);
    }
    println!("{} seeds, {steps} steps, {crashes} crashes of the agent", seeds());
    assert_eq!(hashes.len() as u64, seeds(), "different seeds must be different runs");
}

#[test]
fn replay() {
    let Some(seed) = std::env::var("ORLOP_SIM_SEED").ok().and_then(|s| s.parse().ok()) else { return };
    println!("{:?}", must(run(seed, None)));
}

/// Some seed of the first fifty must trip the checker that the defect is made for.
fn caught(defect: Defect, invariant: &str) {
    let mut others = BTreeSet::new();
    for seed in 0..50 {
        if let Err(failure) = run(seed, Some(defect)) {
            if failure.violation.invariant == invariant {
                return;
            }
            others.insert(failure.violation.invariant);
        }
    }
    panic!("{defect:?} was not caught by {invariant}; others: {others:?}");
}

#[test]
fn one_live_can_fail() {
    caught(Defect::StartsTwice, "ONE-LIVE");
}

#[test]
fn one_sandbox_can_fail() {
    caught(Defect::SandboxTwice, "ONE-SANDBOX");
}

#[test]
fn absorb_term_can_fail() {
    caught(Defect::StartsWhileTerminating, "ABSORB-TERM");
}

#[test]
fn no_outlive_can_fail() {
    caught(Defect::FinishesEarly, "NO-OUTLIVE");
}

#[test]
fn backoff_can_fail() {
    caught(Defect::IgnoresBackOff, "BACKOFF");
}

#[test]
fn restart_transparent_can_fail() {
    caught(Defect::StopsOnStart, "RESTART-TRANSPARENT");
}

#[test]
fn bounded_can_fail() {
    caught(Defect::AsksForEver, "BOUNDED");
}

#[test]
fn status_mono_can_fail_at_the_api_server() {
    caught(Defect::TakesBackTheEnd, "STATUS-MONO");
}

#[test]
fn status_truth_can_fail() {
    caught(Defect::ReportsEarly, "STATUS-TRUTH");
}

#[test]
fn status_truth_can_fail_at_rest() {
    caught(Defect::SaysNothing, "STATUS-TRUTH");
}

#[test]
fn delete_last_can_fail() {
    caught(Defect::DeletesEarly, "DELETE-LAST");
}

#[test]
fn secret_scope_can_fail() {
    caught(Defect::ReadsForeign, "SECRET-SCOPE");
}

#[test]
fn mirror_one_can_fail() {
    caught(Defect::KeepsMirrors, "MIRROR-ONE");
}

#[test]
fn idle_can_fail() {
    caught(Defect::RepeatsItself, "IDLE");
}

#[test]
fn node_ready_can_fail() {
    caught(Defect::NeverReports, "NODE-READY");
}
