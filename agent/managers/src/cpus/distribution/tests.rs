//! Distributions on invented machines; the answers are upstream's (v1.36.3), except for combinations of four nodes.

use super::*;
use crate::cpus::accumulator::tests::{M2, M3, M6};
use crate::topology::testing::Regular;

fn take(machine: Regular, used: &str, n: usize, group: usize) -> String {
    let topology = machine.topology();
    let available = topology.cpus().set().difference(&used.parse().unwrap());
    take_distributed(&topology, &available, n, group, Sorting::Packed).unwrap().to_string()
}

#[test]
fn requests_on_made_up_machines() {
    for (machine, used, n, group, expected) in [
        (M2, "", 6, 1, "0-2,8-10"),
        (M2, "", 9, 1, "0-2,4-5,8-9,12-13"),
        (M2, "", 10, 1, "0-2,4-6,8-9,12-13"),
        (M2, "", 10, 2, "0-2,4-5,8-10,12-13"),
        (M2, "", 9, 2, "0-4,8-11"),
        (M2, "0,8", 12, 2, "1-6,9-14"),
        (M3, "", 10, 1, "0-2,4-6,16-17,20-21"),
        (M3, "", 18, 1, "0-2,4-6,8-10,16-18,20-22,24-26"),
        (M3, "0", 24, 1, "4-15,20-31"),
        (M6, "", 24, 1, "0-11,32-43"),
        (M6, "", 40, 1, "0-19,32-51"),
    ] {
        assert_eq!(take(machine, used, n, group), expected, "{n} in groups of {group}, {used:?} used");
    }
}

#[test]
fn four_nodes_are_those_that_were_judged() {
    // Upstream takes the last node from nodes 0 to 2 and 7.
    assert_eq!(take(M6, "", 32, 1), "0-15,32-47");
}

#[test]
fn combinations_come_in_order_until_they_are_stopped() {
    let mut seen = Vec::new();
    combinations(&[5, 6, 7], 2, &mut |of| {
        seen.push(of.to_vec());
        seen.len() < 2
    });
    assert_eq!(seen, [[5, 6], [5, 7]]);
}

#[test]
fn deviations_are_rounded_to_thousandths() {
    assert_eq!(deviation(&[8, 8]), 0);
    assert_eq!(deviation(&[8, 6]), 1000);
    assert_eq!(deviation(&[8, 8, 7]), 471);
}
