//! Values of the cgroups of all pods and of their QoS classes. Upstream:
//! pkg/kubelet/cm/qos_container_manager_linux.go, pkg/kubelet/cm/node_container_manager_linux.go.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use orlop_config::kubelet::KubeletConfiguration;
use orlop_config::kubelet::enums::{CpuManagerPolicy, NodeAllocatableEnforcement};

use super::super::node_allocatable::{MachineAmounts, PIDS, PODS, Reservations, Resources, capacity};
use super::super::requests::{CPU, MEMORY, pod_request};
use super::super::{QosClass, qos_class};
use super::values::{compressible, of_amounts, unbounded, units, weight_of};
use super::{CgroupName, CgroupValues};
use crate::Quantity;
use crate::node_context::{CgroupDriver, MemoryQos};

/// Sums over the pods that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Processor requests of Burstable pods, thousandths of a core.
    pub burstable_milli: i64,
    /// Memory requests of Burstable pods, bytes.
    pub burstable_memory: u64,
    /// Memory requests of Guaranteed pods, bytes.
    pub guaranteed_memory: u64,
}

impl Sums {
    /// Sums of these pods.
    #[must_use]
    pub fn of<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> Sums {
        pods.into_iter().fold(Sums::default(), |mut sums, pod| {
            let memory = || units(pod_request(pod, MEMORY));
            match qos_class(pod) {
                QosClass::Guaranteed => {
                    sums.guaranteed_memory = sums.guaranteed_memory.saturating_add(memory());
                }
                QosClass::Burstable => {
                    let milli = pod_request(pod, CPU).milli_value();
                    sums.burstable_milli = sums.burstable_milli.saturating_add(milli);
                    sums.burstable_memory = sums.burstable_memory.saturating_add(memory());
                }
                QosClass::BestEffort => {}
            }
            sums
        })
    }
}

/// `qosReserved: {memory: N%}` (gate QOSReserved): lower classes may not use this part of the requests of
/// higher classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReserve {
    /// Memory for pods, bytes.
    pub allocatable: u64,
    /// 0 to 100.
    pub percent: u8,
}

impl MemoryReserve {
    /// As configured, on this machine.
    #[must_use]
    pub fn of(kubelet: &KubeletConfiguration, machine: &Machine) -> Option<MemoryReserve> {
        // Validated with the rest of the configuration.
        let percent = kubelet.qos_reserved.get(MEMORY)?.strip_suffix('%')?.parse().ok()?;
        let reservations = Reservations::new(kubelet);
        let amounts = reservations.without_reserved(&capacity(&machine.amounts, &reservations));
        let allocatable = units(*amounts.get(MEMORY)?);
        (allocatable > 0).then_some(MemoryReserve { allocatable, percent })
    }

    fn limit(self, class: QosClass, sums: Sums) -> u64 {
        let part = |asked: u64| {
            u64::try_from(u128::from(asked) * u128::from(self.percent) / 100).unwrap_or(u64::MAX)
        };
        let burstable = self.allocatable.saturating_sub(part(sums.guaranteed_memory));
        match class {
            QosClass::Guaranteed => self.allocatable,
            QosClass::Burstable => burstable,
            QosClass::BestEffort => burstable.saturating_sub(part(sums.burstable_memory)),
        }
    }
}

/// Settings of the cgroups of classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Memory reservation for pods.
    pub memory: MemoryQos,
    /// Part that is reserved from other classes.
    pub reserve: Option<MemoryReserve>,
    /// Page sizes as the kernel spells them in cgroup files.
    pub hugepage_sizes: Vec<String>,
}

/// The cgroup of a class; for Guaranteed the cgroup of all pods, without the values of [`root`]. While the
/// requests of pods are unknown, the values that follow from them stay unchanged.
#[must_use]
pub fn tier(class: QosClass, sums: Option<Sums>, rules: &Classes) -> CgroupValues {
    let kept = |amount: fn(Sums) -> u64| match rules.memory {
        MemoryQos::Off => None,
        MemoryQos::None => Some(0),
        MemoryQos::Tiered => sums.map(amount),
    };
    let memory_max = rules.reserve.zip(sums).map(|(reserve, sums)| reserve.limit(class, sums));
    let sizes = &rules.hugepage_sizes;
    match class {
        QosClass::Guaranteed => CgroupValues {
            memory_min: kept(|sums| sums.guaranteed_memory.saturating_add(sums.burstable_memory)),
            ..CgroupValues::default()
        },
        QosClass::Burstable => CgroupValues {
            cpu_weight: sums.map(|sums| weight_of(sums.burstable_milli)),
            memory_low: kept(|sums| sums.burstable_memory),
            memory_max,
            hugetlb: unbounded(sizes),
            ..CgroupValues::default()
        },
        QosClass::BestEffort => CgroupValues {
            cpu_weight: Some(weight_of(0)),
            memory_max,
            hugetlb: unbounded(sizes),
            ..CgroupValues::default()
        },
    }
}

