//! State of the status manager: the API's pods, and the statuses of workers.
//!
//! In: pods from watch and answers, facts of workers. Out: look-ups. Invariants: an older resource version
//! never replaces a newer one, except in a list, which is true even for a server that was restored to an
//! earlier state; a late answer does not bring back a pod that the watch has removed; a static pod belongs to
//! a mirror pod only if the mirror names its UID.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_types::api::retry::Retry;
use agent_types::api::{ApiError, ObjectName};
use agent_types::failure::Class;
use agent_types::ids::{PodKey, PodUid};
use agent_types::pod::{self, CONFIG_MIRROR};
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{CONFLICTS_MAX, MANY_CONTAINERS, PACE, RECONCILE, name_of, object_name};
use crate::pod_source::api::refusal;

/// The pods of the API by their UID there.
#[derive(Clone, Debug)]
pub(super) struct ApiPods {
    node_name: String,
    listed: bool,
    pods: BTreeMap<String, Box<Pod>>,
    /// Name of a mirror pod to its UID in the API.
    mirrors: BTreeMap<ObjectName, String>,
}

/// Route of a pod's status to the API: the pod itself, or its mirror pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    /// The pod itself.
    Itself,
    /// Its mirror pod.
    Mirror,
}

impl ApiPods {
    pub(super) fn new(node_name: String) -> ApiPods {
        ApiPods { node_name, listed: false, pods: BTreeMap::new(), mirrors: BTreeMap::new() }
    }

    pub(super) fn node_name(&self) -> &str {
        &self.node_name
    }

    pub(super) fn is_listed(&self) -> bool {
        self.listed
    }

    /// The API's pod that shows the status of `key`.
    pub(super) fn of(&self, key: &PodKey) -> Option<(&Pod, Via)> {
        if let Some(pod) = self.pods.get(key.uid.as_str()) {
            return Some((&**pod, Via::Itself));
        }
        let mirror = self.pods.get(self.mirrors.get(&object_name(key))?)?;
        (mirror_hash(mirror)? == key.uid.as_str()).then_some((&**mirror, Via::Mirror))
    }

    pub(super) fn listed(&mut self, pods: &[Arc<Pod>]) {
        self.listed = true;
        self.pods.clear();
        self.mirrors.clear();
        for pod in pods {
            self.applied(pod);
        }
    }

    /// The UIDs of the workers of this pod.
    pub(super) fn applied(&mut self, pod: &Pod) -> Vec<PodUid> {
        if refusal(pod, &self.node_name).is_some() {
            return Vec::new();
        }
        if self.pods.get(pod::uid(pod)).is_some_and(|have| is_newer(have, pod)) {
            return Vec::new();
        }
        self.insert(slim(pod));
        workers_of(pod)
    }

    pub(super) fn deleted(&mut self, pod: &Pod) -> Vec<PodUid> {
        let touched = workers_of(pod);
        self.gone(pod::uid(pod));
        touched
    }

    /// An answer shows the pod; for a removed pod it is ignored.
    pub(super) fn read(&mut self, uid: &str, pod: &Pod) {
        if pod::uid(pod) != uid {
            self.gone(uid);
        } else if self.pods.get(uid).is_some_and(|have| !is_newer(have, pod)) {
            self.insert(slim(pod));
        }
    }

    pub(super) fn gone(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            let name = name_of(&pod);
            if self.mirrors.get(&name).is_some_and(|owner| owner == uid) {
                self.mirrors.remove(&name);
            }
        }
    }

    fn insert(&mut self, pod: Pod) {
        if mirror_hash(&pod).is_some() {
            self.mirrors.insert(name_of(&pod), pod::uid(&pod).to_owned());
        }
        self.pods.insert(pod::uid(&pod).to_owned(), Box::new(pod));
    }
}

pub(super) fn mirror_hash(pod: &Pod) -> Option<&str> {
    pod::annotation(pod, CONFIG_MIRROR)
}

