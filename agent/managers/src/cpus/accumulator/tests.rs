//! Requests on invented machines; the answers come from upstream's own code (v1.36.3).

use proptest::prelude::*;

use super::*;
use crate::topology::testing::Regular;

pub(crate) const M1: Regular = Regular { sockets: 1, nodes: 1, cores_of_node: 4, threads: 2, uncore: None };
pub(crate) const M2: Regular = Regular { sockets: 2, nodes: 2, ..M1 };
pub(crate) const M3: Regular = Regular { sockets: 2, nodes: 4, ..M1 };
pub(crate) const M4: Regular =
    Regular { sockets: 1, nodes: 1, cores_of_node: 16, threads: 1, uncore: Some(4) };
pub(crate) const M5: Regular = Regular { threads: 2, ..M4 };
pub(crate) const M6: Regular = Regular { sockets: 2, nodes: 8, ..M1 };

fn take(machine: Regular, used: &str, n: usize, (sorting, uncore): (Sorting, bool)) -> String {
    let topology = machine.topology();
    let available = topology.cpus().set().difference(&used.parse().unwrap());
    take_packed(&topology, &available, n, sorting, uncore).unwrap().to_string()
}

const PACKED: (Sorting, bool) = (Sorting::Packed, false);
const SPREAD: (Sorting, bool) = (Sorting::Spread, false);
const UNCORE: (Sorting, bool) = (Sorting::Packed, true);

#[test]
fn requests_on_made_up_machines() {
    for (machine, used, n, mode, expected) in [
        (M1, "", 1, PACKED, "0"),
        (M1, "", 2, PACKED, "0,4"),
        (M1, "", 3, PACKED, "0-1,4"),
        (M1, "", 5, PACKED, "0-2,4-5"),
        (M1, "0", 1, PACKED, "4"),
        (M1, "0", 2, PACKED, "1,5"),
        (M1, "0-1", 5, PACKED, "2-4,6-7"),
        (M1, "0,5", 3, PACKED, "2,4,6"),
        (M1, "", 3, SPREAD, "0-2"),
        (M1, "0,4", 3, SPREAD, "1-3"),
        (M2, "", 9, PACKED, "0-4,8-11"),
        (M2, "", 10, PACKED, "0-4,8-12"),
        (M2, "4", 1, PACKED, "12"),
        (M2, "4", 2, PACKED, "5,13"),
        (M2, "4", 8, PACKED, "0-3,8-11"),
        (M2, "0,9", 10, PACKED, "2,4-7,10,12-15"),
        (M3, "", 12, PACKED, "0-5,16-21"),
        (M3, "", 17, PACKED, "0-8,16-23"),
        (M3, "0,16", 8, PACKED, "4-7,20-23"),
        (M4, "0", 4, UNCORE, "4-7"),
        (M4, "0", 4, PACKED, "1-4"),
        (M4, "0,4,8,12", 4, UNCORE, "1-3,5"),
        (M4, "0,4,8", 6, UNCORE, "1-2,12-15"),
        (M5, "", 3, UNCORE, "0-1,16"),
        (M5, "", 9, UNCORE, "0-4,16-19"),
        (M5, "", 11, UNCORE, "0-5,16-20"),
        (M5, "0", 3, UNCORE, "1,16-17"),
        (M5, "0-1", 4, UNCORE, "4-5,20-21"),
        (M5, "0,16,20", 5, UNCORE, "1-3,17-18"),
    ] {
        assert_eq!(take(machine, used, n, mode), expected, "{n} of {used:?} used");
    }
}

#[test]
fn too_many_are_refused_with_numbers() {
    let topology = M1.topology();
    let available = "1-3".parse().unwrap();
    let error = take_packed(&topology, &available, 4, Sorting::Packed, false).unwrap_err();
    assert_eq!(error.to_string(), "not enough cpus available to satisfy request: requested=4, available=3");
}

proptest! {
    #[test]
    fn a_set_has_the_asked_size_and_only_free_processors(
        (sockets, nodes, cores_of_node, threads) in (1_u32..3, 1_u32..5, 1_u32..6, 1_u32..3),
        used in proptest::collection::btree_set(0_u32..40, 0..30),
        n in 0_usize..48,
        (spread, uncore) in (any::<bool>(), any::<bool>()),
    ) {
        // Sockets hold the same number of nodes, or nodes the same number of sockets.
        let nodes = if nodes >= sockets { nodes * sockets } else { nodes };
        let cores_of_node = cores_of_node * sockets;
        let topology = Regular { sockets, nodes, cores_of_node, threads, uncore: uncore.then_some(2) }.topology();
        let available = topology.cpus().set().difference(&used.into_iter().collect());
        let sorting = if spread { Sorting::Spread } else { Sorting::Packed };
        match take_packed(&topology, &available, n, sorting, uncore) {
            Ok(taken) => {
                prop_assert_eq!(taken.len(), n);
                prop_assert!(taken.is_subset(&available));
            }
            Err(error) => {
                prop_assert!(n > available.len(), "{}", error);
            }
        }
    }
}
