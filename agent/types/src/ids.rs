//! Identifiers of pods, sandboxes, containers and images.
//!
//! In: texts of the API and of the runtime. Out: one type for each kind of identifier. Invariant: an identifier is compared and
//! ordered as its text.

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
    /// `metadata.uid` of a pod; of a static pod the hash of its manifest, host and path.
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
    /// CRI image id (`Image.id`); containers are created from it.
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

/// CRI `IDMapping`, for users and groups alike: `length` ids from `container_id` on are those of the host from `host_id` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IdMapping {
    /// First id on the host.
    pub host_id: u32,
    /// First id in the container.
    pub container_id: u32,
    /// Number of ids in the range.
    pub length: u32,
}
