//! `dra_health_state`, the file of reported health.
//!
//! In: tables, or text. Out: text, or tables. Invariants: the form is upstream's, so that either agent may follow the other on one disk;
//! a text that cannot be read counts as none; expired reports are omitted. Upstream: pkg/kubelet/cm/dra/state/state.go.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::time::{Now, Wall};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::api::DeviceHealth;
use super::super::devices::word;
use super::{DEVICES_MAX, HEALTH_TIMEOUT, Report, Table};

/// Name of the file in the agent's root directory.
pub const HEALTH_STATE: &str = "dra_health_state";

#[derive(Default, Deserialize, Serialize)]
#[serde(default, rename_all = "PascalCase")]
struct DriverState {
    devices: Option<BTreeMap<String, DeviceState>>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default, rename_all = "PascalCase")]
struct DeviceState {
    pool_name: String,
    device_name: String,
    health: String,
    /// RFC 3339.
    last_updated: String,
    /// Nanoseconds.
    health_check_timeout: i64,
    message: String,
}

/// The text of these tables. If two reports are about one device, the later one in the order counts.
pub(super) fn write<'a>(tables: impl Iterator<Item = (&'a String, &'a Table)>) -> String {
    let mut drivers: BTreeMap<&str, DriverState> = BTreeMap::new();
    for (driver, table) in tables {
        let devices = drivers.entry(driver).or_default().devices.get_or_insert_default();
        for ((pool, device), report) in table {
            let time = Timestamp::from_nanosecond(i128::from(report.received.0)).unwrap_or_default();
            let state = DeviceState {
                pool_name: pool.clone(),
                device_name: device.clone(),
                health: word(report.health).to_owned(),
                last_updated: time.to_string(),
                health_check_timeout: i64::try_from(report.timeout.as_nanos()).unwrap_or(i64::MAX),
                message: report.message.clone(),
            };
            devices.insert(format!("{pool}/{device}"), state);
        }
    }
    serde_json::to_string(&drivers).unwrap_or_default()
}

/// The tables of a text, by driver.
pub(super) fn read(text: &str, now: Now) -> BTreeMap<String, Table> {
    let drivers: BTreeMap<String, DriverState> = serde_json::from_str(text).unwrap_or_default();
    let table = |state: DriverState| -> Table {
        let devices = state.devices.into_iter().flatten().map(|(_, device)| device);
        let fresh = devices.filter_map(|device| {
            let report = report(&device, now)?;
            Some(((device.pool_name, device.device_name), report))
        });
        fresh.take(DEVICES_MAX).collect()
    };
    let tables = drivers.into_iter().map(|(driver, state)| (driver, table(state)));
    tables.filter(|(_, table)| !table.is_empty()).collect()
}

/// The report of a device; `None` if it has expired.
fn report(device: &DeviceState, now: Now) -> Option<Report> {
    let time: Timestamp = device.last_updated.parse().ok()?;
    let received = Wall(i64::try_from(time.as_nanosecond()).ok()?);
    let timeout = u64::try_from(device.health_check_timeout).ok().filter(|timeout| *timeout > 0);
    let timeout = timeout.map_or(HEALTH_TIMEOUT, Duration::from_nanos);
    // If the clock was set back, the report counts as received now.
    let left = timeout.checked_sub(now.wall.since(received))?;
    let health = match device.health.as_str() {
        "Healthy" => DeviceHealth::Healthy,
        "Unhealthy" => DeviceHealth::Unhealthy,
        _ => DeviceHealth::Unknown,
    };
    Some(Report {
        health,
        message: super::cut(device.message.clone()),
        timeout,
        until: now.mono.after(left),
        received,
    })
}