fn workers_of(pod: &Pod) -> Vec<PodUid> {
    let mut uids = vec![PodUid::from(pod::uid(pod))];
    uids.extend(mirror_hash(pod).map(PodUid::from));
    uids
}

/// True if `have` is later than `other`; resource versions of one resource are ordered numbers.
fn is_newer(have: &Pod, other: &Pod) -> bool {
    let version = |pod: &Pod| pod.metadata.resource_version.as_deref().and_then(|v| v.parse::<u64>().ok());
    version(have).zip(version(other)).is_some_and(|(have, other)| have > other)
}

/// What decisions need of a pod: not its environment, commands, labels and field managers.
fn slim(pod: &Pod) -> Pod {
    let meta = &pod.metadata;
    let mirror = mirror_hash(pod).map(|hash| [(CONFIG_MIRROR.to_owned(), hash.to_owned())].into());
    let metadata = ObjectMeta {
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        deletion_timestamp: meta.deletion_timestamp.clone(),
        owner_references: meta.owner_references.clone(),
        annotations: mirror,
        ..ObjectMeta::default()
    };
    let container = |c: &Container| Container {
        name: c.name.clone(),
        restart_policy: c.restart_policy.clone(),
        restart_policy_rules: c.restart_policy_rules.clone(),
        ..Container::default()
    };
    let spec = pod.spec.as_ref().map(|spec| PodSpec {
        restart_policy: spec.restart_policy.clone(),
        containers: spec.containers.iter().map(container).collect(),
        init_containers: spec.init_containers.as_ref().map(|l| l.iter().map(container).collect()),
        ..PodSpec::default()
    });
    Pod { metadata, spec, status: pod.status.clone() }
}

/// A call that was sent.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) pod: PodUid,
    /// UID of the API pod of the call.
    pub(super) api_uid: String,
    pub(super) need: StatusCall,
}

/// A status that the API took.
#[derive(Clone, Debug)]
struct SyncedStatus {
    version: u64,
    /// UID of the API pod; a mirror pod may have been replaced since.
    api_uid: String,
    /// It may be written again then.
    again: Mono,
    /// What has changed may be written then.
    next: Mono,
}

/// The status of one worker, and how much of it the API has.
#[derive(Clone, Debug)]
pub(super) struct StatusEntry {
    pub(super) key: PodKey,
    /// The newest status, normalised.
    pub(super) status: Option<Arc<PodStatus>>,
    /// Number of statuses from the worker.
    pub(super) version: u64,
    terminated: bool,
    finished: bool,
    pub(super) in_flight: bool,
    pub(super) retry: Retry,
    refused: bool,
    /// True if the API's copy must be read before the next patch.
    pub(super) stale: bool,
    /// The API's copy was just read.
    just_read: bool,
    /// Patches in a row that the server refused because their base was stale.
    conflicts: u32,
    /// What was written last.
    written: Option<SyncedStatus>,
    /// Time of the first status that the API does not have yet.
    pub(super) untold: Option<Mono>,
    /// The final DELETE is done.
    pub(super) deleted: bool,
    /// UID of the mirror pod that was reported as outdated.
    pub(super) outdated: Option<String>,
}

impl StatusEntry {
    pub(super) fn new(key: PodKey) -> StatusEntry {
        StatusEntry {
            key,
            status: None,
            version: 0,
            terminated: false,
            finished: false,
            in_flight: false,
            retry: Retry::default(),
            refused: false,
            stale: false,
            just_read: false,
            conflicts: 0,
            written: None,
            untold: None,
            deleted: false,
            outdated: None,
        }
    }

    pub(super) fn published(&mut self, status: Arc<PodStatus>, now: Mono) {
        self.untold.get_or_insert(now);
        if self.finished {
            // A new worker for the same UID: a static pod came back.
            (self.terminated, self.finished, self.deleted) = (false, false, false);
        }
        self.status = Some(status);
        self.said_something();
    }

