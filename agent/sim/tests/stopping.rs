//! Seeds with shutdowns of the machine: each runs twice and must leave the same trace; SHUTDOWN-ORDER, SHUTDOWN-BUDGET,
//! SHUTDOWN-CLOSED, STOP-AWAITED, RECEIPT-TRUE and LEFT-OVER can fail.

mod common;

use agent_sim::defects::Defect;
use agent_sim::scenario::run_stopping;

#[test]
fn every_seed_with_stops_keeps_every_promise_and_replays() {
    common::every_seed(run_stopping, common::seeds(150), &[20111, 20142, 30221, 30258, 60171]);
}

fn caught(defect: Defect, invariant: &str) {
    common::caught(run_stopping, defect, invariant);
}

#[test]
fn shutdown_order_can_fail() {
    caught(Defect::EndsAllAtOnce, "SHUTDOWN-ORDER");
}

#[test]
fn shutdown_budget_can_fail() {
    caught(Defect::KeepsTheLock, "SHUTDOWN-BUDGET");
}

#[test]
fn shutdown_closed_can_fail() {
    caught(Defect::LetsIn, "SHUTDOWN-CLOSED");
}

#[test]
fn receipt_true_can_fail() {
    caught(Defect::SignsBlindly, "RECEIPT-TRUE");
}

#[test]
fn receipt_true_can_fail_when_the_boot_goes_on() {
    caught(Defect::KeepsItsReceipt, "RECEIPT-TRUE");
}

#[test]
fn stop_awaited_can_fail() {
    caught(Defect::LeavesItsPods, "STOP-AWAITED");
}

#[test]
fn left_over_can_fail() {
    caught(Defect::LeavesTheEnded, "LEFT-OVER");
}