/// Amounts of the machine for cgroups that the Node does not show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Amounts as the Node shows them.
    pub amounts: MachineAmounts,
    /// Largest number of tasks; `None` if the kernel does not report it.
    pub pids_max: Option<u64>,
    /// Page sizes as the kernel spells them in cgroup files.
    pub hugepage_sizes: Vec<String>,
    /// The processors, as the kernel lists them.
    pub cpus: String,
}

fn enforces(kubelet: &KubeletConfiguration, kind: NodeAllocatableEnforcement) -> bool {
    kubelet.enforce_node_allocatable.contains(&kind)
}

/// Processors of the cgroups above pods. The static policy sets the processors of each container itself, which keeps the controller.
fn cpus<'m>(kubelet: &KubeletConfiguration, machine: &'m Machine) -> &'m str {
    match kubelet.cpu_manager_policy {
        CpuManagerPolicy::None => &machine.cpus,
        CpuManagerPolicy::Static => "",
    }
}

/// The cgroup of all pods: the machine's amounts, less the reservations if these are enforced. Eviction
/// begins below it.
#[must_use]
pub fn root(kubelet: &KubeletConfiguration, machine: &Machine) -> CgroupValues {
    let reservations = Reservations::new(kubelet);
    let mut amounts = capacity(&machine.amounts, &reservations);
    amounts.remove(PODS);
    if let Some(pids) = machine.pids_max {
        amounts.insert(PIDS.to_owned(), Quantity::from_units(i64::try_from(pids).unwrap_or(i64::MAX)));
    }
    if enforces(kubelet, NodeAllocatableEnforcement::Pods) {
        amounts = reservations.without_reserved(&amounts);
    }
    of_amounts(&amounts, &machine.hugepage_sizes, cpus(kubelet, machine))
}

/// A cgroup outside the pods' with an enforced reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// `system` or `kube`, for people.
    pub whose: &'static str,
    /// Name in the configuration.
    pub configured: String,
    /// Name of the cgroup.
    pub name: CgroupName,
    /// Values of its files.
    pub values: CgroupValues,
    /// True if only the processor's values are set.
    pub compressible: bool,
}

/// The cgroups that `enforceNodeAllocatable` names in addition to the pods', in upstream's order.
#[must_use]
pub fn reserved(
    kubelet: &KubeletConfiguration,
    machine: &Machine,
    driver: CgroupDriver,
    memory: MemoryQos,
) -> Vec<Reserved> {
    use NodeAllocatableEnforcement as Kind;
    let parsed = |list: &mut dyn Iterator<Item = (&String, &String)>| -> Resources {
        list.map(|(name, text)| (name.clone(), Quantity::parse(text).unwrap_or_default())).collect()
    };
    let system = || ("system", &kubelet.system_reserved_cgroup, parsed(&mut kubelet.system_reserved.iter()));
    let kube = || ("kube", &kubelet.kube_reserved_cgroup, parsed(&mut kubelet.kube_reserved.iter()));
    let kinds = [
        (Kind::SystemReserved, system(), false),
        (Kind::KubeReserved, kube(), false),
        (Kind::SystemReservedCompressible, system(), true),
        (Kind::KubeReservedCompressible, kube(), true),
    ];
    let wanted = kinds.into_iter().filter(|(kind, ..)| enforces(kubelet, *kind));
    wanted
        .map(|(_, (whose, configured, amounts), only_compressible)| {
            let mut values = if only_compressible {
                compressible(&amounts, cpus(kubelet, machine))
            } else {
                of_amounts(&amounts, &machine.hugepage_sizes, cpus(kubelet, machine))
            };
            if memory != MemoryQos::Off {
                values.memory_min = values.memory_max;
            }
            Reserved {
                whose,
                configured: configured.clone(),
                name: CgroupName::parse(configured, driver),
                values,
                compressible: only_compressible,
            }
        })
        .collect()
}
