//! Seeds of nodes that update themselves: no promise is broken, whatever the power, the cluster, the versions and the operators
//! do; a planted defect can break each promise.
#![allow(clippy::print_stdout)] // prints the figures of a run

use std::collections::BTreeSet;

use agent_sim::updating::{UpdatingDefect, UpdatingOutcome, run_updating};

/// Number of seeds of a run: `ORLOP_SIM_SEEDS`, or the number of a CI run.
fn seeds() -> u64 {
    std::env::var("ORLOP_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(200)
}

/// Seeds that run twice: they must leave the same trace.
const REPLAYED: u64 = 20;

#[test]
fn every_seed_keeps_every_promise_and_replays() {
    let lanes = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
    let lane = |first: usize| {
        let mut all = UpdatingOutcome::default();
        for seed in (0..seeds()).skip(first).step_by(lanes) {
            let outcome = run_updating(seed, None).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
            if seed < REPLAYED {
                assert_eq!(Ok(outcome.clone()), run_updating(seed, None), "seed {seed} does not replay");
            }
            all.events += outcome.events;
            all.commits += outcome.commits;
            all.returns += outcome.returns;
            all.refusals += outcome.refusals;
            all.power_cuts += outcome.power_cuts;
            all.conflicts += outcome.conflicts;
            all.blocked += outcome.blocked;
        }
        all
    };
    let outcomes: Vec<UpdatingOutcome> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|first| scope.spawn(move || lane(first))).collect();
        lanes.into_iter().map(|lane| lane.join().expect("no lane panics")).collect()
    });
    println!("{outcomes:?}");
    // Each part of the world has taken part.
    let sum = |of: fn(&UpdatingOutcome) -> u32| outcomes.iter().map(of).sum::<u32>();
    assert!(sum(|o| o.commits) > 0 && sum(|o| o.returns) > 0 && sum(|o| o.refusals) > 0);
    assert!(sum(|o| o.power_cuts) > 0 && sum(|o| o.conflicts) > 0 && sum(|o| o.blocked) > 0);
}

/// One of the first hundred seeds must violate the invariant for which the defect is planted.
fn caught(defect: UpdatingDefect, invariant: &str) {
    let mut others = BTreeSet::new();
    for seed in 0..100 {
        if let Err(broken) = run_updating(seed, Some(defect)) {
            if broken.invariant == invariant {
                return;
            }
            others.insert(broken.invariant);
        }
    }
    panic!("{defect:?} was not caught by {invariant}; others: {others:?}");
}

#[test]
fn bootable_can_fail() {
    caught(UpdatingDefect::ActivatesAlone, "BOOTABLE");
}

#[test]
fn one_slot_write_can_fail() {
    caught(UpdatingDefect::WritesTheRunning, "ONE-SLOT-WRITE");
}

#[test]
fn no_loop_can_fail() {
    caught(UpdatingDefect::ForgetsTrials, "NO-LOOP");
}

#[test]
fn commit_true_can_fail() {
    caught(UpdatingDefect::CommitsBlindly, "COMMIT-TRUE");
}

#[test]
fn cluster_fault_can_fail() {
    caught(UpdatingDefect::BlamesTheVersion, "CLUSTER-FAULT");
}

#[test]
fn return_named_can_fail() {
    caught(UpdatingDefect::LosesTheReason, "RETURN-NAMED");
}

#[test]
fn floor_mono_can_fail() {
    caught(UpdatingDefect::LowersTheFloor, "FLOOR-MONO");
}

#[test]
fn permit_can_fail() {
    caught(UpdatingDefect::TakesNoForYes, "PERMIT");
}

#[test]
fn uncordon_can_fail() {
    caught(UpdatingDefect::ForgetsTheCordon, "UNCORDON");
}
