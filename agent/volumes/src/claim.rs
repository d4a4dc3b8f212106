//! Persistent volumes: from a pod's claim to the volume to mount.
//!
//! In: a pod's volume, the PersistentVolumeClaim and the PersistentVolume of the API server, the node's
//! labels. Out: [`Bound`], or upstream's message about a missing part. Invariants: claim and volume name each
//! other, by UID; the claim of a generic ephemeral volume belongs to its pod; no object of another namespace
//! is read. Upstream: pkg/kubelet/volumemanager/populator (`createVolumeSpec`),
//! component-helpers/storage/ephemeral.

use std::collections::BTreeMap;

use agent_types::node_selector::any_term_holds;
use agent_types::pod;
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, PersistentVolume, PersistentVolumeClaim, Pod, SecretReference,
    Volume,
};
use serde::{Deserialize, Serialize};

use super::{flex, network_disk};
use crate::bound::{Bound, Source, host_path_type};
use crate::csi::source::{CsiSource, SecretRef};
use crate::csi::translation;
use crate::plugin::NO_PLUGIN;

/// While a claim has it, pods that use the claim may go on, also while it is being deleted.
const PROTECTION: &str = "kubernetes.io/pvc-protection";
/// `volumeMode` of a block device.
const BLOCK: &str = "Block";
/// Annotation of a PersistentVolume that belongs to a group. Upstream: `VolumeGidAnnotationKey`.
const GROUP: &str = "pv.beta.kubernetes.io/gid";
/// Alone among a volume's access modes: one pod at a time.
const ONE_POD: &str = "ReadWriteOncePod";

/// A claim that a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClaimRef {
    /// The pod's namespace.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// The volume in the pod.
    pub volume: String,
    /// `persistentVolumeClaim.readOnly`.
    pub read_only: bool,
    /// Of a generic ephemeral volume: UID and name of the pod that must be its controller.
    pub owner: Option<(String, String)>,
    /// A container mounts it.
    pub mounted: bool,
    /// A container has it as a block device.
    #[serde(default)]
    pub mapped: bool,
}

/// Why a claim's volume cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ClaimError {
    /// Claim or volume are not as they must be, or cannot be read.
    #[error("{0}")]
    Unprocessed(String),
    /// It can be had, but not here or not like this.
    #[error("MountVolume.{check} failed for volume {volume:?} : {why}")]
    Refused {
        /// What was looked at, for example `NodeAffinity check`.
        check: String,
        /// Name of the PersistentVolume.
        volume: String,
        /// Reason of the failure.
        why: String,
    },
}

/// The volume is a claim's.
#[must_use]
pub fn has_one(volume: &Volume) -> bool {
    volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
}

/// The claim of a pod's volume, if it has one.
#[must_use]
pub fn of_volume(p: &Pod, volume: &Volume) -> Option<ClaimRef> {
    let (name, read_only, owner) = if let Some(source) = &volume.persistent_volume_claim {
        (source.claim_name.clone(), source.read_only == Some(true), None)
    } else {
        volume.ephemeral.as_ref()?;
        let owner = (pod::uid(p).to_owned(), pod::name(p).to_owned());
        (format!("{}-{}", pod::name(p), volume.name), false, Some(owner))
    };
    let namespace = pod::namespace(p).to_owned();
    let all = || pod::init_containers(p).iter().chain(pod::containers(p));
    let mounted = all().flat_map(|c| c.volume_mounts.iter().flatten()).any(|m| m.name == volume.name);
    let mapped = all().flat_map(|c| c.volume_devices.iter().flatten()).any(|d| d.name == volume.name);
    Some(ClaimRef { namespace, name, volume: volume.name.clone(), read_only, owner, mounted, mapped })
}

/// The same by the volume's name.
#[must_use]
pub fn of_pod(p: &Pod, volume: &str) -> Option<ClaimRef> {
    let volume = pod::spec(p).volumes.iter().flatten().find(|v| v.name == volume)?;
    of_volume(p, volume)
}

