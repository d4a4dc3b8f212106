//! The source of a CSI volume as a PersistentVolume states it (API type `CSIPersistentVolumeSource`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Names a Secret that a PersistentVolume refers to, in any namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SecretRef {
    /// Its namespace.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
}

/// `spec.csi` of a PersistentVolume, and how it may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsiSource {
    /// Name of the driver.
    pub driver: String,
    /// What the driver knows the volume by.
    pub handle: String,
    /// `fsType`; may be empty.
    pub fs_type: String,
    /// `volumeAttributes`.
    pub attributes: BTreeMap<String, String>,
    /// `nodeStageSecretRef`.
    pub stage_secret: Option<SecretRef>,
    /// `nodePublishSecretRef`.
    pub publish_secret: Option<SecretRef>,
    /// `nodeExpandSecretRef`.
    #[serde(default)]
    pub expand_secret: Option<SecretRef>,
    /// `accessModes` of the PersistentVolume.
    pub access_modes: Vec<String>,
    /// Name of the claim, which lies in the pod's namespace; empty: the pod names the volume itself.
    #[serde(default)]
    pub claim: String,
    /// It was translated from another type ([`crate::csi::translation`]).
    #[serde(default)]
    pub migrated: bool,
}
