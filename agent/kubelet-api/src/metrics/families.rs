//! The metric families of the node: names, labels and buckets as in the upstream kubelet v1.36.
//!
//! Help texts are our own. docs/reference/node-metrics.md lists the families whose numbers differ from upstream's, and
//! upstream's families that the node does not have, with the reasons.

mod resources;
mod updates;

use super::registry::{Counter, Gauge, Histogram};

pub use resources::*;
pub use updates::*;

const fn counter<const N: usize>(
    name: &'static str,
    labels: [&'static str; N],
    help: &'static str,
) -> Counter<N> {
    Counter { name, help, labels }
}

const fn gauge<const N: usize>(
    name: &'static str,
    labels: [&'static str; N],
    help: &'static str,
) -> Gauge<N> {
    Gauge { name, help, labels }
}

const fn histogram<const N: usize>(
    name: &'static str,
    labels: [&'static str; N],
    buckets: &'static [f64],
    help: &'static str,
) -> Histogram<N> {
    Histogram { name, help, labels, buckets }
}

/// Prometheus' own, seconds.
const COMMON: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Starts of pods, seconds.
#[rustfmt::skip]
const STARTS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
/// Pulls of images, seconds.
#[rustfmt::skip]
const PULL: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];
/// Writes of statuses, seconds.
const STATUS_SYNC: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// Lives of certificates, seconds: a minute to four years.
#[rustfmt::skip]
const ROTATION: &[f64] = &[
    60.0, 3600.0, 14_400.0, 86_400.0, 604_800.0, 2_592_000.0, 7_776_000.0, 15_552_000.0, 31_104_000.0, 124_416_000.0,
];
/// Requests to the API server, seconds.
const REST: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// Work on volumes, seconds.
const STORAGE: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
/// Containers of a pod.
const CONTAINERS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];

// The node.

/// Always 1, for joins by label.
pub static NODE_NAME: Gauge<1> =
    gauge("kubelet_node_name", ["node"], "Name of the Node object, as a label; always 1.");
/// 1 or 2.
pub static CGROUP_VERSION: Gauge<0> =
    gauge("kubelet_cgroup_version", [], "Version of the cgroup hierarchy in use.");
/// What is built in.
pub static BUILD_INFO: Gauge<9> = gauge(
    "kubernetes_build_info",
    [
        "major",
        "minor",
        "git_version",
        "git_commit",
        "git_tree_state",
        "build_date",
        "go_version",
        "compiler",
        "platform",
    ],
    "Version of Kubernetes that the node implements; always 1.",
);
/// Settings of gates.
pub static FEATURE_ENABLED: Gauge<2> =
    gauge("kubernetes_feature_enabled", ["name", "stage"], "Whether a feature gate is on.");

// Pods and containers.

/// From the runtime.
pub static RUNNING_PODS: Gauge<0> =
    gauge("kubelet_running_pods", [], "Pods that have a ready sandbox in the container runtime.");
/// From the runtime.
pub static RUNNING_CONTAINERS: Gauge<1> = gauge(
    "kubelet_running_containers",
    ["container_state"],
    "Containers in the container runtime, by their state there.",
);
/// From the sources.
pub static DESIRED_PODS: Gauge<1> =
    gauge("kubelet_desired_pods", ["static"], "Pods that the node is told to run.");
/// From sources and statuses.
pub static ACTIVE_PODS: Gauge<1> =
    gauge("kubelet_active_pods", ["static"], "Pods that count when another one asks for room.");
/// From the API.
pub static MIRROR_PODS: Gauge<0> =
    gauge("kubelet_mirror_pods", [], "Mirror pods of this node at the API server.");
/// From the workers.
pub static WORKING_PODS: Gauge<3> = gauge(
    "kubelet_working_pods",
    ["lifecycle", "config", "static"],
    "Pods that have a worker, by how far they are and who wants them.",
);
/// A worker was made for a pod that only the runtime knew.
pub static ORPHANED_RUNTIME_PODS: Counter<0> = counter(
    "kubelet_orphaned_runtime_pods_total",
    [],
    "Pods that were found in the container runtime and that nobody wants.",
);
/// The same UID again.
pub static RESTARTED_PODS: Counter<1> = counter(
    "kubelet_restarted_pods_total",
    ["static"],
    "Pods that were removed and wanted again under the same UID while the node was ending them.",
);
/// At the first look.
pub static CONTAINERS_PER_POD: Histogram<0> = histogram(
    "kubelet_containers_per_pod_count",
    [],
    CONTAINERS,
    "Containers of a pod, when it is first seen.",
);
/// Ephemeral ones.
pub static EPHEMERAL_CONTAINERS: Gauge<0> = gauge(
    "kubelet_managed_ephemeral_containers",
    [],
    "Ephemeral containers of the pods that the node is told to run.",
);
/// First look to running.
pub static POD_START: Histogram<0> = histogram(
    "kubelet_pod_start_duration_seconds",
    [],
    STARTS,
    "Seconds from the first look at a pod until it runs.",
);
/// Creation to running, without pulls and init containers.
pub static POD_START_SLI: Histogram<0> = histogram(
    "kubelet_pod_start_sli_duration_seconds",
    [],
    STARTS,
    "Seconds from a pod's creation until the API server shows all its containers as started, without pulls of images \
     and without init containers. Pods with volumes that keep state are left out.",
);
/// Creation to running.
pub static POD_START_TOTAL: Histogram<0> = histogram(
    "kubelet_pod_start_total_duration_seconds",
    [],
    STARTS,
    "Seconds from a pod's creation until the API server shows all its containers as started.",
);
/// The first one with a network of its own.
pub static FIRST_NETWORK_POD_START: Gauge<0> = gauge(
    "kubelet_first_network_pod_start_sli_duration_seconds",
    [],
    "The same without pulls and init containers, of the first pod with a network of its own.",
);
/// First look to worker.
pub static POD_WORKER_START: Histogram<0> = histogram(
    "kubelet_pod_worker_start_duration_seconds",
    [],
    COMMON,
    "Seconds from the first look at a pod until its worker begins.",
);
/// Rounds of work.
pub static POD_WORKER: Histogram<1> = histogram(
    "kubelet_pod_worker_duration_seconds",
    ["operation_type"],
    COMMON,
    "Seconds of one round of work for a pod: from its first call until nothing is under way.",
);
/// Worker to API.
pub static POD_STATUS_SYNC: Histogram<0> = histogram(
    "kubelet_pod_status_sync_duration_seconds",
    [],
    STATUS_SYNC,
    "Seconds from a change of a pod's status until the API server has taken it.",
);
/// Attempts to make a sandbox.
pub static STARTED_PODS: Counter<0> =
    counter("kubelet_started_pods_total", [], "Attempts to make a pod's sandbox.");
/// Those that failed.
pub static STARTED_PODS_ERRORS: Counter<0> =
    counter("kubelet_started_pods_errors_total", [], "Attempts to make a pod's sandbox that failed.");
/// Of the attempts those of pods with a user namespace of their own.
pub static STARTED_USER_NAMESPACED_PODS: Counter<0> = counter(
    "kubelet_started_user_namespaced_pods_total",
    [],
    "Attempts to make the sandbox of a pod with a user namespace of its own.",
);
/// Those that failed.
pub static STARTED_USER_NAMESPACED_PODS_ERRORS: Counter<0> = counter(
    "kubelet_started_user_namespaced_pods_errors_total",
    [],
    "Attempts to make the sandbox of a pod with a user namespace of its own that failed.",
);
/// The runtime's part of it.
pub static RUN_PODSANDBOX: Histogram<1> = histogram(
    "kubelet_run_podsandbox_duration_seconds",
    ["runtime_handler"],
    COMMON,
    "Seconds that the container runtime takes to make a sandbox.",
);
/// Cgroups of pods and above them.
pub static CGROUP_MANAGER: Histogram<1> = histogram(
    "kubelet_cgroup_manager_duration_seconds",
    ["operation_type"],
    COMMON,
    "Seconds that it takes to make, change or remove a cgroup (create, update, destroy).",
);
/// With the gate MemoryQoS.
pub static MEMORY_QOS_MIN: Gauge<0> = gauge(
    "kubelet_memory_qos_node_memory_min_bytes",
    [],
    "Bytes that no other may take from Guaranteed pods (memory.min).",
);
/// With the gate MemoryQoS.
pub static MEMORY_QOS_LOW: Gauge<0> = gauge(
    "kubelet_memory_qos_node_memory_low_bytes",
    [],
    "Bytes that others should not take from Burstable pods (memory.low).",
);
/// Those that failed.
pub static RUN_PODSANDBOX_ERRORS: Counter<1> = counter(
    "kubelet_run_podsandbox_errors_total",
    ["runtime_handler"],
    "Sandboxes that the container runtime could not make.",
);
/// Attempts to start a container.
pub static STARTED_CONTAINERS: Counter<1> = counter(
    "kubelet_started_containers_total",
    ["container_type"],
    "Attempts to start a container, pulling its image included.",
);
/// Images that containers were to mount.
pub static IMAGE_VOLUMES: Counter<0> = counter(
    "kubelet_image_volume_requested_total",
    [],
    "Images that containers were to have as volumes, once for each time that one was to be made.",
);
/// Mounts of them that succeeded.
pub static IMAGE_VOLUMES_MOUNTED: Counter<0> = counter(
    "kubelet_image_volume_mounted_succeed_total",
    [],
    "Mounts of images that the container runtime made.",
);
/// Mounts of them that did not.
pub static IMAGE_VOLUMES_FAILED: Counter<0> = counter(
    "kubelet_image_volume_mounted_errors_total",
    [],
    "Mounts of images that the container runtime could not make.",
);
/// Those that failed.
pub static STARTED_CONTAINERS_ERRORS: Counter<2> = counter(
    "kubelet_started_containers_errors_total",
    ["container_type", "code"],
    "Attempts to start a container that failed, by the reason that its status tells.",
);
/// Ends of containers.
pub static TERMINATED_CONTAINERS: Counter<3> = counter(
    "kubelet_terminated_containers_total",
    ["container_type", "exit_code", "reason"],
    "Containers that ended.",
);
/// Pulls that succeeded.
pub static IMAGE_PULL: Histogram<1> = histogram(
    "kubelet_image_pull_duration_seconds",
    ["image_size_in_bytes"],
    PULL,
    "Seconds that a pull took which succeeded, by size of the image.",
);
/// Answers to whether a pod may use an image that is there: `credentialPolicyAllowed`, `credentialRecordFound`,
/// `mustAuthenticate`.
pub static MUST_PULL_CHECKS: Counter<1> = counter(
    "kubelet_imagemanager_image_mustpull_checks_total",
    ["result"],
    "Times that it was looked up whether a pod may use an image that is there, by what came of it.",
);
/// Pulls that were begun, on disk.
pub static PULL_INTENTS: Gauge<0> =
    gauge("kubelet_imagemanager_ondisk_pullintents", [], "Records on disk of pulls that were begun.");
/// Images that were pulled, on disk.
pub static PULLED_RECORDS: Gauge<0> =
    gauge("kubelet_imagemanager_ondisk_pulledrecords", [], "Records on disk of images that were pulled.");
/// Runs of credential-provider plugins.
pub static PLUGIN_DURATION: Histogram<1> = histogram(
    "kubelet_credential_provider_plugin_duration",
    ["plugin_name"],
    COMMON,
    "Seconds that a credential-provider plugin took to answer.",
);
/// Those that failed.
pub static PLUGIN_ERRORS: Counter<1> = counter(
    "kubelet_credential_provider_plugin_errors_total",
    ["plugin_name"],
    "Failures of credential-provider plugins.",
);
/// Refusals.
pub static ADMISSION_REJECTIONS: Counter<1> =
    counter("kubelet_admission_rejections_total", ["reason"], "Pods that the node refused.");

/// Pods that ended to make room for others.
pub static PREEMPTIONS: Counter<1> = counter(
    "kubelet_preemptions",
    ["preemption_signal"],
    "Pods that had to go because a critical one wanted their room, by the resource.",
);

/// Pods that were evicted because the node was short of something, or because they took too much.
pub static EVICTIONS: Counter<1> =
    counter("kubelet_evictions", ["eviction_signal"], "Pods that the node ended, by what was short.");

/// How old the figures were.
pub static EVICTION_STATS_AGE: Histogram<1> = histogram(
    "kubelet_eviction_stats_age_seconds",
    ["eviction_signal"],
    COMMON,
    "Seconds between the reading of the figures and the choice of a pod that they led to.",
);

// Resizes.

/// Milliseconds: a call of the runtime to ten minutes.
#[rustfmt::skip]
const RESIZE_MS: &[f64] = &[
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0, 300_000.0,
    600_000.0,
];
/// Changes of amounts in the API.
pub static REQUESTED_RESIZES: Counter<3> = counter(
    "kubelet_container_requested_resizes_total",
    ["resource", "requirement", "operation"],
    "Changes of containers' requests and limits that were asked for, each by itself.",
);
/// How long they took.
pub static RESIZE_DURATION: Histogram<1> = histogram(
    "kubelet_pod_resize_duration_milliseconds",
    ["success"],
    RESIZE_MS,
    "Milliseconds in which a pod's containers were given what it was given.",
);
/// Those that wait.
pub static PENDING_RESIZES: Gauge<1> =
    gauge("kubelet_pod_pending_resizes", ["reason"], "Pods that ask for amounts that they do not get now.");
/// Those that cannot be.
pub static INFEASIBLE_RESIZES: Counter<1> = counter(
    "kubelet_pod_infeasible_resizes_total",
    ["reason_detail"],
    "Requests for other amounts that cannot be fulfilled on this node.",
);
/// Those under way.
pub static PROGRESSING_RESIZES: Gauge<0> = gauge(
    "kubelet_pod_in_progress_resizes",
    [],
    "Pods whose containers do not have yet what the pod was given.",
);
/// Those that came true later.
pub static DEFERRED_ACCEPTED_RESIZES: Counter<1> = counter(
    "kubelet_pod_deferred_accepted_resizes_total",
    ["retry_trigger"],
    "Requests that were deferred and then fulfilled, by what made them be judged again.",
);

// The machine's stop.

/// Unix seconds.
pub static SHUTDOWN_START: Gauge<0> = gauge(
    "kubelet_graceful_shutdown_start_time_seconds",
    [],
    "When the last graceful shutdown began; 0 before the first.",
);
/// Unix seconds.
pub static SHUTDOWN_END: Gauge<0> = gauge(
    "kubelet_graceful_shutdown_end_time_seconds",
    [],
    "When the last graceful shutdown had ended all pods; 0 meanwhile.",
);

// Certificates, the API server, the node's own server.

/// Certificates for pods.
pub static POD_CERTIFICATES: Gauge<2> = gauge(
    "kubelet_podcertificate_states",
    ["signer_name", "state"],
    "Sources of pods' volumes that ask a signer for a certificate, by what has become of it.",
);
/// Remaining life.
pub static CLIENT_TTL: Gauge<0> = gauge(
    "kubelet_certificate_manager_client_ttl_seconds",
    [],
    "Seconds until the client certificate ends; +Inf without one, below zero once it has ended.",
);
/// Remaining life.
pub static SERVER_TTL: Gauge<0> = gauge(
    "kubelet_certificate_manager_server_ttl_seconds",
    [],
    "Seconds until the serving certificate ends; +Inf without one, below zero once it has ended.",
);
/// Failures.
pub static CLIENT_RENEW_ERRORS: Counter<0> = counter(
    "kubelet_certificate_manager_client_expiration_renew_errors",
    [],
    "Attempts to get a client certificate that failed.",
);
/// Failures.
pub static SERVER_RENEW_ERRORS: Counter<0> = counter(
    "kubelet_server_expiration_renew_errors",
    [],
    "Attempts to get a serving certificate that failed.",
);
/// Lives.
pub static SERVER_ROTATION: Histogram<0> = histogram(
    "kubelet_certificate_manager_server_rotation_seconds",
    [],
    ROTATION,
    "Seconds that a serving certificate lived before another one took its place.",
);
/// Requests to the API server.
pub static REST_REQUESTS: Counter<3> = counter(
    "rest_client_requests_total",
    ["code", "method", "host"],
    "Requests to the API server by status code, <error> without an answer.",
);
/// How long they take.
pub static REST_DURATION: Histogram<2> = histogram(
    "rest_client_request_duration_seconds",
    ["verb", "host"],
    REST,
    "Seconds until the API server begins to answer.",
);
/// The node's own limit.
pub static REST_RATE_LIMITER: Histogram<2> = histogram(
    "rest_client_rate_limiter_duration_seconds",
    ["verb", "host"],
    REST,
    "Seconds that requests wait for the node's own limits (kubeAPIQPS, eventRecordQPS).",
);
/// Requests to the node.
pub static HTTP_REQUESTS: Counter<4> = counter(
    "kubelet_http_requests_total",
    ["method", "path", "server_type", "long_running"],
    "Requests to the node's HTTPS API, refused ones included.",
);
/// How long they take.
pub static HTTP_DURATION: Histogram<4> = histogram(
    "kubelet_http_requests_duration_seconds",
    ["method", "path", "server_type", "long_running"],
    COMMON,
    "Seconds until a request to the node's HTTPS API is answered.",
);
/// Under way.
pub static HTTP_INFLIGHT: Gauge<4> = gauge(
    "kubelet_http_inflight_requests",
    ["method", "path", "server_type", "long_running"],
    "Requests to the node's HTTPS API that are under way.",
);
/// Questions about pods' resources.
pub static POD_RESOURCES_REQUESTS: Counter<1> = counter(
    "kubelet_pod_resources_endpoint_requests_total",
    ["server_api_version"],
    "Questions to the pod resources API.",
);
/// Of them those for all pods.
pub static POD_RESOURCES_LIST: Counter<1> = counter(
    "kubelet_pod_resources_endpoint_requests_list",
    ["server_api_version"],
    "Questions to the pod resources API for all pods.",
);
/// Of them those for one pod.
pub static POD_RESOURCES_GET: Counter<1> = counter(
    "kubelet_pod_resources_endpoint_requests_get",
    ["server_api_version"],
    "Questions to the pod resources API for one pod.",
);
/// Those about a pod that there is not.
pub static POD_RESOURCES_GET_ERRORS: Counter<1> = counter(
    "kubelet_pod_resources_endpoint_errors_get",
    ["server_api_version"],
    "Questions to the pod resources API for a pod that is not active here.",
);
/// Of them those for what the node has.
pub static POD_RESOURCES_ALLOCATABLE: Counter<1> = counter(
    "kubelet_pod_resources_endpoint_requests_get_allocatable",
    ["server_api_version"],
    "Questions to the pod resources API for what the node can give.",
);

// Volumes.

/// Work on volumes.
pub static STORAGE_OPERATION: Histogram<4> = histogram(
    "storage_operation_duration_seconds",
    ["volume_plugin", "operation_name", "status", "migrated"],
    STORAGE,
    "Seconds that work on a volume takes.",
);
/// What is mounted.
pub static TOTAL_VOLUMES: Gauge<2> = gauge(
    "volume_manager_total_volumes",
    ["plugin_name", "state"],
    "Volumes of pods: those that are wanted, and those that are there.",
);

// The container runtime; the start of the node, the process, probes and health checks.

mod process;
mod runtime;

pub use process::*;
pub use runtime::*;
