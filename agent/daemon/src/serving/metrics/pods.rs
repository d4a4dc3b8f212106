//! Metrics of pods: sources, workers, statuses, probes.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_core::admission::Rejection;
use agent_core::pod_source::{PodOp, PodUpdate};
use agent_core::probe::{Kind, Outcome, ProbeCall};
use agent_kubelet_api::metrics::containers::{Change, changes};
use agent_kubelet_api::metrics::{families, words};
use agent_types::api::WatchEvent;
use agent_types::ids::{PodKey, PodUid};
use agent_types::pod::{self, CONFIG_MIRROR};
use agent_volumes::csi::limits::ATTACH_LIMIT;
use agent_volumes::plan::plugin_of;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Volume};

use super::{Metrics, MetricsState};
use crate::pods::desired_pods::DesiredPods;
use crate::pods::status::PodViews;

/// The state of a worker, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifecycle {
    /// The pod is to run.
    Sync,
    /// The worker is ending the pod.
    Terminating,
    /// The worker cleans up.
    Terminated,
}

impl Lifecycle {
    /// The lifecycle for a worker's [`state_name`](agent_core::pod_worker::PodWorker::state_name).
    #[must_use]
    pub fn of(state_name: &str) -> Lifecycle {
        match state_name {
            "terminating" => Lifecycle::Terminating,
            "terminated" | "finished" => Lifecycle::Terminated,
            _ => Lifecycle::Sync,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Lifecycle::Sync => "sync",
            Lifecycle::Terminating => "terminating",
            Lifecycle::Terminated => "terminated",
        }
    }
}

/// The reason of a worker's synchronisation, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The first one.
    Create,
    /// The pod's spec has changed.
    Update,
    /// Any other event.
    Sync,
    /// Ending the pod.
    Kill,
    /// Cleaning up.
    Terminated,
}

impl Round {
    fn as_str(self) -> &'static str {
        match self {
            Round::Create => "create",
            Round::Update => "update",
            Round::Sync => "sync",
            Round::Kill => "kill",
            Round::Terminated => "terminated",
        }
    }
}

/// A worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    lifecycle: Lifecycle,
    /// Whether the pod is static; `None` while only the runtime or the disk knows the pod.
    is_static: Option<bool>,
    /// The runtime knows the pod by name.
    named: bool,
    /// The pod was removed and added again while an earlier worker was ending it.
    again: bool,
}

/// A pod that was removed while it had a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecreatedPod {
    Removed,
    Wanted,
}

impl Metrics {
    /// A source spoke.
    pub fn update(&self, update: &PodUpdate) {
        let now = self.now().mono;
        self.with(|state| {
            for pod in &update.pods {
                let uid = pod::key(pod).uid;
                if is_mirror(pod) {
                    continue;
                }
                if update.op == PodOp::Remove {
                    state.starts.forget(&uid);
                    if state.workers.contains_key(&uid) {
                        state.again.insert(uid, RecreatedPod::Removed);
                    } else {
                        state.again.remove(&uid);
                    }
                    continue;
                }
                if let Some(again) = state.again.get_mut(&uid) {
                    *again = RecreatedPod::Wanted;
                }
                if state.starts.seen(pod, now) {
                    let containers = u32::try_from(pod::containers(pod).len()).unwrap_or(u32::MAX);
                    state.main.observe(&families::CONTAINERS_PER_POD, [], containers.into());
                }
            }
        });
    }

    /// A worker begins.
    pub fn worker_began(&self, key: &PodKey) {
        let now = self.now().mono;
        self.with(|state| {
            let again = state.again.remove(&key.uid) == Some(RecreatedPod::Wanted);
            let named = !key.name.is_empty();
            let work = Work { lifecycle: Lifecycle::Sync, is_static: None, named, again };
            state.workers.insert(key.uid.clone(), work);
            if let Some(took) = state.starts.working(&key.uid, now) {
                state.main.observe(&families::POD_WORKER_START, [], took.as_secs_f64());
            }
        });
    }

    /// A worker received the spec of its pod.
    pub fn wanted(&self, pod: &Pod) {
        let is_static = pod::is_static(pod);
        self.with(|state| {
            let Some(work) = state.workers.get_mut(&pod::key(pod).uid) else { return };
            work.is_static = Some(is_static);
            if std::mem::take(&mut work.again) {
                let label = if is_static { "true" } else { "" };
                state.main.count(&families::RESTARTED_PODS, [label]);
            }
        });
    }

    /// A worker is to end a pod that no source has.
    pub fn orphan(&self, uid: &PodUid) {
        self.with(|state| {
            let orphan = |work: &&Work| work.named && work.is_static.is_none();
            if state.workers.get(uid).filter(orphan).is_some() {
                state.main.count(&families::ORPHANED_RUNTIME_PODS, []);
            }
        });
    }

