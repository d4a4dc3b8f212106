//! Processors, load, pressure and the kernel's totals: `stat`, `loadavg` and `pressure` of /proc, processors of /sys.

use std::collections::BTreeMap;

use super::{CPUS_MAX, KernelFiles, NodeFacts, file_number, flag, number, ranges, single, value};
use crate::stats::exposition::{Exposition, Kind};

/// Ticks of /proc/stat in a second (`USER_HZ`), on every architecture that there is an image for.
const TICKS_PER_SECOND: f64 = 100.0;
/// Columns of a processor in /proc/stat; two more are the time in guests.
const MODES: [&str; 8] = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];
/// Of the columns behind them.
const GUEST_MODES: [&str; 2] = ["user", "nice"];
const CPUS: &str = "sys/devices/system/cpu";

pub(super) fn cpu<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let cpus = cpu_lines(&files.text("proc/stat").unwrap_or_default());
    let guests = cpus.iter().flat_map(|(cpu, seconds)| {
        let times = GUEST_MODES.into_iter().zip(seconds.iter().skip(MODES.len()));
        times.map(move |(mode, seconds)| (vec![("cpu", cpu.as_str()), ("mode", mode)], *seconds))
    });
    let help = "Seconds that a processor ran virtual machines, which user and nice contain, too.";
    out.family(("node_cpu_guest_seconds_total", Kind::Counter, help), guests, None);
    present(files, out);
    throttles(files, out);
    let times = cpus.iter().flat_map(|(cpu, seconds)| {
        let times = MODES.into_iter().zip(seconds);
        times.map(move |(mode, seconds)| (vec![("cpu", cpu.as_str()), ("mode", mode)], *seconds))
    });
    let help = "Seconds that a processor spent in each mode.";
    out.family(("node_cpu_seconds_total", Kind::Counter, help), times, None);
    !cpus.is_empty()
}

/// Number and seconds of each processor that is online.
fn cpu_lines(stat: &str) -> Vec<(String, Vec<f64>)> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let cpu: u32 = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        let seconds: Vec<f64> = words.map_while(number).map(|ticks| ticks / TICKS_PER_SECOND).collect();
        (!seconds.is_empty()).then_some((cpu, seconds))
    };
    let cpus: BTreeMap<u32, Vec<f64>> = stat.lines().filter_map(line).take(CPUS_MAX).collect();
    cpus.into_iter().map(|(cpu, seconds)| (cpu.to_string(), seconds)).collect()
}

/// Which processors are isolated, and which are online where they can be turned off.
fn present<F: KernelFiles>(files: &F, out: &mut Exposition) {
    let list = |name: &str| ranges(&files.text(&format!("{CPUS}/{name}")).unwrap_or_default());
    let names =
        |name: &str| -> Vec<(u32, String)> { list(name).into_iter().map(|n| (n, n.to_string())).collect() };
    let isolated = names("isolated");
    let samples = isolated.iter().map(|(_, name)| (vec![("cpu", name.as_str())], 1.0));
    let help = "Processors that the scheduler leaves alone; always 1.";
    out.family(("node_cpu_isolated", Kind::Gauge, help), samples, None);
    if files.text(&format!("{CPUS}/cpu0/online")).is_none() {
        return;
    }
    let (online, present) = (list("online"), names("present"));
    let samples = present.iter().map(|(n, name)| (vec![("cpu", name.as_str())], flag(online.contains(n))));
    out.family(("node_cpu_online", Kind::Gauge, "Whether a processor is online."), samples, None);
}

