//! The kernel, the operating system and its units.

use super::{KernelFiles, NodeFacts, SystemUnit, flag, single};
use crate::stats::exposition::{Exposition, Kind};

/// States of a unit, each of which has a sample.
const STATES: [&str; 5] = ["activating", "active", "deactivating", "failed", "inactive"];
/// Units that are shown.
const UNITS_MAX: usize = 64;

/// Labels of `node_os_info`, and their keys in os-release(5).
const LABELS: [(&str, &str); 12] = [
    ("build_id", "BUILD_ID"),
    ("id", "ID"),
    ("id_like", "ID_LIKE"),
    ("image_id", "IMAGE_ID"),
    ("image_version", "IMAGE_VERSION"),
    ("name", "NAME"),
    ("pretty_name", "PRETTY_NAME"),
    ("variant", "VARIANT"),
    ("variant_id", "VARIANT_ID"),
    ("version", "VERSION"),
    ("version_codename", "VERSION_CODENAME"),
    ("version_id", "VERSION_ID"),
];

pub(super) fn uname<F: KernelFiles>(_: &F, facts: &NodeFacts, out: &mut Exposition) -> bool {
    let Some(uname) = &facts.uname else { return false };
    let labels = vec![
        ("domainname", uname.domainname.as_str()),
        ("machine", uname.machine.as_str()),
        ("nodename", uname.nodename.as_str()),
        ("release", uname.release.as_str()),
        ("sysname", uname.sysname.as_str()),
        ("version", uname.version.as_str()),
    ];
    out.family(("node_uname_info", Kind::Gauge, "The kernel and the host; always 1."), [(labels, 1.0)], None);
    true
}

pub(super) fn os<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let Some(text) = files.text("etc/os-release").or_else(|| files.text("usr/lib/os-release")) else {
        return false;
    };
    let value = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        value.unwrap_or_default().trim().trim_matches(['"', '\'']).to_owned()
    };
    let values = LABELS.map(|(label, key)| (label, value(key)));
    let labels: Vec<(&str, &str)> = values.iter().map(|(label, value)| (*label, value.as_str())).collect();
    out.family(("node_os_info", Kind::Gauge, "The operating system; always 1."), [(labels, 1.0)], None);
    let version = major_minor(&value("VERSION_ID")).filter(|version| *version > 0.0);
    let few: Vec<(&str, &str)> = values
        .iter()
        .filter(|(label, _)| matches!(*label, "id" | "id_like" | "name"))
        .map(|(label, value)| (*label, value.as_str()))
        .collect();
    let help = "Major and minor version of the operating system.";
    out.family(("node_os_version", Kind::Gauge, help), version.map(|version| (few, version)), None);
    true
}

/// `20.04.2` is 20.04.
fn major_minor(version: &str) -> Option<f64> {
    let digits = |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let major = digits(version);
    if major == 0 {
        return None;
    }
    let end = match version[major..].strip_prefix('.') {
        Some(rest) => major + 1 + digits(rest),
        None => major,
    };
    version[..end].trim_end_matches('.').parse().ok()
}

pub(super) fn systemd<F: KernelFiles>(_: &F, facts: &NodeFacts, out: &mut Exposition) -> bool {
    let Some(systemd) = &facts.units else { return false };
    let mut units: Vec<&SystemUnit> = systemd.units.iter().take(UNITS_MAX).collect();
    units.sort_by(|a, b| a.name.cmp(&b.name));
    units.dedup_by(|a, b| a.name == b.name);
    let restarts =
        units.iter().filter_map(|unit| Some((vec![("name", unit.name.as_str())], f64::from(unit.restarts?))));
    let help = "How often systemd started a service again.";
    out.family(("node_systemd_service_restart_total", Kind::Counter, help), restarts, None);
    let help = "Whether systemd's own state is running: no unit has failed.";
    single(out, ("node_systemd_system_running", Kind::Gauge, help), Some(flag(systemd.running)));
    let states = units.iter().flat_map(|unit| {
        STATES.into_iter().map(move |state| {
            let labels =
                vec![("name", unit.name.as_str()), ("state", state), ("type", unit.service_type.as_str())];
            (labels, flag(unit.active_state == state))
        })
    });
    let help = "Whether a unit is in a state.";
    out.family(("node_systemd_unit_state", Kind::Gauge, help), states, None);
    let count =
        |state: &str| systemd.counts.iter().find(|(name, _)| name == state).map_or(0, |(_, count)| *count);
    let counts = STATES.into_iter().map(|state| (vec![("state", state)], f64::from(count(state))));
    let help = "How many of systemd's units are in each state.";
    out.family(("node_systemd_units", Kind::Gauge, help), counts, None);
    true
}

#[cfg(test)]
mod tests {
    use super::major_minor;

    #[test]
    fn versions_of_systems() {
        for (version, expected) in [
            ("20.04.2", Some(20.04)),
            ("13", Some(13.0)),
            ("13.", Some(13.0)),
            ("0.4.0", Some(0.4)),
            ("", None),
            ("sid", None),
            (".5", None),
        ] {
            assert_eq!(major_minor(version), expected, "{version:?}");
        }
    }
}
