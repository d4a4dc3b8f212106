//! Metrics of the container runtime: calls, containers, sandboxes.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_kubelet_api::metrics::{families, words};
use agent_types::ids::{PodKey, PodUid};
use agent_types::runtime::observed::{ContainerState, ListedPod, PodSnapshot, SandboxState};

use super::certificates::seconds;
use super::{Metrics, MetricsState};

/// Containers and sandbox of one pod in the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RuntimePodCounts {
    ready: bool,
    /// Containers by state, as in [`STATES`].
    containers: [u32; 4],
}

/// Names of states, in the order of the CRI enum.
const STATES: [&str; 4] = ["created", "running", "exited", "unknown"];

impl RuntimePodCounts {
    fn listed(pod: &ListedPod) -> RuntimePodCounts {
        let mut held = RuntimePodCounts {
            ready: pod.sandboxes.values().any(|ready| *ready),
            ..RuntimePodCounts::default()
        };
        for state in pod.containers.values() {
            held.containers[usize::try_from(*state).unwrap_or(3).min(3)] += 1;
        }
        held
    }

    fn seen(pod: &PodSnapshot) -> RuntimePodCounts {
        let ready = pod.sandboxes.iter().any(|s| s.state == SandboxState::Ready);
        let mut held = RuntimePodCounts { ready, ..RuntimePodCounts::default() };
        for container in &pod.containers {
            let at = match container.state {
                ContainerState::Created => 0,
                ContainerState::Running => 1,
                ContainerState::Exited => 2,
                ContainerState::Unknown => 3,
            };
            held.containers[at] += 1;
        }
        held
    }
}

impl Metrics {
    /// A list of all pods of the runtime; `None` if the call failed.
    pub fn listed(&self, pods: Option<&[ListedPod]>, took: Duration) {
        let now = self.now();
        self.with(|state| {
            state.main.observe(&families::PLEG_RELIST, [], took.as_secs_f64());
            if let Some(before) = state.relisted {
                let since = now.mono.since(before).as_secs_f64();
                state.main.observe(&families::PLEG_RELIST_INTERVAL, [], since);
            }
            state.relisted = Some(now.mono);
            if let Some(pods) = pods {
                let held: BTreeMap<PodUid, RuntimePodCounts> =
                    pods.iter().map(|pod| (pod.pod.uid.clone(), RuntimePodCounts::listed(pod))).collect();
                state.held = held;
                state.heard(now.wall.0);
            }
        });
    }

    /// An inspection of one pod.
    pub fn looked_at(&self, took: Duration) {
        self.with(|state| state.main.observe(&families::PLEG_POD_RELIST, [], took.as_secs_f64()));
    }

    /// A pod is so in the runtime.
    pub fn inspected(&self, pod: &PodSnapshot) {
        let now = self.now();
        self.with(|state| {
            if pod.sandboxes.is_empty() && pod.containers.is_empty() {
                state.held.remove(&pod.pod.uid);
                state.new_users.remove(&pod.pod.uid);
            } else {
                state.held.insert(pod.pod.uid.clone(), RuntimePodCounts::seen(pod));
            }
            state.heard(now.wall.0);
        });
    }

    /// A call to create a sandbox; `own_users`: with a user namespace of its own.
    ///
    /// A broken user namespace shows only when a container runs in it: if the first container fails before any has run,
    /// the attempt counts as failed (`MetricsState::user_namespace_tried`).
    pub fn sandbox(&self, pod: &PodUid, handler: &str, own_users: bool, took: Duration, made: bool) {
        self.with(|state| {
            state.main.count(&families::STARTED_PODS, []);
            if own_users {
                state.main.count(&families::STARTED_USER_NAMESPACED_PODS, []);
            }
            if own_users && made {
                state.new_users.insert(pod.clone());
            } else {
                state.new_users.remove(pod);
            }
            state.main.observe(&families::RUN_PODSANDBOX, [handler], took.as_secs_f64());
            if !made {
                state.main.count(&families::STARTED_PODS_ERRORS, []);
                if own_users {
                    state.main.count(&families::STARTED_USER_NAMESPACED_PODS_ERRORS, []);
                }
                state.main.count(&families::RUN_PODSANDBOX_ERRORS, [handler]);
            }
        });
    }

