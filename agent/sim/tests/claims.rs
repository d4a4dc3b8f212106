//! Seeds with resource claims: each runs twice and must leave the same trace; CLAIM-PREPARED, CLAIM-HELD, CLAIM-TURN and LEAK can
//! fail.

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_claims;

#[test]
fn every_seed_with_claims_keeps_every_promise_and_replays() {
    common::every_seed(run_claims, common::seeds(40), &[]);
}

#[test]
fn claim_prepared_can_fail() {
    common::caught(run_claims, Defect::PreparesNothing, "CLAIM-PREPARED");
}

#[test]
fn claim_held_can_fail() {
    common::caught(run_claims, Defect::GivesClaimsBackEarly, "CLAIM-HELD");
}

#[test]
fn a_claim_that_is_kept_is_found() {
    common::caught(run_claims, Defect::KeepsClaims, "LEAK");
}

#[test]
fn two_works_on_one_claim_are_found() {
    common::caught(run_claims, Defect::EndsTurnsEarly, "CLAIM-TURN");
}

#[test]
fn claims_of_a_pod_whose_containers_still_end_are_missed() {
    common::caught_within(run_claims, Defect::FreesPartsEarly, "CLAIM-HELD", 400);
}