/// How often cores and packages were slowed down because of their temperature.
fn throttles<F: KernelFiles>(files: &F, out: &mut Exposition) {
    // A machine whose first processor does not count it counts it for none.
    if files.text(&format!("{CPUS}/cpu0/thermal_throttle/core_throttle_count")).is_none() {
        return;
    }
    let mut cores: BTreeMap<(String, String), f64> = BTreeMap::new();
    let mut packages: BTreeMap<String, f64> = BTreeMap::new();
    for cpu in ranges(&files.text(&format!("{CPUS}/present")).unwrap_or_default()) {
        let id = |name: &str| {
            let text = files.text(&format!("{CPUS}/cpu{cpu}/topology/{name}"))?;
            Some(text.trim().parse::<u64>().ok()?.to_string())
        };
        let count = |name: &str| file_number(files, &format!("{CPUS}/cpu{cpu}/thermal_throttle/{name}"));
        // A processor that is off has no topology.
        let (Some(package), Some(core)) = (id("physical_package_id"), id("core_id")) else { continue };
        if !cores.contains_key(&(package.clone(), core.clone()))
            && let Some(count) = count("core_throttle_count")
        {
            cores.insert((package.clone(), core), count);
        }
        if !packages.contains_key(&package)
            && let Some(count) = count("package_throttle_count")
        {
            packages.insert(package, count);
        }
    }
    let samples = cores.iter().map(|((package, core), count)| {
        (vec![("core", core.as_str()), ("package", package.as_str())], *count)
    });
    let help = "How often a core was slowed down because of its temperature.";
    out.family(("node_cpu_core_throttles_total", Kind::Counter, help), samples, None);
    let samples = packages.iter().map(|(package, count)| (vec![("package", package.as_str())], *count));
    let help = "How often a package was slowed down because of its temperature.";
    out.family(("node_cpu_package_throttles_total", Kind::Counter, help), samples, None);
}

pub(super) fn stat<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let stat = files.text("proc/stat").unwrap_or_default();
    let families = [
        ("intr", "node_intr_total", Kind::Counter, "Interrupts."),
        ("ctxt", "node_context_switches_total", Kind::Counter, "Changes from one task to another."),
        ("processes", "node_forks_total", Kind::Counter, "Tasks that were made."),
        ("btime", "node_boot_time_seconds", Kind::Gauge, "When the machine started, seconds since 1970."),
        ("procs_running", "node_procs_running", Kind::Gauge, "Tasks that run or could run."),
        ("procs_blocked", "node_procs_blocked", Kind::Gauge, "Tasks that wait for a device."),
    ];
    let mut has_data = false;
    for (key, name, kind, help) in families {
        has_data |= single(out, (name, kind, help), value(&stat, key));
    }
    has_data
}

pub(super) fn loadavg<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let text = files.text("proc/loadavg").unwrap_or_default();
    let loads: Vec<f64> = text.split_ascii_whitespace().take(3).map_while(number).collect();
    let [one, five, fifteen] = loads[..] else { return false };
    for (name, minutes, load) in [
        ("node_load1", "1 minute", one),
        ("node_load5", "5 minutes", five),
        ("node_load15", "15 minutes", fifteen),
    ] {
        let help = format!("Tasks that ran, could run or waited for a device, mean of {minutes}.");
        single(out, (name, Kind::Gauge, &help), Some(load));
    }
    true
}

pub(super) fn pressure<F: KernelFiles>(files: &F, _: &NodeFacts, out: &mut Exposition) -> bool {
    let families = [
        (
            "cpu",
            "some",
            "node_pressure_cpu_waiting_seconds_total",
            "Seconds in which a task waited for a processor.",
        ),
        (
            "io",
            "some",
            "node_pressure_io_waiting_seconds_total",
            "Seconds in which a task waited for a device.",
        ),
        (
            "io",
            "full",
            "node_pressure_io_stalled_seconds_total",
            "Seconds in which all tasks waited for devices.",
        ),
        (
            "memory",
            "some",
            "node_pressure_memory_waiting_seconds_total",
            "Seconds in which a task waited for memory.",
        ),
        (
            "memory",
            "full",
            "node_pressure_memory_stalled_seconds_total",
            "Seconds in which all tasks waited for memory.",
        ),
        (
            "irq",
            "full",
            "node_pressure_irq_stalled_seconds_total",
            "Seconds in which all tasks waited for interrupts.",
        ),
    ];
    let mut has_data = false;
    let mut last = ("", String::new());
    for (resource, line, name, help) in families {
        if last.0 != resource {
            last = (resource, files.text(&format!("proc/pressure/{resource}")).unwrap_or_default());
        }
        has_data |= single(out, (name, Kind::Counter, help), stalled_seconds(&last.1, line));
    }
    has_data
}

/// `total=` of a line (`some`, `full`), which the kernel counts in microseconds.
fn stalled_seconds(text: &str, line: &str) -> Option<f64> {
    let line = text.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(' '))?;
    let total = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?;
    Some(number(total)? / 1e6)
}
