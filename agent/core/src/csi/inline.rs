//! Inline volumes of CSI drivers (`csi` in a pod): what the driver is asked for.
//!
//! In: a pod's volume, the CSIDriver object, the driver's capabilities. Out: what has to be fetched, the request, whether the
//! node gives the group. Invariants: a driver that does not say that it can do inline volumes is not asked; the handle is a
//! function of pod and volume, so that a repetition is the same volume; Secrets are the pod's own.
//! Upstream: pkg/volume/csi/csi_mounter.go.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Volume};
use k8s_openapi::api::storage::v1::CSIDriver;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::time::Wall;
use crate::types::pod;
use crate::volume::token::{DEFAULT_LIFE_S, TokenRef};
use crate::volume::{ObjectKind, ObjectRef};

/// Upstream begins its errors so.
pub const PLUGIN: &str = "kubernetes.io/csi";
/// Name of the file that says whose volume a directory is, beside the target.
pub const DATA_FILE: &str = "vol_data.json";
/// The target below a volume's directory.
pub const TARGET: &str = "mount";
/// The life of an inline volume: its pod's.
const EPHEMERAL: &str = "Ephemeral";
/// Where drivers find the pod's tokens.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// An inline volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inline {
    /// Name of the driver.
    pub driver: String,
    /// What the driver knows the volume by.
    pub handle: String,
    /// Name of the volume in its pod.
    pub volume: String,
    /// Name of the node.
    pub node: String,
    /// `fsType`; may be empty.
    pub fs_type: String,
    /// Nobody writes to it.
    pub read_only: bool,
    /// `volumeAttributes`.
    pub attributes: BTreeMap<String, String>,
    /// `nodePublishSecretRef`.
    pub secret: Option<ObjectRef>,
    /// Namespace, name and UID of the pod.
    pub pod: (String, String, String),
    /// The pod's service account.
    pub account: String,
    /// `fsGroupChangePolicy: OnRootMismatch`.
    pub by_root: bool,
}

/// What the CSIDriver object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
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
}

/// A token as a driver gets it.
#[derive(Clone)]
pub struct Given {
    /// For whom.
    pub audience: String,
    /// The token.
    pub text: String,
    /// When it ends.
    pub ends: Wall,
}

/// What a driver is asked to publish.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Publish {
    /// What the driver knows the volume by.
    pub handle: String,
    /// Where it is to be.
    pub target: String,
    /// Nobody writes to it.
    pub read_only: bool,
    /// May be empty.
    pub fs_type: String,
    /// The driver gives it this group.
    pub group: Option<u32>,
    /// What the driver is told of it.
    pub context: BTreeMap<String, String>,
    /// What nobody else is told.
    pub secrets: BTreeMap<String, String>,
}

/// Neither secrets nor what may hold tokens is shown.
impl fmt::Debug for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Publish({} at {})", self.handle, self.target)
    }
}

/// What is written beside a volume's target, so that it can be taken away by whoever finds it.
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
}

/// The inline volume of a pod, if it is one.
#[must_use]
pub fn of_volume(p: &Pod, volume: &Volume, node: &str) -> Option<Inline> {
    let source = volume.csi.as_ref()?;
    let spec = pod::spec(p);
    let secret = source.node_publish_secret_ref.as_ref().filter(|s| !s.name.is_empty());
    let policy = spec.security_context.as_ref().and_then(|s| s.fs_group_change_policy.as_deref());
    Some(Inline {
        driver: source.driver.clone(),
        handle: hash(&[pod::uid(p), &volume.name]),
        volume: volume.name.clone(),
        node: node.to_owned(),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        read_only: source.read_only == Some(true),
        attributes: source.volume_attributes.clone().unwrap_or_default(),
        secret: secret.map(|s| ObjectRef::of(p, ObjectKind::Secret, &s.name)),
        pod: (pod::namespace(p).to_owned(), pod::name(p).to_owned(), pod::uid(p).to_owned()),
        account: spec.service_account_name.clone().unwrap_or_default(),
        by_root: policy == Some("OnRootMismatch"),
    })
}

fn hash(parts: &[&str]) -> String {
    format!("csi-{}", hex::encode(Sha256::digest(parts.concat().as_bytes())))
}

