//! Start-up durations of pods and of the node itself.
//!
//! ```text
//! source: seen ─► worker ─► pulls ─► status: Running ─► pod watch: all containers started
//!          └─ POD_WORKER_START ┘          │                       │
//!          └─ POD_START ──────────────────┘   creation ─► POD_START_TOTAL, POD_START_SLI (without pulls, init)
//! ```
//! In: events of a pod, with their times. Out: durations, each at most once for a pod. Invariants: a pod that
//! ran before this incarnation started has no durations; the record of a pod is removed with the pod. Upstream:
//! pkg/kubelet/util/{pod,node}_startup_latency_tracker.go.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::time::{Mono, Now, Wall};
use agent_types::{api_time, pod};
use k8s_openapi::api::core::v1::{Pod, PodStatus, Volume};

/// Times in statuses are whole seconds.
const RESOLUTION_NS: i64 = 1_000_000_000;

/// The pods that are starting.
#[derive(Clone, Debug)]
pub struct PodStarts {
    /// This incarnation's beginning.
    began: Wall,
    pods: BTreeMap<PodUid, Start>,
    network_pod_seen: bool,
}

#[derive(Clone, Debug)]
struct Start {
    seen: Mono,
    worked: bool,
    ran: bool,
    /// Start and end of each pull; the last one may be in progress.
    pulls: Vec<(Mono, Option<Mono>)>,
    shown: bool,
}

/// A pod whose start is visible in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedStartup {
    /// Since its creation.
    pub total: Duration,
    /// The same without pulls and init containers; `None` for a pod with volumes that keep state.
    pub sli: Option<Duration>,
    /// True for the first pod of this incarnation with its own network namespace.
    pub first_network: bool,
}

impl PodStarts {
    /// No pods yet.
    #[must_use]
    pub fn new(began: Wall) -> PodStarts {
        PodStarts { began, pods: BTreeMap::new(), network_pod_seen: false }
    }

    /// A source wants the pod. True for the first look at it.
    pub fn seen(&mut self, pod: &Pod, now: Mono) -> bool {
        let uid = pod::key(pod).uid;
        if self.pods.contains_key(&uid) {
            return false;
        }
        // What has a start was started by an earlier incarnation.
        let old = pod.status.as_ref().is_some_and(|status| status.start_time.is_some());
        self.pods.insert(uid, Start { seen: now, worked: false, ran: old, pulls: Vec::new(), shown: old });
        true
    }

    /// Its worker begins: how long that took.
    pub fn working(&mut self, uid: &PodUid, now: Mono) -> Option<Duration> {
        let start = self.pods.get_mut(uid)?;
        (!std::mem::replace(&mut start.worked, true)).then(|| now.since(start.seen))
    }

    /// An image is being pulled for it.
    pub fn pulling(&mut self, uid: &PodUid, now: Mono) {
        if let Some(start) = self.pods.get_mut(uid).filter(|start| !start.shown) {
            start.pulls.push((now, None));
        }
    }

    /// The pull is over.
    pub fn pulled(&mut self, uid: &PodUid, now: Mono) {
        let pulls = self.pods.get_mut(uid).map(|start| &mut start.pulls);
        if let Some((_, end)) = pulls.into_iter().flatten().find(|(_, end)| end.is_none()) {
            *end = Some(now);
        }
    }

    /// Takes a status of the worker; returns the pod's start duration when it first runs.
    pub fn published(&mut self, uid: &PodUid, status: &PodStatus, now: Mono) -> Option<Duration> {
        let began = self.began;
        let start = self.pods.get_mut(uid).filter(|start| !start.ran)?;
        if status.phase.as_deref() != Some("Running") {
            return None;
        }
        start.ran = true;
        let before = |at: Wall| at.0.saturating_add(RESOLUTION_NS) < began.0;
        let started = |c: &k8s_openapi::api::core::v1::ContainerStatus| {
            c.state.as_ref()?.running.as_ref()?.started_at.as_ref().map(api_time::wall)
        };
        if pod::container_statuses(status).filter_map(started).any(before) {
            // The pod ran before this incarnation started.
            start.shown = true;
            return None;
        }
        Some(now.since(start.seen))
    }

