//! Files that upstream v1.36.3 wrote, and files that are written and read again.

use super::*;

#[test]
fn files_of_the_policies_without_assignments() {
    assert_eq!(
        cpus::write("none", &crate::cpus::state::CpuState::default()),
        r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#
    );
    assert_eq!(
        memory::write("None", &crate::memory::state::MemoryState::default()),
        r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#
    );
}

#[test]
fn files_with_assignments_are_read_and_written_as_upstream_does() {
    let file = r#"{"policyName":"none","defaultCpuSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":3610638499}"#;
    let state = cpus::read("none", file).expect("upstream's file");
    assert_eq!(cpus::write("none", &state), file);
    let file = r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}"#;
    let state = memory::read("static", file).expect("upstream's file");
    assert_eq!(memory::write("static", &state), file);
}

#[test]
fn files_that_are_not_used() {
    let good = r#"{"policyName":"static","defaultCpuSet":"0","checksum":0}"#;
    assert!(cpus::read("static", good).is_ok(), "no checksum");
    for (file, message) in [
        (r#"{"policyName":"static","defaultCpuSet":"0","checksum":7}"#, "checkpoint is corrupted"),
        (
            r#"{"policyName":"none","defaultCpuSet":"0"}"#,
            "configured policy \"static\" differs from state checkpoint policy \"none\"",
        ),
        (
            r#"{"policyName":"static","defaultCpuSet":"x"}"#,
            "could not parse default cpu set \"x\": \"x\" is not a list of processors such as 0-3,8",
        ),
    ] {
        assert_eq!(
            cpus::read("static", file).map(|_| ()).map_err(|error| error.to_string()),
            Err(message.to_owned())
        );
    }
    assert!(matches!(cpus::read("static", "{"), Err(CheckpointError::NotJson(_))));
    let other = r#"{"policyName":"None","machineState":{}}"#;
    let error = memory::read("Static", other).map(|_| ()).map_err(|error| error.to_string());
    let message =
        "[memorymanager] configured policy \"Static\" differs from state checkpoint policy \"None\"";
    assert_eq!(error, Err(message.to_owned()));
}
