//! Volumes of CSI drivers: inline ones (`csi` in a pod) and those of PersistentVolumes; what the driver is asked for.
//!
//! In: a pod's volume or what its claim is bound to, the CSIDriver object, the driver's capabilities. Out: what has to be
//! fetched, the requests, whether the node gives the group. Invariants: a driver that does not say that it can do volumes of
//! this life is not asked; the handle of an inline volume is a function of pod and volume, so that a repetition is the same
//! volume; an inline volume's Secret is in the pod's own namespace. Upstream: pkg/volume/csi/csi_mounter.go, csi_attacher.go.

pub mod expand;
pub mod failures;

pub mod limits;
pub mod plugin;
pub mod publishing;
pub mod request;
pub mod source;
pub mod translation;
pub mod unpublishing;
pub mod unstaging;

use std::collections::BTreeMap;

use agent_types::objects::{ObjectKind, ObjectRef};
use agent_types::pod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::bound::Bound;
use crate::csi::request::{Access, Capabilities, Capability, DriverToken, Expand, Publish, Stage};
use crate::csi::source::{CsiSource, SecretRef};
use crate::key::VolumeKey;
use crate::selinux;
use crate::token::{DEFAULT_LIFE_S, TokenRef};

/// Upstream begins its errors so.
pub const PLUGIN: &str = "kubernetes.io/csi";
/// Name of the file next to the target that says which volume the directory belongs to.
pub const DATA_FILE: &str = "vol_data.json";
/// The target below a volume's directory.
pub const TARGET: &str = "mount";
/// The life of an inline volume: its pod's.
const EPHEMERAL: &str = "Ephemeral";
/// The life of a PersistentVolume: its own.
const PERSISTENT: &str = "Persistent";
/// In the file next to the target: `false` if the driver's volumes are not attached to nodes. Upstream asks the
/// CSIDriver again; this node knows it without an API server.
const ATTACH: &str = "attachRequired";
/// Where drivers find the pod's tokens.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";
/// Code of an attachment's error: gRPC's ResourceExhausted.
const RESOURCE_EXHAUSTED: i32 = 8;
/// What a Secret is called in words about it.
const PUBLISH_SECRET: &str = "NodePublishSecretRef";

/// What a volume of a PersistentVolume has in addition to the fields of every volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Persistent {
    /// `nodeStageSecretRef`.
    pub stage_secret: Option<SecretRef>,
    /// `nodePublishSecretRef`.
    pub publish_secret: Option<SecretRef>,
    /// `nodeExpandSecretRef`.
    #[serde(default)]
    pub expand_secret: Option<SecretRef>,
    /// Name of the claim, which lies in the pod's namespace; empty: the pod names the volume itself.
    #[serde(default)]
    pub claim: String,
    /// It was translated from another type ([`crate::csi::translation`]).
    #[serde(default)]
    pub migrated: bool,
    /// `accessModes`; the first one counts.
    pub access_modes: Vec<String>,
    /// `mountOptions`.
    pub flags: Vec<String>,
    /// No other pod may have it at the same time.
    pub one_pod: bool,
    /// The SELinux label that its files are to have ([`selinux`]); empty: none, `None`: the node has no labels for anybody.
    #[serde(default)]
    pub label: Option<String>,
}

/// A volume of a CSI driver, for one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsiVolume {
    /// Name of the driver.
    pub driver: String,
    /// What the driver knows the volume by.
    pub handle: String,
    /// Name of the volume in its pod, or of its PersistentVolume.
    pub volume: String,
    /// Name of the node.
    pub node: String,
    /// `fsType`; may be empty.
    pub fs_type: String,
    /// It is read-only.
    pub read_only: bool,
    /// `volumeAttributes`.
    pub attributes: BTreeMap<String, String>,
    /// `nodePublishSecretRef` of an inline volume.
    pub secret: Option<ObjectRef>,
    /// Namespace, name and UID of the pod.
    pub pod: (String, String, String),
    /// The pod's service account.
    pub account: String,
    /// `fsGroupChangePolicy: OnRootMismatch`.
    pub by_root: bool,
    /// It is a PersistentVolume's; `None`: an inline volume.
    pub persistent: Option<Persistent>,
    /// It is a block device, which the node keeps for its pods in this directory; `None`: a file system.
    #[serde(default)]
    pub block: Option<String>,
    /// Containers have waited so long for it to be attached that the cluster is asked why it is not.
    #[serde(default)]
    pub overdue: bool,
}

