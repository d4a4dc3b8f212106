//! Series with one value for each cgroup: name, help, and source of the value.

use crate::stats::exposition::Kind;
use crate::stats::usage::{Psi, Throttling, Usage};

/// Where a figure is.
pub(super) type UsageFigure = fn(&Usage) -> Option<f64>;

/// One series of a family; the series of one family follow each other.
pub(super) struct Series {
    /// `None`: of the family before.
    pub(super) name: Option<(&'static str, Kind, &'static str)>,
    /// Name of the family.
    pub(super) more: &'static str,
    /// Labels in addition to those of the cgroup.
    pub(super) labels: &'static [(&'static str, &'static str)],
    /// Source of the value.
    pub(super) of: UsageFigure,
}

const fn counter(name: &'static str, help: &'static str, of: UsageFigure) -> Series {
    Series { name: Some((name, Kind::Counter, help)), more: name, labels: &[], of }
}

const fn gauge(name: &'static str, help: &'static str, of: UsageFigure) -> Series {
    Series { name: Some((name, Kind::Gauge, help)), more: name, labels: &[], of }
}

fn whole(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

fn seconds_of_ns(value: Option<u64>) -> Option<f64> {
    value.map(|ns| ns as f64 / 1e9)
}

/// Reported for cgroups that have a limit, as upstream.
fn throttling(usage: &Usage, of: fn(&Throttling) -> u64) -> Option<u64> {
    usage.cpu.quota_us?;
    usage.cpu.throttling.as_ref().map(of)
}

fn stalled(psi: Option<&Psi>) -> Option<f64> {
    psi.map(|psi| psi.full.total_us as f64 / 1e6)
}

fn waiting(psi: Option<&Psi>) -> Option<f64> {
    psi.map(|psi| psi.some.total_us as f64 / 1e6)
}

/// 0 means no limit, as upstream; without a file for it the value is unknown.
fn limit(usage: &Usage, limit: Option<u64>, controlled: bool) -> Option<f64> {
    (usage.created.is_some() && controlled).then(|| limit.unwrap_or_default() as f64)
}

/// What was set, without a time.
pub(super) const SPEC: [(&str, &str, UsageFigure); 7] = [
    ("container_spec_cpu_period", "Period of the limit on processor time, microseconds.", |u| {
        whole(u.cpu.period_us)
    }),
    ("container_spec_cpu_quota", "Processor time in a period, microseconds.", |u| whole(u.cpu.quota_us)),
    ("container_spec_cpu_shares", "Weight on the processor, as shares.", |u| whole(u.cpu.shares)),
    ("container_spec_memory_limit_bytes", "Limit of memory; 0 without one.", |u| {
        limit(u, u.memory.limit, u.memory.usage.is_some())
    }),
    ("container_spec_memory_reservation_limit_bytes", "Memory that is kept for it.", |u| {
        whole(u.memory.reservation)
    }),
    ("container_spec_memory_swap_limit_bytes", "Limit of swap; 0 without one.", |u| {
        limit(u, u.swap.limit, u.swap.usage.is_some())
    }),
    ("container_start_time_seconds", "When the cgroup was made, in Unix time.", |u| {
        u.created.map(|at| at.0.div_euclid(1_000_000_000) as f64)
    }),
];

/// What was measured.
pub(super) const AMOUNTS: &[Series] = &[
    counter("container_cpu_cfs_burst_periods_total", "Periods with a burst.", |u| {
        whole(throttling(u, |t| t.burst_periods))
    }),
    counter("container_cpu_cfs_burst_seconds_total", "Time used in bursts.", |u| {
        seconds_of_ns(throttling(u, |t| t.burst_ns))
    }),
    counter("container_cpu_cfs_periods_total", "Periods that have passed.", |u| {
        whole(throttling(u, |t| t.periods))
    }),
    counter("container_cpu_cfs_throttled_periods_total", "Periods in which the limit was reached.", |u| {
        whole(throttling(u, |t| t.throttled_periods))
    }),
    counter("container_cpu_cfs_throttled_seconds_total", "Time spent waiting for the next period.", |u| {
        seconds_of_ns(throttling(u, |t| t.throttled_ns))
    }),
    counter("container_cpu_system_seconds_total", "Processor time in the kernel.", |u| {
        seconds_of_ns(u.cpu.system_ns)
    }),
    Series {
        labels: &[("cpu", "total")],
        ..counter("container_cpu_usage_seconds_total", "Processor time.", |u| seconds_of_ns(u.cpu.total_ns))
    },
    counter("container_cpu_user_seconds_total", "Processor time in user mode.", |u| {
        seconds_of_ns(u.cpu.user_ns)
    }),
    gauge("container_file_descriptors", "Open files.", |u| whole(u.tasks.files)),
    gauge("container_memory_cache", "Page cache.", |u| whole(u.memory.cache)),
    counter("container_memory_failcnt", "How often the limit of memory was hit.", |u| {
        whole(u.memory.limit_hits)
    }),
    Series {
        labels: &[("failure_type", "pgfault"), ("scope", "container")],
        ..counter("container_memory_failures_total", "Page faults.", |u| whole(u.memory.page_faults))
    },
    Series {
        name: None,
        labels: &[("failure_type", "pgfault"), ("scope", "hierarchy")],
        ..counter("container_memory_failures_total", "", |u| whole(u.memory.page_faults))
    },
    Series {
        name: None,
        labels: &[("failure_type", "pgmajfault"), ("scope", "container")],
        ..counter("container_memory_failures_total", "", |u| whole(u.memory.major_page_faults))
    },
    Series {
        name: None,
        labels: &[("failure_type", "pgmajfault"), ("scope", "hierarchy")],
        ..counter("container_memory_failures_total", "", |u| whole(u.memory.major_page_faults))
    },
    gauge("container_memory_kernel_usage", "Memory of the kernel for it.", |u| whole(u.memory.kernel)),
    gauge("container_memory_mapped_file", "Page cache that is mapped.", |u| whole(u.memory.mapped_file)),
    gauge("container_memory_max_usage_bytes", "The most memory that was ever used.", |u| {
        whole(u.memory.peak)
    }),
    gauge("container_memory_rss", "Anonymous memory.", |u| whole(u.memory.rss)),
    gauge("container_memory_swap", "Swap.", |u| whole(u.swap.usage)),
    gauge("container_memory_total_active_file_bytes", "Page cache that was used of late.", |u| {
        whole(u.memory.active_file)
    }),
    gauge("container_memory_total_inactive_file_bytes", "Page cache that was not used of late.", |u| {
        whole(u.memory.inactive_file)
    }),
    gauge("container_memory_usage_bytes", "Memory, page cache included.", |u| whole(u.memory.usage)),
    gauge("container_memory_working_set_bytes", "Memory that is not given back without harm.", |u| {
        whole(u.memory.working_set)
    }),
    counter("container_oom_events_total", "Processes killed because memory was short.", |u| {
        whole(u.memory.oom_kills)
    }),
    counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Time in which all waited for a processor.",
        |u| stalled(u.cpu.psi.as_ref()),
    ),
    counter(
        "container_pressure_cpu_waiting_seconds_total",
        "Time in which some waited for a processor.",
        |u| waiting(u.cpu.psi.as_ref()),
    ),
    counter("container_pressure_io_stalled_seconds_total", "Time in which all waited for a device.", |u| {
        stalled(u.io.psi.as_ref())
    }),
    counter("container_pressure_io_waiting_seconds_total", "Time in which some waited for a device.", |u| {
        waiting(u.io.psi.as_ref())
    }),
    counter("container_pressure_memory_stalled_seconds_total", "Time in which all waited for memory.", |u| {
        stalled(u.memory.psi.as_ref())
    }),
    counter(
        "container_pressure_memory_waiting_seconds_total",
        "Time in which some waited for memory.",
        |u| waiting(u.memory.psi.as_ref()),
    ),
    gauge("container_processes", "Processes.", |u| whole(u.tasks.processes)),
    gauge("container_sockets", "Open sockets.", |u| whole(u.tasks.sockets)),
    gauge("container_threads", "Threads.", |u| whole(u.tasks.threads)),
    gauge("container_threads_max", "How many threads there may be; 0 for any number.", |u| {
        limit(u, u.tasks.threads_max, u.tasks.threads.is_some())
    }),
    Series {
        labels: &[("ulimit", "max_open_files")],
        ..gauge("container_ulimits_soft", "Limit of the first process; -1 without one.", |u| {
            u.tasks.files_max.map(|limit| limit as f64)
        })
    },
];
