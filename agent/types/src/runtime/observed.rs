//! Observations of the runtime, stamped with the time of their request.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::containers::Containers;
use crate::ids::{ContainerId, PodKey, PodUid, SandboxId};
use crate::resources::amounts::Amounts;
use crate::time::{Mono, Wall};

/// CRI `PodSandboxState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxState {
    /// The sandbox's network and namespaces exist.
    Ready,
    /// The sandbox was stopped, or died.
    NotReady,
}

/// CRI `ContainerState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    /// Created, never started.
    Created,
    /// Its first process runs.
    Running,
    /// Its first process ended.
    Exited,
    /// The runtime lost track of it.
    Unknown,
}

/// One sandbox, from `ListPodSandbox` + `PodSandboxStatus`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxObserved {
    /// CRI id of the sandbox.
    pub id: SandboxId,
    /// From the CRI metadata.
    pub attempt: u32,
    /// Ready or not.
    pub state: SandboxState,
    /// Creation time by the runtime's clock.
    pub created: Wall,
    /// Pod addresses, the primary first; empty for host network.
    pub ips: Vec<String>,
    /// True if the sandbox uses the node's network namespace.
    pub host_network: bool,
    /// Runtime handler of the sandbox; empty for the default one.
    #[serde(default)]
    pub runtime_handler: String,
}

/// One container instance, from `ListContainers` + `ContainerStatus`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerObserved {
    /// CRI id of the container.
    pub id: ContainerId,
    /// The sandbox it lives in.
    pub sandbox: SandboxId,
    /// Container name in the pod.
    pub name: String,
    /// From the CRI metadata.
    pub attempt: u32,
    /// Lifecycle state of the container.
    pub state: ContainerState,
    /// Creation time by the runtime's clock.
    pub created: Wall,
    /// Start time; `None` if never started.
    pub started: Option<Wall>,
    /// End time; `None` while it runs.
    pub finished: Option<Wall>,
    /// Exit code; meaningful in `Exited`.
    pub exit_code: i32,
    /// `Completed`, `Error`, `OOMKilled`, or the runtime's own word.
    pub reason: String,
    /// The runtime's message.
    pub message: String,
    /// Image as the runtime names it.
    pub image: String,
    /// Digest reference of the image.
    pub image_ref: String,
    /// Absolute path of its log file.
    pub log_path: String,
    /// Annotations we put on it (`labels::CONTAINER_*`).
    pub annotations: BTreeMap<String, String>,
    /// User of the first process; `None` if the runtime does not report it.
    pub user: Option<UserObserved>,
    /// The resources in force; `None` if the runtime does not report them.
    pub resources: Option<ResourcesObserved>,
    /// The amounts that the agent last set; `None` if there is no record.
    #[serde(default)]
    pub actuated: Option<Amounts>,
    /// Stop signal, with the API's names; `None` if the runtime does not report it.
    #[serde(default)]
    pub stop_signal: Option<String>,
}

impl ContainerObserved {
    /// An instance that was created at `at` and never started, without further facts.
    #[must_use]
    pub fn created(
        id: impl Into<ContainerId>,
        sandbox: impl Into<SandboxId>,
        name: &str,
        attempt: u32,
        at: Wall,
    ) -> ContainerObserved {
        ContainerObserved {
            id: id.into(),
            sandbox: sandbox.into(),
            name: name.to_owned(),
            attempt,
            state: ContainerState::Created,
            created: at,
            started: None,
            finished: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_ref: String::new(),
            log_path: String::new(),
            annotations: BTreeMap::new(),
            user: None,
            resources: None,
            actuated: None,
            stop_signal: None,
        }
    }
}

/// CRI `LinuxContainerUser`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserObserved {
    /// Numeric user id.
    pub uid: i64,
    /// Id of the primary group.
    pub gid: i64,
    /// Further groups, the image's included.
    pub supplemental_groups: Vec<i64>,
}

/// The part of CRI `LinuxContainerResources` that a status shows. Zero or less means "not set", as on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourcesObserved {
    /// CFS period, microseconds.
    pub cpu_period_us: i64,
    /// CFS quota, microseconds in a period.
    pub cpu_quota_us: i64,
    /// Relative weight of the processor.
    pub cpu_shares: i64,
    /// Memory limit, bytes.
    pub memory_limit_bytes: i64,
}

