//! Reservations and states of other machines.

use super::*;
use crate::cpus::accumulator::tests::M1;

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn start(options: CpuOptions, milli: u64, cpus: &str, state: Option<CpuState>) -> Result<CpuManager, String> {
    let reservation = Reservation { milli, cpus: set(cpus) };
    CpuManager::start(M1.topology(), options, &reservation, state).map_err(|error| error.to_string())
}

fn state(shared: &str, own: &[(&str, &str)]) -> Option<CpuState> {
    let containers = own.iter().map(|(name, cpus)| ((*name).to_owned(), set(cpus))).collect();
    let assignments = [("u".to_owned(), containers)].into_iter().filter(|_| !own.is_empty()).collect();
    Some(CpuState { shared: set(shared), assignments })
}

#[test]
fn reserved_processors_are_whole_cores_where_the_machine_has_them() {
    let plain = CpuOptions::default();
    let strict = CpuOptions { strict_reservation: true, ..plain };
    assert_eq!(start(plain, 1500, "", None).unwrap().allocatable(), set("1-3,5-7"));
    assert_eq!(start(plain, 2000, "1,2", None).unwrap().allocatable(), set("0,3-7"));
    assert_eq!(start(plain, 2000, "", None).unwrap().state().shared, set("0-7"));
    assert_eq!(start(strict, 2000, "", None).unwrap().state().shared, set("1-3,5-7"));
}

#[test]
fn a_state_that_fits_is_used() {
    let manager = start(CpuOptions::default(), 1000, "", state("0,2-4,6-7", &[("c", "1,5")])).unwrap();
    assert_eq!(manager.cpus_of("u", "c"), &set("1,5"));
}

#[test]
fn a_start_that_fails_says_why() {
    let plain = CpuOptions::default();
    let strict = CpuOptions { strict_reservation: true, ..plain };
    for (options, milli, cpus, state, message) in [
        (plain, 0, "", None, "[cpumanager] unable to determine reserved CPU resources for static policy"),
        (
            plain,
            9000,
            "",
            None,
            "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of  did not equal 9)",
        ),
        (
            plain,
            1000,
            "0-1",
            None,
            "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of 0-1 did not equal 1)",
        ),
        (plain, 1000, "", state("", &[("c", "1")]), "default cpuset cannot be empty"),
        (
            strict,
            1000,
            "",
            state("0-7", &[]),
            "some of strictly reserved cpus: \"0\" are present in defaultCpuSet: \"0-7\"",
        ),
        (
            plain,
            1000,
            "",
            state("1-7", &[("c", "0")]),
            "not all reserved cpus: \"0\" are present in defaultCpuSet: \"1-7\"",
        ),
        (
            plain,
            1000,
            "",
            state("0-6", &[("c", "6-7")]),
            "pod: u, container: c cpuset: \"6-7\" overlaps with default cpuset \"0-6\"",
        ),
        (
            plain,
            1000,
            "",
            state("0-6", &[("c", "8")]),
            "current set of available CPUs \"0-7\" doesn't match with CPUs in state \"0-6,8\"",
        ),
    ] {
        assert_eq!(start(options, milli, cpus, state).map(|_| ()), Err(message.to_owned()));
    }
}
