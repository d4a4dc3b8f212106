//! The node's metrics: every component sends its observations here, and `/metrics` is rendered here.
//!
//! ```text
//! CRI client, API client, HTTPS API ─┐
//! owners' shells, executor ──────────┼─► Metrics ─┬─► text of /metrics, /metrics/probes, /metrics/slis
//! desired pods, statuses, /proc ─────┘ (when asked)
//! ```
//! In: observations. Out: texts. Invariants: metrics influence no decision; the lock is held for a moment, never across
//! an await; values are computed on request only. docs/reference/node-metrics.md lists the metrics and the differences to upstream;
//! names, labels and buckets are in [`agent_kubelet_api::metrics::families`].

mod certificates;
mod cgroups;
pub(crate) mod claims;
mod pods;
mod resizes;
mod resources;
mod runtime;
mod scrape;
#[cfg(test)]
mod tests;
mod updates;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_core::node_shutdown::Receipt;
use agent_kubelet_api::metrics::startup::{NodeStart, NodeStep, PodStarts};
use agent_kubelet_api::metrics::{Counter, Registry, families, words};
use agent_linux::clock::Clock;
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_types::runtime::config::ImageMount;
use agent_types::time::{Mono, Now};
use agent_volumes::plugin::Plugin;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub use certificates::Certificate;
pub use pods::{Lifecycle, Round};
pub use scrape::Scrape;

/// Reason in the runtime's error if it cannot mount an image.
const IMAGE_MOUNT_FAILED: &str = "ImageVolumeMountFailed";

/// The node's numbers; clones share them.
#[derive(Clone)]
pub struct Metrics(Arc<MetricsInner>);

struct MetricsInner {
    clock: Arc<dyn Clock>,
    began: Now,
    state: Lock<MetricsState>,
}

struct MetricsState {
    /// `/metrics`.
    main: Registry,
    /// `/metrics/probes`.
    probes: Registry,
    /// `/metrics/slis`.
    slis: Registry,
    starts: PodStarts,
    node_start: NodeStart,
    workers: BTreeMap<PodUid, pods::Work>,
    /// Removed and wanted again while a worker was ending them.
    again: BTreeMap<PodUid, pods::RecreatedPod>,
    mirrors: BTreeSet<String>,
    /// Containers and sandboxes of each pod in the runtime's last list.
    held: BTreeMap<PodUid, runtime::RuntimePodCounts>,
    relisted: Option<Mono>,
    /// Pods with a new user namespace in which no container has run or failed yet.
    new_users: BTreeSet<PodUid>,
    /// Volumes that were set up, by name.
    volumes: BTreeMap<PodUid, BTreeMap<String, Plugin>>,
    certificates: certificates::CertificateExpirations,
    dra_drivers: claims::ShownDrivers,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("began", &self.0.began).finish_non_exhaustive()
    }
}

