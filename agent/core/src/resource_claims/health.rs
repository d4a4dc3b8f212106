//! Health of devices, as drivers report it.
//!
//! ```text
//! plugin ──report──► its table ──read──► status of pods
//!                       ├── a report is void after its timeout: Unknown
//!                       └── the stream ends: the table is gone
//! file of an earlier agent ──► table of the driver, until a plugin of it reports
//! ```
//! In: reports, the time. Out: health of a device, drivers with changes, the file's text. Invariants: a report changes only the devices
//! that it lists; a table belongs to one plugin, so that a rolling update does not clear it; sizes are bounded. Differences from
//! upstream: tables are per plugin; a report that expires is a change at that moment, not at the next report.
//! Upstream: pkg/kubelet/cm/dra/healthinfo.go; KEP-4680.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::time::{Mono, Now, Wall};

use super::api::{DeviceHealth, PluginId, ReportedHealth};

mod file;

pub use file::HEALTH_STATE;

/// A report without a timeout expires after this time.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(30);
/// Most devices of one plugin; further devices are ignored.
const DEVICES_MAX: usize = 4096;
/// Most devices of all plugins; further devices are ignored. One pod can register many plugins.
const ALL_DEVICES_MAX: usize = 16 * 1024;
/// Most bytes of the name of a pool or a device. Devices with longer names, which the API does not allow, are ignored.
const NAME_BYTES_MAX: usize = 253;
/// Most bytes of a message in a pod's status.
const MESSAGE_BYTES_MAX: usize = 1024;
/// The end of a message that was cut.
const CUT: &str = "...";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    health: DeviceHealth,
    message: String,
    timeout: Duration,
    /// The report expires after this time.
    until: Mono,
    /// Time of receipt.
    received: Wall,
}

impl Report {
    fn is_void(&self, now: Mono) -> bool {
        now > self.until
    }

    /// True if the report has no content that could expire.
    fn is_blank(&self) -> bool {
        self.health == DeviceHealth::Unknown && self.message.is_empty()
    }

    fn differs(&self, other: &Report) -> bool {
        self.health != other.health || self.message != other.message || self.timeout != other.timeout
    }
}

/// Reports by pool and device.
type Table = BTreeMap<(String, String), Report>;

/// The tables of all plugins.
#[derive(Clone, Debug, Default)]
pub(super) struct HealthTables {
    plugins: BTreeMap<PluginId, (String, Table)>,
    /// Tables of an earlier agent, by driver.
    restored: BTreeMap<String, Table>,
}

impl HealthTables {
    /// The tables from the file of an earlier agent. A file that cannot be read counts as missing.
    pub(super) fn restore(text: &str, now: Now) -> HealthTables {
        HealthTables { plugins: BTreeMap::new(), restored: file::read(text, now) }
    }

    /// Takes a plugin's report about these devices. True if it changed something.
    pub(super) fn report(
        &mut self,
        plugin: PluginId,
        driver: &str,
        devices: Vec<ReportedHealth>,
        now: Now,
    ) -> bool {
        let kept: usize = self.plugins.values().map(|(_, table)| table.len()).sum();
        let mut room = ALL_DEVICES_MAX.saturating_sub(kept);
        let restored = &mut self.restored;
        let earlier = || (driver.to_owned(), restored.remove(driver).unwrap_or_default());
        let (_, table) = self.plugins.entry(plugin).or_insert_with(earlier);
        let mut changed = false;
        for of in devices {
            let timeout = of.timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(HEALTH_TIMEOUT);
            let report = Report {
                health: of.health,
                message: cut(of.message),
                timeout,
                until: now.mono.after(timeout),
                received: now.wall,
            };
            let before = table.len();
            changed |= insert(table, (of.pool, of.device), report, room > 0);
            room = room.saturating_sub(table.len() - before);
        }
        changed | expire(table, now)
    }

    /// The plugin's stream ended. True if reports were removed.
    pub(super) fn end(&mut self, plugin: PluginId, driver: &str) -> bool {
        let table = match self.plugins.remove(&plugin) {
            Some((_, table)) => Some(table),
            // The end of a plugin without reports removes the reports that an earlier agent received, as upstream.
            None => self.restored.remove(driver),
        };
        table.is_some_and(|table| !table.is_empty())
    }

    /// Clears expired reports. Returns the drivers with such reports.
    pub(super) fn expire(&mut self, now: Now) -> BTreeSet<String> {
        let restored = self.restored.iter_mut();
        let tables = self.plugins.values_mut().map(|(driver, table)| (&*driver, table)).chain(restored);
        tables.filter_map(|(driver, table)| expire(table, now).then(|| driver.clone())).collect()
    }

    /// The next time at which a report expires.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let tables = self.plugins.values().map(|(_, table)| table).chain(self.restored.values());
        let reports = tables.flat_map(BTreeMap::values).filter(|report| !report.is_blank());
        reports.map(|report| report.until.after(Duration::from_nanos(1))).min()
    }

    /// Health and message of the device from the newest plugin of the driver that has reported the device.
    pub(super) fn get(&self, driver: &str, pool: &str, device: &str, now: Mono) -> (DeviceHealth, &str) {
        let key = (pool.to_owned(), device.to_owned());
        let of_driver =
            self.plugins.values().rev().filter(|(name, _)| name == driver).map(|(_, table)| table);
        let mut tables = of_driver.chain(self.restored.get(driver));
        let report = tables.find_map(|table| table.get(&key).filter(|report| !report.is_void(now)));
        report.map_or((DeviceHealth::Unknown, ""), |report| (report.health, report.message.as_str()))
    }

    /// The text of the file.
    pub(super) fn text(&self) -> String {
        let restored = self.restored.iter();
        file::write(restored.chain(self.plugins.values().map(|(driver, table)| (driver, table))))
    }
}

/// Inserts a report. True if the device is new or its report differs.
fn insert(table: &mut Table, key: (String, String), report: Report, has_room: bool) -> bool {
    let changed = match table.get(&key) {
        Some(known) => report.differs(known),
        None if !has_room
            || table.len() >= DEVICES_MAX
            || key.0.len() > NAME_BYTES_MAX
            || key.1.len() > NAME_BYTES_MAX =>
        {
            return false;
        }
        None => true,
    };
    table.insert(key, report);
    changed
}

/// Clears expired reports. True if there were some.
fn expire(table: &mut Table, now: Now) -> bool {
    let mut changed = false;
    for report in table.values_mut().filter(|report| report.is_void(now.mono) && !report.is_blank()) {
        (report.health, report.message) = (DeviceHealth::Unknown, String::new());
        report.received = now.wall;
        changed = true;
    }
    changed
}

/// The message, cut to its limit in a pod's status.
fn cut(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX - CUT.len()));
        message.push_str(CUT);
    }
    message
}

#[cfg(test)]
mod tests;
