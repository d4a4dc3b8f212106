//! Registry credentials: selects the credentials of a pod and its node that match an image.
//!
//! In: `.dockerconfigjson` and `.dockercfg` from Secrets and from files of the node, an image. Out:
//! credentials in the order in which the agent tries them, the most specific first. Invariant: no credential
//! appears in a log or a message. Upstream: pkg/credentialprovider.

use std::collections::BTreeMap;

use agent_types::credential::{Credential, Origin, Source};
use agent_types::objects::{ObjectData, ObjectRef};
use base64::Engine as _;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::providers::Auth;
use crate::images::pattern::{matches, split};

/// Key of a Secret of type `kubernetes.io/dockerconfigjson`.
pub const DOCKER_CONFIG_JSON: &str = ".dockerconfigjson";
/// Key of a Secret of type `kubernetes.io/dockercfg`.
pub const DOCKER_CFG: &str = ".dockercfg";
/// The key of the default registry's credentials; its images may have other host names.
const DEFAULT_REGISTRY: &str = "index.docker.io";
/// What the names of the default registry's images begin with.
const DEFAULT_DOMAIN: &str = "docker.io";

/// Padded or not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Credentials by the registry, and perhaps the repositories, that they are for.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    entries: Vec<(String, Credential)>,
}

#[derive(Deserialize)]
struct ConfigJson {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuthEntry>,
}

#[derive(Deserialize)]
struct DockerAuthEntry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    auth: String,
    #[serde(default)]
    email: String,
}

/// What upstream hashes, field by field.
#[derive(Serialize)]
struct Hashed<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    password: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    email: &'a str,
}

impl Hashed<'_> {
    fn hash(&self) -> String {
        // Texts only: this cannot fail. Upstream's JSON escapes characters that could end a script in a page.
        let mut text = serde_json::to_string(self).unwrap_or_default();
        for (plain, escaped) in [
            ('<', r"\u003c"),
            ('>', r"\u003e"),
            ('&', r"\u0026"),
            ('\u{2028}', r"\u2028"),
            ('\u{2029}', r"\u2029"),
        ] {
            text = text.replace(plain, escaped);
        }
        hex::encode(Sha256::digest(text.as_bytes()))
    }
}

impl DockerAuthEntry {
    fn credential(self, secret: Option<&SecretName<'_>>) -> Result<Credential, String> {
        let email = self.email.clone();
        let (username, password) = self.name_and_password()?;
        let source = secret.map(|s| {
            Source::Secret(Origin {
                uid: s.uid.to_owned(),
                namespace: s.object.namespace.clone(),
                name: s.object.name.clone(),
                credential_hash: Hashed { username: &username, password: &password, email: &email }.hash(),
            })
        });
        Ok(Credential { username, password, source })
    }

    fn name_and_password(self) -> Result<(String, String), String> {
        if self.auth.is_empty() {
            return Ok((self.username, self.password));
        }
        let decoded = BASE64.decode(self.auth.trim()).map_err(|_| "its auth is not base64".to_owned())?;
        let text = String::from_utf8(decoded).map_err(|_| "its auth is not UTF-8".to_owned())?;
        let Some((username, password)) = text.split_once(':') else {
            return Err("its auth must be base64(username:password)".to_owned());
        };
        Ok((username.to_owned(), password.to_owned()))
    }
}

struct SecretName<'a> {
    object: &'a ObjectRef,
    uid: &'a str,
}

impl Keyring {
    /// Adds the credentials of a pull Secret; any other Secret adds nothing.
    ///
    /// # Errors
    /// The mistake in it. Nothing of it is added then.
    pub fn add_secret(&mut self, object: &ObjectRef, secret: &ObjectData) -> Result<(), String> {
        let name = SecretName { object, uid: &secret.uid };
        let filled = |key: &str| secret.data.get(key).filter(|bytes| !bytes.is_empty());
        match (filled(DOCKER_CONFIG_JSON), filled(DOCKER_CFG)) {
            (Some(bytes), _) => self.config_json(bytes, Some(&name)),
            (None, Some(bytes)) => self.docker_cfg(bytes, Some(&name)),
            (None, None) => Ok(()),
        }
    }

