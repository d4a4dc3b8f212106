//! Processor time and memory of one process.

use std::fs;

use anyhow::{Context, Result};
use orlop_config::procfs;

/// Processor time of a process so far, and its present memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, clock ticks.
    pub ticks: u64,
    /// Resident memory, KiB.
    pub rss_kib: u64,
    /// Its anonymous part, KiB.
    pub anon_kib: u64,
}

/// Reads `/proc/PID/stat` and `/proc/PID/status`. Pure.
#[must_use]
pub fn parse_usage(stat: &str, status: &str) -> Option<Usage> {
    let ticks = procfs::process_stat(stat)?.cpu_ticks;
    let kib = |name: &str| procfs::kilobytes(status, name).map(|bytes| bytes / 1024);
    Some(Usage { ticks, rss_kib: kib("VmRSS")?, anon_kib: kib("RssAnon")? })
}

/// Reads the usage of a process, now.
///
/// # Errors
/// If it has ended.
pub fn usage(pid: i32) -> Result<Usage> {
    let read = |file: &str| {
        fs::read_to_string(format!("/proc/{pid}/{file}")).with_context(|| format!("read {file}"))
    };
    parse_usage(&read("stat")?, &read("status")?).context("a /proc of another kernel")
}

/// Resident memory of a process, KiB.
///
/// # Errors
/// If it has ended.
pub fn resident_kib(pid: i32) -> Result<u64> {
    Ok(usage(pid)?.rss_kib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_behind_any_command_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 5 0 1234 1 2 3";
        let status = "Name:\ta\nVmRSS:\t   20480 kB\nRssAnon:\t    8192 kB\n";
        assert_eq!(parse_usage(stat, status), Some(Usage { ticks: 42, rss_kib: 20480, anon_kib: 8192 }));
        assert_eq!(parse_usage("7 (a) S 1", status), None);
    }
}
