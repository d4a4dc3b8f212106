//! Metrics of the operating system (`/metrics/node`), with the names, kinds, labels and units of node_exporter.
//!
//! ```text
//! /proc, /sys, /run (KernelFiles) ───────────┐
//! uname, adjtimex, statfs, systemd's answer, ├─► collectors, one after the other ─► text of one scrape
//! problems of the node (NodeFacts) ──────────┘
//! ```
//! In: files by their paths, and facts that are in no file. Out: the text. Invariants: no collector panics, for any bytes of a file;
//! a family appears once; a file that cannot be read, or a line of another form, leaves its values out and no others; the length of
//! the text is bounded by the `_MAX` constants. The program node_exporter is the source of the names, its code is not used.
//! docs/reference/node-metrics.md lists the collectors and the differences.

mod clock;
mod cpu;
mod disk;
mod facts;
pub mod filesystem;
mod memory;
mod network;
mod own;
mod sensors;
mod sockets;
mod system;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::stats::exposition::{Exposition, Kind};

pub use facts::{FilesystemUsage, MountUsage, NodeFacts, SystemUnit, SystemUnits, TimexReading, UnameFacts};

/// Devices of one kind (interfaces, disks) that are shown.
const DEVICES_MAX: usize = 256;
/// Processors that are shown.
const CPUS_MAX: usize = 1024;

/// More than the largest number of the kernel.
const NUMBER_MAX: f64 = 1e20;

/// Small files of the kernel and of the node, by their path without the first slash (`proc/stat`).
pub trait KernelFiles {
    /// The text of a file; `None` if it cannot be read. Bytes that are no UTF-8 are replaced.
    fn text(&self, path: &str) -> Option<String>;

    /// The names in a directory, sorted; none if it cannot be read.
    fn names(&self, path: &str) -> Vec<String>;

    /// The path to which all links of a path lead; `None` if it leads nowhere.
    fn real_path(&self, path: &str) -> Option<String>;
}

/// Writes its families; false if the machine has none of them.
type Collector<F> = fn(&F, &NodeFacts, &mut Exposition) -> bool;

/// The collectors by the names of node_exporter, and `orlop` with the families of this system.
fn collectors<F: KernelFiles>() -> [(&'static str, Collector<F>); 22] {
    [
        ("conntrack", sockets::conntrack::<F>),
        ("cpu", cpu::cpu::<F>),
        ("diskstats", disk::diskstats::<F>),
        ("filefd", memory::filefd::<F>),
        ("filesystem", filesystem::filesystem::<F>),
        ("hwmon", sensors::hwmon::<F>),
        ("loadavg", cpu::loadavg::<F>),
        ("meminfo", memory::meminfo::<F>),
        ("netclass", network::netclass::<F>),
        ("netdev", network::netdev::<F>),
        ("netstat", sockets::netstat::<F>),
        ("orlop", own::orlop::<F>),
        ("os", system::os::<F>),
        ("pressure", cpu::pressure::<F>),
        ("sockstat", sockets::sockstat::<F>),
        ("stat", cpu::stat::<F>),
        ("systemd", system::systemd::<F>),
        ("thermal_zone", sensors::thermal_zone::<F>),
        ("time", clock::time::<F>),
        ("timex", clock::timex::<F>),
        ("uname", system::uname::<F>),
        ("vmstat", memory::vmstat::<F>),
    ]
}

/// What `/metrics/node` answers. `elapsed`: a clock that only runs forward, for the durations of the collectors.
#[must_use]
pub fn text<F: KernelFiles>(files: &F, facts: &NodeFacts, elapsed: &dyn Fn() -> Duration) -> String {
    let mut out = Exposition::default();
    let mut outcomes = Vec::new();
    for (name, collect) in collectors::<F>() {
        let began = elapsed();
        let has_data = collect(files, facts, &mut out);
        outcomes.push((name, has_data, elapsed().saturating_sub(began)));
    }
    let by_name = |name: &'static str| vec![("collector", name)];
    let took = outcomes.iter().map(|&(name, _, took)| (by_name(name), took.as_secs_f64()));
    let help = "Seconds that a collector took for this scrape.";
    out.family(("node_scrape_collector_duration_seconds", Kind::Gauge, help), took, None);
    let done = outcomes.iter().map(|&(name, has_data, _)| (by_name(name), flag(has_data)));
    let help = "Whether a collector has data; 0 if the machine has none of its kind.";
    out.family(("node_scrape_collector_success", Kind::Gauge, help), done, None);
    out.into_text()
}

/// A family with one sample and without labels; nothing without a value.
fn single(out: &mut Exposition, family: (&str, Kind, &str), value: Option<f64>) -> bool {
    out.family(family, value.map(|value| (Vec::new(), value)), None);
    value.is_some()
}

/// 1 or 0.
fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// A number as the kernel may write it: none is beyond 64 bits.
fn number(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|number| number.abs() <= NUMBER_MAX)
}

/// The number in a file that has nothing else.
fn file_number<F: KernelFiles>(files: &F, path: &str) -> Option<f64> {
    number(&files.text(path)?)
}

/// The number behind a word at the beginning of a line.
fn value(text: &str, key: &str) -> Option<f64> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    lines.find_map(|mut words| if words.next()? == key { number(words.next()?) } else { None })
}

/// True if the word can be part of a metric's name.
fn is_name(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Numbers of a list of the kernel (`0-3,8`), at most [`CPUS_MAX`].
fn ranges(list: &str) -> BTreeSet<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    list.trim().split(',').filter_map(range).flatten().take(CPUS_MAX).collect()
}
