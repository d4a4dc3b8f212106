//! Seeds with resizes of running pods: each runs twice and must leave the same trace; ALLOC-CAP, ALLOC-DURABLE,
//! RESIZE-TOLD and CGROUP-MATCH can fail.

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_resizing;

#[test]
fn every_seed_with_resizes_keeps_every_promise_and_replays() {
    common::every_seed(run_resizing, common::seeds(40), &[20341, 20455, 30258, 30354, 40015, 60841, 62709]);
}

#[test]
fn alloc_cap_can_fail() {
    common::caught(run_resizing, Defect::GivesTooMuch, "ALLOC-CAP");
}

#[test]
fn alloc_durable_can_fail() {
    common::caught(run_resizing, Defect::ActsBeforeItIsWritten, "ALLOC-DURABLE");
}

#[test]
fn resize_told_can_fail() {
    common::caught(run_resizing, Defect::HidesResizes, "RESIZE-TOLD");
}

#[test]
fn cgroup_match_can_fail() {
    common::caught(run_resizing, Defect::KeepsOldWeights, "CGROUP-MATCH");
    common::caught(run_resizing, Defect::KeepsOldLimits, "CGROUP-MATCH");
}
