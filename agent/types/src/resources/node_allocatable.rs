//! Capacity of the machine, and the allocatable part of it.
//!
//! In: amounts read from the machine, reservations from the configuration. Out: capacity and allocatable by
//! resource name, the same for the Node's status, for admission and for cgroups. Invariants: allocatable =
//! capacity less the reservations for the system, for Kubernetes and for hard eviction, never below zero;
//! huge pages reduce memory too; the number of pods is not reduced. Percentages are computed in integers: a
//! few bytes may differ from upstream's 32-bit floats. Upstream:
//! pkg/kubelet/cm/node_container_manager_linux.go, pkg/kubelet/nodestatus/setters.go.

use std::collections::BTreeMap;

use orlop_config::kubelet::KubeletConfiguration;

use super::requests::{CPU, MEMORY};
use crate::Quantity;
use crate::quantity_text::binary;

/// Resource name of local storage for pods.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// Resource name of the number of pods.
pub const PODS: &str = "pods";
/// Resource name of tasks, in reservations and cgroups only.
pub const PIDS: &str = "pid";
/// Prefix of resource names of huge pages.
pub const HUGEPAGES_PREFIX: &str = "hugepages-";

/// Amounts by resource name.
pub type Resources = BTreeMap<String, Quantity>;

/// Huge pages of one size on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HugePages {
    /// Size of one page, bytes.
    pub page_bytes: u64,
    /// How many the kernel has set aside.
    pub pages: u64,
}

/// Amounts that the machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineAmounts {
    /// Number of online CPUs.
    pub cpus: u32,
    /// `MemTotal`, bytes.
    pub memory_bytes: u64,
    /// Huge pages by size.
    pub hugepages: Vec<HugePages>,
    /// Size of the file system with the kubelet's root directory, bytes; `None` if unknown, or if
    /// `localStorageCapacityIsolation` is off.
    pub ephemeral_storage_bytes: Option<u64>,
}

/// Reservations of the node, and the largest number of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    /// `systemReserved` and `kubeReserved` together; cpu is `reservedSystemCPUs` if that is set.
    reserved: Resources,
    /// `evictionHard` by signal: an amount, or a percentage of the capacity.
    eviction_hard: BTreeMap<String, String>,
    max_pods: i64,
    pods_per_core: i64,
}

impl Reservations {
    /// Reads the configuration. Amounts that do not parse count as zero: validation has refused them before.
    #[must_use]
    pub fn new(kubelet: &KubeletConfiguration) -> Reservations {
        let mut reserved = Resources::new();
        for (name, text) in kubelet.system_reserved.iter().chain(&kubelet.kube_reserved) {
            let sum: &mut Quantity = reserved.entry(name.clone()).or_default();
            *sum = sum.plus(Quantity::parse(text).unwrap_or_default());
        }
        let cpus = orlop_config::formats::parse_cpu_list(&kubelet.reserved_system_cpus);
        if let Some(cpus) = cpus.filter(|c| !c.is_empty()) {
            let count = i64::try_from(cpus.len()).unwrap_or(i64::MAX);
            reserved.insert(CPU.to_owned(), Quantity::from_units(count));
        }
        Reservations {
            reserved,
            eviction_hard: kubelet.eviction_hard.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            max_pods: i64::from(kubelet.max_pods),
            pods_per_core: i64::from(kubelet.pods_per_core),
        }
    }

    /// `maxPods`.
    #[must_use]
    pub fn max_pods(&self) -> i64 {
        self.max_pods
    }

    /// `maxPods`, and no more than `podsPerCore` allows on this many CPUs.
    #[must_use]
    pub fn pods(&self, cpus: u32) -> i64 {
        match self.pods_per_core {
            0 => self.max_pods,
            per_core => self.max_pods.min(per_core.saturating_mul(i64::from(cpus))),
        }
    }

    /// `amounts` less the reservations for the system and for Kubernetes: the limit of the pods' cgroup.
    /// Eviction begins before.
    #[must_use]
    pub fn without_reserved(&self, amounts: &Resources) -> Resources {
        let reserved = |name: &String| self.reserved.get(name).copied().unwrap_or_default();
        amounts.iter().map(|(name, amount)| (name.clone(), less(*amount, reserved(name)))).collect()
    }

