//! What a registry's words mean: where a published path is in a repository, manifests, challenges, tokens, redirects. Pure.
//!
//! In: texts of a registry, which may lie. Out: values, or why not. A repository holds a published directory so: each trust document,
//! each channel and each release is an artifact with a tag of its own, and a layer for each file, named by
//! `org.opencontainers.image.title`. Signatures are those of the documents; nothing here is trusted. Specification: OCI distribution
//! 1.1, and docker's token authentication. For operators: docs/reference/update.md.

use std::collections::BTreeMap;

use orlop_config::base64;
use orlop_config::release::HexDigest;
use serde_json::Value;

use super::http::HttpTarget;

/// What a source in a registry begins with.
pub(crate) const OCI_SCHEME: &str = "oci://";
/// Media type of a manifest.
pub const OCI_MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Name of a layer's file.
const TITLE: &str = "org.opencontainers.image.title";
/// Layers of a manifest at most.
const LAYERS_MAX: usize = 64;
/// Longest tag, characters (distribution specification).
const TAG_CHARS_MAX: usize = 128;
/// Longest name of a repository, characters.
const REPOSITORY_CHARS_MAX: usize = 255;
/// Longest token, bytes.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Where a published path is in a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OciPlace {
    /// Tag of the artifact.
    pub tag: String,
    /// Title of the layer.
    pub title: String,
}

/// The place of a path below the published directory; `None` if no such path is published.
#[must_use]
pub fn oci_place(path: &str) -> Option<OciPlace> {
    let parts: Vec<&str> = path.split('/').collect();
    let (tag, title) = match parts.as_slice() {
        ["trust", file] => (format!("trust-{}", file.strip_suffix(".json")?), *file),
        ["channels", file] => (format!("channel-{}", file.strip_suffix(".json")?), *file),
        ["releases", version, arch, file] => (format!("release-{version}-{arch}"), *file),
        _ => return None,
    };
    let is_tag = tag.len() <= TAG_CHARS_MAX
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    (is_tag && !title.is_empty()).then(|| OciPlace { tag, title: title.to_owned() })
}

/// Registry and repository of `oci://host[:port]/repository`. The target's path is empty.
pub(crate) fn repository(source: &str) -> Result<(HttpTarget, String), &'static str> {
    let rest = source.strip_prefix(OCI_SCHEME).ok_or("it does not begin with oci://")?;
    let target = HttpTarget::parse(&format!("https://{rest}"))?;
    let name = target.path.trim_matches('/').to_owned();
    let is_end = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let is_part = |part: &str| {
        let inner = |b: u8| is_end(Some(b)) || matches!(b, b'.' | b'_' | b'-');
        is_end(part.bytes().next()) && is_end(part.bytes().next_back()) && part.bytes().all(inner)
    };
    if name.len() > REPOSITORY_CHARS_MAX || !name.split('/').all(is_part) {
        return Err("it names no repository: host/name in small letters, without tag and digest");
    }
    Ok((HttpTarget { path: String::new(), ..target }, name))
}

/// A blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OciBlob {
    /// Of its content.
    pub(crate) digest: HexDigest,
    /// Bytes, as the manifest says.
    pub(crate) size: u64,
}

/// The blobs of a manifest by their titles.
pub(crate) fn blobs(manifest: &[u8]) -> Result<BTreeMap<String, OciBlob>, &'static str> {
    let manifest: Value = serde_json::from_slice(manifest).map_err(|_| "its manifest is no JSON")?;
    if manifest["schemaVersion"] != 2 {
        return Err("its manifest has not version 2");
    }
    if manifest.get("mediaType").is_some_and(|kind| kind != OCI_MANIFEST_TYPE) {
        return Err("its manifest is not that of one artifact");
    }
    let layers = manifest["layers"].as_array().ok_or("its manifest has no layers")?;
    if layers.len() > LAYERS_MAX {
        return Err("its manifest has too many layers");
    }
    let mut blobs = BTreeMap::new();
    for layer in layers {
        let digest = layer["digest"].as_str().and_then(|text| text.strip_prefix("sha256:")?.parse().ok());
        let size = layer["size"].as_u64();
        let title = layer["annotations"][TITLE].as_str();
        let (Some(digest), Some(size), Some(title)) = (digest, size, title) else {
            return Err("a layer of its manifest has no title, digest or size");
        };
        if blobs.insert(title.to_owned(), OciBlob { digest, size }).is_some() {
            return Err("two layers of its manifest have the same title");
        }
    }
    Ok(blobs)
}

