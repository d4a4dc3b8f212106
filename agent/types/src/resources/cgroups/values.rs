//! Values of a cgroup, in the form of the kernel's files (cgroup v2).
//!
//! In: amounts of the API. Out: [`CgroupValues`] and the texts of the files. Linux:
//! Documentation/admin-guide/cgroup-v2.rst. Upstream: pkg/kubelet/cm/cgroup_manager_linux.go (`getCPUWeight`,
//! `maybeSetHugetlb`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::node_allocatable::{PIDS, Resources};
use super::super::requests::{CPU, HUGEPAGES_PREFIX, MEMORY};
use crate::Quantity;
use crate::resources::cpu::{cpu_shares, kernel_page_size};

const SHARES_MIN: u64 = 2;
const SHARES_MAX: u64 = 262_144;
const WEIGHT_MAX: u64 = 10_000;
/// Limit of huge pages for the cgroups of classes: more than any machine has.
pub(super) const UNBOUNDED: u64 = 1 << 62;

/// `cpu.max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuMax {
    /// Microseconds of processor time in each period; `None`: no limit.
    pub quota_us: Option<u64>,
    /// Length of the period, microseconds.
    pub period_us: u64,
}

/// Values of one cgroup; `None` leaves a file unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupValues {
    /// `cpu.weight`, 1 to 10000.
    pub cpu_weight: Option<u64>,
    /// `cpu.max`.
    pub cpu_max: Option<CpuMax>,
    /// `cpuset.cpus`, as the kernel lists processors (`0-3,8`).
    pub cpus: Option<String>,
    /// `memory.max`, bytes.
    pub memory_max: Option<u64>,
    /// `memory.min`, bytes.
    pub memory_min: Option<u64>,
    /// `memory.low`, bytes.
    pub memory_low: Option<u64>,
    /// `pids.max`.
    pub pids_max: Option<u64>,
    /// `hugetlb.<size>.max`, bytes by page size as the kernel spells it (`2MB`).
    pub hugetlb: BTreeMap<String, u64>,
}

impl CgroupValues {
    /// The files and their contents, in the order of writing.
    #[must_use]
    pub fn files(&self) -> Vec<(String, String)> {
        let number = |file: &str, value: Option<u64>| value.map(|v| (file.to_owned(), v.to_string()));
        let cpu_max = self.cpu_max.map(|max| {
            let quota = max.quota_us.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
            ("cpu.max".to_owned(), format!("{quota} {}", max.period_us))
        });
        let cpus = self.cpus.clone().map(|cpus| ("cpuset.cpus".to_owned(), cpus));
        let pages = self.hugetlb.iter().map(|(size, max)| (format!("hugetlb.{size}.max"), max.to_string()));
        [
            number("cpu.weight", self.cpu_weight),
            cpu_max,
            cpus,
            number("memory.max", self.memory_max),
            number("memory.min", self.memory_min),
            number("memory.low", self.memory_low),
            number("pids.max", self.pids_max),
        ]
        .into_iter()
        .flatten()
        .chain(pages)
        .collect()
    }
}

/// The kubelet's linear conversion from shares of the old hierarchy, 2 to 262144, to a weight. Runtimes convert a container's shares
/// with another formula of their own.
#[must_use]
pub fn cpu_weight(shares: i64) -> u64 {
    let shares = u64::try_from(shares).unwrap_or(0).clamp(SHARES_MIN, SHARES_MAX);
    1 + (shares - SHARES_MIN) * (WEIGHT_MAX - 1) / (SHARES_MAX - SHARES_MIN)
}

/// The weight of `milli` thousandths of a core.
#[must_use]
pub fn weight_of(milli: i64) -> u64 {
    cpu_weight(cpu_shares(milli))
}

/// Whole units of an amount, never below zero.
pub(super) fn units(amount: Quantity) -> u64 {
    u64::try_from(amount.value()).unwrap_or(0)
}

/// Limits of huge pages: the amount of each size in `amounts`, and zero for the other `sizes` of the kernel.
pub(super) fn hugetlb<'a>(
    amounts: impl Iterator<Item = (&'a str, Quantity)>,
    sizes: &[String],
) -> BTreeMap<String, u64> {
    let mut limits: BTreeMap<String, u64> = sizes.iter().map(|size| (size.clone(), 0)).collect();
    for (name, amount) in amounts {
        let size = name.strip_prefix(HUGEPAGES_PREFIX).and_then(kernel_page_size);
        // A size that the kernel does not offer has no file.
        if let Some(limit) = size.and_then(|size| limits.get_mut(&size)) {
            *limit = limit.saturating_add(units(amount));
        }
    }
    limits
}

/// Huge pages as the classes have them.
pub(super) fn unbounded(sizes: &[String]) -> BTreeMap<String, u64> {
    sizes.iter().map(|size| (size.clone(), UNBOUNDED)).collect()
}

/// The values of a cgroup for `amounts`: a share of the processor, and a limit of everything else.
#[must_use]
pub fn of_amounts(amounts: &Resources, sizes: &[String], cpus: &str) -> CgroupValues {
    let of = |name: &str| amounts.get(name).copied();
    let pages = amounts.iter().map(|(name, amount)| (name.as_str(), *amount));
    CgroupValues {
        memory_max: of(MEMORY).map(units),
        pids_max: of(PIDS).map(units),
        hugetlb: hugetlb(pages, sizes),
        ..compressible(amounts, cpus)
    }
}

/// The values for the processor only: no process is killed when it is short of processor time.
#[must_use]
pub fn compressible(amounts: &Resources, cpus: &str) -> CgroupValues {
    CgroupValues {
        cpu_weight: amounts.get(CPU).map(|cpu| weight_of(cpu.milli_value())),
        // systemd would remove the controller from pods if no setting used it.
        cpus: (!cpus.is_empty()).then(|| cpus.to_owned()),
        ..CgroupValues::default()
    }
}
