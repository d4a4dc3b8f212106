//! Families of processors, memory, devices and resource claims.

use super::{COMMON, counter, gauge, histogram};
use crate::metrics::registry::{Counter, Gauge, Histogram};

/// Placements of pods, milliseconds: doubled from bucket to bucket.
#[rustfmt::skip]
const PLACEMENTS: &[f64] = &[
    0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2,
];
/// Work for resource claims, seconds: 0.1 to 40, each bucket by the same factor larger; upstream's rounding.
#[rustfmt::skip]
const CLAIMS: &[f64] = &[
    0.1, 0.1534127404634391, 0.23535468936502524, 0.36106407876409946, 0.5539182980610752, 0.849781240983936,
    1.303672689737678, 1.9999999999999993, 3.0682548092687805, 4.7070937873005025, 7.221281575281985,
    11.078365961221499, 16.995624819678714, 26.07345379475354, 39.99999999999997,
];

// Processors and memory.

/// Assignments of processors to containers.
pub static CPU_PINNINGS: Counter<0> = counter(
    "kubelet_cpu_manager_pinning_requests_total",
    [],
    "Admissions of containers that are to have processors for themselves.",
);
/// Of them those that failed.
pub static CPU_PINNING_ERRORS: Counter<0> = counter(
    "kubelet_cpu_manager_pinning_errors_total",
    [],
    "Admissions of containers for which there were not enough processors.",
);
/// Processors for everybody.
pub static SHARED_CPUS: Gauge<0> = gauge(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    [],
    "Processors that may still become a container's own, thousandths.",
);
/// Processors of containers.
pub static EXCLUSIVE_CPUS: Gauge<0> = gauge(
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    [],
    "Processors that containers have for themselves.",
);
/// The same by NUMA node.
pub static EXCLUSIVE_CPUS_OF_NODE: Gauge<1> = gauge(
    "kubelet_cpu_manager_allocation_per_numa",
    ["numa_node"],
    "Processors that containers have for themselves, by NUMA node.",
);
/// Placements that keep together.
pub static ALIGNED: Counter<2> = counter(
    "kubelet_container_aligned_compute_resources_count",
    ["scope", "boundary"],
    "Placements whose parts lie within one boundary.",
);
/// Placements that could not.
pub static NOT_ALIGNED: Counter<2> = counter(
    "kubelet_container_aligned_compute_resources_failure_count",
    ["scope", "boundary"],
    "Placements whose parts could not lie within one boundary.",
);
/// Assignments of memory to containers.
pub static MEMORY_PINNINGS: Counter<0> = counter(
    "kubelet_memory_manager_pinning_requests_total",
    [],
    "Admissions of containers that are to have memory for themselves.",
);
/// Of them those that failed.
pub static MEMORY_PINNING_ERRORS: Counter<0> = counter(
    "kubelet_memory_manager_pinning_errors_total",
    [],
    "Admissions of containers for which there was not enough memory.",
);
/// Pods that the topology manager saw.
pub static TOPOLOGY_ADMISSIONS: Counter<0> =
    counter("kubelet_topology_manager_admission_requests_total", [], "Pods whose placement was judged.");
/// Of them those that were refused.
pub static TOPOLOGY_REFUSALS: Counter<0> = counter(
    "kubelet_topology_manager_admission_errors_total",
    [],
    "Pods that were refused because their parts lie too far apart.",
);
/// Time of the topology manager.
pub static TOPOLOGY_DURATION: Histogram<0> = histogram(
    "kubelet_topology_manager_admission_duration_ms",
    [],
    PLACEMENTS,
    "Milliseconds from the judgement of a pod's placement to its outcome, answers of device plugins included.",
);

// Devices.

/// Registrations of device plugins, failed ones too.
pub static DEVICE_PLUGIN_REGISTRATIONS: Counter<1> = counter(
    "kubelet_device_plugin_registration_total",
    ["resource_name"],
    "Calls of Register by device plugins.",
);
/// Answers to `Allocate`.
pub static DEVICE_PLUGIN_ALLOC_DURATION: Histogram<1> = histogram(
    "kubelet_device_plugin_alloc_duration_seconds",
    ["resource_name"],
    COMMON,
    "Seconds that a device plugin took to allocate devices, or to fail.",
);

// Resource claims and plugins.

/// Claims of one pod.
pub static DRA_OPERATIONS: Histogram<2> = histogram(
    "dra_operations_duration_seconds",
    ["operation_name", "is_error"],
    CLAIMS,
    "Seconds for preparing all resource claims of a pod, or for giving them back.",
);
/// Calls of DRA drivers.
pub static DRA_CALLS: Histogram<3> = histogram(
    "dra_grpc_operations_duration_seconds",
    ["driver_name", "method_name", "grpc_status_code"],
    CLAIMS,
    "Seconds that a DRA driver took to answer a call, or to fail.",
);
/// From the owner of resource claims.
pub static DRA_CLAIMS_IN_USE: Gauge<1> = gauge(
    "dra_resource_claims_in_use",
    ["driver_name"],
    "Resource claims that are prepared on this node, by driver; <any>: all of them.",
);
/// From the watcher of plugins.
pub static PLUGINS: Gauge<2> = gauge(
    "plugin_manager_total_plugins",
    ["socket_path", "state"],
    "Registration sockets of plugins: those that exist, and those whose plugins are registered.",
);