/// How a registry wants to know its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OciChallenge {
    /// By a token of this server.
    Bearer {
        /// URL of the server.
        realm: String,
        /// Name of the registry there; may be empty.
        service: String,
    },
    /// By a password.
    Basic,
}

/// Reads a `WWW-Authenticate`. What else it says, the scope above all, does not count: a node asks for `pull` and no more.
pub(crate) fn challenge(header: &str) -> Option<OciChallenge> {
    let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(OciChallenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let parameters = parameters(rest);
    let value = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    Some(OciChallenge::Bearer { realm: value("realm")?, service: value("service").unwrap_or_default() })
}

/// `key="value",key=value`; a quoted value may have commas, and backslashes before characters.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text.trim_start_matches([' ', ',']);
    while let Some((key, after)) = rest.split_once('=') {
        let (value, behind) = match after.strip_prefix('"') {
            Some(quoted) => unquoted(quoted),
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        found.push((key.trim().to_ascii_lowercase(), value));
        rest = behind.trim_start_matches([' ', ',']);
    }
    found
}

fn unquoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, c)| c)),
            _ => value.push(c),
        }
    }
    (value, "")
}

/// Where a token for pulling is asked for.
pub(crate) fn token_url(realm: &str, service: &str, repository: &str) -> String {
    let mark = if realm.contains('?') { '&' } else { '?' };
    let scope = encoded(&format!("repository:{repository}:pull"));
    let service = if service.is_empty() { String::new() } else { format!("service={}&", encoded(service)) };
    format!("{realm}{mark}{service}scope={scope}")
}

fn encoded(text: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~');
    text.bytes().map(|b| if is_plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// The token of an answer.
pub(crate) fn token(answer: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let token = answer["token"].as_str().or_else(|| answer["access_token"].as_str())?;
    let fits = (1..=TOKEN_BYTES_MAX).contains(&token.len()) && token.bytes().all(|b| b.is_ascii_graphic());
    fits.then(|| token.to_owned())
}

/// Where a redirect leads.
pub(crate) fn redirected(from: &HttpTarget, location: &str) -> Result<HttpTarget, &'static str> {
    if location.starts_with('/') && !location.starts_with("//") {
        return HttpTarget::parse(&format!("https://{}{location}", from.authority()));
    }
    HttpTarget::parse(location)
}

/// A user and a password; not shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct OciLogin {
    user: String,
    password: String,
}

impl std::fmt::Debug for OciLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a login")
    }
}

impl OciLogin {
    /// The value of `Authorization`.
    pub(crate) fn basic(&self) -> String {
        format!("Basic {}", base64::encode(format!("{}:{}", self.user, self.password).as_bytes()))
    }
}

/// The login for a repository in a `config.json` as `docker login` writes it: the key with the longest path that leads to it.
/// Patterns are not read.
pub(crate) fn login(config: &[u8], registry: &HttpTarget, repository: &str) -> Option<OciLogin> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let logins = config["auths"].as_object()?;
    let path = |key: &str| {
        let key = key.trim_start_matches("https://").trim_end_matches('/');
        let key = key.strip_suffix("/v2").or_else(|| key.strip_suffix("/v1")).unwrap_or(key);
        let (host, path) = key.split_once('/').unwrap_or((key, ""));
        let is_registry = host == registry.authority() || registry.port == 443 && host == registry.host;
        let leads = path.is_empty()
            || repository.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        (is_registry && leads).then_some(path.len())
    };
    let best =
        logins.iter().filter_map(|(key, value)| Some((path(key)?, value))).max_by_key(|(length, _)| *length);
    let (_, value) = best?;
    let text = |name: &str| value[name].as_str().filter(|text| !text.is_empty());
    if let Some(both) = text("auth") {
        let both = String::from_utf8(base64::decode(both)?).ok()?;
        let (user, password) = both.split_once(':')?;
        return Some(OciLogin { user: user.to_owned(), password: password.to_owned() });
    }
    Some(OciLogin { user: text("username")?.to_owned(), password: text("password")?.to_owned() })
}