    /// Reserved amounts of each resource of `capacity`: for the system, for Kubernetes and for hard eviction. Upstream:
    /// `GetNodeAllocatableReservation`.
    #[must_use]
    pub fn of_capacity(&self, capacity: &Resources) -> Resources {
        let kept = capacity.iter().map(|(name, amount)| (name.clone(), self.kept(name, *amount)));
        kept.filter(|(_, kept)| !kept.is_zero()).collect()
    }

    /// Reserved part of `capacity` of resource `name`.
    fn kept(&self, name: &str, capacity: Quantity) -> Quantity {
        let signal = match name {
            MEMORY => "memory.available",
            EPHEMERAL_STORAGE => "nodefs.available",
            _ => "",
        };
        let evicted = self.eviction_hard.get(signal).map(|amount| threshold(amount, capacity.value()));
        let reserved = self.reserved.get(name).copied().unwrap_or_default();
        reserved.plus(Quantity::from_units(evicted.unwrap_or(0)))
    }
}

/// Capacity of the machine.
#[must_use]
pub fn capacity(machine: &MachineAmounts, reservations: &Reservations) -> Resources {
    let bytes = |amount: u64| Quantity::from_units(i64::try_from(amount).unwrap_or(i64::MAX));
    let mut capacity = Resources::from([
        (CPU.to_owned(), Quantity::from_units(i64::from(machine.cpus))),
        (MEMORY.to_owned(), bytes(machine.memory_bytes)),
        (PODS.to_owned(), Quantity::from_units(reservations.pods(machine.cpus))),
    ]);
    for size in &machine.hugepages {
        let name =
            format!("{HUGEPAGES_PREFIX}{}", binary(i64::try_from(size.page_bytes).unwrap_or(i64::MAX)));
        capacity.insert(name, bytes(size.page_bytes.saturating_mul(size.pages)));
    }
    if let Some(storage) = machine.ephemeral_storage_bytes {
        capacity.insert(EPHEMERAL_STORAGE.to_owned(), bytes(storage));
    }
    capacity
}

/// Allocatable part of `capacity`.
#[must_use]
pub fn allocatable(capacity: &Resources, reservations: &Reservations) -> Resources {
    let mut allocatable: Resources = capacity
        .iter()
        .map(|(name, amount)| (name.clone(), less(*amount, reservations.kept(name, *amount))))
        .collect();
    for (_, pages) in capacity.iter().filter(|(name, _)| name.starts_with(HUGEPAGES_PREFIX)) {
        if let Some(memory) = allocatable.get_mut(MEMORY) {
            *memory = less(*memory, *pages);
        }
    }
    allocatable
}

/// `amount - taken`, not below zero.
fn less(amount: Quantity, taken: Quantity) -> Quantity {
    match amount.plus(taken.negated()) {
        left if left.is_negative() => Quantity::ZERO,
        left => left,
    }
}

