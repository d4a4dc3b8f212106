//! The file's bytes and checksums, and files that are not used.

use super::*;

const EMPTY: &str = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}"#;

fn all(_: &[u8]) -> Option<RunOptions> {
    Some(RunOptions::default())
}

fn error(file: &str) -> CheckpointError {
    read(file, all).expect_err(file)
}

/// A state with ids under these nodes, and registered resources.
fn state(ids: &[(i64, &[&str])], encoded: &[u8], registered: &[(&str, &[&str])]) -> DeviceState {
    let set = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
    let response = AllocateResponse { encoded: encoded.to_vec(), options: RunOptions::default() };
    let ids = ids.iter().map(|(node, ids)| (*node, set(ids))).collect();
    let mut records = PodRecords::default();
    records.insert("uid", "c", "x.io/y", DeviceRecord { ids, response });
    let registered = registered.iter().map(|(name, ids)| ((*name).to_owned(), set(ids))).collect();
    DeviceState { records, registered }
}

#[test]
fn a_file_without_devices() {
    assert_eq!(write(&DeviceState::default()), EMPTY);
    assert_eq!(read(EMPTY, all), Ok(ReadDevices::default()));
}

#[test]
fn upstreams_checksum_of_nodes_lists_and_bytes() {
    let file = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"uid","ContainerName":"c","ResourceName":"x.io/y","DeviceIDs":{"-1":["b"],"0":["d1","d2"],"10":["z"],"2":["y"]},"AllocResp":"CgP/"}],"RegisteredDevices":{"a/b":[],"x.io/y":["d2","d1"]}},"Checksum":325302399}"#;
    let content = read(file, all).expect("upstream's file");
    let ids: [(i64, &[&str]); 4] = [(-1, &["b"]), (0, &["d1", "d2"]), (2, &["y"]), (10, &["z"])];
    let same = state(&ids, &[10, 3, 255], &[("a/b", &[]), ("x.io/y", &["d1", "d2"])]);
    assert_eq!(content, ReadDevices { state: same.clone(), left_out: vec![] });
    let written = write(&same);
    let nodes = r#""DeviceIDs":{"-1":["b"],"0":["d1","d2"],"10":["z"],"2":["y"]},"AllocResp":"CgP/"}]"#;
    assert!(written.contains(nodes), "nodes in the order of their texts: {written}");
    assert_eq!(read(&written, all), Ok(content), "sorted lists, another checksum");
}

#[test]
fn texts_are_escaped_as_go_does() {
    let state = state(&[(-1, &["<a&b>\u{2028}\n\"é"])], &[], &[]);
    let written = write(&state);
    assert!(written.contains(r#"["\u003ca\u0026b\u003e\u2028\n\"é"]"#), "{written}");
    assert!(written.contains(r#""AllocResp":"""#));
    assert_eq!(read(&written, all).map(|content| content.state), Ok(state));
}

#[test]
fn a_file_that_cannot_be_used_is_an_error() {
    assert!(matches!(error(""), CheckpointError::NotJson(_)));
    assert!(matches!(error("{"), CheckpointError::NotJson(_)));
    assert_eq!(error(&EMPTY.replace("3467439661", "3467439662")), CheckpointError::Corrupted);
    assert_eq!(error(&EMPTY.replace("3467439661", "0")), CheckpointError::Corrupted);
    assert_eq!(error(&EMPTY.replace("{}", r#"{"a/b":[]}"#)), CheckpointError::Corrupted);
    assert_eq!(error(&EMPTY.replace("null", "[]")), CheckpointError::Corrupted, "Go prints nil otherwise");
    let written = write(&state(&[(-1, &["a"])], &[1], &[]));
    assert!(matches!(error(&written.replace("\"-1\"", "\"x\"")), CheckpointError::NotJson(_)));
    assert!(matches!(error(&written.replace("AQ==", "AQ=")), CheckpointError::NotJson(_)));
}

#[test]
fn an_entry_with_other_bytes_is_left_out() {
    let written = write(&state(&[(-1, &["a"])], &[1], &[("x.io/y", &["a"])]));
    let content = read(&written, |_| None).expect("the file is good");
    assert_eq!(content.left_out, [("uid".to_owned(), "c".to_owned(), "x.io/y".to_owned())]);
    assert_eq!(content.state.records, PodRecords::default());
    assert_eq!(content.state.registered.len(), 1);
}
