//! Metric families of the container runtime: calls, lists of PLEG, its event stream, streams of exec and attach, collected images.

use super::{COMMON, counter, gauge, histogram};
use crate::metrics::registry::{Counter, Gauge, Histogram};

/// Buckets for calls of the runtime, seconds: 5 ms, and each 2.5 times the previous one.
#[rustfmt::skip]
const RUNTIME: &[f64] = &[
    0.005, 0.0125, 0.03125, 0.078125, 0.1953125, 0.48828125, 1.220703125, 3.0517578125, 7.62939453125,
    19.073486328125, 47.6837158203125, 119.20928955078125, 298.0232238769531, 745.0580596923828,
];

/// Calls.
pub static RUNTIME_OPERATIONS: Counter<1> = counter(
    "kubelet_runtime_operations_total",
    ["operation_type"],
    "Calls of the container runtime and of its image service.",
);
/// Those that failed.
pub static RUNTIME_OPERATIONS_ERRORS: Counter<1> = counter(
    "kubelet_runtime_operations_errors_total",
    ["operation_type"],
    "Calls of the container runtime that failed or had no answer in time.",
);
/// How long they take.
pub static RUNTIME_OPERATIONS_DURATION: Histogram<1> = histogram(
    "kubelet_runtime_operations_duration_seconds",
    ["operation_type"],
    RUNTIME,
    "Seconds that calls of the container runtime take.",
);
/// Lists.
pub static PLEG_RELIST: Histogram<0> =
    histogram("kubelet_pleg_relist_duration_seconds", [], COMMON, "Seconds that listing all pods takes.");
/// Between lists.
pub static PLEG_RELIST_INTERVAL: Histogram<0> =
    histogram("kubelet_pleg_relist_interval_seconds", [], COMMON, "Seconds between two lists of all pods.");
/// Looks at one pod.
pub static PLEG_POD_RELIST: Histogram<0> = histogram(
    "kubelet_pleg_pod_relist_duration_seconds",
    [],
    COMMON,
    "Seconds that looking at one pod takes.",
);
/// When the runtime was last heard.
pub static PLEG_LAST_SEEN: Gauge<0> = gauge(
    "kubelet_pleg_last_seen_seconds",
    [],
    "When PLEG last had an answer or an event of the container runtime, seconds since 1970.",
);
/// The event stream.
pub static EVENT_STREAMS: Counter<0> = counter(
    "kubelet_evented_pleg_connection_success_count",
    [],
    "Event streams of the container runtime that came up.",
);
/// The event stream.
pub static EVENT_STREAM_ERRORS: Counter<0> = counter(
    "kubelet_evented_pleg_connection_error_count",
    [],
    "Event streams of the container runtime that broke or did not come up.",
);
/// The event stream.
pub static EVENT_LATENCY: Histogram<0> = histogram(
    "kubelet_evented_pleg_connection_latency_seconds",
    [],
    COMMON,
    "Seconds from an event in the container runtime until it is here.",
);
/// Streams whose WebSocket ends here.
pub static WEBSOCKET_STREAMS: Counter<1> = counter(
    "kubelet_websocket_streaming_requests_total",
    ["subresource"],
    "Streams over WebSocket that the node translated or tunnelled itself.",
);
/// Images that were collected.
pub static IMAGES_COLLECTED: Counter<1> = counter(
    "kubelet_image_garbage_collected_total",
    ["reason"],
    "Images that were removed because nobody used them: for space, or because of their age.",
);
/// Hooks that fell back.
pub static HTTP_FALLBACKS: Counter<0> = counter(
    "kubelet_lifecycle_handler_http_fallbacks_total",
    [],
    "Hooks with https whose server speaks plain text and was asked again so.",
);
/// Sleeps that were cut short.
pub static SLEEPS_CUT_SHORT: Counter<0> = counter(
    "kubelet_sleep_action_terminated_early_total",
    [],
    "Hooks that were to wait and had no time left for it.",
);
