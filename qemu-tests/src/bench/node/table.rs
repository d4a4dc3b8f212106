//! The table of `bench node`: a column for each measurement, a row for each program and each part of the kernel.
//!
//! In: names and [`NodeUsage`]s. Out: lines. Pure. What was not measured is shown as unknown, never as zero.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::usage::{NodeUsage, ProgramUsage};

/// Characters of a row's name.
const LABEL: usize = 28;
/// Characters of the numbers of processes, MiB and milliseconds.
const NUMBER: usize = 5;
const MEBI: usize = 9;
const TIME: usize = 10;
const UNKNOWN: &str = "unknown";
/// Seconds.
const DAY: f64 = 86_400.0;

/// A measurement with its name.
pub(super) type NamedUsage = (String, NodeUsage);

/// The lines of the table, then what each measurement wrote.
pub(super) fn table(columns: &[NamedUsage]) -> Vec<String> {
    let width = NUMBER + MEBI + TIME;
    let heads = columns.iter().map(|(name, _)| format!("{name:>width$}"));
    let units = columns.iter().map(|_| cells("n", "MiB", "ms/min"));
    let mut lines = vec![row("", heads), row("program", units)];
    let of_node = |usage: &NodeUsage| usage.programs.clone();
    lines.extend(programs(columns, of_node));
    lines.push(row("all programs", columns.iter().map(|(_, usage)| program(usage, &usage.processes()))));
    lines.extend(kernel_parts(columns).into_iter().map(|label| {
        let part =
            |usage: &NodeUsage| usage.kernel.iter().find(|(name, _)| *name == label).map(|(_, kib)| *kib);
        row(&format!("kernel: {label}"), columns.iter().map(|(_, usage)| memory(part(usage))))
    }));
    lines.push(row("all of the kernel", columns.iter().map(|(_, usage)| memory(usage.kernel_kib()))));
    let together = |usage: &NodeUsage| Some(usage.kernel_kib()? + usage.processes().pss_kib);
    lines.push(row("all that is not a pod's", columns.iter().map(|(_, usage)| memory(together(usage)))));
    lines.push(row("the machine, in use", columns.iter().map(|(_, usage)| machine(usage))));
    lines.extend(
        programs(columns, |usage| usage.pods.clone()).into_iter().map(|line| format!("(pods) {line}")),
    );
    lines.extend(columns.iter().map(|(name, usage)| format!("{name}: {}", more(usage))));
    lines
}

/// A row for each program, the one with the most memory first.
fn programs(
    columns: &[NamedUsage],
    of: impl Fn(&NodeUsage) -> BTreeMap<String, ProgramUsage>,
) -> Vec<String> {
    let all: Vec<(&NodeUsage, BTreeMap<String, ProgramUsage>)> =
        columns.iter().map(|(_, usage)| (usage, of(usage))).collect();
    let mut most: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, found) in all.iter().flat_map(|(_, programs)| programs) {
        let kib = most.entry(name).or_default();
        *kib = found.pss_kib.max(*kib);
    }
    let mut names: Vec<(&str, u64)> = most.into_iter().collect();
    names.sort_by_key(|(_, kib)| std::cmp::Reverse(*kib));
    let none = ProgramUsage::default();
    let rows = names.into_iter().map(|(name, _)| {
        row(name, all.iter().map(|(usage, programs)| program(usage, programs.get(name).unwrap_or(&none))))
    });
    rows.collect()
}

/// The parts of the kernel that any of the columns has, in order.
fn kernel_parts(columns: &[NamedUsage]) -> Vec<&'static str> {
    let mut labels = Vec::new();
    for (label, _) in columns.iter().flat_map(|(_, usage)| &usage.kernel) {
        if !labels.contains(label) {
            labels.push(*label);
        }
    }
    labels
}

fn row(label: &str, all: impl Iterator<Item = String>) -> String {
    let mut line = format!("{label:<LABEL$}");
    for cells in all {
        let _ = write!(line, " {cells}");
    }
    line.trim_end().to_owned()
}

fn cells(processes: &str, memory: &str, time: &str) -> String {
    format!("{processes:>NUMBER$}{memory:>MEBI$}{time:>TIME$}")
}

fn mebi(kib: u64) -> String {
    format!("{:.1}", kib as f64 / 1024.0)
}

fn time(ms_per_minute: Option<f64>) -> String {
    ms_per_minute.map_or(UNKNOWN.to_owned(), |ms| format!("{ms:.0}"))
}

