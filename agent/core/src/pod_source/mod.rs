//! pod_source: reads the desired pods of each source and reports changes.
//!
//! In: contents of the static pod directory ([`file::FileSource`]), answers of a server of manifests
//! ([`url::UrlSource`]), the API server's watch ([`api::ApiSource`]). Out: [`PodUpdate`]s for `pod_manager`,
//! in the order REMOVE, ADD, UPDATE, DELETE, RECONCILE; the first marks the source as ready. Invariants: the
//! delivered pods are a function of the input; a bad file never hides another; a delivered pod is decoded,
//! defaulted, named for this node and valid. Upstream: pkg/kubelet/config.
//!
//! ```text
//! bytes ─decode─► raw value ─┬─► Pod ─defaults─► ─identity─► ─validate─► api_refs ─► storage ─► PodUpdate
//!                            └─► uid (hash of the raw value, host and path)
//! ```

pub mod api;
pub mod api_refs;
pub mod decode;
pub mod defaults;
pub mod field_error;
pub mod file;
pub mod identity;
mod json_path;
pub mod storage;
pub mod url;
pub mod validate;

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

pub use api::ApiSource;
pub use field_error::FieldError;
pub use file::FileSource;
pub use storage::PodStorage;
pub use url::UrlSource;

/// A source of pods; the word of the annotation `kubernetes.io/config.source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Source {
    /// `staticPodPath`.
    File,
    /// `staticPodURL`.
    Http,
    /// The API server.
    Api,
}

impl Source {
    /// The annotation's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Source::File => "file",
            Source::Http => "http",
            Source::Api => "api",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happened to the pods of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PodOp {
    /// The source does not have them any more.
    Remove,
    /// New pods; an empty list means that the source was read for the first time.
    Add,
    /// Their spec, labels, annotations or deletion changed.
    Update,
    /// `metadata.deletionTimestamp` was set.
    Delete,
    /// Only their status differs.
    Reconcile,
}

/// One change of one source.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUpdate {
    /// Whose pods.
    pub source: Source,
    /// What happened to them.
    pub op: PodOp,
    /// The pods as they are now (as they were, for [`PodOp::Remove`]).
    pub pods: Vec<Arc<Pod>>,
}

/// Why a manifest is not a pod for this node. Terminal until the manifest changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Larger than [`decode::MAX_MANIFEST_BYTES`].
    #[error("the manifest is larger than 10 MiB")]
    TooLarge,
    /// Not UTF-8.
    #[error("the manifest is not UTF-8 text (byte {offset})")]
    NotText {
        /// First byte that is not.
        offset: usize,
    },
    /// Not YAML or JSON; the message names line and column.
    #[error("the manifest is neither YAML nor JSON: {0}")]
    Syntax(String),
    /// Not exactly one pod.
    #[error("expected one Pod (apiVersion: v1, kind: Pod), found {0}")]
    NotAPod(String),
    /// One pod of a list.
    #[error("items[{index}]: {error}")]
    Item {
        /// Which one, from 0.
        index: usize,
        /// Mistake in the manifest.
        error: Box<ManifestError>,
    },
    /// A field has the wrong type.
    #[error("{path}: {message}")]
    Type {
        /// Path of the field.
        path: String,
        /// What was expected.
        message: String,
    },
    /// The pod is not valid; every mistake is listed.
    #[error("the pod is not valid: {}", list(.0))]
    Invalid(Vec<FieldError>),
    /// A static pod uses an object of the API.
    #[error("static pods may not reference {0}")]
    ApiReference(&'static str),
}

fn list(errors: &[FieldError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
