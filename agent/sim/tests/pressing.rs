//! Seeds of a node whose pods use up its memory: each runs twice with the same result; EVICT-FAIR and EVICT-PROMPT can
//! fail.

use agent_sim::pressing::{PressureDefect, PressureReport, run_pressing};

/// Number of seeds of a CI run.
const SEEDS: u64 = 300;

#[test]
fn every_seed_is_fair_and_replays() {
    let mut all = PressureReport::default();
    for seed in 0..SEEDS {
        let report = run_pressing(seed, None).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        assert_eq!(
            run_pressing(seed, None).ok().as_ref(),
            Some(&report),
            "seed {seed} came to something else"
        );
        all.evicted.extend(report.evicted);
        all.crashes += report.crashes;
        all.kernel_kills += report.kernel_kills;
        all.failures += report.failures;
    }
    let counts = [all.crashes, all.failures, all.kernel_kills];
    assert!(all.evicted.len() > 100 && counts.iter().all(|n| *n > 100), "nothing was tried: {all:?}");
}

fn caught(defect: PressureDefect, invariant: &str) {
    let caught = (0..SEEDS).find_map(|seed| run_pressing(seed, Some(defect)).err());
    assert_eq!(caught.map(|broken| broken.invariant), Some(invariant), "{defect:?}");
}

#[test]
fn evict_fair_can_fail() {
    for defect in [
        PressureDefect::TakesTheNext,
        PressureDefect::TakesTheCritical,
        PressureDefect::TakesTwo,
        PressureDefect::TakesForNothing,
    ] {
        caught(defect, "EVICT-FAIR");
    }
}

#[test]
fn evict_prompt_can_fail() {
    caught(PressureDefect::TakesNobody, "EVICT-PROMPT");
}