fn program(usage: &NodeUsage, program: &ProgramUsage) -> String {
    if program.processes == 0 {
        return cells("-", "-", "-");
    }
    cells(&program.processes.to_string(), &mebi(program.pss_kib), &time(usage.ms_per_minute(program.ticks)))
}

fn memory(kib: Option<u64>) -> String {
    cells("", &kib.map_or(UNKNOWN.to_owned(), mebi), "")
}

fn machine(usage: &NodeUsage) -> String {
    cells("", &usage.in_use_kib.map_or(UNKNOWN.to_owned(), mebi), &time(usage.busy_ms_per_minute))
}

/// What a column has no room for.
fn more(usage: &NodeUsage) -> String {
    let cgroups = usage.cgroups.map_or(format!("cgroups {UNKNOWN}"), |(all, dying)| {
        format!("{all} cgroups, {dying} removed ones still in memory")
    });
    let mut writers: Vec<(&str, u64)> = usage
        .programs
        .iter()
        .map(|(name, program)| (name.as_str(), program.written_bytes))
        .filter(|(_, bytes)| *bytes > 0)
        .collect();
    writers.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let writers: Vec<String> =
        writers.into_iter().map(|(name, bytes)| format!("{name} {} KiB", bytes / 1024)).collect();
    let writers = if writers.is_empty() { "no program".to_owned() } else { writers.join(", ") };
    format!("{cgroups}; {}; written by {writers}", written(usage))
}

fn written(usage: &NodeUsage) -> String {
    let (Some(bytes), Some(window_s)) = (usage.written_bytes, usage.window_s) else {
        return format!("written to disks {UNKNOWN}");
    };
    let a_day = bytes as f64 / window_s * DAY / 1e6;
    format!(
        "{} KiB written to disks in {window_s:.0} s, which were {a_day:.0} MB a day if each moment were like it",
        bytes / 1024
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(programs: &[(&str, u32, u64, u64)]) -> NodeUsage {
        let programs = programs.iter().map(|(name, processes, pss_kib, ticks)| {
            let (processes, pss_kib, ticks) = (*processes, *pss_kib, *ticks);
            ((*name).to_owned(), ProgramUsage { processes, pss_kib, ticks, written_bytes: 0 })
        });
        NodeUsage { window_s: Some(60.0), programs: programs.collect(), ..Default::default() }
    }

    #[test]
    fn a_table_has_every_program_and_both_sums() {
        let mut full = usage(&[("kubelet", 1, 16 * 1024, 3), ("shims", 10, 40 * 1024, 0)]);
        full.kernel = vec![("page tables", 2048), ("verity hashes", 512)];
        (full.in_use_kib, full.busy_ms_per_minute) = (Some(100 * 1024), Some(500.0));
        let pause = ProgramUsage { processes: 10, pss_kib: 512, ticks: 0, written_bytes: 0 };
        full.pods.insert("pause containers".into(), pause);
        full.programs.insert(
            "systemd".into(),
            ProgramUsage { processes: 1, pss_kib: 1024, ticks: 1, written_bytes: 8192 },
        );
        (full.cgroups, full.written_bytes) = (Some((60, 2)), Some(61_440));
        let columns =
            [("10 pods".to_owned(), full), ("native".to_owned(), usage(&[("kubelet", 1, 15 * 1024, 0)]))];
        let want = [
            "                                              10 pods                   native",
            "program                          n      MiB    ms/min     n      MiB    ms/min",
            "shims                           10     40.0         0     -        -         -",
            "kubelet                          1     16.0        30     1     15.0         0",
            "systemd                          1      1.0        10     -        -         -",
            "all programs                    12     57.0        40     1     15.0         0",
            "kernel: page tables                     2.0                  unknown",
            "kernel: verity hashes                   0.5                  unknown",
            "all of the kernel                       2.5                  unknown",
            "all that is not a pod's                59.5                  unknown",
            "the machine, in use                   100.0       500        unknown   unknown",
            "(pods) pause containers                10      0.5         0     -        -         -",
            "10 pods: 60 cgroups, 2 removed ones still in memory; 60 KiB written to disks in 60 s, which were 88 MB a \
             day if each moment were like it; written by systemd 8 KiB",
            "native: cgroups unknown; written to disks unknown; written by no program",
        ];
        assert_eq!(table(&columns), want);
    }

    #[test]
    fn a_time_without_a_window_is_unknown() {
        let usage = NodeUsage { window_s: None, ..usage(&[("kubelet", 1, 1024, 3)]) };
        let lines = table(&[("agent".to_owned(), usage)]);
        assert!(lines[2].ends_with("1      1.0   unknown"), "{lines:#?}");
        assert_eq!(table(&[]).len(), 6);
    }
}