    /// The API server shows this of it.
    pub fn watched(&mut self, pod: &Pod, now: Now) -> Option<ObservedStartup> {
        let status = pod.status.as_ref()?;
        let start = self.pods.get_mut(&pod::key(pod).uid).filter(|start| start.ran && !start.shown)?;
        let containers = status.container_statuses.as_deref().unwrap_or_default();
        let started = |c: &k8s_openapi::api::core::v1::ContainerStatus| {
            c.state.as_ref().is_some_and(|s| s.running.as_ref().is_some_and(|r| r.started_at.is_some()))
        };
        if containers.is_empty() || !containers.iter().all(started) {
            return None;
        }
        start.shown = true;
        let created = api_time::wall(pod.metadata.creation_timestamp.as_ref()?);
        let total = now.wall.since(created);
        let left_out = together(&start.pulls) + init_containers(status);
        start.pulls = Vec::new();
        let stateful = pod::spec(pod).volumes.iter().flatten().any(keeps_state);
        let first = !stateful && !pod::host_network(pod) && !self.network_pod_seen;
        self.network_pod_seen |= first;
        Some(ObservedStartup {
            total,
            sli: (!stateful).then(|| total.saturating_sub(left_out)),
            first_network: first,
        })
    }

    /// The pod is not wanted any more.
    pub fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Pods that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

/// Time with at least one pull in progress; the pulls are in the order of their starts.
fn together(pulls: &[(Mono, Option<Mono>)]) -> Duration {
    let (mut sum, mut until) = (Duration::ZERO, Mono(0));
    for (begun, ended) in pulls {
        let Some(ended) = ended.filter(|ended| *ended > until) else { continue };
        sum += ended.since((*begun).max(until));
        until = ended;
    }
    sum
}

fn init_containers(status: &PodStatus) -> Duration {
    let ended = status.init_container_statuses.iter().flatten().filter_map(|c| {
        let ended = c.state.as_ref()?.terminated.as_ref()?;
        Some(api_time::wall(ended.finished_at.as_ref()?).since(api_time::wall(ended.started_at.as_ref()?)))
    });
    ended.sum()
}

/// Whether a volume's content outlives the pod, or may.
fn keeps_state(volume: &Volume) -> bool {
    let none = Volume {
        name: volume.name.clone(),
        secret: volume.secret.clone(),
        config_map: volume.config_map.clone(),
        downward_api: volume.downward_api.clone(),
        empty_dir: volume.empty_dir.clone(),
        projected: volume.projected.clone(),
        ..Volume::default()
    };
    *volume != none
}

/// Start-up durations of the node, by step; only for a node that this incarnation registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStep {
    /// The Node object was made: (boot to agent, agent to first attempt, first attempt to Node).
    Registered(Duration, Duration, Duration),
    /// It was first ready: (since its registration, since boot).
    Ready(Duration, Duration),
}

/// The node's start. The clock of [`Mono`] begins with the boot.
#[derive(Clone, Copy, Debug)]
pub struct NodeStart {
    began: Mono,
    tried: Option<Mono>,
    registered: Option<Mono>,
    ready: bool,
}

impl NodeStart {
    /// The agent began then.
    #[must_use]
    pub fn new(began: Mono) -> NodeStart {
        NodeStart { began, tried: None, registered: None, ready: false }
    }

    /// The node is being registered.
    pub fn trying(&mut self, now: Mono) {
        self.tried.get_or_insert(now);
    }

    /// The Node object is made.
    pub fn registered(&mut self, now: Mono) -> Option<NodeStep> {
        let tried = self.tried.filter(|_| self.registered.is_none())?;
        self.registered = Some(now);
        let boot = self.began.since(Mono(0));
        Some(NodeStep::Registered(boot, tried.since(self.began), now.since(tried)))
    }

    /// The API server shows the node as ready.
    pub fn ready(&mut self, now: Mono) -> Option<NodeStep> {
        let registered = self.registered.filter(|_| !self.ready)?;
        self.ready = true;
        Some(NodeStep::Ready(now.since(registered), now.since(Mono(0))))
    }
}
