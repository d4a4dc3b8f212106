//! An entry of `registries.credentialProviders`: what upstream's CredentialProviderConfig v1 has as one of `providers`.
//!
//! In: a map, checked by [`crate::credential_provider::check`]. Out: the agent's configuration file.

use crate::credential_provider::{GROUP, KIND, V1};
use crate::field::{Describe, Kind};
use crate::yaml_emit;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A plugin; `Debug` shows its name only, because its arguments and environment may hold secrets.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CredentialProvider(pub Map<String, Value>);

impl Describe for CredentialProvider {
    const KIND: &'static Kind = &Kind::AnyMap;
}

impl CredentialProvider {
    /// Its name, which is that of its program; empty if it has none.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.get("name").and_then(Value::as_str).unwrap_or_default()
    }
}

impl std::fmt::Debug for CredentialProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CredentialProvider({:?})", self.name())
    }
}

/// The file that `--image-credential-provider-config` names.
#[must_use]
pub(super) fn file(providers: &[CredentialProvider]) -> String {
    yaml_emit::emit(&json!({"apiVersion": format!("{GROUP}{V1}"), "kind": KIND, "providers": providers}))
}
