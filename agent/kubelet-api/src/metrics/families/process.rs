//! Metric families of the agent itself: the node's start, the process, and probes and health checks, which have their own endpoints.

use super::{COMMON, counter, gauge, histogram};
use crate::metrics::registry::{Counter, Gauge, Histogram};

// Start of the node; only of one that was registered by this run.

/// Boot to agent.
pub static STARTUP_PRE_KUBELET: Gauge<0> = gauge(
    "kubelet_node_startup_pre_kubelet_duration_seconds",
    [],
    "Seconds from the machine's boot to the start of the agent.",
);
/// Agent to first attempt.
pub static STARTUP_PRE_REGISTRATION: Gauge<0> = gauge(
    "kubelet_node_startup_pre_registration_duration_seconds",
    [],
    "Seconds from the start of the agent to its first attempt to register the node.",
);
/// First attempt to Node.
pub static STARTUP_REGISTRATION: Gauge<0> = gauge(
    "kubelet_node_startup_registration_duration_seconds",
    [],
    "Seconds from the first attempt to register the node until it is registered.",
);
/// Node to Ready.
pub static STARTUP_POST_REGISTRATION: Gauge<0> = gauge(
    "kubelet_node_startup_post_registration_duration_seconds",
    [],
    "Seconds from the node's registration until it is ready.",
);
/// Boot to Ready.
pub static STARTUP: Gauge<0> = gauge(
    "kubelet_node_startup_duration_seconds",
    [],
    "Seconds from the machine's boot until the node is ready.",
);

// The process.

/// Processor time.
pub static PROCESS_CPU: Counter<0> =
    counter("process_cpu_seconds_total", [], "Processor time of the agent, seconds.");
/// Memory.
pub static PROCESS_RESIDENT: Gauge<0> =
    gauge("process_resident_memory_bytes", [], "Resident memory of the agent, bytes.");
/// Address space.
pub static PROCESS_VIRTUAL: Gauge<0> =
    gauge("process_virtual_memory_bytes", [], "Address space of the agent, bytes.");
/// Open files.
pub static PROCESS_OPEN_FDS: Gauge<0> = gauge("process_open_fds", [], "Open files of the agent.");
/// Their limit.
pub static PROCESS_MAX_FDS: Gauge<0> = gauge("process_max_fds", [], "Files that the agent may have open.");
/// Start.
pub static PROCESS_START: Gauge<0> =
    gauge("process_start_time_seconds", [], "When the agent was started, seconds since 1970.");

// Probes and health checks, at their own endpoints.

/// Questions by result.
pub static PROBES: Counter<6> = counter(
    "prober_probe_total",
    ["probe_type", "result", "container", "pod", "namespace", "pod_uid"],
    "Probes of containers, by result.",
);
/// How long they take.
pub static PROBE_DURATION: Histogram<4> = histogram(
    "prober_probe_duration_seconds",
    ["probe_type", "container", "pod", "namespace"],
    COMMON,
    "Seconds that probes take which do not fail.",
);
/// The last result.
pub static HEALTHCHECK: Gauge<2> = gauge(
    "kubernetes_healthcheck",
    ["name", "type"],
    "Whether a health check succeeded when last asked for.",
);
/// All results.
pub static HEALTHCHECKS: Counter<3> = counter(
    "kubernetes_healthchecks_total",
    ["name", "type", "status"],
    "Results of health checks that were asked for.",
);