/// What the CSIDriver object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Its volumes are attached to nodes before they can be used there.
    pub attach: bool,
    /// The driver wants to know the pod.
    pub pod_info: bool,
    /// It wants these tokens of the pod's account.
    pub tokens: Vec<TokenRef>,
    /// It wants them among the secrets.
    pub tokens_in_secrets: bool,
    /// It wants to be asked again and again.
    pub again: bool,
    /// `fsGroupPolicy`.
    pub group_policy: String,
    /// It is asked now and then how many volumes the node may have.
    pub recounts: bool,
    /// It mounts volumes with the SELinux label that it gets (`seLinuxMount`), and the node has labels.
    pub labels: bool,
}

/// The file next to a volume's target. A later agent needs it to remove the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeData {
    /// Name of the driver.
    #[serde(rename = "driverName")]
    pub driver: String,
    /// What the driver knows the volume by.
    #[serde(rename = "volumeHandle")]
    pub handle: String,
    /// Everything else that upstream writes.
    #[serde(flatten)]
    pub rest: BTreeMap<String, String>,
}

impl VolumeData {
    /// The text of the file.
    ///
    /// # Errors
    /// None that can be thought of.
    pub fn to_json(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|e| e.to_string())
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// It is no such text.
    pub fn from_json(text: &[u8]) -> Result<VolumeData, String> {
        serde_json::from_slice(text).map_err(|e| e.to_string())
    }

    /// The volume outlives its pods: nodes may share it, and it may have been staged.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.rest.get("volumeLifecycleMode").is_none_or(|life| life != EPHEMERAL)
    }

    /// It is attached to nodes. That is the default without an entry.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.rest.get(ATTACH).is_none_or(|says| says != "false")
    }

    /// The SELinux label that it was mounted with; empty without one.
    #[must_use]
    pub fn label(&self) -> &str {
        self.rest.get(selinux::CONTEXT).map(String::as_str).unwrap_or_default()
    }

    /// Which volume it is, on this node.
    #[must_use]
    pub fn key(&self) -> VolumeKey {
        VolumeKey { driver: self.driver.clone(), handle: self.handle.clone() }
    }
}