    /// Adds a `config.json`.
    ///
    /// # Errors
    /// What is wrong with it. Nothing of it is added then.
    pub fn add_config_json(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.config_json(bytes, None)
    }

    fn config_json(&mut self, bytes: &[u8], secret: Option<&SecretName<'_>>) -> Result<(), String> {
        // The parser's own message may quote the contents.
        let config: ConfigJson =
            serde_json::from_slice(bytes).map_err(|_| "it is not a config.json".to_owned())?;
        self.add(config.auths, secret)
    }

    /// Adds a `.dockercfg`, the older form.
    ///
    /// # Errors
    /// What is wrong with it. Nothing of it is added then.
    pub fn add_docker_cfg(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.docker_cfg(bytes, None)
    }

    fn docker_cfg(&mut self, bytes: &[u8], secret: Option<&SecretName<'_>>) -> Result<(), String> {
        let entries = serde_json::from_slice(bytes).map_err(|_| "it is not a .dockercfg".to_owned())?;
        self.add(entries, secret)
    }

    fn add(
        &mut self,
        entries: BTreeMap<String, DockerAuthEntry>,
        secret: Option<&SecretName<'_>>,
    ) -> Result<(), String> {
        let mut added = Vec::new();
        for (location, entry) in entries {
            let credential = entry.credential(secret).map_err(|why| format!("{location}: {why}"))?;
            added.push((place(&location), credential));
        }
        self.entries.extend(added);
        Ok(())
    }

    /// Adds credentials of a plugin, for pods of `source`.
    pub fn add_logins(&mut self, logins: &Auth, source: Option<&Source>) {
        for (location, login) in logins {
            let (username, password) = (login.username.clone(), login.password.clone());
            self.entries.push((place(location), Credential { username, password, source: source.cloned() }));
        }
    }

    /// What fits the repository `image` (domain and path, without tag or digest), the most specific first.
    #[must_use]
    pub fn lookup(&self, image: &str) -> Vec<Credential> {
        let of = |fits: &dyn Fn(&str) -> bool| {
            let mut found: Vec<&(String, Credential)> =
                self.entries.iter().filter(|(place, _)| fits(place)).collect();
            found.sort_by(|(a, _), (b, _)| b.cmp(a));
            found.into_iter().map(|(_, credential)| credential.clone()).collect::<Vec<_>>()
        };
        let found = of(&|place| matches(place, image));
        if found.is_empty() && split(image).0 == DEFAULT_DOMAIN {
            return of(&|place| place == DEFAULT_REGISTRY);
        }
        found
    }
}

