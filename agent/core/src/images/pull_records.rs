//! Pull records: which credentials pulled an image, and so which pods may use it without a new pull
//! (KEP-2535).
//!
//! ```text
//! intent on disk ─► pull ─► record on disk (image ─► secrets that pulled it) ─► intent removed
//! image on the node + record + the pod's credentials ─► access()
//! ```
//! In: records, a policy, the credentials that a pod has for an image. Out: whether the pod may use the
//! present image; the records to write. Invariants: a pod uses an image that the node pulled only with
//! credentials that pulled it, unless the pull needed none; the files have upstream's format, so either
//! kubelet continues with the other's. [`changes`] has the order in which the files change. Upstream:
//! pkg/kubelet/images/pullmanager.

pub mod changes;

use std::collections::BTreeMap;

use agent_types::api_time;
use agent_types::credential::{AccountName, Credential, Origin, Source};
use agent_types::time::Wall;
use k8s_openapi::jiff::Timestamp;
use orlop_config::kubelet::enums::ImagePullCredentialsVerificationPolicy as Verification;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::reference;

/// Below `--root-dir`: intents.
pub const PULLING: &str = "image_manager/pulling";
/// Below `--root-dir`: records.
pub const PULLED: &str = "image_manager/pulled";
/// What the names of both begin with.
pub const FILE_PREFIX: &str = "sha256-";
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Written by older kubelets.
const API_VERSION_OLD: &str = "kubelet.config.k8s.io/v1alpha1";
/// A record with fewer Secrets gets each further Secret that is verified by coordinates or hash alone.
const SECRETS_BY_THE_WAY_MAX: usize = 100;

/// Name of the file about an image: as a pod spells it (intents), or as the runtime does (records).
#[must_use]
pub fn file_name(image: &str) -> String {
    format!("{FILE_PREFIX}{}", hex::encode(Sha256::digest(image.as_bytes())))
}

/// `ImagePullIntent`: the image may be pulled by the node soon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Intent {
    kind: String,
    api_version: String,
    /// As the pod spells it.
    pub image: String,
}

/// `ImagePulledRecord`: the node pulled this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    kind: String,
    api_version: String,
    last_updated_time: Option<String>,
    /// The runtime's id of the image.
    pub image_ref: String,
    /// By image without tag and digest, as pods spell it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    credential_mapping: BTreeMap<String, Credentials>,
}

/// `ImagePullCredentials`: the credentials that pulled an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Credentials {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<Origin>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<AccountName>,
    #[serde(default, skip_serializing_if = "is_false")]
    node_pods_accessible: bool,
}

// serde wants a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

/// A file that is none of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not of its form.
    #[error("it is not a {kind}: {why}")]
    Form {
        /// What it should be.
        kind: &'static str,
        /// The parser's words.
        why: String,
    },
    /// Another kind or version.
    #[error("it is a {kind} of {version}")]
    Other {
        /// Its kind.
        kind: String,
        /// Its version.
        version: String,
    },
}

fn known(kind: &str, version: &str, expected: &str) -> Result<(), RecordError> {
    if kind == expected && [API_VERSION, API_VERSION_OLD].contains(&version) {
        return Ok(());
    }
    Err(RecordError::Other { kind: kind.to_owned(), version: version.to_owned() })
}

fn form(kind: &'static str) -> impl Fn(serde_json::Error) -> RecordError {
    move |e| RecordError::Form { kind, why: e.to_string() }
}

/// Both kinds end with a line's end.
fn bytes(value: &impl Serialize) -> Vec<u8> {
    // Texts and lists of texts: that cannot fail.
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

impl Intent {
    const KIND: &'static str = "ImagePullIntent";

    /// About to pull `image`.
    #[must_use]
    pub fn new(image: &str) -> Intent {
        Intent { kind: Intent::KIND.to_owned(), api_version: API_VERSION.to_owned(), image: image.to_owned() }
    }

    /// A file's contents.
    ///
    /// # Errors
    /// They are something else.
    pub fn parse(text: &[u8]) -> Result<Intent, RecordError> {
        let intent: Intent = serde_json::from_slice(text).map_err(form(Intent::KIND))?;
        known(&intent.kind, &intent.api_version, Intent::KIND)?;
        Ok(intent)
    }

    /// What to write.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        bytes(self)
    }
}

