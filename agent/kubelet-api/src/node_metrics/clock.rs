//! The clock: its time, its source, and how the kernel corrects it.

use std::collections::BTreeSet;

use super::{KernelFiles, NodeFacts, TimexReading, flag, single};
use crate::stats::exposition::{Exposition, Kind};

const SOURCES: &str = "sys/devices/system/clocksource";
/// Groups of clock sources; Linux has one.
const SOURCES_MAX: usize = 4;
/// `STA_NANO`: offset and jitter are in nanoseconds.
const IN_NANOSECONDS: i64 = 0x2000;
/// Parts per million with 16 bits of fraction.
const PPM_FRACTION: f64 = 1e6 * 65536.0;

pub(super) fn time<F: KernelFiles>(files: &F, facts: &NodeFacts, out: &mut Exposition) -> bool {
    // Seconds: exact to microseconds.
    #[allow(clippy::cast_precision_loss)]
    let now = facts.now.0 as f64 / 1e9;
    let mut devices = files.names(SOURCES);
    devices.retain(|name| name.starts_with("clocksource"));
    devices.truncate(SOURCES_MAX);
    let read = |device: &str, name: &str| {
        files.text(&format!("{SOURCES}/{device}/{name}_clocksource")).unwrap_or_default()
    };
    let numbered: Vec<(String, String, String)> = devices
        .iter()
        .enumerate()
        .map(|(n, device)| (n.to_string(), read(device, "available"), read(device, "current")))
        .collect();
    let available = numbered.iter().flat_map(|(n, available, _)| {
        let sources: BTreeSet<&str> = available.split_ascii_whitespace().take(16).collect();
        sources.into_iter().map(move |source| (vec![("clocksource", source), ("device", n.as_str())], 1.0))
    });
    let help = "Clock sources that the kernel can use; always 1.";
    out.family(("node_time_clocksource_available_info", Kind::Gauge, help), available, None);
    let current = numbered.iter().filter(|(_, _, current)| !current.trim().is_empty());
    let current =
        current.map(|(n, _, source)| (vec![("clocksource", source.trim()), ("device", n.as_str())], 1.0));
    let help = "The clock source that the kernel uses; always 1.";
    out.family(("node_time_clocksource_current_info", Kind::Gauge, help), current, None);
    single(out, ("node_time_seconds", Kind::Gauge, "The node's clock, seconds since 1970."), Some(now));
    let zone = [(vec![("time_zone", "UTC")], 0.0)];
    let help = "Offset of the node's time zone, seconds; an Orlop node has UTC.";
    out.family(("node_time_zone_offset_seconds", Kind::Gauge, help), zone, None);
    true
}

pub(super) fn timex<F: KernelFiles>(_: &F, facts: &NodeFacts, out: &mut Exposition) -> bool {
    let Some(timex) = &facts.timex else { return false };
    for (name, kind, help, value) in families(timex) {
        single(out, (name, kind, help), Some(value));
    }
    true
}

// Values of the kernel's control loop: all far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn families(timex: &TimexReading) -> [(&'static str, Kind, &'static str, f64); 17] {
    let fraction = if timex.status & IN_NANOSECONDS == 0 { 1e6 } else { 1e9 };
    let of = |value: i64| value as f64;
    [
        (
            "node_timex_estimated_error_seconds",
            Kind::Gauge,
            "Estimated error of the clock.",
            of(timex.esterror) / 1e6,
        ),
        (
            "node_timex_frequency_adjustment_ratio",
            Kind::Gauge,
            "How fast the clock is made to run; 1 is its own speed.",
            1.0 + of(timex.freq) / PPM_FRACTION,
        ),
        (
            "node_timex_loop_time_constant",
            Kind::Gauge,
            "Time constant of the control loop.",
            of(timex.constant),
        ),
        ("node_timex_maxerror_seconds", Kind::Gauge, "Largest error of the clock.", of(timex.maxerror) / 1e6),
        (
            "node_timex_offset_seconds",
            Kind::Gauge,
            "Offset that is being corrected.",
            of(timex.offset) / fraction,
        ),
        (
            "node_timex_pps_calibration_total",
            Kind::Counter,
            "Calibrations of the pulse per second.",
            of(timex.calcnt),
        ),
        ("node_timex_pps_error_total", Kind::Counter, "Calibrations that failed.", of(timex.errcnt)),
        (
            "node_timex_pps_frequency_hertz",
            Kind::Gauge,
            "Frequency of the pulse per second.",
            of(timex.ppsfreq) / PPM_FRACTION,
        ),
        (
            "node_timex_pps_jitter_seconds",
            Kind::Gauge,
            "Jitter of the pulse per second.",
            of(timex.jitter) / fraction,
        ),
        ("node_timex_pps_jitter_total", Kind::Counter, "Pulses with too much jitter.", of(timex.jitcnt)),
        ("node_timex_pps_shift_seconds", Kind::Gauge, "Interval of the pulse per second.", of(timex.shift)),
        (
            "node_timex_pps_stability_exceeded_total",
            Kind::Counter,
            "Intervals that were not steady.",
            of(timex.stbcnt),
        ),
        (
            "node_timex_pps_stability_hertz",
            Kind::Gauge,
            "Stability of the pulse per second.",
            of(timex.stabil) / PPM_FRACTION,
        ),
        ("node_timex_status", Kind::Gauge, "Bits of the clock's state (STA_*).", of(timex.status)),
        (
            "node_timex_sync_status",
            Kind::Gauge,
            "Whether the clock is synchronised with another one.",
            flag(timex.synchronized),
        ),
        ("node_timex_tai_offset_seconds", Kind::Gauge, "TAI without UTC.", of(timex.tai)),
        ("node_timex_tick_seconds", Kind::Gauge, "Between two ticks.", of(timex.tick) / 1e6),
    ]
}
