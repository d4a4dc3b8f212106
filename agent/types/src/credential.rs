//! Credentials of registries, and the pods that may use each.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A name and a password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// User name at the registry.
    pub username: String,
    /// The password or token.
    pub password: String,
    /// Secret or service account of the credential; `None`: every pod of the node may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// Owner of a credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The credential is for pods that name this Secret.
    Secret(Origin),
    /// The credential is for pods that run as this service account: a plugin returned it for their token.
    Account(AccountName),
}

/// A service account, as records of pulled images name it (upstream's `ImagePullServiceAccount`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccountName {
    /// UID of the service account.
    pub uid: String,
    /// Namespace of the service account.
    pub namespace: String,
    /// Name of the service account.
    pub name: String,
}

impl AccountName {
    /// Sort key: the order of records of pulled images.
    #[must_use]
    pub fn key(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

/// The Secret that a credential is from, as records of pulled images name it (upstream's `ImagePullSecret`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Origin {
    /// UID of the Secret.
    pub uid: String,
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub name: String,
    /// SHA-256 of the credential, as upstream computes it.
    pub credential_hash: String,
}

impl Origin {
    /// True for the same object, even with other contents.
    #[must_use]
    pub fn is_same_secret(&self, other: &Origin) -> bool {
        self.key() == other.key()
    }

    /// Sort key: the order of records of pulled images.
    #[must_use]
    pub fn key(&self) -> (&str, &str, &str) {
        (&self.namespace, &self.name, &self.uid)
    }
}

/// Prints only the owner, not the secret.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({:?})", self.username)
    }
}
