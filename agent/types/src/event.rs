//! A Kubernetes event about a pod, as its author states it.
//!
//! In: reason and message. Out: plain data. The folder `events` adds the bookkeeping of the API object.

use serde::{Deserialize, Serialize};

/// Severity of a Kubernetes event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// Event type `Normal`.
    Normal,
    /// Something went wrong.
    Warning,
}

/// A Kubernetes event about the pod, without the bookkeeping of the API object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventFact {
    /// `type` of the Event.
    pub kind: EventKind,
    /// `reason` of the Event; upstream's reasons are in pkg/kubelet/events/event.go.
    pub reason: &'static str,
    /// `message` of the Event, for people.
    pub message: String,
    /// Name of the container that the event is about; `None`: the pod.
    pub container: Option<String>,
    /// Where the pod's specification has that container.
    pub list: ContainerList,
    /// A claim of the pod that gets the same event.
    pub claim: Option<ClaimId>,
}

/// A list of containers of a pod's specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerList {
    /// `spec.containers`.
    #[default]
    Regular,
    /// `spec.initContainers`.
    Init,
    /// `spec.ephemeralContainers`.
    Ephemeral,
}

impl EventFact {
    /// `involvedObject.fieldPath`: where in the pod its container stands.
    #[must_use]
    pub fn field_path(&self) -> Option<String> {
        let list = match self.list {
            ContainerList::Regular => "containers",
            ContainerList::Init => "initContainers",
            ContainerList::Ephemeral => "ephemeralContainers",
        };
        self.container.as_ref().map(|name| format!("spec.{list}{{{name}}}"))
    }
}

/// A PersistentVolumeClaim of a pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimId {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
}
