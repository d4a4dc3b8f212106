//! Seeds with probes and hooks: each runs twice and must leave the same trace; PROBE-OWN and HOOK-GRACE can fail.

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_probing;

#[test]
fn every_seed_with_probes_keeps_every_promise_and_replays() {
    common::every_seed(run_probing, common::seeds(25), &[30141, 30207, 60363]);
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
