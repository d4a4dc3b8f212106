//! Amounts and times for people. Pure.

/// Bytes in the largest unit of which there is at least one.
pub(crate) fn bytes(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} B")
}

/// Seconds in two units.
pub(crate) fn seconds(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

/// Milliseconds as seconds.
pub(crate) fn milliseconds(ms: u64) -> String {
    format!("{}.{:03}s", ms / 1000, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts() {
        for (amount, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_610_612_736, "1.5 GiB"),
            (1 << 41, "2.0 TiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(bytes(amount), text);
        }
        for (amount, text) in [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3_720, "1h 2m"), (90_000, "1d 1h")] {
            assert_eq!(seconds(amount), text);
        }
        assert_eq!(milliseconds(1_204), "1.204s");
    }
}
