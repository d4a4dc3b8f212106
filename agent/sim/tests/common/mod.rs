//! What all files of seeds ask of a run.

use std::collections::BTreeSet;

use agent_sim::defects::Defect;
use agent_sim::scenario::{Failure, Report};

/// Some seed of the first fifty must trip the checker that the defect is made for.
pub(crate) fn caught(
    run: impl Fn(u64, Option<Defect>) -> Result<Report, Failure>,
    defect: Defect,
    invariant: &str,
) {
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
