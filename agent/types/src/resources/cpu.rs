//! Quantities as the kernel's cgroup files want them.

use crate::Quantity;

const SHARES_MIN: i64 = 2;

const SHARES_MAX: i64 = 262_144;

const QUOTA_MIN_US: i64 = 1000;

/// CPU weight of `milli` thousandths of a core.
#[must_use]
pub fn cpu_shares(milli: i64) -> i64 {
    milli.saturating_mul(1024).saturating_div(1000).clamp(SHARES_MIN, SHARES_MAX)
}

/// CFS quota in microseconds for a limit of `milli` thousandths of a core; 0 for no limit.
#[must_use]
pub fn cpu_quota_us(milli: i64, period_us: i64) -> i64 {
    if milli <= 0 { 0 } else { (milli.saturating_mul(period_us) / 1000).max(QUOTA_MIN_US) }
}

/// `2Mi` becomes `2MB`, as cgroup files spell it.
#[must_use]
pub fn kernel_page_size(size: &str) -> Option<String> {
    let bytes = Quantity::parse(size).ok()?.value();
    let units = [(1i64 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")];
    let (unit, name) = units.into_iter().find(|(unit, _)| bytes >= *unit && bytes % unit == 0)?;
    Some(format!("{}{name}", bytes / unit))
}