impl Record {
    const KIND: &'static str = "ImagePulledRecord";

    /// The record of a pulled image, without credentials yet.
    #[must_use]
    pub fn new(image_ref: &str, now: Wall) -> Record {
        Record {
            kind: Record::KIND.to_owned(),
            api_version: API_VERSION.to_owned(),
            last_updated_time: Some(api_time::text(now)),
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        }
    }

    /// A file's contents.
    ///
    /// # Errors
    /// They are something else.
    pub fn parse(text: &[u8]) -> Result<Record, RecordError> {
        let record: Record = serde_json::from_slice(text).map_err(form(Record::KIND))?;
        known(&record.kind, &record.api_version, Record::KIND)?;
        Ok(record)
    }

    /// What to write.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        bytes(self)
    }

    /// True if it was last changed before the second of `until`; false without a valid time.
    #[must_use]
    pub fn is_before(&self, until: Wall) -> bool {
        let updated = self.last_updated_time.as_deref().and_then(|text| text.parse::<Timestamp>().ok());
        updated.is_none_or(|updated| updated < api_time::api_time(until).0)
    }

    /// Service accounts may use the image as it is: whether a pod runs as one of them decides.
    #[must_use]
    pub fn has_accounts(&self, image: &str) -> bool {
        let of = self.credential_mapping.get(reference::name(image));
        of.is_some_and(|of| !of.node_pods_accessible && !of.kubernetes_service_accounts.is_empty())
    }

    /// The record with one more credential: `image` was pulled with a credential of `source`, or (`None`)
    /// with none that restricts it, so that every pod of the node may use it. `None` if nothing changes.
    #[must_use]
    pub fn with(&self, image: &str, source: Option<&Source>, now: Wall) -> Option<Record> {
        let mut new = self.clone();
        let of = new.credential_mapping.entry(reference::name(image).to_owned()).or_default();
        match source {
            _ if of.node_pods_accessible => return None,
            None => *of = Credentials { node_pods_accessible: true, ..Credentials::default() },
            Some(Source::Account(account)) => {
                of.kubernetes_service_accounts.retain(|a| a != account);
                of.kubernetes_service_accounts.push(account.clone());
                of.kubernetes_service_accounts.sort_by(|a, b| a.key().cmp(&b.key()));
            }
            Some(Source::Secret(origin)) => {
                of.kubernetes_secrets.retain(|s| !s.is_same_secret(origin));
                of.kubernetes_secrets.push(origin.clone());
                of.kubernetes_secrets.sort_by(|a, b| a.key().cmp(&b.key()));
            }
        }
        if new.credential_mapping == self.credential_mapping {
            return None;
        }
        new.api_version = API_VERSION.to_owned();
        new.last_updated_time = Some(api_time::text(now));
        Some(new)
    }
}

/// What is known about an image on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImagePullState {
    /// The agent did not pull it.
    Preloaded,
    /// It is being pulled, or was when the node's agent died.
    Pulling,
    /// It was pulled.
    Pulled(Record),
    /// There is a record, and it cannot be read.
    Unreadable,
}

/// Whether a pod may use an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The present image, because the policy needs no verification.
    Allowed,
    /// As it is: it is recorded.
    Granted,
    /// The present image; its Secret should be recorded.
    GrantedBy(Origin),
    /// Only after a pull with the pod's credentials.
    MustPull,
}

/// Which images are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `imagePullCredentialsVerificationPolicy`; `None` while the gate KubeletEnsureSecretPulledImages is off.
    pub verification: Option<Verification>,
    /// `preloadedImagesVerificationAllowlist`.
    pub allowlist: Vec<String>,
}

