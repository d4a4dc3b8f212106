//! Services of systemd, as `systemctl show` prints them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use orlop_proto::node_api::v1alpha1::ServiceStatus;
use orlop_proto::node_api::v1alpha1::object::Status;

use super::NamedObjects;
use crate::facts::Facts;
use crate::refusal::Refusal;

/// Properties that are asked for.
pub const PROPERTIES: &str = "Id,LoadState,ActiveState,SubState,Result,StatusText,MainPID,NRestarts,MemoryCurrent,ExecMainStatus,\
     ExecMainStartTimestampMonotonic";

/// A service that systemd has started again so often ends again and again, if its last start is recent.
const RESTARTS_MIN: u64 = 3;
/// A service that has run for so long has stopped ending, seconds.
const STEADY_AFTER_S: u64 = 300;

/// Services without which the node is no node, each with what it is; in the order in which a person asks about them.
pub const ESSENTIAL: [(&str, &str); 6] = [
    ("kubelet.service", "the node agent"),
    ("containerd.service", "the container runtime"),
    ("systemd-networkd.service", "the network"),
    ("systemd-journald.service", "the journal"),
    ("dbus-broker.service", "the system bus"),
    ("systemd-logind.service", "orderly shutdowns"),
];

/// The check for releases: it fails while its source is away, and systemd starts it again every few minutes.
const RETRIES: &str = "orlop-update-check.service";

/// Names of the services that end again and again: systemd has started them again, and is about to do it once more or has done it a short
/// time ago. `up_s` is the time since the boot; without it, only the first ones.
#[must_use]
pub fn ending(text: &str, up_s: Option<u64>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for block in text.split("\n\n") {
        let value = |key: &str| {
            block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default()
        };
        let restarts: u64 = value("NRestarts").parse().unwrap_or(0);
        let waits = value("SubState").starts_with("auto-restart");
        // Microseconds; 0 for a service that has never run.
        let started = value("ExecMainStartTimestampMonotonic").parse().ok().filter(|at: &u64| *at > 0);
        let age_s = up_s.zip(started).map(|(up_s, started)| up_s.saturating_sub(started / 1_000_000));
        let runs = matches!(value("ActiveState"), "active" | "activating" | "reloading");
        let is_young = runs && age_s.is_some_and(|age_s| age_s < STEADY_AFTER_S);
        let name = value("Id");
        if name == RETRIES {
            continue;
        }
        // The first pause may be the last one.
        let is_essential = ESSENTIAL.iter().any(|(unit, _)| *unit == name);
        let enough = if waits && is_essential { 1 } else { RESTARTS_MIN };
        if (waits || is_young) && restarts >= enough {
            names.insert(name.to_owned());
        }
    }
    names
}

/// Units by their names. A property that is not there is empty or 0.
#[must_use]
pub fn parse(text: &str) -> BTreeMap<String, ServiceStatus> {
    let mut units = BTreeMap::new();
    for block in text.split("\n\n") {
        let value = |key: &str| {
            block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default()
        };
        let number = |key: &str| -> u64 { value(key).parse().unwrap_or(0) };
        let name = value("Id");
        if name.is_empty() {
            continue;
        }
        let status = ServiceStatus {
            load: value("LoadState").to_owned(),
            active: value("ActiveState").to_owned(),
            sub: value("SubState").to_owned(),
            result: value("Result").to_owned(),
            status: value("StatusText").to_owned(),
            main_pid: number("MainPID"),
            restarts: number("NRestarts"),
            // `[not set]`, or the largest number.
            memory_bytes: value("MemoryCurrent").parse().ok().filter(|bytes: &u64| *bytes != u64::MAX),
            exit_status: value("ExecMainStatus").parse().unwrap_or(0),
        };
        units.insert(name.to_owned(), status);
    }
    units
}

/// Why a unit does not run, in systemd's words.
#[must_use]
pub fn words(unit: &ServiceStatus) -> String {
    if unit.load != "loaded" {
        return unit.load.clone();
    }
    let ended = match unit.result.as_str() {
        "" | "success" => String::new(),
        "exit-code" => format!(" (exit status {})", unit.exit_status),
        result => format!(" ({result})"),
    };
    format!("{}{ended}", unit.active)
}

pub(super) fn objects(facts: &Facts) -> Result<NamedObjects, Refusal> {
    let text = facts.services.clone().unwrap_or_else(|| Ok(String::new()))?;
    let units = parse(&text).into_iter().filter(|(_, unit)| unit.load != "not-found");
    Ok(units.map(|(name, unit)| (name, Status::Service(unit))).collect())
}
