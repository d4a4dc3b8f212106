//! A kubeconfig's shape on disk.
//!
//! In: YAML or JSON. Out: [`File`]. Invariants: unknown keys are ignored, as client-go does; `null` is absent; what
//! is secret is not shown, neither by `Debug` nor in a message about bad syntax.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use orlop_config::field::Lines;
use orlop_config::node::Secret;
use orlop_config::yaml;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use zeroize::Zeroizing;

/// The parts that matter to a client.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) clusters: Vec<NamedEntry<Cluster>>,
    pub(super) users: Vec<NamedEntry<User>>,
    pub(super) contexts: Vec<NamedEntry<Context>>,
    pub(super) current_context: Option<String>,
}

#[derive(Debug)]
pub(super) struct NamedEntry<T> {
    pub(super) name: String,
    pub(super) value: T,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct Cluster {
    pub(super) server: Option<String>,
    pub(super) tls_server_name: Option<String>,
    pub(super) insecure_skip_tls_verify: Option<bool>,
    pub(super) certificate_authority: Option<String>,
    pub(super) certificate_authority_data: Option<Data>,
    pub(super) proxy_url: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct User {
    pub(super) client_certificate: Option<String>,
    pub(super) client_certificate_data: Option<Data>,
    pub(super) client_key: Option<String>,
    pub(super) client_key_data: Option<Data>,
    pub(super) token: Option<Secret>,
    #[serde(rename = "tokenFile")]
    pub(super) token_file: Option<String>,
    pub(super) username: Option<String>,
    #[serde(rename = "as")]
    pub(super) impersonate: Option<String>,
    pub(super) auth_provider: Option<Ignored>,
    pub(super) exec: Option<Ignored>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Context {
    pub(super) cluster: Option<String>,
    pub(super) user: Option<String>,
}

/// Present, contents of no interest.
#[derive(Debug)]
pub(super) struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ignored, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Ignored)
    }
}

/// Base64 in the file.
pub(super) struct Data(pub(super) Zeroizing<Vec<u8>>);

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Data, D::Error> {
        let mut text = Zeroizing::new(String::deserialize(deserializer)?);
        text.retain(|c| !c.is_ascii_whitespace());
        // The decoder's words would name bytes of what may be a key.
        let bytes =
            STANDARD.decode(text.as_bytes()).map_err(|_| serde::de::Error::custom("is not base64"))?;
        Ok(Data(bytes.into()))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire {
    clusters: Option<Vec<WireCluster>>,
    users: Option<Vec<WireUser>>,
    contexts: Option<Vec<WireContext>>,
    #[serde(rename = "current-context")]
    current_context: Option<String>,
}

#[derive(Deserialize)]
struct WireCluster {
    name: String,
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
struct WireUser {
    name: String,
    user: Option<User>,
}

#[derive(Deserialize)]
struct WireContext {
    name: String,
    context: Option<Context>,
}

fn named<W, T: Default>(
    list: Option<Vec<W>>,
    split: impl Fn(W) -> (String, Option<T>),
) -> Vec<NamedEntry<T>> {
    let split = |w| {
        let (name, value) = split(w);
        NamedEntry { name, value: value.unwrap_or_default() }
    };
    list.unwrap_or_default().into_iter().map(split).collect()
}

/// Reads a kubeconfig; the sentence names the place and quotes nothing.
pub(super) fn parse(text: &str) -> Result<File, String> {
    let mut document =
        yaml::parse(text).map_err(|error| format!("wrong syntax at line {}: {error}", error.line))?;
    let value = match document.value.take() {
        Value::Null => Value::Object(Map::new()),
        value => value,
    };
    let wire: Wire = serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        // The error's own words quote the value.
        let line = document.line(&path).unwrap_or(1);
        format!("wrong type at line {line} ({path})")
    })?;
    Ok(File {
        clusters: named(wire.clusters, |w| (w.name, w.cluster)),
        users: named(wire.users, |w| (w.name, w.user)),
        contexts: named(wire.contexts, |w| (w.name, w.context)),
        current_context: wire.current_context,
    })
}