impl Metrics {
    /// Empty metrics; this incarnation begins now.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Metrics {
        let began = clock.now();
        let mut main = Registry::new();
        for counter in [
            &families::ORPHANED_RUNTIME_PODS,
            &families::STARTED_PODS,
            &families::STARTED_PODS_ERRORS,
            &families::STARTED_USER_NAMESPACED_PODS,
            &families::STARTED_USER_NAMESPACED_PODS_ERRORS,
            &families::IMAGE_VOLUMES,
            &families::IMAGE_VOLUMES_MOUNTED,
            &families::IMAGE_VOLUMES_FAILED,
            &families::EVENT_STREAMS,
            &families::EVENT_STREAM_ERRORS,
            &families::HTTP_FALLBACKS,
            &families::SLEEPS_CUT_SHORT,
            &families::CPU_PINNINGS,
            &families::CPU_PINNING_ERRORS,
            &families::MEMORY_PINNINGS,
            &families::MEMORY_PINNING_ERRORS,
            &families::TOPOLOGY_ADMISSIONS,
            &families::TOPOLOGY_REFUSALS,
        ] {
            main.begin(counter);
        }
        for histogram in [
            &families::CONTAINERS_PER_POD,
            &families::POD_START,
            &families::POD_START_SLI,
            &families::POD_START_TOTAL,
            &families::POD_WORKER_START,
            &families::POD_STATUS_SYNC,
            &families::PLEG_RELIST,
            &families::PLEG_RELIST_INTERVAL,
            &families::PLEG_POD_RELIST,
            &families::EVENT_LATENCY,
            &families::TOPOLOGY_DURATION,
        ] {
            main.begin_histogram(histogram);
        }
        for is_static in ["", "true"] {
            main.add(&families::RESTARTED_PODS, [is_static], 0.0);
        }
        let state = MetricsState {
            main,
            probes: Registry::new(),
            slis: Registry::new(),
            starts: PodStarts::new(began.wall),
            node_start: NodeStart::new(began.mono),
            workers: BTreeMap::new(),
            again: BTreeMap::new(),
            mirrors: BTreeSet::new(),
            held: BTreeMap::new(),
            relisted: None,
            new_users: BTreeSet::new(),
            volumes: BTreeMap::new(),
            certificates: certificates::CertificateExpirations::default(),
            dra_drivers: claims::ShownDrivers::default(),
        };
        Metrics(Arc::new(MetricsInner { clock, began, state: Lock::new(state) }))
    }

    fn now(&self) -> Now {
        self.0.clock.now()
    }

    fn with<T>(&self, f: impl FnOnce(&mut MetricsState) -> T) -> T {
        f(&mut self.0.state.lock())
    }

    /// A request to the node's HTTPS API has arrived.
    pub fn request_began(&self, method: &str, path: &str) {
        let labels = request(method, path);
        self.with(|state| {
            state.main.count(&families::HTTP_REQUESTS, labels);
            state.main.shift(&families::HTTP_INFLIGHT, labels, 1.0);
        });
    }

    /// The request was answered, or its client has gone.
    pub fn request_ended(&self, method: &str, path: &str, took: Duration) {
        let labels = request(method, path);
        self.with(|state| {
            state.main.shift(&families::HTTP_INFLIGHT, labels, -1.0);
            state.main.observe(&families::HTTP_DURATION, labels, took.as_secs_f64());
        });
    }

    /// A health check was requested.
    pub fn checked(&self, check: &str, healthy: bool) {
        let (value, status) = if healthy { (1.0, "success") } else { (0.0, "error") };
        self.with(|state| {
            state.slis.set(&families::HEALTHCHECK, [check, "healthz"], value);
            state.slis.count(&families::HEALTHCHECKS, [check, "healthz", status]);
        });
    }

    /// A stream was spoken with in WebSocket here.
    pub fn took_websocket(&self, subresource: &'static str) {
        self.with(|state| state.main.count(&families::WEBSOCKET_STREAMS, [subresource]));
    }

    /// An unused image was removed, for `space` or because of its `age`.
    pub fn image_collected(&self, reason: &'static str) {
        self.with(|state| state.main.count(&families::IMAGES_COLLECTED, [reason]));
    }

    /// A hook's server spoke plain text and was asked again so.
    pub fn hook_fell_back(&self) {
        self.with(|state| state.main.count(&families::HTTP_FALLBACKS, []));
    }

    /// A sleep hook had no time left.
    pub fn sleep_cut_short(&self) {
        self.with(|state| state.main.count(&families::SLEEPS_CUT_SHORT, []));
    }

    /// A request to the pod resources API in this version; `what` is the counter of its method, if there is one.
    pub fn asked_for_resources(&self, version: &str, what: Option<&'static Counter<1>>) {
        self.with(|state| {
            for counter in [Some(&families::POD_RESOURCES_REQUESTS), what].into_iter().flatten() {
                state.main.count(counter, [version]);
            }
        });
    }

    /// A request to the pod resources API for a pod that does not exist.
    pub fn no_resources_of(&self, version: &str) {
        self.with(|state| state.main.count(&families::POD_RESOURCES_GET_ERRORS, [version]));
    }

    /// A volume of a pod was set up, or could not be. `migrated`: it is a CSI driver's by another name.
    pub fn volume_set_up(
        &self,
        pod: &PodUid,
        name: &str,
        plugin: Plugin,
        migrated: bool,
        took: Duration,
        done: bool,
    ) {
        let status = if done { "success" } else { "fail-unknown" };
        let labels = [plugin.name(), "volume_mount", status, if migrated { "true" } else { "false" }];
        self.with(|state| {
            state.main.observe(&families::STORAGE_OPERATION, labels, took.as_secs_f64());
            if done {
                state.volumes.entry(pod.clone()).or_default().insert(name.to_owned(), plugin);
            }
        });
    }

    /// A container that mounts images was made, or could not be made, and why.
    pub fn images_mounted(&self, mounts: &[&ImageMount], failure: Option<&str>) {
        let images: BTreeSet<_> = mounts.iter().map(|m| (&m.written, &m.id)).collect();
        let failed = failure.is_some_and(|why| why.contains(IMAGE_MOUNT_FAILED));
        let family = if failed { &families::IMAGE_VOLUMES_FAILED } else { &families::IMAGE_VOLUMES_MOUNTED };
        self.with(|state| {
            state.main.add(&families::IMAGE_VOLUMES, [], pods::count(images.len()));
            state.main.add(family, [], pods::count(mounts.len()));
        });
    }

    /// All volumes of a pod were torn down.
    pub fn volumes_gone(&self, pod: &PodUid) {
        self.with(|state| state.volumes.remove(pod));
    }

    /// Times of the last graceful shutdown; `None` before the first.
    pub fn shutdown(&self, receipt: Option<&Receipt>) {
        // Seconds: exact for centuries.
        #[allow(clippy::cast_precision_loss)]
        let seconds = |time: &Time| time.0.as_second() as f64;
        self.with(|state| {
            let (start, end) = (receipt.map(|r| &r.start_time), receipt.and_then(|r| r.end_time.as_ref()));
            state.main.set(&families::SHUTDOWN_START, [], start.map_or(0.0, seconds));
            state.main.set(&families::SHUTDOWN_END, [], end.map_or(0.0, seconds));
        });
    }

    /// The node is being registered.
    pub fn registering(&self) {
        let now = self.now().mono;
        self.with(|state| state.node_start.trying(now));
    }

    /// The Node object was made by this node.
    pub fn registered(&self) {
        let now = self.now().mono;
        self.with(|state| {
            if let Some(NodeStep::Registered(boot, before, took)) = state.node_start.registered(now) {
                state.main.set(&families::STARTUP_PRE_KUBELET, [], boot.as_secs_f64());
                state.main.set(&families::STARTUP_PRE_REGISTRATION, [], before.as_secs_f64());
                state.main.set(&families::STARTUP_REGISTRATION, [], took.as_secs_f64());
            }
        });
    }

    /// The API server shows the node as ready.
    pub fn node_ready(&self) {
        let now = self.now().mono;
        self.with(|state| {
            if let Some(NodeStep::Ready(since, all)) = state.node_start.ready(now) {
                state.main.set(&families::STARTUP_POST_REGISTRATION, [], since.as_secs_f64());
                state.main.set(&families::STARTUP, [], all.as_secs_f64());
            }
        });
    }
}

fn request<'a>(method: &str, path: &str) -> [&'a str; 4] {
    let (path, long_running) = words::path(path);
    [words::method(method), path, "readwrite", long_running]
}

impl agent_apiserver::RequestObserver for Metrics {
    fn answered(&self, method: &str, host: &str, code: Option<u16>, took: Duration) {
        let number = code.map(|code| code.to_string());
        let code = number.as_deref().unwrap_or("<error>");
        self.with(|state| {
            state.main.count(&families::REST_REQUESTS, [code, method, host]);
            state.main.observe(&families::REST_DURATION, [method, host], took.as_secs_f64());
        });
    }

    fn waited(&self, method: &str, host: &str, took: Duration) {
        self.with(|state| {
            state.main.observe(&families::REST_RATE_LIMITER, [method, host], took.as_secs_f64());
        });
    }
}
