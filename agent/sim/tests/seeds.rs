//! The seeds of CI: each runs twice and must leave the same trace; every checker is proved able to fail.

mod common;

use std::collections::BTreeSet;

use agent_sim::defects::Defect;
use agent_sim::scenario::run;

#[test]
fn every_seed_keeps_every_promise_and_replays() {
    let reports = common::every_seed(run, common::seeds(300), &[60710]);
    let hashes: BTreeSet<_> = reports.iter().map(|report| report.hash).collect();
    assert_eq!(hashes.len(), reports.len(), "different seeds must be different runs");
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

#[test]
fn cgroup_match_can_fail() {
    caught(Defect::ForgetsCgroups, "CGROUP-MATCH");
}
