//! Files that upstream v1.36.3 wrote (its state/checkpointer_test.go), and files that are written and read again.

use super::*;

/// One claim with this list of devices, as upstream's tests write it.
fn upstreams(devices: &str, checksum: u32) -> String {
    let data = format!(
        r#"{{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{{"ClaimUID":"067798be-454e-4be4-9047-1aa06aea63f7","ClaimName":"example","Namespace":"default","PodUIDs":{{"139cdb46-f989-4f17-9561-ca10cfb509a6":{{}}}},"DriverState":{{"test-driver.cdi.k8s.io":{{"Devices":{devices}}}}}}}]}}"#
    );
    text(&File { data, checksum })
}

#[test]
fn files_are_read_and_written_as_upstream_does() {
    for (devices, checksum) in [
        (
            r#"[{"PoolName":"worker-1","DeviceName":"dev-1","ShareID":null,"RequestNames":["test request"],"CDIDeviceIDs":["example.com/example=cdi-example"]}]"#,
            2_570_581_864,
        ),
        (
            r#"[{"PoolName":"worker-1","DeviceName":"dev-1","ShareID":"aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa","RequestNames":["test request"],"CDIDeviceIDs":["example.com/example=cdi-example"]}]"#,
            736_302_156,
        ),
        (
            r#"[{"PoolName":"worker-1","DeviceName":"dev-1","ShareID":null,"RequestNames":["test request"],"CDIDeviceIDs":["example.com/example=cdi-example"]},{"PoolName":"worker-1","DeviceName":"dev-2","ShareID":null,"RequestNames":["test request"],"CDIDeviceIDs":["example.com/example=cdi-example"]}]"#,
            1_223_221_469,
        ),
    ] {
        let file = upstreams(devices, checksum);
        assert_eq!(write(&read(&file).unwrap()), file);
    }
}

#[test]
fn a_file_of_two_claims_has_null_for_empty_lists() {
    let file = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\",\"ClaimName\":\"example-1\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-1\",\"ShareID\":null,\"RequestNames\":[\"test request\"],\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}},{\"ClaimUID\":\"4cf8db2d-06c0-7d70-1a51-e59b25b2c16c\",\"ClaimName\":\"example-2\",\"Namespace\":\"default\",\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\",\"DeviceName\":\"dev-2\",\"ShareID\":null,\"RequestNames\":null,\"CDIDeviceIDs\":null}]}}}]}","Checksum":2820117767}"#;
    let cache = read(file).unwrap();
    assert_eq!(cache.iter().count(), 2);
    assert_eq!(write(&cache), file);
}

#[test]
fn the_first_file_has_null_and_the_emptied_one_a_list() {
    assert_eq!(
        first(),
        r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":null}","Checksum":4010664294}"#
    );
    let emptied = write(&ClaimCache::default());
    assert!(emptied.ends_with(r#"\"ClaimInfoStateList\":[]}","Checksum":2361995144}"#), "{emptied}");
    for empty in [&first(), &emptied, "{}"] {
        assert_eq!(read(empty).unwrap().iter().count(), 0);
    }
}

#[test]
fn files_of_other_versions_are_read() {
    // A device without ShareID and RequestNames, in a file of version v0.
    let devices = r#"[{"PoolName":"worker-1","DeviceName":"dev-1","CDIDeviceIDs":["example.com/example=cdi-example"]}]"#;
    let file = upstreams(devices, 1_137_250_765);
    let older = file.replace("io/v1", "io/v0").replace("1137250765", "1284376732");
    for file in [&file, &older] {
        let cache = read(file).unwrap();
        let key = ("default".to_owned(), "example".to_owned());
        let devices = &cache.get(&key).unwrap().drivers["test-driver.cdi.k8s.io"];
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].cdi_devices, ["example.com/example=cdi-example"]);
        assert!(devices[0].requests.is_empty() && devices[0].share_id.is_none());
    }
}

#[test]
fn special_characters_are_escaped_as_go_does_it() {
    let device = ClaimedDevice { pool: "<&>".to_owned(), ..ClaimedDevice::default() };
    let claim =
        CachedClaim { drivers: [("d".to_owned(), vec![device.clone()])].into(), ..CachedClaim::default() };
    let key = ("ns".to_owned(), "c".to_owned());
    let file = write(&ClaimCache::of([(key.clone(), claim)]));
    assert!(file.contains(r"\\u003c\\u0026\\u003e"), "{file}");
    assert_eq!(read(&file).unwrap().get(&key).unwrap().drivers["d"], [device]);
}

#[test]
fn damaged_files_have_upstreams_words() {
    let start = "create ResourceClaim cache: GetOrCreate() on checkpoint state: failed to get checkpoint dra_manager_state: ";
    let corrupted = upstreams("[]", 1);
    for (file, words) in [
        ("", "unexpected end of JSON input"),
        ("{", "unexpected end of JSON input"),
        (corrupted.as_str(), "checkpoint is corrupted"),
        (r#"{"Checksum":7}"#, "checkpoint is corrupted"),
    ] {
        assert_eq!(read(file).unwrap_err().to_string(), format!("{start}{words}"), "{file:?}");
    }
    assert!(read("\u{0}\u{1}").unwrap_err().to_string().starts_with(start));
    let data = "[".to_owned();
    let checksum = crc32fast::hash(data.as_bytes());
    let error = read(&text(&File { data, checksum })).unwrap_err().to_string();
    assert_eq!(error, "create ResourceClaim cache: GetEntries() on checkpoint: unexpected end of JSON input");
}