impl Inline {
    /// What the driver wants, as its object says.
    ///
    /// # Errors
    /// It has none, or cannot do inline volumes.
    pub fn terms(&self, object: Option<&CSIDriver>) -> Result<Terms, String> {
        let refused = |why: String| {
            let about = format!("volume mode {EPHEMERAL:?} not supported by driver {}", self.driver);
            format!("{PLUGIN}: mounter.SetupAt failed to check volume lifecycle mode: {about} ({why})")
        };
        let Some(object) = object else { return Err(refused("no CSIDriver object".to_owned())) };
        let spec = &object.spec;
        let modes = spec.volume_lifecycle_modes.clone().unwrap_or_default();
        if !modes.iter().any(|mode| mode == EPHEMERAL) {
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
        let wanted = spec.token_requests.iter().flatten();
        Ok(Terms {
            pod_info: spec.pod_info_on_mount == Some(true),
            tokens: wanted.map(|t| token(&t.audience, t.expiration_seconds)).collect(),
            tokens_in_secrets: spec.service_account_token_in_secrets == Some(true),
            again: spec.requires_republish == Some(true),
            group_policy: spec.fs_group_policy.clone().unwrap_or_default(),
        })
    }

    /// The request. `group` is the pod's, if the driver gives it itself.
    #[must_use]
    pub fn publish(
        &self,
        target: &str,
        terms: &Terms,
        tokens: &[Given],
        secrets: BTreeMap<String, String>,
        group: Option<u32>,
    ) -> Publish {
        let (mut context, mut secrets) = (self.attributes.clone(), secrets);
        if terms.pod_info {
            let (namespace, name, uid) = &self.pod;
            let info = [
                ("pod.name", name.as_str()),
                ("pod.namespace", namespace.as_str()),
                ("pod.uid", uid.as_str()),
                ("serviceAccount.name", self.account.as_str()),
                ("ephemeral", "true"),
            ];
            context.extend(info.map(|(k, v)| (format!("csi.storage.k8s.io/{k}"), v.to_owned())));
        }
        if !tokens.is_empty() {
            let shown = |t: &Given| {
                let ends = Timestamp::from_second(t.ends.0.div_euclid(1_000_000_000)).unwrap_or_default();
                (t.audience.clone(), json!({"token": t.text, "expirationTimestamp": ends.to_string()}))
            };
            let all: serde_json::Map<_, _> = tokens.iter().map(shown).collect();
            let to = if terms.tokens_in_secrets { &mut secrets } else { &mut context };
            to.insert(TOKENS.to_owned(), json!(all).to_string());
        }
        Publish {
            handle: self.handle.clone(),
            target: target.to_owned(),
            read_only: self.read_only,
            fs_type: self.fs_type.clone(),
            group,
            context,
            secrets,
        }
    }

    /// The node gives the volume the pod's group, because the driver does not.
    #[must_use]
    pub fn node_gives_group(&self, terms: &Terms) -> bool {
        let policy = terms.group_policy.as_str();
        !self.read_only && (policy == "File" || (policy != "None" && !self.fs_type.is_empty()))
    }

    /// What is written beside the target.
    #[must_use]
    pub fn data(&self) -> VolumeData {
        let rest = [
            ("specVolID", self.volume.clone()),
            ("nodeName", self.node.clone()),
            ("volumeLifecycleMode", EPHEMERAL.to_owned()),
            ("attachmentID", hash(&[&self.handle, &self.driver, &self.node])),
        ];
        VolumeData {
            driver: self.driver.clone(),
            handle: self.handle.clone(),
            rest: rest.map(|(k, v)| (k.to_owned(), v)).into(),
        }
    }
}

/// The words about a driver that is not registered; `operation` is what was to be done.
#[must_use]
pub fn unregistered(operation: &str, driver: &str) -> String {
    format!(
        "{PLUGIN}: {operation} failed to get CSI client: driver name {driver} not found in the list of registered CSI drivers"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn inline(source: Value) -> Inline {
        let p: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"serviceAccountName": "sa", "containers": [], "volumes": [{"name": "v", "csi": source}]}}))
        .unwrap();
        let volume = p.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0].clone();
        of_volume(&p, &volume, "n").unwrap()
    }

    fn driver(spec: Value) -> CSIDriver {
        serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
    }

    #[test]
    fn only_a_driver_that_says_so_does_inline_volumes() {
        let of = inline(json!({"driver": "d"}));
        let before = "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode \"Ephemeral\" \
                      not supported by driver d ";
        assert_eq!(of.terms(None), Err(format!("{before}(no CSIDriver object)")));
        let persistent = driver(json!({"volumeLifecycleModes": ["Persistent"]}));
        assert_eq!(of.terms(Some(&persistent)), Err(format!("{before}(only supports [\"Persistent\"])")));
        let both = driver(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
        assert_eq!(of.terms(Some(&both)), Ok(Terms::default()));
    }

    #[test]
    fn the_driver_is_told_what_it_asked_for() {
        let of = inline(json!({"driver": "d", "fsType": "ext4", "volumeAttributes": {"a": "1"},
            "nodePublishSecretRef": {"name": "s"}}));
        assert_eq!(of.secret.as_ref().map(|s| (s.namespace.as_str(), s.name.as_str())), Some(("ns", "s")));
        let terms = |more: Value| {
            let mut spec = json!({"volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true,
                "tokenRequests": [{"audience": "aud", "expirationSeconds": 700}], "requiresRepublish": true});
            for (k, v) in more.as_object().unwrap() {
                spec[k] = v.clone();
            }
            of.terms(Some(&driver(spec))).unwrap()
        };
        let open = terms(json!({}));
        assert_eq!((open.tokens[0].audience.as_str(), open.tokens[0].life_s, open.again), ("aud", 700, true));
        assert_eq!((open.tokens[0].uid.as_str(), open.tokens[0].account.as_str()), ("u", "sa"));
        let given = [Given { audience: "aud".to_owned(), text: "t".to_owned(), ends: Wall(1_500_000_000) }];
        let secrets = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        let asked = of.publish("/t", &open, &given, secrets.clone(), Some(7));
        let token = "{\"aud\":{\"expirationTimestamp\":\"1970-01-01T00:00:01Z\",\"token\":\"t\"}}";
        let context = json!({"a": "1", "csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.namespace": "ns",
            "csi.storage.k8s.io/pod.uid": "u", "csi.storage.k8s.io/serviceAccount.name": "sa",
            "csi.storage.k8s.io/ephemeral": "true", TOKENS: token});
        assert_eq!((serde_json::to_value(&asked.context).unwrap(), asked.group), (context, Some(7)));
        assert_eq!(asked.secrets, secrets);
        let closed =
            of.publish("/t", &terms(json!({"serviceAccountTokenInSecrets": true})), &given, secrets, None);
        assert!(!closed.context.contains_key(TOKENS) && closed.secrets.contains_key(TOKENS));
        assert_eq!(format!("{closed:?}"), format!("Publish({} at /t)", of.handle), "nothing of it is shown");
    }

    #[test]
    fn who_gives_the_group() {
        let gives = |source: Value, policy: &str| {
            let mut source = source;
            source["driver"] = json!("d");
            inline(source).node_gives_group(&Terms { group_policy: policy.to_owned(), ..Terms::default() })
        };
        assert!(gives(json!({}), "File") && gives(json!({"fsType": "ext4"}), "ReadWriteOnceWithFSType"));
        assert!(!gives(json!({}), "ReadWriteOnceWithFSType") && !gives(json!({"fsType": "ext4"}), "None"));
        assert!(!gives(json!({"readOnly": true}), "File"));
    }

    #[test]
    fn the_file_beside_the_target_is_upstreams() {
        let of = inline(json!({"driver": "d"}));
        // printf uv | sha256sum
        assert_eq!(of.handle, format!("csi-{}", hex::encode(Sha256::digest(b"uv"))));
        let data = serde_json::to_value(of.data()).unwrap();
        let attachment =
            format!("csi-{}", hex::encode(Sha256::digest(format!("{}dn", of.handle).as_bytes())));
        let expected = json!({"driverName": "d", "volumeHandle": of.handle, "specVolID": "v", "nodeName": "n",
            "volumeLifecycleMode": "Ephemeral", "attachmentID": attachment});
        assert_eq!(data, expected);
        assert_eq!(VolumeData::from_json(data.to_string().as_bytes()), Ok(of.data()));
        assert_eq!(VolumeData::from_json(&of.data().to_json().unwrap()), Ok(of.data()));
        assert!(VolumeData::from_json(b"{}").is_err(), "it does not say whose it is");
    }
}