#[cfg(test)]
mod tests {
    use orlop_config::release::{channel_path, release_path, trust_path};
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn registry(text: &str) -> HttpTarget {
        repository(text).expect(text).0
    }

    #[test]
    fn each_published_path_has_a_tag_and_a_title() {
        let version = "0.2.0".parse().expect("a version");
        for (path, tag, title) in [
            (trust_path(3), "trust-3", "3.json"),
            (channel_path("stable"), "channel-stable", "stable.json"),
            (release_path(version, "x86-64", "root.erofs"), "release-0.2.0-x86-64", "root.erofs"),
        ] {
            let place = oci_place(&path).expect("published");
            assert_eq!((place.tag.as_str(), place.title.as_str()), (tag, title));
        }
        let long = format!("channels/{}.json", "x".repeat(130));
        for other in [
            "",
            "trust",
            "trust/1",
            "trust/1.json/x",
            "a/b.json",
            "channels/a b.json",
            "releases/1/x/",
            &long,
        ] {
            assert_eq!(oci_place(other), None, "{other}");
        }
    }

    #[test]
    fn a_source_names_registry_and_repository() {
        for (text, host, port, name) in [
            ("oci://registry.example/orlop", "registry.example", 443, "orlop"),
            ("oci://registry.example:5000/a/b-c_d.e/", "registry.example", 5000, "a/b-c_d.e"),
            ("oci://[2001:db8::1]:5000/a", "2001:db8::1", 5000, "a"),
        ] {
            let (target, repository) = repository(text).expect(text);
            assert_eq!((target.host.as_str(), target.port, target.path.as_str()), (host, port, ""));
            assert_eq!(repository, name);
        }
        for bad in [
            "https://registry.example/orlop",
            "oci://registry.example",
            "oci://registry.example/",
            "oci://registry.example/A",
            "oci://registry.example/a:1",
            "oci://registry.example/a@sha256:0",
            "oci://registry.example/a//b",
            "oci://registry.example/../b",
            "oci://u:p@registry.example/a",
            "oci://registry.example/a?b",
        ] {
            assert!(repository(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_manifest_has_blobs_with_titles() {
        let layer = |title: &str| json!({"digest": format!("sha256:{}", "ab".repeat(32)), "size": 7, "annotations": {TITLE: title}});
        let good =
            json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST_TYPE, "layers": [layer("a"), layer("b")]});
        let found = blobs(good.to_string().as_bytes()).expect("a manifest");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(found["a"], OciBlob { digest: HexDigest([0xab; 32]), size: 7 });
        let mut bad = vec![json!([]), json!({}), json!({"schemaVersion": 1, "layers": []})];
        bad.push(json!({"schemaVersion": 2, "manifests": []}));
        bad.push(
            json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "layers": []}),
        );
        bad.push(json!({"schemaVersion": 2, "layers": [layer("a"), layer("a")]}));
        bad.push(json!({"schemaVersion": 2, "layers": vec![layer("a"); LAYERS_MAX + 1]}));
        for (field, value) in [
            ("digest", json!("sha256:../../x")),
            ("size", json!(-1)),
            ("annotations", json!({})),
            ("digest", json!(1)),
        ] {
            let mut layer = layer("a");
            layer[field] = value;
            bad.push(json!({"schemaVersion": 2, "layers": [layer]}));
        }
        for manifest in bad {
            assert!(blobs(manifest.to_string().as_bytes()).is_err(), "{manifest}");
        }
        assert!(blobs(b"{").is_err());
    }