/// `https://host/v1/path` as `host/path`.
pub(super) fn place(location: &str) -> String {
    let rest = location.strip_prefix("https://").or_else(|| location.strip_prefix("http://"));
    let (host, path) = split(rest.unwrap_or(location));
    let path = match path {
        p if p.starts_with("/v1/") || p.starts_with("/v2/") => p.get(3..).unwrap_or(""),
        p => p,
    };
    if path == "/" { host.to_owned() } else { format!("{host}{path}") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use agent_types::objects::ObjectKind;

    fn keyring(places: &[&str]) -> Keyring {
        let auths: serde_json::Map<String, Value> = places
            .iter()
            .map(|place| ((*place).to_owned(), json!({"username": place, "password": "p"})))
            .collect();
        let mut keyring = Keyring::default();
        keyring.add_config_json(json!({ "auths": auths }).to_string().as_bytes()).unwrap();
        keyring
    }

    #[test]
    fn which_fit_and_in_which_order() {
        let table: [(&[&str], &str, &[&str]); 12] = [
            (&["quay.io"], "quay.io/coreos/etcd", &["quay.io"]),
            (&["quay.io", "quay.io/coreos"], "quay.io/coreos/etcd", &["quay.io/coreos", "quay.io"]),
            (&["quay.io/other"], "quay.io/coreos/etcd", &[]),
            (
                &["https://quay.io/v2/coreos", "http://quay.io/"],
                "quay.io/coreos/etcd",
                &["https://quay.io/v2/coreos", "http://quay.io/"],
            ),
            (&["*.example.org"], "a.example.org/x", &["*.example.org"]),
            (&["*.example.org", "r*.example.org"], "example.org/x", &[]),
            (&["*.example.org"], "a.b.example.org/x", &[]),
            (&["10.0.0.1:5000"], "10.0.0.1:5000/x", &["10.0.0.1:5000"]),
            (&["10.0.0.1:5000", "10.0.0.1"], "10.0.0.1:5001/x", &[]),
            (&["https://index.docker.io/v1/"], "docker.io/library/busybox", &["https://index.docker.io/v1/"]),
            (&["https://index.docker.io/v1/", "docker.io"], "docker.io/library/busybox", &["docker.io"]),
            (&["index.docker.io"], "quay.io/x", &[]),
        ];
        for (places, image, expected) in table {
            let found = keyring(places).lookup(image);
            let names: Vec<&str> = found.iter().map(|c| c.username.as_str()).collect();
            assert_eq!(names, expected, "{places:?} for {image}");
        }
    }

    #[test]
    fn both_forms_of_secrets_and_of_passwords() {
        let secret = |key: &str, value: &Value| ObjectData {
            data: [(key.to_owned(), value.to_string().into_bytes())].into(),
            uid: "u-1".to_owned(),
            ..ObjectData::default()
        };
        let mut keyring = Keyring::default();
        // "a:b:c", padded and not.
        let (padded, bare) = (json!({"auth": "YTpiOmM="}), json!({"auth": " YTpiOmM"}));
        let of = ObjectRef { kind: ObjectKind::Secret, namespace: "ns".to_owned(), name: "s".to_owned() };
        keyring.add_secret(&of, &secret(DOCKER_CONFIG_JSON, &json!({"auths": {"x.io": padded}}))).unwrap();
        keyring.add_secret(&of, &secret(DOCKER_CFG, &json!({"y.io": bare}))).unwrap();
        keyring.add_secret(&of, &secret("password", &json!("z"))).unwrap();
        let hash = Hashed { username: "a", password: "b:c", email: "" }.hash();
        let origin = Origin {
            uid: "u-1".to_owned(),
            namespace: "ns".to_owned(),
            name: "s".to_owned(),
            credential_hash: hash,
        };
        let expected = Credential {
            username: "a".to_owned(),
            password: "b:c".to_owned(),
            source: Some(Source::Secret(origin)),
        };
        for image in ["x.io/i", "y.io/i"] {
            assert_eq!(keyring.lookup(image), std::slice::from_ref(&expected));
        }
        assert_eq!(format!("{expected:?} {keyring:?}").matches("b:c").count(), 0);
    }

    #[test]
    fn hashes_are_upstreams() {
        let hash = |username, password, email| Hashed { username, password, email }.hash();
        let of = |text: &str| hex::encode(Sha256::digest(text.as_bytes()));
        assert_eq!(hash("a", "b", ""), of(r#"{"username":"a","password":"b"}"#));
        assert_eq!(hash("", "b", "c@d"), of(r#"{"password":"b","email":"c@d"}"#));
        assert_eq!(
            hash("a", "<&>\"\u{2028}", ""),
            of(r#"{"username":"a","password":"\u003c\u0026\u003e\"\u2028"}"#)
        );
    }

    #[test]
    fn what_is_wrong_is_said_without_showing_it() {
        for (text, words) in [
            ("{", "not a config.json"),
            (r#"{"auths": {"x.io": {"auth": "geheim!"}}}"#, "x.io: its auth is not base64"),
            (
                r#"{"auths": {"x.io": {"auth": "Z2VoZWlt"}}}"#,
                "x.io: its auth must be base64(username:password)",
            ),
        ] {
            let error = Keyring::default().add_config_json(text.as_bytes()).unwrap_err();
            assert!(error.contains(words) && !error.contains("geheim"), "{error}");
        }
    }
}