/// The words about a volume that no plugin mounts.
#[must_use]
pub fn no_plugin(volume: &str, why: &str) -> ClaimError {
    ClaimError::Unprocessed(format!("failed to get Plugin from volumeSpec for volume {volume:?} err={why}"))
}

/// The words about a volume whose driver does not say what it is called.
pub(super) fn no_name(volume: &str, driver: &str, why: &str) -> String {
    format!(
        "failed to GetUniqueVolumeNameFromSpec for volumeSpec {volume:?} using volume plugin {driver:?} err=failed to \
         GetVolumeName from volumePlugin for volumeSpec {volume:?} err={why}"
    )
}

impl ClaimRef {
    /// The words around why it cannot be had.
    #[must_use]
    pub fn unprocessed(&self, why: &str) -> ClaimError {
        ClaimError::Unprocessed(format!("error processing PVC {}/{}: {why}", self.namespace, self.name))
    }

    /// Name of the PersistentVolume that the claim is bound to.
    ///
    /// # Errors
    /// It is being deleted, or not bound, or another pod's.
    pub fn volume_name(&self, claim: &PersistentVolumeClaim) -> Result<String, ClaimError> {
        let (meta, spec) = (&claim.metadata, claim.spec.as_ref());
        let protected = meta.finalizers.iter().flatten().any(|f| f == PROTECTION);
        if meta.deletion_timestamp.is_some() && !protected {
            return Err(self.unprocessed("PVC is being deleted"));
        }
        if claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound") {
            return Err(self.unprocessed("PVC is not bound"));
        }
        let name = spec.and_then(|s| s.volume_name.clone()).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| self.unprocessed("PVC has empty pvc.Spec.VolumeName"))?;
        if let Some((uid, pod)) = &self.owner {
            let mut owners = meta.owner_references.iter().flatten();
            if !owners.any(|o| o.controller == Some(true) && o.uid == *uid) {
                let (namespace, claim) = (&self.namespace, &self.name);
                return Err(ClaimError::Unprocessed(format!(
                    "PVC {namespace}/{claim} was not created for pod {namespace}/{pod} (pod is not owner)"
                )));
            }
        }
        Ok(name)
    }

    /// What the claim's volume is.
    ///
    /// # Errors
    /// It is not bound to this claim, or nothing that this node can mount.
    pub fn bound(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<Bound, ClaimError> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let annotation = volume.metadata.annotations.as_ref().and_then(|all| all.get(GROUP));
        // What is no number names no group, as upstream.
        let group = annotation.and_then(|text| text.parse().ok());
        let spec = volume.spec.as_ref();
        let claim_uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let Some(holder) = spec.and_then(|s| s.claim_ref.as_ref()) else {
            return Err(self.unprocessed(&format!(
                "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
            )));
        };
        let holder = holder.uid.as_deref().unwrap_or_default();
        if holder != claim_uid {
            return Err(self.unprocessed(&format!(
                "found PV object {name} but its pv.Spec.ClaimRef.UID {holder} does not point to claim.UID {claim_uid}"
            )));
        }
        let migrated = translation::is_persistent(volume);
        let volume = translation::persistent(volume).map_err(ClaimError::Unprocessed)?;
        let spec = volume.into_owned().spec.unwrap_or_default();
        let mode = spec.volume_mode.as_deref().unwrap_or("Filesystem");
        let block = mode != "Filesystem";
        let misused =
            [(self.mounted && block, "volumeMounts"), (self.mapped && mode != BLOCK, "volumeDevices")];
        if let Some((_, field)) = misused.iter().find(|(is, _)| *is) {
            return Err(ClaimError::Unprocessed(format!(
                "volume {} has volumeMode {mode}, but is specified in {field}",
                self.volume
            )));
        }
        let no_plugin = |why: &str| no_plugin(&name, why);
        let source = if let Some(local) = spec.local {
            Source::Local { path: local.path, fs_type: local.fs_type.unwrap_or_default() }
        } else if let Some(host_path) = spec.host_path {
            if block {
                return Err(no_plugin("a hostPath volume is no block device"));
            }
            let kind =
                host_path_type(host_path.type_.as_deref().unwrap_or("")).map_err(|why| no_plugin(&why))?;
            Source::HostPath { path: host_path.path, kind }
        } else if let Some(nfs) = spec.nfs {
            if block {
                return Err(no_plugin("an NFS volume is no block device"));
            }
            Source::Nfs { server: nfs.server, path: nfs.path }
        } else if let Some(csi) = spec.csi {
            let modes = spec.access_modes.clone().unwrap_or_default();
            Source::Csi(Box::new(CsiSource { migrated, ..csi_source(csi, modes, &self.name) }))
        } else if let Some(iscsi) = spec.iscsi {
            Source::NetworkDisk(Box::new(network_disk::source::Source::of_persistent_iscsi(iscsi)))
        } else if let Some(fc) = spec.fc {
            let source = network_disk::source::Source::of_fc(fc).map_err(|why| no_plugin(&why))?;
            Source::NetworkDisk(Box::new(source))
        } else if let Some(flex) = spec.flex_volume {
            if block {
                return Err(no_plugin("a flexVolume is no block device"));
            }
            Source::Flex(Box::new(flex::source::Source::of_persistent(flex)))
        } else {
            return Err(no_plugin(NO_PLUGIN));
        };
        let options = spec.mount_options.unwrap_or_default();
        if !options.is_empty() && matches!(source, Source::HostPath { .. } | Source::Flex(_)) {
            let why = "mount options are not supported for this volume type".to_owned();
            return Err(ClaimError::Refused {
                check: "MountOptionSupport check".to_owned(),
                volume: name,
                why,
            });
        }
        let one_pod = spec.access_modes.as_deref() == Some(&[ONE_POD.to_owned()]);
        let read_only = self.read_only;
        Ok(Bound { volume: name, source, read_only, options, one_pod, block, group, labelled: false })
    }
}