    #[test]
    fn challenges_are_read_and_the_scope_is_the_nodes() {
        let bearer = |realm: &str, service: &str| OciChallenge::Bearer {
            realm: realm.into(),
            service: service.into(),
        };
        for (header, want) in [
            (
                r#"Bearer realm="https://auth.example/token",service="r,1",scope="repository:a:push""#,
                Some(bearer("https://auth.example/token", "r,1")),
            ),
            (r#"bearer service=r, realm="https://a/\"t""#, Some(bearer("https://a/\"t", "r"))),
            (r#"Basic realm="x""#, Some(OciChallenge::Basic)),
            ("basic", Some(OciChallenge::Basic)),
            (r#"Bearer service="r""#, None),
            ("Digest realm=\"x\"", None),
            ("", None),
        ] {
            assert_eq!(challenge(header), want, "{header}");
        }
        assert_eq!(
            token_url("https://a/t", "r 1", "x/y"),
            "https://a/t?service=r%201&scope=repository%3Ax%2Fy%3Apull"
        );
        assert_eq!(token_url("https://a/t?k=1", "", "x"), "https://a/t?k=1&scope=repository%3Ax%3Apull");
    }

    #[test]
    fn tokens_and_redirects() {
        assert_eq!(token(br#"{"token":"a.b-c"}"#).as_deref(), Some("a.b-c"));
        assert_eq!(token(br#"{"access_token":"x"}"#).as_deref(), Some("x"));
        let long = json!({"token": "x".repeat(TOKEN_BYTES_MAX + 1)}).to_string();
        for bad in ["", "{}", r#"{"token":""}"#, r#"{"token":"a\r\nX: y"}"#, r#"{"token":1}"#, &long] {
            assert_eq!(token(bad.as_bytes()), None, "{bad}");
        }
        let from = registry("oci://r.example:5000/a");
        let to = |location: &str| redirected(&from, location);
        assert_eq!(
            to("/b?c").map(|t| (t.host, t.port, t.path)),
            Ok(("r.example".into(), 5000, "/b?c".into()))
        );
        assert_eq!(to("https://cdn.example/b").map(|t| (t.host, t.port)), Ok(("cdn.example".into(), 443)));
        for bad in ["", "http://cdn.example/b", "//cdn.example/b", "b", "https://u@x/b"] {
            assert!(to(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_login_is_that_of_the_registry_and_the_longest_path() {
        let both = |user: &str| json!({"auth": base64::encode(format!("{user}:p:q").as_bytes())});
        let config = json!({"auths": {
            "https://r.example/v2/": both("host"),
            "r.example/team": both("team"),
            "r.example/tea": both("other"),
            "r.example:5000": {"username": "u", "password": "p"},
            "broken.example": {"auth": "%"},
        }});
        let config = config.to_string();
        let found = |source: &str| {
            let (target, name) = repository(source).expect(source);
            login(config.as_bytes(), &target, &name).map(|login| login.user)
        };
        for (source, user) in [
            ("oci://r.example/x", Some("host")),
            ("oci://r.example:443/team/x", Some("team")),
            ("oci://r.example/team", Some("team")),
            ("oci://r.example/teams", Some("host")),
            ("oci://r.example:5000/x", Some("u")),
            ("oci://r.example:5001/x", None),
            ("oci://broken.example/x", None),
            ("oci://s.example/x", None),
        ] {
            assert_eq!(found(source).as_deref(), user, "{source}");
        }
        let login = login(config.as_bytes(), &registry("oci://r.example/x"), "x").expect("a login");
        assert_eq!(login.basic(), format!("Basic {}", base64::encode(b"host:p:q")));
        assert!(!format!("{login:?}").contains("host"));
        assert_eq!(super::login(b"{", &registry("oci://r.example/x"), "x"), None);
    }

    proptest! {
        #[test]
        fn any_words_of_a_registry(text in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = challenge(&text);
            let _ = challenge(&format!("Bearer {text}"));
            let _ = (repository(&format!("oci://{text}")), redirected(&registry("oci://r.example/a"), &text));
            let _ = (blobs(&bytes), token(&bytes), oci_place(&text));
            let _ = login(&bytes, &registry("oci://r.example/a"), "a");
        }
    }
}