    /// The lifecycle of a worker has changed.
    pub fn worker_is(&self, uid: &PodUid, lifecycle: Lifecycle) {
        self.with(|state| {
            if let Some(work) = state.workers.get_mut(uid) {
                work.lifecycle = lifecycle;
            }
        });
    }

    /// A worker has ended. A pod that a source added again meanwhile is counted when its next worker begins.
    pub fn worker_ended(&self, uid: &PodUid) {
        self.with(|state| {
            state.workers.remove(uid);
            if state.again.get(uid) == Some(&RecreatedPod::Removed) {
                state.again.remove(uid);
            }
        });
    }

    /// A round of work for a pod is over.
    pub fn round(&self, about: Round, took: Duration) {
        self.with(|state| state.main.observe(&families::POD_WORKER, [about.as_str()], took.as_secs_f64()));
    }

    /// Admission refused a pod.
    pub fn rejected(&self, rejection: &Rejection) {
        let reason = words::rejection(&rejection.reason);
        self.with(|state| state.main.count(&families::ADMISSION_REJECTIONS, [reason]));
    }

    /// The node refused a pod because it has no room for one of the pod's volumes.
    pub fn no_room_for_volume(&self) {
        self.with(|state| {
            state.main.count(&families::ADMISSION_REJECTIONS, [words::rejection(ATTACH_LIMIT)])
        });
    }

    /// The node preempts a pod because a critical pod needs this resource.
    pub fn preempted(&self, resource: &str) {
        self.with(|state| state.main.count(&families::PREEMPTIONS, [resource]));
    }

    /// The node evicts a pod because of its pressure or because of the pod's own limits.
    pub fn evicted(&self, signal: &str) {
        self.with(|state| state.main.count(&families::EVICTIONS, [signal]));
    }

    /// The eviction manager chose a victim by figures of this age.
    pub fn eviction_decided(&self, signal: &str, age: Duration) {
        self.with(|state| state.main.observe(&families::EVICTION_STATS_AGE, [signal], age.as_secs_f64()));
    }

    /// A worker published a status; `old` is the previous one.
    pub fn published(&self, key: &PodKey, old: Option<&PodStatus>, new: &PodStatus) {
        let (now, began) = (self.now().mono, self.0.began.wall);
        self.with(|state| {
            if let Some(took) = state.starts.published(&key.uid, new, now) {
                state.main.observe(&families::POD_START, [], took.as_secs_f64());
            }
            for change in changes(old, new, began) {
                match change {
                    Change::Tried { kind, times } => {
                        state.main.add(&families::STARTED_CONTAINERS, [kind], times.into());
                    }
                    Change::Failed { kind, code } => {
                        state.main.count(&families::STARTED_CONTAINERS_ERRORS, [kind, code]);
                        state.user_namespace_tried(&key.uid, true);
                    }
                    Change::Ended { kind, exit_code, reason } => {
                        let code = exit_code.to_string();
                        state.main.count(&families::TERMINATED_CONTAINERS, [kind, &code, reason]);
                    }
                }
            }
            if one_runs(new) {
                state.user_namespace_tried(&key.uid, false);
            }
        });
    }

    /// The API server took a status.
    pub fn status_told(&self, took: Duration) {
        self.with(|state| state.main.observe(&families::POD_STATUS_SYNC, [], took.as_secs_f64()));
    }

    /// An event of the watch on the node's pods.
    pub fn watched(&self, event: &WatchEvent<Pod>) {
        let now = self.now();
        self.with(|state| match event {
            WatchEvent::Listed(pods) => {
                state.mirrors = pods.iter().filter(|p| is_mirror(p)).map(|p| pod::full_name(p)).collect();
            }
            WatchEvent::Applied(pod) if is_mirror(pod) => {
                state.mirrors.insert(pod::full_name(pod));
            }
            WatchEvent::Applied(pod) => {
                let Some(shown) = state.starts.watched(pod, now) else { return };
                state.main.observe(&families::POD_START_TOTAL, [], shown.total.as_secs_f64());
                if let Some(sli) = shown.sli {
                    state.main.observe(&families::POD_START_SLI, [], sli.as_secs_f64());
                    if shown.first_network {
                        state.main.set(&families::FIRST_NETWORK_POD_START, [], sli.as_secs_f64());
                    }
                }
            }
            WatchEvent::Deleted(pod) => {
                state.mirrors.remove(&pod::full_name(pod));
            }
            WatchEvent::Lost(_) => {}
        });
    }

