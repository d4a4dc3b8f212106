//! Objects of the API server that pods refer to (Secrets, ConfigMaps, trust bundles, claims): names, contents, and the state of
//! their retrieval.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::pod;

/// Kinds of API objects that pods refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ObjectKind {
    /// API kind `ConfigMap`.
    ConfigMap,
    /// API kind `Secret`.
    Secret,
    /// The Services of a namespace, or the named one: containers get them as variables.
    Services,
    /// A RuntimeClass: its `handler`. It has no namespace.
    RuntimeClass,
    /// All ClusterTrustBundles: a volume selects them by labels. They have no namespace.
    TrustBundles,
}

/// An object that pods get values from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectRef {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Its namespace: that of the pod, or none.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl ObjectRef {
    /// The object of this name that the pod `p` refers to: it lies in the pod's namespace.
    #[must_use]
    pub fn of(p: &Pod, kind: ObjectKind, name: &str) -> ObjectRef {
        ObjectRef { kind, namespace: pod::namespace(p).to_owned(), name: name.to_owned() }
    }

    /// Reference to every ClusterTrustBundle.
    #[must_use]
    pub fn trust_bundles() -> ObjectRef {
        ObjectRef { kind: ObjectKind::TrustBundles, namespace: String::new(), name: String::new() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            ObjectKind::ConfigMap => "configmap",
            ObjectKind::Secret => "secret",
            ObjectKind::Services => "services",
            ObjectKind::RuntimeClass => "runtimeclass.node.k8s.io",
            ObjectKind::TrustBundles => "clustertrustbundles.certificates.k8s.io",
        };
        write!(f, "{kind} {:?}", self.name)
    }
}

/// Contents of an object.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectData {
    /// `data`.
    pub data: BTreeMap<String, Vec<u8>>,
    /// `binaryData` of a ConfigMap.
    pub binary: BTreeMap<String, Vec<u8>>,
    /// UID of a Secret.
    #[serde(default)]
    pub uid: String,
    /// ClusterTrustBundles by name.
    #[serde(default)]
    pub bundles: BTreeMap<String, Bundle>,
}

/// Prints the keys only, because the object may be a Secret.
impl fmt::Debug for ObjectData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.data.keys()).entries(self.binary.keys()).finish()
    }
}

/// The result of the retrieval of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fetched {
    /// The object with its contents.
    Found(ObjectData),
    /// The API server has no such object.
    Missing,
    /// The state is unknown, for this reason.
    Unknown(String),
}

/// The results for several objects.
pub type Objects = BTreeMap<ObjectRef, Fetched>;

/// The object, or the message about its absence.
///
/// # Errors
/// The object is missing (`None` if the reference is `optional`), or its state is unknown.
pub fn look_up<'o>(
    objects: &'o Objects,
    of: &ObjectRef,
    optional: bool,
) -> Result<Option<&'o ObjectData>, String> {
    match objects.get(of) {
        Some(Fetched::Found(data)) => Ok(Some(data)),
        Some(Fetched::Missing) if optional => Ok(None),
        Some(Fetched::Missing) => Err(format!("{of} not found")),
        Some(Fetched::Unknown(why)) => Err(why.clone()),
        None => Err(format!("object \"{}\"/\"{}\" not registered", of.namespace, of.name)),
    }
}

/// The fields of a ClusterTrustBundle that a volume needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bundle {
    /// `spec.signerName`; empty: no signer.
    pub signer: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.trustBundle`.
    pub anchors: String,
}

impl From<&ClusterTrustBundle> for Bundle {
    fn from(object: &ClusterTrustBundle) -> Bundle {
        Bundle {
            signer: object.spec.signer_name.clone().unwrap_or_default(),
            labels: object.metadata.labels.clone().unwrap_or_default(),
            anchors: object.spec.trust_bundle.clone(),
        }
    }
}