/// An eviction threshold as an amount: `100Mi`, or `10%` of the capacity.
fn threshold(amount: &str, capacity: i64) -> i64 {
    match amount.strip_suffix('%') {
        Some(percent) => {
            // Thousandths of a percent, in integers: core computes without floats.
            let (whole, part) = percent.split_once('.').unwrap_or((percent, ""));
            let part = format!("{part:0<3}");
            let thousandths = |s: &str| s.get(..3).and_then(|s| s.parse::<i128>().ok()).unwrap_or(0);
            let share =
                whole.parse::<i128>().unwrap_or(0).saturating_mul(1000).saturating_add(thousandths(&part));
            i64::try_from(i128::from(capacity).saturating_mul(share) / 100_000).unwrap_or(0)
        }
        None => Quantity::parse(amount).map_or(0, Quantity::value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn machine() -> MachineAmounts {
        MachineAmounts {
            cpus: 4,
            memory_bytes: 16 << 30,
            hugepages: vec![
                HugePages { page_bytes: 2 << 20, pages: 512 },
                HugePages { page_bytes: 1 << 30, pages: 0 },
            ],
            ephemeral_storage_bytes: Some(1000),
        }
    }

    #[test]
    fn thresholds() {
        for (amount, capacity, bytes) in [
            ("100Mi", 1 << 30, 100 << 20),
            ("10%", 1000, 100),
            ("7.5%", 1000, 75),
            ("0.1%", 10_000, 10),
            ("x%", 10, 0),
            ("99999999999999999999999999999999999999%", i64::MAX, 0),
        ] {
            assert_eq!(threshold(amount, capacity), bytes, "{amount}");
        }
    }

    #[test]
    fn reservations_evictions_and_huge_pages_are_taken_off() {
        let kubelet = KubeletConfiguration {
            eviction_hard: amounts(&[("memory.available", "100Mi"), ("nodefs.available", "10%")])
                .into_iter()
                .collect(),
            system_reserved: amounts(&[("memory", "1Mi"), ("cpu", "100m")]).into_iter().collect(),
            kube_reserved: amounts(&[("cpu", "50m"), ("pid", "7")]).into_iter().collect(),
            pods_per_core: 10,
            ..KubeletConfiguration::default()
        };
        let reservations = Reservations::new(&kubelet);
        let capacity = capacity(&machine(), &reservations);
        let names: Vec<&str> = capacity.keys().map(String::as_str).collect();
        assert_eq!(names, ["cpu", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi", "memory", "pods"]);
        let allocatable = allocatable(&capacity, &reservations);
        let units = Quantity::from_units;
        assert_eq!(allocatable["cpu"], Quantity::from_milli(3850));
        assert_eq!(allocatable["memory"], units((16 << 30) - (101 << 20) - (1 << 30)));
        assert_eq!(allocatable["ephemeral-storage"], units(900));
        assert_eq!(allocatable["hugepages-2Mi"], units(1 << 30));
        assert_eq!(allocatable["pods"], units(40));
    }

    #[test]
    fn reservations_of_a_capacity_are_those_of_its_resources() {
        let kubelet = KubeletConfiguration {
            eviction_hard: amounts(&[("memory.available", "100Mi"), ("nodefs.available", "10%")]),
            system_reserved: amounts(&[("memory", "1Mi"), ("cpu", "100m"), ("pid", "7")]),
            kube_reserved: amounts(&[("cpu", "3")]),
            ..KubeletConfiguration::default()
        };
        let kept = |kubelet: &KubeletConfiguration| {
            let reservations = Reservations::new(kubelet);
            reservations.of_capacity(&capacity(&machine(), &reservations))
        };
        let mut wanted = Resources::from([
            ("cpu".to_owned(), Quantity::from_milli(3100)),
            ("ephemeral-storage".to_owned(), Quantity::from_units(100)),
            ("memory".to_owned(), Quantity::from_units(101 << 20)),
        ]);
        assert_eq!(kept(&kubelet), wanted);
        // The set replaces the processors of both reservations.
        wanted.insert("cpu".to_owned(), Quantity::from_units(2));
        assert_eq!(kept(&KubeletConfiguration { reserved_system_cpus: "0,3".to_owned(), ..kubelet }), wanted);
    }

    #[test]
    fn reserved_cpus_replace_amounts_and_nothing_goes_below_zero() {
        let kubelet = KubeletConfiguration {
            system_reserved: amounts(&[("cpu", "100"), ("memory", "64Gi")]).into_iter().collect(),
            reserved_system_cpus: "0-1".to_owned(),
            ..KubeletConfiguration::default()
        };
        let reservations = Reservations::new(&kubelet);
        let allocatable = allocatable(&capacity(&machine(), &reservations), &reservations);
        assert_eq!(allocatable["cpu"], Quantity::from_units(2));
        assert_eq!(allocatable["memory"], Quantity::ZERO);
        assert_eq!(allocatable["pods"], Quantity::from_units(i64::from(kubelet.max_pods)));
    }
}
