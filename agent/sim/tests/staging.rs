//! Seeds of pods that share volumes of CSI drivers: no promise is broken, whenever the agent dies; a planted defect can
//! break each promise.

use std::collections::BTreeSet;

use agent_sim::staging::{StagingDefect, run, run_with_crash};

/// Number of seeds of a run: `ORLOP_SIM_SEEDS`, or the number of a CI run.
fn seeds() -> u64 {
    std::env::var("ORLOP_SIM_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(400)
}

#[test]
fn every_seed_keeps_every_promise_and_replays() {
    let (mut crashes, mut pods) = (0, 0);
    for seed in 0..seeds() {
        let outcome = run(seed, None).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        assert_eq!(Ok(outcome.clone()), run(seed, None), "seed {seed} does not replay");
        (crashes, pods) = (crashes + outcome.crashes, pods + outcome.pods);
    }
    assert!(crashes > 0 && pods > 0, "{crashes} crashes, {pods} pods");
}

#[test]
fn the_agent_may_die_between_any_two_steps() {
    for seed in 0..12 {
        let never = u64::MAX;
        let events =
            run_with_crash(seed, never).unwrap_or_else(|broken| panic!("seed {seed}: {broken}")).events;
        for at in 1..=events {
            let outcome = run_with_crash(seed, at);
            let outcome =
                outcome.unwrap_or_else(|broken| panic!("seed {seed}, death after event {at}: {broken}"));
            assert_eq!(outcome.crashes, 1, "seed {seed}, death after event {at}");
        }
    }
}

/// One of the first hundred seeds must violate the invariant for which the defect is planted.
fn caught(defect: StagingDefect, invariant: &str) {
    let mut others = BTreeSet::new();
    for seed in 0..100 {
        if let Err(broken) = run(seed, Some(defect)) {
            if broken.invariant == invariant {
                return;
            }
            others.insert(broken.invariant);
        }
    }
    panic!("{defect:?} was not caught by {invariant}; others: {others:?}");
}

#[test]
fn staged_first_can_fail() {
    caught(StagingDefect::SkipsStaging, "STAGED-FIRST");
}

#[test]
fn unstaged_last_can_fail() {
    caught(StagingDefect::UnstagesUnderPods, "UNSTAGED-LAST");
}

#[test]
fn one_call_can_fail() {
    caught(StagingDefect::IgnoresTurns, "ONE-CALL");
}

#[test]
fn pod_has_can_fail() {
    caught(StagingDefect::RemembersPower, "POD-HAS");
}

#[test]
fn progress_can_fail() {
    caught(StagingDefect::KeepsTurns, "PROGRESS");
}

#[test]
fn left_over_can_fail() {
    for defect in
        [StagingDefect::TakesLostForRefused, StagingDefect::WritesNoTarget, StagingDefect::WritesNoStage]
    {
        caught(defect, "LEFT-OVER");
    }
}
