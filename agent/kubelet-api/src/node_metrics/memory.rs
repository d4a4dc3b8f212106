//! Memory and open files: `meminfo`, `vmstat` and `sys/fs/file-nr` of /proc.

use std::collections::BTreeMap;

use super::{KernelFiles, NodeFacts, is_name, number, single};
use crate::stats::exposition::{Exposition, Kind};

/// Lines of /proc/meminfo that have a family: amounts of memory.
const AMOUNTS: [&str; 47] = [
    "Active",
    "Active(anon)",
    "Active(file)",
    "AnonHugePages",
    "AnonPages",
    "Bounce",
    "Buffers",
    "Cached",
    "CmaFree",
    "CmaTotal",
    "CommitLimit",
    "Committed_AS",
    "DirectMap1G",
    "DirectMap2M",
    "DirectMap4k",
    "Dirty",
    "HardwareCorrupted",
    "Hugepagesize",
    "Inactive",
    "Inactive(anon)",
    "Inactive(file)",
    "KernelStack",
    "Mapped",
    "MemAvailable",
    "MemFree",
    "MemTotal",
    "Mlocked",
    "NFS_Unstable",
    "PageTables",
    "Percpu",
    "SReclaimable",
    "SUnreclaim",
    "Shmem",
    "ShmemHugePages",
    "ShmemPmdMapped",
    "Slab",
    "SwapCached",
    "SwapFree",
    "SwapTotal",
    "Unevictable",
    "VmallocChunk",
    "VmallocTotal",
    "VmallocUsed",
    "Writeback",
    "WritebackTmp",
    "Zswap",
    "Zswapped",
];
/// Numbers of pages, which have no unit.
const PAGES: [&str; 4] = ["HugePages_Free", "HugePages_Rsvd", "HugePages_Surp", "HugePages_Total"];

pub(super) fn meminfo<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let text = files.text("proc/meminfo").unwrap_or_default();
    let values = amounts(&text);
    let mut has_data = false;
    for key in AMOUNTS {
        let name = format!("node_memory_{}_bytes", key.replace('(', "_").replace(')', ""));
        let help = format!("{key} of /proc/meminfo, bytes.");
        has_data |= single(out, (&name, Kind::Gauge, &help), values.get(key).copied());
    }
    for key in PAGES {
        let (name, help) = (format!("node_memory_{key}"), format!("{key} of /proc/meminfo, pages."));
        single(out, (&name, Kind::Gauge, &help), values.get(key).copied());
    }
    has_data
}

/// Amounts by name: bytes, or a number where the line has no unit.
fn amounts(meminfo: &str) -> BTreeMap<&str, f64> {
    let amount = |text: &str| {
        let mut words = text.split_ascii_whitespace();
        let amount = number(words.next()?)?;
        Some(amount * if words.next() == Some("kB") { 1024.0 } else { 1.0 })
    };
    meminfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter_map(|(name, text)| Some((name, amount(text)?)))
        .collect()
}

pub(super) fn vmstat<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let text = files.text("proc/vmstat").unwrap_or_default();
    let values: BTreeMap<&str, f64> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (name, value) = (words.next()?, words.next()?);
            (is_shown(name) && is_name(name)).then_some((name, number(value)?))
        })
        .collect();
    for (field, value) in &values {
        let (name, help) = (format!("node_vmstat_{field}"), format!("{field} of /proc/vmstat."));
        single(out, (&name, Kind::Untyped, &help), Some(*value));
    }
    !values.is_empty()
}

/// node_exporter's choice: kills for want of memory, paging, swapping, faults.
fn is_shown(field: &str) -> bool {
    ["oom_kill", "pgpg", "pswp"].iter().any(|prefix| field.starts_with(prefix))
        || field.strip_prefix("pg").is_some_and(|rest| rest.contains("fault"))
}

pub(super) fn filefd<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let text = files.text("proc/sys/fs/file-nr").unwrap_or_default();
    let numbers: Vec<f64> = text.split_ascii_whitespace().map_while(number).collect();
    let [allocated, _, maximum] = numbers[..] else { return false };
    single(out, ("node_filefd_allocated", Kind::Gauge, "Open files of the machine."), Some(allocated));
    single(out, ("node_filefd_maximum", Kind::Gauge, "Files that may be open on the machine."), Some(maximum))
}
