//! Reports, their expiry, and the file.

use super::*;

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Now {
    // 2026-01-01T00:00:00Z.
    Now {
        mono: Mono((100 + seconds) * SECOND),
        wall: Wall(1_767_225_600_000_000_000 + i64::try_from(seconds * SECOND).unwrap()),
    }
}

fn report(device: &str, health: DeviceHealth, timeout: Option<u64>, message: &str) -> ReportedHealth {
    ReportedHealth {
        pool: "p".to_owned(),
        device: device.to_owned(),
        health,
        timeout: timeout.map(Duration::from_secs),
        message: message.to_owned(),
    }
}

fn healthy(device: &str) -> ReportedHealth {
    report(device, DeviceHealth::Healthy, None, "")
}

fn health(tables: &HealthTables, device: &str, seconds: u64) -> (DeviceHealth, String) {
    let (health, message) = tables.get("d", "p", device, at(seconds).mono);
    (health, message.to_owned())
}

const PLUGIN: PluginId = PluginId(1);

#[test]
fn a_report_changes_the_devices_that_it_lists() {
    let mut tables = HealthTables::default();
    assert!(tables.report(PLUGIN, "d", vec![healthy("a"), healthy("b")], at(0)), "new");
    assert!(!tables.report(PLUGIN, "d", vec![healthy("a")], at(1)), "the same");
    assert!(
        tables.report(PLUGIN, "d", vec![report("a", DeviceHealth::Unhealthy, None, "")], at(2)),
        "health"
    );
    assert!(
        tables.report(PLUGIN, "d", vec![report("a", DeviceHealth::Unhealthy, None, "x")], at(3)),
        "message"
    );
    assert!(
        tables.report(PLUGIN, "d", vec![report("a", DeviceHealth::Unhealthy, Some(5), "x")], at(4)),
        "timeout"
    );
    assert!(!tables.report(PLUGIN, "d", vec![report("a", DeviceHealth::Unhealthy, Some(5), "x")], at(5)));
    assert_eq!(health(&tables, "a", 5), (DeviceHealth::Unhealthy, "x".to_owned()));
    assert_eq!(health(&tables, "b", 5), (DeviceHealth::Healthy, String::new()), "not listed, but fresh");
    assert_eq!(health(&tables, "other", 5).0, DeviceHealth::Unknown);
    assert!(!tables.report(PLUGIN, "d", vec![], at(5)));
}

#[test]
fn a_report_is_void_after_its_timeout() {
    let mut tables = HealthTables::default();
    tables.report(
        PLUGIN,
        "d",
        vec![healthy("a"), report("b", DeviceHealth::Unhealthy, Some(60), "hot")],
        at(0),
    );
    assert_eq!(health(&tables, "a", 30).0, DeviceHealth::Healthy);
    assert_eq!(tables.deadline(), Some(Mono(at(30).mono.0 + 1)));
    assert_eq!(health(&tables, "a", 31).0, DeviceHealth::Unknown, "read before it is expired");
    assert!(tables.expire(at(30)).is_empty());
    assert_eq!(tables.expire(at(31)), ["d".to_owned()].into());
    assert!(tables.expire(at(31)).is_empty(), "once");
    assert_eq!(tables.deadline(), Some(Mono(at(60).mono.0 + 1)));
    assert!(tables.report(PLUGIN, "d", vec![healthy("a")], at(61)), "b is void now");
    assert_eq!(health(&tables, "b", 61), (DeviceHealth::Unknown, String::new()));
    assert_eq!(health(&tables, "a", 61).0, DeviceHealth::Healthy);
    assert!(tables.report(PLUGIN, "d", vec![report("b", DeviceHealth::Unhealthy, Some(60), "hot")], at(62)));
}