    /// A probe was answered.
    pub fn probed(&self, pod: &PodKey, call: &ProbeCall, outcome: &Outcome, took: Duration) {
        let kind = match call.kind {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        };
        let result = match outcome {
            Outcome::Success | Outcome::Warning(_) => "successful",
            Outcome::Failure(_) => "failed",
            Outcome::Error(_) | Outcome::Broken(_) => "unknown",
        };
        let (name, namespace) = (&*pod.name, &*pod.namespace);
        let labels = [kind, result, &call.name, name, namespace, pod.uid.as_str()];
        self.with(|state| {
            state.probes.count(&families::PROBES, labels);
            if result != "failed" {
                let labels = [kind, call.name.as_str(), name, namespace];
                state.probes.observe(&families::PROBE_DURATION, labels, took.as_secs_f64());
            }
        });
    }

    /// No container of the pod will be probed again.
    pub fn probes_over(&self, pod: &PodKey) {
        let (name, namespace, uid) = (&*pod.name, &*pod.namespace, pod.uid.as_str());
        self.with(|state| {
            state.probes.forget(families::PROBES.name, &[("pod_uid", uid)]);
            let of = [("pod", name), ("namespace", namespace)];
            state.probes.forget(families::PROBE_DURATION.name, &of);
        });
    }
}

/// Whether a container runs.
fn one_runs(status: &PodStatus) -> bool {
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut states = lists.into_iter().flatten().flatten().filter_map(|c| c.state.as_ref());
    states.any(|state| state.running.is_some())
}

fn is_mirror(pod: &Pod) -> bool {
    pod::annotation(pod, CONFIG_MIRROR).is_some()
}

/// True if the pod has ended for good and needs no resources.
fn is_over(uid: &PodUid, pod: &Pod, statuses: &PodViews) -> bool {
    let ended = |phase: Option<&str>| matches!(phase, Some("Failed" | "Succeeded"));
    match statuses.get(uid) {
        Some(view) => ended(view.status.phase.as_deref()),
        None => ended(pod.status.as_ref().and_then(|s| s.phase.as_deref())),
    }
}

pub(super) fn count(n: usize) -> f64 {
    u32::try_from(n).unwrap_or(u32::MAX).into()
}

impl MetricsState {
    /// Wanted volumes are those of pods that may still run, volumes that are there those that were set up.
    pub(super) fn tell_volumes(&mut self, desired: &DesiredPods, statuses: &PodViews) {
        self.main.clear(families::TOTAL_VOLUMES.name);
        let mut wanted = BTreeMap::<&str, usize>::new();
        for (uid, pod) in desired.iter().filter(|(uid, pod)| !is_over(uid, pod, statuses)) {
            // The type of a claim's volume is known only after the volume is set up.
            let there = self.volumes.get(uid);
            let plugin =
                |v: &Volume| plugin_of(v).or_else(|| there.and_then(|there| there.get(&v.name).copied()));
            for plugin in pod::spec(pod).volumes.iter().flatten().filter_map(plugin) {
                *wanted.entry(plugin.name()).or_default() += 1;
            }
        }
        let mut there = BTreeMap::<&str, usize>::new();
        for plugin in self.volumes.values().flat_map(BTreeMap::values) {
            *there.entry(plugin.name()).or_default() += 1;
        }
        for (state, counts) in [("desired_state_of_world", wanted), ("actual_state_of_world", there)] {
            for (plugin, n) in counts {
                self.main.set(&families::TOTAL_VOLUMES, [plugin, state], count(n));
            }
        }
    }

    pub(super) fn tell_pods(&mut self, desired: &DesiredPods, statuses: &PodViews) {
        for (label, wanted) in [("", false), ("true", true)] {
            let of = || desired.iter().filter(|(_, pod)| pod::is_static(pod) == wanted);
            self.main.set(&families::DESIRED_PODS, [label], count(of().count()));
            let active = of().filter(|(uid, pod)| !is_over(uid, pod, statuses)).count();
            self.main.set(&families::ACTIVE_PODS, [label], count(active));
        }
        let ephemeral = desired.values().map(|pod| pod::ephemeral_containers(pod).len()).sum();
        self.main.set(&families::EPHEMERAL_CONTAINERS, [], count(ephemeral));
        self.main.set(&families::MIRROR_PODS, [], count(self.mirrors.len()));
        for lifecycle in [Lifecycle::Sync, Lifecycle::Terminating, Lifecycle::Terminated] {
            for (config, is_static) in [
                ("desired", "true"),
                ("desired", ""),
                ("orphan", "true"),
                ("orphan", ""),
                ("runtime_only", "unknown"),
            ] {
                let is = |(uid, work): &(&PodUid, &Work)| {
                    let here = match work.is_static {
                        None => ("runtime_only", "unknown"),
                        Some(of) => {
                            let config = if desired.contains_key(*uid) { "desired" } else { "orphan" };
                            (config, if of { "true" } else { "" })
                        }
                    };
                    work.lifecycle == lifecycle && here == (config, is_static)
                };
                let labels = [lifecycle.as_str(), config, is_static];
                self.main.set(&families::WORKING_PODS, labels, count(self.workers.iter().filter(is).count()));
            }
        }
    }
}