/// The inline volume of a pod, if it is one.
#[must_use]
pub fn of_volume(p: &Pod, volume: &Volume, node: &str) -> Option<CsiVolume> {
    let source = volume.csi.as_ref()?;
    let secret = source.node_publish_secret_ref.as_ref().filter(|s| !s.name.is_empty());
    Some(CsiVolume {
        driver: source.driver.clone(),
        handle: hash(&[pod::uid(p), &volume.name]),
        volume: volume.name.clone(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        read_only: source.read_only == Some(true),
        attributes: source.volume_attributes.clone().unwrap_or_default(),
        secret: secret.map(|s| ObjectRef::of(p, ObjectKind::Secret, &s.name)),
        ..of_pod(p, node)
    })
}

/// The volume of a claim that is bound to a PersistentVolume of a driver.
#[must_use]
pub fn of_bound(p: &Pod, bound: &Bound, source: &CsiSource, node: &str) -> CsiVolume {
    CsiVolume {
        driver: source.driver.clone(),
        handle: source.handle.clone(),
        volume: bound.volume.clone(),
        fs_type: source.fs_type.clone(),
        // As upstream has it: what the PersistentVolume says of it is for the driver's controller.
        read_only: bound.read_only,
        attributes: source.attributes.clone(),
        persistent: Some(Persistent {
            stage_secret: source.stage_secret.clone(),
            publish_secret: source.publish_secret.clone(),
            expand_secret: source.expand_secret.clone(),
            claim: source.claim.clone(),
            migrated: source.migrated,
            access_modes: source.access_modes.clone(),
            flags: bound.options.clone(),
            one_pod: bound.one_pod,
            label: None,
        }),
        ..of_pod(p, node)
    }
}

/// What a volume has from its pod.
fn of_pod(p: &Pod, node: &str) -> CsiVolume {
    let spec = pod::spec(p);
    let policy = spec.security_context.as_ref().and_then(|s| s.fs_group_change_policy.as_deref());
    CsiVolume {
        driver: String::new(),
        handle: String::new(),
        volume: String::new(),
        node: node.to_owned(),
        fs_type: String::new(),
        read_only: false,
        attributes: BTreeMap::new(),
        secret: None,
        pod: (pod::namespace(p).to_owned(), pod::name(p).to_owned(), pod::uid(p).to_owned()),
        account: spec.service_account_name.clone().unwrap_or_default(),
        by_root: policy == Some("OnRootMismatch"),
        persistent: None,
        block: None,
        overdue: false,
    }
}

fn hash(parts: &[&str]) -> String {
    format!("csi-{}", hex::encode(Sha256::digest(parts.concat().as_bytes())))
}

impl CsiVolume {
    /// Which volume it is, on this node.
    #[must_use]
    pub fn key(&self) -> VolumeKey {
        VolumeKey { driver: self.driver.clone(), handle: self.handle.clone() }
    }

    /// It was translated from another type.
    #[must_use]
    pub fn is_migrated(&self) -> bool {
        self.persistent.as_ref().is_some_and(|p| p.migrated)
    }

    /// The same volume, as the driver can have it.
    #[must_use]
    pub fn on(&self, terms: &Terms) -> CsiVolume {
        let mut agreed = self.clone();
        if let Some(persistent) = agreed.persistent.as_mut().filter(|_| !terms.labels) {
            persistent.label = None;
        }
        agreed
    }

    /// The SELinux label that its files are to have by its mount; empty without one.
    #[must_use]
    pub fn label(&self) -> &str {
        self.persistent.as_ref().and_then(|p| p.label.as_deref()).unwrap_or_default()
    }

    fn has_labels(&self) -> bool {
        self.persistent.as_ref().is_some_and(|p| p.label.is_some())
    }

    fn life(&self) -> &'static str {
        if self.persistent.is_some() { PERSISTENT } else { EPHEMERAL }
    }

    /// What the driver wants, as its object says.
    ///
    /// # Errors
    /// It cannot do volumes of this life, or has no object and the volume is an inline one.
    pub fn terms(&self, object: Option<&CSIDriver>) -> Result<Terms, String> {
        let life = self.life();
        let refused = |why: String| {
            let about = format!("volume mode {life:?} not supported by driver {}", self.driver);
            format!("{PLUGIN}: mounter.SetupAt failed to check volume lifecycle mode: {about} ({why})")
        };
        let Some(object) = object else {
            return match self.persistent {
                // Upstream: a driver without a CSIDriver object has its volumes attached.
                Some(_) => Ok(Terms { attach: true, ..Terms::default() }),
                None => Err(refused("no CSIDriver object".to_owned())),
            };
        };
        let spec = &object.spec;
        let modes = spec.volume_lifecycle_modes.clone().unwrap_or_default();
        if !modes.iter().any(|mode| mode == life) {
            return Err(refused(format!("only supports {modes:?}")));
        }
        let (namespace, name, uid) = &self.pod;
        let token = |audience: &str, life_s: Option<i64>| TokenRef {
            namespace: namespace.clone(),
            account: self.account.clone(),
            account_uid: String::new(),
            audience: audience.to_owned(),
            life_s: life_s.unwrap_or(DEFAULT_LIFE_S),
            pod: name.clone(),
            uid: uid.clone(),
        };
        // As upstream: who has a device gets no tokens with it.
        let wanted = spec.token_requests.iter().flatten().filter(|_| self.block.is_none());
        Ok(Terms {
            attach: spec.attach_required != Some(false),
            pod_info: spec.pod_info_on_mount == Some(true),
            tokens: wanted.map(|t| token(&t.audience, t.expiration_seconds)).collect(),
            tokens_in_secrets: spec.service_account_token_in_secrets == Some(true),
            again: spec.requires_republish == Some(true),
            group_policy: spec.fs_group_policy.clone().unwrap_or_default(),
            recounts: limits::period(Some(object)).is_some(),
            // A device has no files.
            labels: spec.se_linux_mount == Some(true) && self.block.is_none() && self.has_labels(),
        })
    }

    /// Name of the VolumeAttachment that says whether the volume is attached to this node.
    #[must_use]
    pub fn attachment(&self) -> String {
        hash(&[&self.handle, &self.driver, &self.node])
    }

    /// What the driver's controller says for the node, once the volume is attached; `None`: it is not yet.
    ///
    /// # Errors
    /// It will not be, as this attachment says.
    pub fn attached(
        &self,
        attachment: &VolumeAttachment,
    ) -> Result<Option<BTreeMap<String, String>>, String> {
        if attachment.metadata.deletion_timestamp.is_some() {
            return Err("volume attachment is being deleted".to_owned());
        }
        let Some(status) = attachment.status.as_ref() else { return Ok(None) };
        if status.attached {
            return Ok(Some(status.attachment_metadata.clone().unwrap_or_default()));
        }
        match &status.attach_error {
            Some(error) => Err(error.message.clone().unwrap_or_default()),
            None => Ok(None),
        }
    }

    /// The volume is not attached because the node has no room for another one, as its driver says.
    #[must_use]
    pub fn finds_no_room(attachment: &VolumeAttachment) -> bool {
        let error = attachment.status.as_ref().and_then(|status| status.attach_error.as_ref());
        error.and_then(|error| error.error_code) == Some(RESOURCE_EXHAUSTED)
    }

    /// How it is mounted: with its label.
    fn mounted(&self, driver: Capabilities, group: Option<u32>) -> Capability {
        let mut capability = self.capability(driver, group);
        if !self.label().is_empty() {
            capability.flags.push(selinux::option(self.label()));
        }
        capability
    }

    /// How it is used. `group` is the pod's, if the driver gives it itself.
    fn capability(&self, driver: Capabilities, group: Option<u32>) -> Capability {
        let modes = self.persistent.as_ref().map(|p| p.access_modes.as_slice()).unwrap_or_default();
        Capability {
            fs_type: self.fs_type.clone(),
            flags: self.persistent.as_ref().map(|p| p.flags.clone()).unwrap_or_default(),
            group: group.filter(|_| driver.gives_groups),
            block: self.block.is_some(),
            access: Access::of(modes.first().map(String::as_str), driver.tells_writers),
        }
    }

    /// What makes the volume ready on the node.
    #[must_use]
    pub fn stage(
        &self,
        path: &str,
        (driver, group): (Capabilities, Option<u32>),
        attached: BTreeMap<String, String>,
        secrets: BTreeMap<String, String>,
    ) -> Stage {
        Stage {
            handle: self.handle.clone(),
            path: path.to_owned(),
            capability: self.mounted(driver, group),
            attached,
            context: self.attributes.clone(),
            secrets,
        }
    }

    /// What makes it larger, where it is published and staged.
    #[must_use]
    pub fn expand(
        &self,
        (path, staging): (&str, Option<&str>),
        bytes: i64,
        driver: Capabilities,
        secrets: BTreeMap<String, String>,
    ) -> Expand {
        Expand {
            handle: self.handle.clone(),
            path: path.to_owned(),
            staging: staging.map(str::to_owned),
            bytes,
            capability: self.capability(driver, None),
            secrets,
        }
    }

    /// The request. `group` is the pod's.
    #[must_use]
    pub fn publish(
        &self,
        target: &str,
        terms: &Terms,
        tokens: &[DriverToken],
        secrets: BTreeMap<String, String>,
        (driver, group): (Capabilities, Option<u32>),
    ) -> Publish {
        let (mut context, mut secrets) = (self.attributes.clone(), secrets);
        if terms.pod_info {
            let (namespace, name, uid) = &self.pod;
            let info = [
                ("pod.name", name.as_str()),
                ("pod.namespace", namespace.as_str()),
                ("pod.uid", uid.as_str()),
                ("serviceAccount.name", self.account.as_str()),
                ("ephemeral", if self.persistent.is_some() { "false" } else { "true" }),
            ];
            context.extend(info.map(|(k, v)| (format!("csi.storage.k8s.io/{k}"), v.to_owned())));
        }
        if !tokens.is_empty() {
            let shown = |t: &DriverToken| {
                let ends = Timestamp::from_second(t.ends.0.div_euclid(1_000_000_000)).unwrap_or_default();
                (t.audience.clone(), json!({"token": t.text, "expirationTimestamp": ends.to_string()}))
            };
            let all: serde_json::Map<_, _> = tokens.iter().map(shown).collect();
            let to = if terms.tokens_in_secrets { &mut secrets } else { &mut context };
            to.insert(TOKENS.to_owned(), json!(all).to_string());
        }
        Publish {
            handle: self.handle.clone(),
            staging: None,
            target: target.to_owned(),
            read_only: self.read_only,
            capability: self.mounted(driver, group),
            attached: BTreeMap::new(),
            context,
            secrets,
        }
    }

    /// The node gives the volume the pod's group, because the driver does not.
    #[must_use]
    pub fn node_gives_group(&self, terms: &Terms) -> bool {
        let once = |p: &Persistent| p.access_modes.iter().any(|m| m.starts_with("ReadWriteOnce"));
        let one_writer = self.persistent.as_ref().is_none_or(once);
        let policy = terms.group_policy.as_str();
        let files = self.block.is_none() && !self.read_only;
        files && (policy == "File" || (policy != "None" && !self.fs_type.is_empty() && one_writer))
    }

    /// The contents of the file next to the target.
    #[must_use]
    pub fn data(&self, terms: &Terms) -> VolumeData {
        let mut rest = BTreeMap::from(
            [
                ("specVolID", self.volume.clone()),
                ("nodeName", self.node.clone()),
                ("volumeLifecycleMode", self.life().to_owned()),
                ("attachmentID", self.attachment()),
            ]
            .map(|(k, v)| (k.to_owned(), v)),
        );
        if self.persistent.is_some() {
            rest.extend(not_attached(terms));
        }
        rest.extend(self.labelled());
        VolumeData { driver: self.driver.clone(), handle: self.handle.clone(), rest }
    }

    /// The contents of the file next to the staging directory.
    #[must_use]
    pub fn staged_data(&self, terms: &Terms) -> VolumeData {
        let rest = not_attached(terms).into_iter().chain(self.labelled()).collect();
        VolumeData { driver: self.driver.clone(), handle: self.handle.clone(), rest }
    }

    fn labelled(&self) -> Option<(String, String)> {
        let label = self.label();
        (!label.is_empty()).then(|| (selinux::CONTEXT.to_owned(), label.to_owned()))
    }
}

fn not_attached(terms: &Terms) -> Option<(String, String)> {
    (!terms.attach).then(|| (ATTACH.to_owned(), "false".to_owned()))
}

/// The words about a Secret that cannot be had; `what` is the field that names it.
#[must_use]
pub fn no_secret(what: Option<&str>, namespace: &str, name: &str, why: &str) -> String {
    format!("fetching {} {namespace}/{name} failed: {why}", what.unwrap_or(PUBLISH_SECRET))
}

/// The words about a driver that is not registered; `operation` is what was to be done.
#[must_use]
pub fn unregistered(operation: &str, driver: &str) -> String {
    let client =
        if operation == "attacher.MountDevice" { "create newCsiDriverClient" } else { "get CSI client" };
    format!(
        "{PLUGIN}: {operation} failed to {client}: driver name {driver} not found in the list of registered CSI drivers"
    )
}

#[cfg(test)]
mod tests;