pub(super) fn csi_source(
    csi: CSIPersistentVolumeSource,
    access_modes: Vec<String>,
    claim: &str,
) -> CsiSource {
    let secret = |of: Option<SecretReference>| {
        let named = |s: SecretReference| {
            Some(SecretRef { namespace: s.namespace.unwrap_or_default(), name: s.name? })
        };
        of.and_then(named)
    };
    CsiSource {
        driver: csi.driver,
        handle: csi.volume_handle,
        fs_type: csi.fs_type.unwrap_or_default(),
        attributes: csi.volume_attributes.unwrap_or_default(),
        stage_secret: secret(csi.node_stage_secret_ref),
        publish_secret: secret(csi.node_publish_secret_ref),
        expand_secret: secret(csi.node_expand_secret_ref),
        access_modes,
        claim: claim.to_owned(),
        migrated: false,
    }
}

/// The nodes that may have the volume; `None`: all of them.
fn required(volume: &PersistentVolume) -> Option<NodeSelector> {
    // A volume that cannot be translated is bound to no node.
    let volume = translation::persistent(volume).ok()?;
    volume.spec.as_ref()?.node_affinity.as_ref()?.required.clone()
}

/// The volume may be used on nodes that are chosen by labels.
#[must_use]
pub fn is_choosy(volume: &PersistentVolume) -> bool {
    required(volume).is_some()
}

/// A node with these labels may have the volume.
///
/// # Errors
/// It may not.
pub fn check_node(volume: &PersistentVolume, labels: &BTreeMap<String, String>) -> Result<(), ClaimError> {
    let Some(required) = required(volume) else { return Ok(()) };
    if any_term_holds(&required.node_selector_terms, labels, "") {
        return Ok(());
    }
    Err(ClaimError::Refused {
        check: "NodeAffinity check".to_owned(),
        volume: volume.metadata.name.clone().unwrap_or_default(),
        why: "no matching NodeSelectorTerms".to_owned(),
    })
}

#[cfg(test)]
mod tests;
