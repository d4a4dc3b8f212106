//! Checks of a run that all files of seeds share.
#![allow(clippy::print_stdout)] // prints the figures of a run

use std::collections::BTreeSet;

use agent_sim::defects::Defect;
use agent_sim::scenario::{Failure, Report};

/// One of the first fifty seeds must violate the invariant for which the defect is planted.
pub(crate) fn caught(
    run: impl Fn(u64, Option<Defect>) -> Result<Report, Failure>,
    defect: Defect,
    invariant: &str,
) {
    caught_within(run, defect, invariant, 50);
}

/// One of the first `seeds` seeds must violate the invariant for which the defect is planted.
pub(crate) fn caught_within(
    run: impl Fn(u64, Option<Defect>) -> Result<Report, Failure>,
    defect: Defect,
    invariant: &str,
    seeds: u64,
) {
    let mut others = BTreeSet::new();
    for seed in 0..seeds {
        if let Err(failure) = run(seed, Some(defect)) {
            if failure.violation.invariant == invariant {
                return;
            }
            others.insert(failure.violation.invariant);
        }
    }
    panic!("{defect:?} was not caught by {invariant}; others: {others:?}");
}

/// Number of seeds of a run: `ORLOP_SIM_SEEDS`, or the number of a CI run.
pub(crate) fn seeds(of_ci: u64) -> u64 {
    std::env::var("ORLOP_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(of_ci)
}

/// Every seed below `seeds`, and the seeds that failed once in a survey (docs/internals/testing.md).
pub(crate) fn every_seed(
    run: impl Fn(u64, Option<Defect>) -> Result<Report, Failure> + Sync,
    seeds: u64,
    failed_once: &[u64],
) -> Vec<Report> {
    tell_twice(run, &(0..seeds).chain(failed_once.iter().copied()).collect::<Vec<_>>())
}

/// Runs each seed twice, on all processors.
fn tell_twice(
    run: impl Fn(u64, Option<Defect>) -> Result<Report, Failure> + Sync,
    seeds: &[u64],
) -> Vec<Report> {
    let twice = |seed: u64| {
        let tell = || run(seed, None).map_err(|failure| failure.to_string());
        let (first, second) = (tell()?, tell()?);
        if first == second {
            Ok(first)
        } else {
            Err(format!("seed {seed} does not replay: {first:?}, {second:?}"))
        }
    };
    let lanes = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
    let lane = |first: usize| {
        seeds.iter().skip(first).step_by(lanes).copied().map(twice).collect::<Result<Vec<_>, _>>()
    };
    let told: Result<Vec<Vec<Report>>, String> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|first| scope.spawn(move || lane(first))).collect();
        lanes
            .into_iter()
            .map(|lane| lane.join().expect("a panic of the agent is a failure of its seed"))
            .collect()
    });
    let reports = told.unwrap_or_else(|failure| panic!("{failure}")).concat();
    assert_eq!(reports.len(), seeds.len());
    let (crashes, steps) =
        reports.iter().fold((0, 0), |(crashes, steps), r| (crashes + r.crashes, steps + r.steps));
    println!("{} seeds, {steps} steps, {crashes} crashes of the agent", reports.len());
    reports
}