#[test]
fn a_plugin_that_ends_leaves_the_tables_of_others() {
    let mut tables = HealthTables::default();
    tables.report(PLUGIN, "d", vec![healthy("a"), healthy("b")], at(0));
    tables.report(PluginId(2), "d", vec![report("a", DeviceHealth::Unhealthy, None, "")], at(0));
    tables.report(PluginId(3), "other", vec![report("a", DeviceHealth::Unhealthy, None, "")], at(0));
    assert_eq!(health(&tables, "a", 1).0, DeviceHealth::Unhealthy, "the newest");
    assert_eq!(health(&tables, "b", 1).0, DeviceHealth::Healthy, "the only one");
    assert!(tables.end(PluginId(2), "d"));
    assert!(!tables.end(PluginId(2), "d"));
    assert_eq!(health(&tables, "a", 1).0, DeviceHealth::Healthy);
    assert!(tables.end(PLUGIN, "d"));
    assert_eq!(health(&tables, "a", 1).0, DeviceHealth::Unknown);
}

#[test]
fn messages_names_and_devices_are_bounded() {
    assert_eq!(cut("x".repeat(1024)), "x".repeat(1024));
    assert_eq!(cut("x".repeat(1025)), format!("{}...", "x".repeat(1021)));
    assert_eq!(cut("ü".repeat(513)), format!("{}...", "ü".repeat(510)), "no half characters");
    let mut tables = HealthTables::default();
    let many = (0..DEVICES_MAX + 10).map(|n| healthy(&format!("d{n:05}")));
    tables.report(PLUGIN, "d", many.collect(), at(0));
    assert_eq!(health(&tables, "d04095", 0).0, DeviceHealth::Healthy);
    assert_eq!(health(&tables, "d04096", 0).0, DeviceHealth::Unknown);
    let mut tables = HealthTables::default();
    assert!(!tables.report(PLUGIN, "d", vec![healthy(&"x".repeat(254))], at(0)));
}

#[test]
fn the_file_is_upstreams_and_outlives_the_agent() {
    let mut tables = HealthTables::default();
    tables.report(PLUGIN, "d", vec![report("a", DeviceHealth::Unhealthy, Some(60), "hot")], at(0));
    let file = r#"{"d":{"Devices":{"p/a":{"PoolName":"p","DeviceName":"a","Health":"Unhealthy","LastUpdated":"2026-01-01T00:00:00Z","HealthCheckTimeout":60000000000,"Message":"hot"}}}}"#;
    assert_eq!(tables.text(), file);
    // The machine has booted: its monotonic clock has started again.
    let booted = |seconds| Now { mono: Mono(seconds * SECOND), wall: at(40).wall };
    let mut restored = HealthTables::restore(file, booted(2));
    assert_eq!(restored.text(), file);
    assert_eq!(restored.get("d", "p", "a", booted(22).mono), (DeviceHealth::Unhealthy, "hot"));
    assert_eq!(restored.get("d", "p", "a", booted(23).mono).0, DeviceHealth::Unknown);
    assert!(restored.clone().report(PLUGIN, "d", vec![healthy("b")], booted(3)), "b is new");
    assert!(!restored.clone().report(
        PLUGIN,
        "d",
        vec![report("a", DeviceHealth::Unhealthy, Some(60), "hot")],
        booted(3)
    ));
    assert!(restored.end(PLUGIN, "d"), "a stream that cannot be opened");
    assert_eq!(restored.text(), "{}");
}

#[test]
fn a_file_that_cannot_be_read_is_ignored() {
    let late = r#"{"d":{"Devices":{"p/a":{"PoolName":"p","DeviceName":"a","Health":"Healthy","LastUpdated":"2025-12-31T23:59:00+01:00","HealthCheckTimeout":0}}}}"#;
    let odd = r#"{"d":{"Devices":{"p/a":{"LastUpdated":"yesterday","HealthCheckTimeout":-5}}},"e":{"Devices":null}}"#;
    for file in ["", "{", "[]", "null", late, odd] {
        assert_eq!(HealthTables::restore(file, at(0)).text(), "{}", "{file}");
    }
}
