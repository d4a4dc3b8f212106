//! The seeds of CI: each runs twice and must leave the same trace; every checker is proved able to fail.
#![allow(clippy::print_stdout)] // the figures of a run, for people

mod common;

use std::collections::BTreeSet;

use agent_sim::defects::Defect;
use agent_sim::scenario::{Failure, Report, run};

/// Seeds of a CI run; `ORLOP_SIM_SEEDS=5000` for a longer one.
fn seeds() -> usize {
    std::env::var("ORLOP_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(300)
}

fn must(outcome: Result<Report, Failure>) -> Report {
    match outcome {
        Ok(report) => report,
        Err(failure) => panic!("{failure}"),
    }
}

/// One seed, told twice.
fn twice(seed: usize) -> Result<Report, String> {
    let seed = seed as u64;
    let tell = || run(seed, None).map_err(|failure| failure.to_string());
    let (first, second) = (tell()?, tell()?);
    if first == second {
        Ok(first)
    } else {
        Err(format!("seed {seed} does not replay: {first:?}, {second:?}"))
    }
}

#[test]
fn every_seed_keeps_every_promise_and_replays() {
    let lanes = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
    let lane = |first: usize| (first..seeds()).step_by(lanes).map(twice).collect::<Result<Vec<_>, _>>();
    let told: Result<Vec<Vec<Report>>, String> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|first| scope.spawn(move || lane(first))).collect();
        lanes
            .into_iter()
            .map(|lane| lane.join().expect("a panic of the agent is a failure of its seed"))
            .collect()
    });
    let reports = told.unwrap_or_else(|failure| panic!("{failure}")).concat();
    assert_eq!(reports.len(), seeds());
    let (mut crashes, mut steps) = (0, 0);
    let mut hashes = BTreeSet::new();
    for report in &reports {
        crashes += report.crashes;
        steps += report.steps;
        hashes.insert(report.hash);
    }
    println!("{} seeds, {steps} steps, {crashes} crashes of the agent", reports.len());
    assert_eq!(hashes.len(), reports.len(), "different seeds must be different runs");
}

#[test]
fn replay() {
    let Some(seed) = std::env::var("ORLOP_SIM_SEED").ok().and_then(|s| s.parse().ok()) else { return };
    println!("{:?}", must(run(seed, None)));
}

fn caught(defect: Defect, invariant: &str) {
    common::caught(run, defect, invariant);
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
fn order_can_fail() {
    caught(Defect::RunsInitAgain, "ORDER");
}

#[test]
fn grace_can_fail() {
    caught(Defect::GivesMore, "GRACE");
}

#[test]
fn gc_safe_can_fail() {
    caught(Defect::RemovesTheNewest, "GC-SAFE");
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