    pub(super) fn terminated(&mut self) {
        self.terminated = true;
        self.said_something();
    }

    pub(super) fn finished(&mut self) {
        self.finished = true;
        self.said_something();
    }

    fn said_something(&mut self) {
        self.version += 1;
        if std::mem::take(&mut self.refused) {
            self.retry.release();
        }
    }

    /// A container of the pod may run.
    pub(super) fn may_run(&self) -> bool {
        !self.terminated && !self.finished
    }

    /// Its worker is gone.
    pub(super) fn is_over(&self) -> bool {
        self.finished
    }

    pub(super) fn read(&mut self) {
        self.stale = false;
        self.just_read = true;
    }

    /// The API has everything.
    pub(super) fn settled(&mut self) {
        self.retry.succeeded();
        (self.just_read, self.conflicts) = (false, 0);
        self.untold = None;
    }

    /// True if a patch contains the version of its base. A patch without it, given up by its caller and
    /// applied late, would revert later writes; so it is sent only after repeated conflicts, when other
    /// clients never stop writing.
    pub(super) fn names_version(&self) -> bool {
        !self.just_read || self.conflicts < CONFLICTS_MAX
    }

    /// This version is in the API: how long it took to get there, if a worker's words were waiting for it.
    pub(super) fn written(&mut self, version: u64, api_uid: String, now: Mono) -> Option<Duration> {
        let next = now.after(self.pace());
        self.written = Some(SyncedStatus { version, api_uid, again: now.after(RECONCILE), next });
        (self.just_read, self.conflicts) = (false, 0);
        self.retry.succeeded();
        let took = self.untold.take().map(|since| now.since(since));
        // A status that arrived meanwhile is not in the API yet.
        self.untold = (self.version > version).then_some(now);
        took
    }

    /// Time between two patches.
    fn pace(&self) -> Duration {
        let containers = self.status.as_ref().and_then(|s| s.container_statuses.as_ref()).map_or(0, Vec::len);
        let many = u32::try_from(containers).unwrap_or(u32::MAX);
        if containers > MANY_CONTAINERS { PACE * many } else { Duration::ZERO }
    }

    /// For a pod with many containers: time until which a new status waits for further changes before it is
    /// written to this pod of the API; the end of the pod does not wait.
    pub(super) fn paced(&self, api_uid: &str, now: Mono) -> Option<Mono> {
        let last = self.written.as_ref().filter(|last| last.version != self.version && self.may_run())?;
        Some(last.next).filter(|at| last.api_uid == api_uid && *at > now)
    }

    /// When the status may be written to this pod of the API, if this version of it was written there before.
    pub(super) fn not_before(&self, api_uid: &str) -> Option<Mono> {
        let last = self.written.as_ref()?;
        (last.version == self.version && last.api_uid == api_uid).then_some(last.again)
    }

    /// What the failure of a call allows.
    pub(super) fn class(&self, need: &StatusCall, error: &ApiError) -> Class {
        // The node authoriser refuses the status of another node's pod before its UID is compared: a StatefulSet's next
        // pod may have the name already. One that was just read is ours, and is refused for good.
        let elsewhere =
            error.code == Some(403) && matches!(need, StatusCall::Patch { .. }) && !self.just_read;
        if elsewhere { Class::Conflict } else { error.class }
    }

    pub(super) fn failed(&mut self, need: &StatusCall, class: Class, now: Mono, seed: &str) {
        self.retry.failed(now, class, seed);
        self.refused = class == Class::Invalid;
        self.just_read = false;
        self.conflicts += u32::from(class == Class::Conflict);
        // Only another DELETE shows the result of the first; only a conflict proves that the pod is another
        // one.
        self.stale |= match need {
            StatusCall::Delete => class == Class::Conflict,
            _ => !matches!(class, Class::Invalid | Class::Retryable { .. }),
        };
    }
}

/// The kind of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StatusCall {
    Find,
    /// Version of the entry in the patch.
    Patch {
        version: u64,
    },
    Delete,
}
