//! Credential provider plugins: their requests, their answers, and the lifetime of an answer.
//!
//! ```text
//! image ─► fits ─► Answers::find ─┬─► credentials
//!                              request ─► program ─► answer ─► Answers::keep
//! ```
//! In: the plugins' configuration, images, service accounts, output of programs. Out: requests, credentials.
//! Invariants: a plugin gets requests only for images of its patterns; an answer for one service account (or
//! one token) never serves another one; no log or message contains a program's output. Upstream:
//! pkg/credentialprovider/plugin.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use agent_types::time::Mono;
use orlop_config::credential_provider::{Provider, Token};
use orlop_config::duration;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::images::pattern;

/// Longest time that a program may take.
pub const TIME_MAX: Duration = Duration::from_secs(60);
/// Most bytes of an answer; more is an error.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;
/// How often answers that have ended are looked for.
const PURGE_EVERY: Duration = Duration::from_secs(15 * 60);

/// True if the plugin serves this image (registry and path, without tag and digest).
#[must_use]
pub fn fits(provider: &Provider, image: &str) -> bool {
    provider.match_images.iter().any(|pattern| pattern::matches(pattern, image))
}

/// The part of a service account that a plugin gets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    /// Its namespace, which is the pod's.
    pub namespace: String,
    /// Name of the provider: the name of its executable.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Of its annotations, those that the plugin gets.
    pub annotations: BTreeMap<String, String>,
}

/// The account's annotations for the plugin; `None` if a required one is missing, so that the plugin gets no
/// request.
#[must_use]
pub fn annotations(token: &Token, all: &BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    let pair = |key: &String| all.get(key).map(|value| (key.clone(), value.clone()));
    let mut given: BTreeMap<String, String> = token.required.iter().map(pair).collect::<Option<_>>()?;
    given.extend(token.optional.iter().filter_map(pair));
    Some(given)
}

/// Scope of an answer: an account and, with `cacheType: Token`, one token of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct For {
    account: Account,
    token_hash: Option<String>,
}

impl For {
    /// By the configuration of the plugin.
    #[must_use]
    pub fn new(configured: &Token, account: Account, token: &str) -> For {
        For { account, token_hash: configured.per_token.then(|| hash(token)) }
    }
}

/// SHA-256, as text.
#[must_use]
pub fn hash(token: &str) -> String {
    hex::encode(Sha256::digest(token.as_bytes()))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    kind: &'static str,
    api_version: &'a str,
    image: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account_annotations: Option<&'a BTreeMap<String, String>>,
}

/// What the program reads.
#[must_use]
pub fn request(provider: &Provider, image: &str, account: Option<(&Account, &str)>) -> Vec<u8> {
    let request = Request {
        kind: "CredentialProviderRequest",
        api_version: &provider.api_version,
        image,
        service_account_token: account.map(|(_, token)| token),
        service_account_annotations: account.map(|(a, _)| &a.annotations).filter(|a| !a.is_empty()),
    };
    // Texts only: that cannot fail.
    let mut bytes = serde_json::to_vec(&request).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Names and passwords by the images that they are for.
pub type Auth = BTreeMap<String, Login>;

/// A name and a password as a plugin gives them.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// User name at the registry.
    #[serde(default)]
    pub username: String,
    /// The password or token.
    #[serde(default)]
    pub password: String,
}

/// Prints only the user name.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({:?})", self.username)
    }
}

/// For which images an answer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of the same name.
    Image,
    /// Those of the registry.
    Registry,
    /// All images of the plugin.
    Global,
}

/// What a program answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderResponse {
    /// For which images it holds.
    pub scope: Scope,
    /// Lifetime of the answer; `None`: that of the configuration.
    pub kept: Option<Duration>,
    /// What to try.
    pub auth: Auth,
}

/// Reason why an answer is not used. Its contents may be secret, so they do not appear.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Not JSON with a kind and a version.
    #[error("error reading GVK from response: it is not a JSON object with kind and apiVersion")]
    Unreadable,
    /// Another version than the requested one.
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, actual apiVersion:{actual}"
    )]
    Version {
        /// The configured one.
        expected: String,
        /// The answer's.
        actual: String,
    },
    /// Not of the form of an answer.
    #[error("error decoding credential provider plugin response from stdout")]
    Form,
    /// Another word than Image, Registry and Global.
    #[error("credential provider plugin did not return a valid cacheKeyType: {0}")]
    Scope(String),
    /// The token came back as the password.
    #[error(
        "credential provider plugin returned the service account token as the password which is not allowed when service account cache type is not set to 'Token'"
    )]
    Echo,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Body {
    kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    cache_key_type: String,
    cache_duration: Option<duration::Duration>,
    auth: Option<Auth>,
}

/// Parses a program's output; `token` is the token of the request.
///
/// # Errors
/// [`AnswerError`].
pub fn answer(
    provider: &Provider,
    printed: &[u8],
    token: Option<&str>,
) -> Result<ProviderResponse, AnswerError> {
    let head: Head = serde_json::from_slice(printed).map_err(|_| AnswerError::Unreadable)?;
    if head.api_version != provider.api_version {
        let expected = provider.api_version.clone();
        return Err(AnswerError::Version { expected, actual: head.api_version });
    }
    let body: Body = serde_json::from_slice(printed).map_err(|_| AnswerError::Form)?;
    if body.kind != "CredentialProviderResponse" {
        return Err(AnswerError::Form);
    }
    let auth = body.auth.unwrap_or_default();
    let may_echo = provider.token.as_ref().is_none_or(|configured| configured.per_token);
    if let Some(token) = token.filter(|_| !may_echo)
        && auth.values().any(|login| login.password == token)
    {
        return Err(AnswerError::Echo);
    }
    let scope = match body.cache_key_type.as_str() {
        "Image" => Scope::Image,
        "Registry" => Scope::Registry,
        "Global" => Scope::Global,
        other => return Err(AnswerError::Scope(other.to_owned())),
    };
    // A negative time is over at once.
    Ok(ProviderResponse { scope, kept: body.cache_duration.map(duration::Duration::to_std), auth })
}

/// What holds of a plugin's answers.
#[derive(Debug, Default)]
pub struct CredentialCache {
    kept: BTreeMap<(String, Option<For>), (Auth, Mono)>,
    purged: Option<Mono>,
}

impl CredentialCache {
    /// A valid answer for the image and its scope.
    pub fn find(&mut self, image: &str, whom: Option<&For>, now: Mono) -> Option<Auth> {
        if self.purged.is_none_or(|last| now.since(last) > PURGE_EVERY) {
            self.kept.retain(|_, (_, ends)| now <= *ends);
            self.purged = Some(now);
        }
        [Scope::Image, Scope::Registry, Scope::Global].into_iter().find_map(|scope| {
            let (auth, ends) = self.kept.get(&(scope.key(image), whom.cloned()))?;
            (now <= *ends).then(|| auth.clone())
        })
    }

    /// Keeps an answer for its lifetime, or for that of the configuration.
    pub fn keep(
        &mut self,
        image: &str,
        whom: Option<For>,
        answer: &ProviderResponse,
        default: Duration,
        now: Mono,
    ) {
        let time = answer.kept.unwrap_or(default);
        if !time.is_zero() {
            self.kept.insert((answer.scope.key(image), whom), (answer.auth.clone(), now.after(time)));
        }
    }
}

impl Scope {
    fn key(self, image: &str) -> String {
        match self {
            Scope::Image => image.to_owned(),
            Scope::Registry => image.split('/').next().unwrap_or_default().to_owned(),
            // No image is called that.
            Scope::Global => "<global>".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