    /// An image is being pulled for a pod.
    pub fn pulling(&self, pod: &PodKey) {
        let now = self.now().mono;
        self.with(|state| state.starts.pulling(&pod.uid, now));
    }

    /// The pull is over; `bytes` is the image's size, `None` if there is none.
    pub fn pulled(&self, pod: &PodKey, bytes: Option<u64>, took: Duration) {
        let now = self.now().mono;
        self.with(|state| {
            state.starts.pulled(&pod.uid, now);
            if let Some(bytes) = bytes {
                let size = words::image_size(bytes);
                state.main.observe(&families::IMAGE_PULL, [size], took.as_secs_f64());
            }
        });
    }

    /// The access of a pod to an image on the node was checked.
    pub fn must_pull_checked(&self, result: &'static str) {
        self.with(|state| state.main.count(&families::MUST_PULL_CHECKS, [result]));
    }

    /// Number of records: intents of pulls, and pulled images.
    pub fn pull_records(&self, intents: usize, pulled: usize) {
        // A disk does not hold more files than are exact.
        #[allow(clippy::cast_precision_loss)]
        self.with(|state| {
            state.main.set(&families::PULL_INTENTS, [], intents as f64);
            state.main.set(&families::PULLED_RECORDS, [], pulled as f64);
        });
    }

    /// A credential provider plugin has answered or failed.
    pub fn plugin_ran(&self, name: &str, took: Duration, failed: bool) {
        self.with(|state| {
            state.main.observe(&families::PLUGIN_DURATION, [name], took.as_secs_f64());
            if failed {
                state.main.count(&families::PLUGIN_ERRORS, [name]);
            }
        });
    }
}

impl MetricsState {
    /// A container of the pod failed to start (`failed`), or has run.
    pub(super) fn user_namespace_tried(&mut self, pod: &PodUid, failed: bool) {
        if self.new_users.remove(pod) && failed {
            self.main.count(&families::STARTED_USER_NAMESPACED_PODS_ERRORS, []);
        }
    }

    fn heard(&mut self, wall_ns: i64) {
        self.main.set(&families::PLEG_LAST_SEEN, [], seconds(wall_ns).floor());
    }

    pub(super) fn tell_runtime(&mut self) {
        let mut sums = [0_u32; 4];
        for held in self.held.values() {
            sums.iter_mut().zip(held.containers).for_each(|(sum, n)| *sum += n);
        }
        for (name, sum) in STATES.into_iter().zip(sums) {
            self.main.set(&families::RUNNING_CONTAINERS, [name], sum.into());
        }
        let ready = u32::try_from(self.held.values().filter(|h| h.ready).count()).unwrap_or(u32::MAX);
        self.main.set(&families::RUNNING_PODS, [], ready.into());
    }
}

impl agent_cri::CallObserver for Metrics {
    fn called(&self, verb: &'static str, took: Duration, failed: bool) {
        let operation = words::runtime_operation(verb);
        self.with(|state| {
            state.main.count(&families::RUNTIME_OPERATIONS, [operation]);
            state.main.observe(&families::RUNTIME_OPERATIONS_DURATION, [operation], took.as_secs_f64());
            if failed {
                state.main.count(&families::RUNTIME_OPERATIONS_ERRORS, [operation]);
            }
        });
    }

    fn event_stream(&self, up: bool) {
        let counter = if up { &families::EVENT_STREAMS } else { &families::EVENT_STREAM_ERRORS };
        self.with(|state| state.main.count(counter, []));
    }

    fn event(&self, created_ns: i64) {
        let now = self.now().wall.0;
        let late = seconds(now.saturating_sub(created_ns)).max(0.0);
        self.with(|state| {
            state.main.observe(&families::EVENT_LATENCY, [], late);
            state.heard(now);
        });
    }
}
