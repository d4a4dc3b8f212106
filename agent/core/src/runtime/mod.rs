//! The container runtime as core sees it: configurations going out ([`config`]), observations coming in
//! ([`observed`]), effects and their answers ([`effect`]). agent-cri converts to and from CRI messages.

pub mod config;
pub mod containers;
pub mod effect;
pub mod lost_shims;
pub mod observed;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub Arc<str>);

        impl $name {
            /// The text of the identifier.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(s: &str) -> Self {
                $name(Arc::from(s))
            }
        }

        impl From<String> for $name {
            fn from(s: String) -> Self {
                $name(Arc::from(s))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id_type! {
    /// `metadata.uid` of a pod (for static pods the hash of chapter 4).
    PodUid
}
id_type! {
    /// CRI pod sandbox id.
    SandboxId
}
id_type! {
    /// CRI container id.
    ContainerId
}
id_type! {
    /// CRI image id (`Image.id`), what a container is created from.
    ImageId
}

/// Names a pod in logs, events and runtime labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PodKey {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: PodUid,
}

impl fmt::Display for PodKey {
    /// `name_namespace(uid)`, the form of upstream's messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}({})", self.name, self.namespace, self.uid)
    }
}

/// Labels and annotations that the kubelet puts on sandboxes and containers (contract chapter 7.5, 7.6).
/// They are how a restarted agent finds what its predecessor made.
pub mod labels {
    /// Pod name label, on sandboxes and containers.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// Pod namespace label, on sandboxes and containers.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// Pod UID label, on sandboxes and containers.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// Container name label, on containers.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// Annotation: hash of the container's name and image (fact 2 of the contract).
    pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
    /// Annotation: restart count at creation, decimal.
    pub const CONTAINER_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// Annotation: path of the termination message inside the container.
    pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// Annotation: `File` or `FallbackToLogsOnError`.
    pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// Annotation: JSON of the container's ports.
    pub const CONTAINER_PORTS: &str = "io.kubernetes.container.ports";
    /// Annotation: JSON of the preStop handler, so that an orphan can still run it.
    pub const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
    /// Annotation: pod's grace period in seconds, decimal.
    pub const TERMINATION_GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
    /// Annotation: deletion grace period in seconds, decimal.
    pub const DELETION_GRACE_PERIOD: &str = "io.kubernetes.pod.deletionGracePeriod";
}