/// All of the runtime's objects of one pod, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSnapshot {
    /// Name, namespace and UID, from the runtime's labels.
    pub pod: PodKey,
    /// Time **before** the request was sent: the snapshot reflects everything that completed earlier.
    pub as_of: Mono,
    /// Newest attempt first.
    pub sandboxes: Vec<SandboxObserved>,
    /// By name, the newest first within a name.
    pub containers: Containers,
    /// The amounts that the agent last set for the pod itself (`spec.resources`); `None` if there is no
    /// record.
    #[serde(default)]
    pub actuated: Option<Amounts>,
}

impl PodSnapshot {
    /// This snapshot as the successor of `before`. Of two requests in flight at the same time the later may
    /// have read a container's state first: a container seen as started or ended stays so.
    #[must_use]
    pub fn following(self: Arc<Self>, before: &PodSnapshot) -> Arc<PodSnapshot> {
        let overtaken = |c: &ContainerObserved| {
            let earlier = before.containers.of(&c.name).iter().find(|earlier| earlier.id == c.id)?;
            earlier.state.follows(c.state).then_some(earlier)
        };
        if !self.containers.iter().any(|c| overtaken(c).is_some()) {
            return self;
        }
        let containers = self.containers.iter().map(|c| overtaken(c).unwrap_or(c).clone()).collect();
        Arc::new(PodSnapshot { containers, ..(*self).clone() })
    }
}

impl ContainerState {
    /// A container that was in this state cannot be in `other` after it.
    fn follows(self, other: ContainerState) -> bool {
        use ContainerState::{Created, Exited, Running};
        matches!((other, self), (Created, Running | Exited) | (Running, Exited))
    }
}

/// One line of a relist: enough to see that a pod changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListedPod {
    /// Name, namespace and UID, from the runtime's labels.
    pub pod: PodKey,
    /// Sandbox id, ready.
    pub sandboxes: BTreeMap<SandboxId, bool>,
    /// Container id to state, as the CRI enum's number.
    pub containers: BTreeMap<ContainerId, i32>,
}

/// One sandbox of `ListPodSandbox`, with the shim that it shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSandbox {
    /// CRI id of the sandbox.
    pub id: SandboxId,
    /// The pod.
    pub uid: PodUid,
    /// From the CRI metadata.
    pub attempt: u32,
    /// Ready or not.
    pub ready: bool,
    /// Its annotation [`super::labels::SHIM_GROUP`].
    pub shim_group: Option<String>,
}

/// The pod of an entry of the CRI event stream (`GetContainerEvents`). It is a hint to inspect the pod, never a fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeHint {
    /// The pod, if the event named one.
    pub uid: PodUid,
}

/// A signal of the runtime's event stream for PLEG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeSignal {
    /// Something happened to this pod: inspect it.
    Hint(RuntimeHint),
    /// Hints may be missing: list everything.
    Relist(RelistReason),
    /// The runtime has no event stream: only relisting shows changes. Nothing follows.
    Unsupported,
}

/// Reason for which hints may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelistReason {
    /// The stream is up, for the first time or again: earlier events are unknown.
    Established,
    /// The stream broke: relist on the clock until it is up again.
    Lost,
    /// An event named no pod.
    Unnamed,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(as_of: u64, containers: &[(&str, ContainerState)]) -> PodSnapshot {
        let seen = |(id, state): &(&str, ContainerState)| ContainerObserved {
            state: *state,
            ..ContainerObserved::created(*id, "s", "c", 0, Wall(1))
        };
        PodSnapshot {
            pod: PodKey { namespace: "ns".into(), name: "p".into(), uid: "u".into() },
            as_of: Mono(as_of),
            sandboxes: Vec::new(),
            containers: containers.iter().map(seen).collect(),
            actuated: None,
        }
    }

    #[test]
    fn an_answer_that_was_overtaken_takes_nothing_back() {
        use ContainerState::{Created, Exited, Running, Unknown};
        for (before, after, held) in [
            (Running, Created, Running),
            (Exited, Created, Exited),
            (Exited, Running, Exited),
            (Created, Running, Running),
            (Running, Exited, Exited),
            (Running, Running, Running),
            (Running, Unknown, Unknown),
            (Unknown, Running, Running),
        ] {
            let later = Arc::new(snapshot(2, &[("new", Created), ("c", after)]));
            let followed = later.clone().following(&snapshot(1, &[("c", before), ("gone", Running)]));
            assert_eq!(*followed, snapshot(2, &[("new", Created), ("c", held)]), "{before:?} {after:?}");
            assert_eq!(Arc::ptr_eq(&followed, &later), after == held, "copied without need");
        }
    }
}
