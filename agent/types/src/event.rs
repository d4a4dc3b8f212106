//! A Kubernetes event about a pod, as its author states it.
//!
//! In: reason and message. Out: plain data. The folder `events` adds the bookkeeping of the API object.

use serde::{Deserialize, Serialize};

/// Severity of a Kubernetes event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// Event type `Normal`.
    Normal,
    /// Event type `Warning`.
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
    /// List of the pod's specification that has the container.
    pub list: ContainerList,
    /// A claim of the pod that gets the same event.
    pub claim: Option<ClaimId>,
    /// `metadata.resourceVersion` of the pod as its author had it; `None`: a static pod, or unknown.
    pub resource_version: Option<String>,
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
    /// `involvedObject.fieldPath`: place of the container in the pod.
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