impl Policy {
    /// True if nothing is verified and nothing is recorded.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.verification.is_none()
    }

    fn verifies(&self, image: &str, known: &ImagePullState) -> bool {
        match self.verification {
            None | Some(Verification::NeverVerify) => false,
            Some(Verification::NeverVerifyPreloadedImages) => *known != ImagePullState::Preloaded,
            Some(Verification::NeverVerifyAllowlistedImages) => {
                let name = reference::name(image);
                let fits = |pattern: &String| match pattern.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix),
                    None => name == pattern,
                };
                !self.allowlist.iter().any(fits)
            }
            Some(Verification::AlwaysVerify) => true,
        }
    }
}

/// Whether a pod with this spelling of the image and these credentials for it may use the present image.
#[must_use]
pub fn access(policy: &Policy, image: &str, known: &ImagePullState, credentials: &[Credential]) -> Access {
    if !policy.verifies(image, known) {
        return Access::Allowed;
    }
    let ImagePullState::Pulled(record) = known else { return Access::MustPull };
    let Some(of) = record.credential_mapping.get(reference::name(image)) else { return Access::MustPull };
    if of.node_pods_accessible {
        return Access::Granted;
    }
    let secret = |c: &'_ Credential| match &c.source {
        Some(Source::Secret(origin)) => Some(origin.clone()),
        Some(Source::Account(_)) | None => None,
    };
    for own in &credentials.iter().filter_map(secret).collect::<Vec<Origin>>() {
        for known in &of.kubernetes_secrets {
            let same_secret = known.is_same_secret(own);
            let same_hash = !known.credential_hash.is_empty() && known.credential_hash == own.credential_hash;
            let may_add = of.kubernetes_secrets.len() < SECRETS_BY_THE_WAY_MAX;
            match (same_secret, same_hash) {
                (true, true) => return Access::Granted,
                (true, false) | (false, true) if may_add => return Access::GrantedBy(own.clone()),
                (false, true) => return Access::Granted,
                _ => {}
            }
        }
    }
    // A pod runs as one account, even if it has several credentials.
    let account = credentials.iter().find_map(|c| match &c.source {
        Some(Source::Account(account)) => Some(account),
        Some(Source::Secret(_)) | None => None,
    });
    match account {
        Some(account) if of.kubernetes_service_accounts.contains(account) => Access::Granted,
        Some(_) | None => Access::MustPull,
    }
}

/// Access of a pod to an image on the node, in upstream's words ([`Check::label`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The policy does not require credentials for the image.
    PolicyAllowed,
    /// A pull with the pod's credentials is on record.
    RecordFound,
    /// The pod may use the image only after a pull with its own credentials.
    MustAuthenticate,
}

impl Check {
    /// True if the pod may use the image.
    #[must_use]
    pub fn may_use(self) -> bool {
        self != Check::MustAuthenticate
    }

    /// `result` of `kubelet_imagemanager_image_mustpull_checks_total`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Check::PolicyAllowed => "credentialPolicyAllowed",
            Check::RecordFound => "credentialRecordFound",
            Check::MustAuthenticate => "mustAuthenticate",
        }
    }
}

/// Whether a pod that names the image `image` and has these credentials may use an image in the state `known`; the record to write
/// if that adds one of its credentials.
#[must_use]
pub fn check(
    policy: &Policy,
    image: &str,
    known: &ImagePullState,
    credentials: &[Credential],
    now: Wall,
) -> (Check, Option<Record>) {
    match (access(policy, image, known, credentials), known) {
        (Access::Allowed, _) => (Check::PolicyAllowed, None),
        (Access::Granted, _) => (Check::RecordFound, None),
        (Access::GrantedBy(origin), ImagePullState::Pulled(record)) => {
            (Check::RecordFound, record.with(image, Some(&Source::Secret(origin)), now))
        }
        (Access::GrantedBy(_), _) => (Check::RecordFound, None),
        (Access::MustPull, _) => (Check::MustAuthenticate, None),
    }
}

#[cfg(test)]
mod tests;
