//! A registry that keeps a published directory, one that wants a login, and one that lies.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::https::{listening, ok};
use crate::publisher::{Publisher, release, request, version};
use orlop_config::base64;
use orlop_config::release::{ARCH, HexDigest, RELEASE_DOCUMENT, release_path, trust_path};
use orlop_update::{
    ByteRange, ByteSource, DocumentSource, OCI_MANIFEST_TYPE, OciRepository, SourceError, SurveyAnswer,
    UpdateStore, oci_place, survey,
};
use serde_json::{Value, json};

const NAME: &str = "team/orlop";
const TOKEN: &str = "abc.def";

fn sha256(bytes: &[u8]) -> HexDigest {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    HexDigest(digest.as_ref().try_into().expect("32 bytes"))
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn not_found() -> Vec<u8> {
    answer("404 Not Found", "", b"{}")
}

/// A value of the request's head.
fn header(head: &str, name: &str) -> Option<String> {
    let line = |line: &str| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned);
    head.lines().find_map(line)
}

/// What a registry keeps.
#[derive(Clone, Default)]
struct Registry {
    manifests: BTreeMap<String, Vec<u8>>,
    blobs: BTreeMap<String, Vec<u8>>,
    /// Requests so far: paths.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Registry {
    /// As `orlop-image layout` and a copying tool leave it.
    fn of(published: &Path) -> Registry {
        let mut registry = Registry::default();
        let mut layers: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        let mut folders = vec![published.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let below = path.strip_prefix(published).expect("below").to_str().expect("text");
                let place = oci_place(below).expect("published");
                let bytes = fs::read(&path).expect("a file");
                let digest = format!("sha256:{}", sha256(&bytes));
                let annotations = json!({ "org.opencontainers.image.title": place.title });
                let layer = json!({ "digest": digest, "size": bytes.len(), "annotations": annotations });
                layers.entry(place.tag).or_default().push(layer);
                registry.blobs.insert(digest, bytes);
            }
        }
        for (tag, layers) in layers {
            registry.put(&tag, &json!(layers));
        }
        registry
    }

    fn put(&mut self, tag: &str, layers: &Value) {
        let manifest = json!({ "schemaVersion": 2, "mediaType": OCI_MANIFEST_TYPE, "layers": layers });
        self.manifests.insert(tag.to_owned(), manifest.to_string().into_bytes());
    }

    fn answer(&self, path: &str, head: &str) -> Vec<u8> {
        self.seen.lock().expect("not poisoned").push(path.to_owned());
        let Some(rest) = path.strip_prefix(&format!("/v2/{NAME}/")) else { return not_found() };
        if let Some(tag) = rest.strip_prefix("manifests/") {
            assert_eq!(header(head, "accept").as_deref(), Some(OCI_MANIFEST_TYPE));
            return self.manifests.get(tag).map_or_else(not_found, |manifest| ok(manifest));
        }
        let Some(blob) = rest.strip_prefix("blobs/").and_then(|digest| self.blobs.get(digest)) else {
            return not_found();
        };
        let Some(range) = header(head, "range") else { return ok(blob) };
        let (from, last) = range.strip_prefix("bytes=").and_then(|r| r.split_once('-')).expect("a range");
        let (from, last): (usize, usize) = (from.parse().expect("from"), last.parse().expect("last"));
        let part = &blob[from.min(blob.len())..blob.len().min(last + 1)];
        let said = format!("Content-Range: bytes {from}-{last}/{}\r\n", blob.len());
        answer("206 Partial Content", &said, part)
    }
}

async fn repository(
    answer: impl Fn(&str, &str) -> Option<Vec<u8>> + Send + Sync + 'static,
    login: bool,
) -> OciRepository {
    let (address, tls) = listening(answer, false).await;
    let auth = base64::encode(b"node:secret");
    let logins = json!({ "auths": { (address.to_string()): { "auth": auth } } }).to_string();
    let logins = if login { logins.as_bytes() } else { &[] };
    let source = OciRepository::new(&format!("oci://{address}/{NAME}"), tls, logins).expect("a source");
    source.within(Duration::from_secs(20))
}

async fn document(source: &OciRepository) -> Result<Option<Vec<u8>>, SourceError> {
    source.document(&trust_path(1)).await
}

#[tokio::test]
async fn a_node_takes_the_release_of_a_registry() {
    let publisher = Publisher::new();
    let registry = Registry::of(&publisher.served());
    let seen = Arc::clone(&registry.seen);
    let source = repository(move |path, head| Some(registry.answer(path, head)), false).await;
    let mut store = UpdateStore::open(&publisher.kept(), &publisher.image_trust()).expect("a store");
    let found = survey(&source, &mut store, &request()).await.expect("an answer");
    assert_eq!(found.answer, SurveyAnswer::Take(release("0.2.0")));
    // Each manifest once, and the trust document that does not follow.
    let seen = seen.lock().expect("not poisoned").clone();
    let of = |tag: &str| seen.iter().filter(|path| path.ends_with(&format!("manifests/{tag}"))).count();
    assert_eq!((of("trust-2"), of("channel-stable")), (1, 1), "{seen:?}");
    assert_eq!(source.document("elsewhere/x").await.expect("an answer"), None);
}

#[tokio::test]
async fn a_file_comes_by_ranges_and_its_manifest_once() {
    let file: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let (mut registry, digest) = (Registry::default(), format!("sha256:{}", sha256(&file)));
    let title = json!({ "org.opencontainers.image.title": "root.erofs" });
    registry.put(
        &format!("release-0.2.0-{ARCH}"),
        &json!([{ "digest": digest, "size": file.len(), "annotations": title }]),
    );
    registry.blobs.insert(digest, file.clone());
    let seen = Arc::clone(&registry.seen);
    let source = repository(move |path, head| Some(registry.answer(path, head)), false).await;
    let path = release_path(version("0.2.0"), ARCH, "root.erofs");
    for (from, to) in [(0, 4096), (4096, 300_000)] {
        let mut found = Vec::new();
        let mut take = |at: u64, bytes: &[u8]| -> ControlFlow<()> {
            assert_eq!(at, from + found.len() as u64);
            found.extend_from_slice(bytes);
            ControlFlow::Continue(())
        };
        source.bytes(&path, ByteRange { from, to }, &mut take).await.expect("a part");
        let [from, to] = [from, to].map(|at| usize::try_from(at).expect("small"));
        assert!(found == file[from..to], "{from} to {to}");
    }
    assert_eq!(seen.lock().expect("not poisoned").len(), 3);
    let missing = release_path(version("0.2.0"), ARCH, RELEASE_DOCUMENT);
    let mut none = |_: u64, _: &[u8]| -> ControlFlow<()> { ControlFlow::Continue(()) };
    let refused = source.bytes(&missing, ByteRange { from: 0, to: 1 }, &mut none).await.expect_err("missing");
    assert!(matches!(refused, SourceError::NoSuchFile(_)), "{refused}");
}

/// Wants a token, which it gives for the node's login.
fn guarded(
    registry: Registry,
    port: Arc<Mutex<u16>>,
) -> impl Fn(&str, &str) -> Option<Vec<u8>> + Send + Sync {
    move |path, head| {
        let authorization = header(head, "authorization");
        if path.starts_with("/token?") {
            registry.seen.lock().expect("not poisoned").push(path.to_owned());
            assert!(path.ends_with("scope=repository%3Ateam%2Forlop%3Apull"), "{path}");
            let login = format!("Basic {}", base64::encode(b"node:secret"));
            let body = json!({ "token": TOKEN }).to_string();
            let is_node = authorization == Some(login);
            return Some(if is_node { ok(body.as_bytes()) } else { answer("403 Forbidden", "", b"{}") });
        }
        if authorization.as_deref() == Some(format!("Bearer {TOKEN}").as_str()) {
            return Some(registry.answer(path, head));
        }
        let port = *port.lock().expect("not poisoned");
        let realm = format!(
            "Bearer realm=\"https://127.0.0.1:{port}/token\",service=\"r\",scope=\"repository:x:push\""
        );
        Some(answer("401 Unauthorized", &format!("WWW-Authenticate: {realm}\r\n"), b"{}"))
    }
}

#[tokio::test]
async fn a_token_is_asked_for_once() {
    let publisher = Publisher::new();
    let registry = Registry::of(&publisher.served());
    let (seen, port) = (Arc::clone(&registry.seen), Arc::new(Mutex::new(0)));
    let source = repository(guarded(registry.clone(), Arc::clone(&port)), true).await;
    *port.lock().expect("not poisoned") = port_of(&source);
    assert!(document(&source).await.expect("let in").is_some());
    assert!(document(&source).await.expect("let in").is_some());
    // The manifest is known; both blobs came with the same token.
    let seen = seen.lock().expect("not poisoned").clone();
    let tokens = seen.iter().filter(|path| path.starts_with("/token?")).count();
    assert_eq!((tokens, seen.len()), (1, 4), "{seen:?}");
    let stranger = repository(guarded(registry, Arc::clone(&port)), false).await;
    *port.lock().expect("not poisoned") = port_of(&stranger);
    let refused = document(&stranger).await.expect_err("a stranger");
    assert!(matches!(refused, SourceError::Login { .. }), "{refused}");
    assert!(!refused.to_string().contains("secret"), "{refused}");
}

#[tokio::test]
async fn a_login_goes_to_no_server_of_blobs() {
    let publisher = Publisher::new();
    let registry = Registry::of(&publisher.served());
    let (blobs, port) = (registry.blobs.clone(), Arc::new(Mutex::new(0)));
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let guarded = guarded(registry, Arc::clone(&port));
    let (kept, at) = (Arc::clone(&heads), Arc::clone(&port));
    let source = repository(
        move |path, head| {
            if let Some(digest) = path.strip_prefix("/elsewhere/") {
                kept.lock().expect("not poisoned").push(head.to_owned());
                return blobs.get(digest).map(|blob| ok(blob));
            }
            if !path.contains("/blobs/") || header(head, "authorization").is_none() {
                return guarded(path, head);
            }
            let digest = path.rsplit('/').next().unwrap_or_default();
            let port = *at.lock().expect("not poisoned");
            let location = format!("Location: https://localhost:{port}/elsewhere/{digest}\r\n");
            Some(answer("307 Temporary Redirect", &location, b""))
        },
        true,
    )
    .await;
    *port.lock().expect("not poisoned") = port_of(&source);
    assert!(document(&source).await.expect("followed").is_some());
    let heads = heads.lock().expect("not poisoned").clone();
    assert_eq!(heads.len(), 1, "{heads:?}");
    assert_eq!(header(&heads[0], "authorization"), None);
    assert!(header(&heads[0], "host").is_some_and(|host| host.starts_with("localhost:")), "{heads:?}");
}

fn port_of(source: &OciRepository) -> u16 {
    let place = source.place();
    let rest = place.strip_prefix("oci://127.0.0.1:").expect("on the loopback address");
    rest.split('/').next().and_then(|port| port.parse().ok()).expect("a port")
}

#[tokio::test]
async fn a_blob_elsewhere_is_followed_and_tls_counts_there() {
    let publisher = Publisher::new();
    let registry = Registry::of(&publisher.served());
    let blobs = registry.blobs.clone();
    // The other server is trusted by another authority: what is followed there fails with TLS, which shows that it was asked.
    let (elsewhere, _) = listening(move |_, _| blobs.values().next().map(|blob| ok(blob)), false).await;
    let source = repository(
        move |path, head| {
            let Some(digest) = path.split("/blobs/").nth(1) else { return Some(registry.answer(path, head)) };
            Some(answer(
                "307 Temporary Redirect",
                &format!("Location: https://{elsewhere}/{digest}?k=1\r\n"),
                b"",
            ))
        },
        false,
    )
    .await;
    let refused = document(&source).await.expect_err("another authority");
    assert!(matches!(refused, SourceError::Tls { .. }), "{refused}");
    // Within the registry it is followed.
    let registry = Registry::of(&publisher.served());
    let source = repository(
        move |path, head| match path.strip_suffix("?k=1") {
            Some(path) => Some(registry.answer(path, head)),
            None if path.contains("/blobs/") => {
                Some(answer("302 Found", &format!("Location: {path}?k=1\r\n"), b""))
            }
            None => Some(registry.answer(path, head)),
        },
        false,
    )
    .await;
    assert!(document(&source).await.expect("followed").is_some());
}

#[tokio::test]
async fn lies_of_a_registry_end() {
    type Lie = fn(&str) -> Option<Vec<u8>>;
    let lies: [(&str, Lie); 10] = [
        ("is no JSON", |_| Some(ok(b"<html>"))),
        ("not that of one artifact", |_| {
            Some(ok(
                br#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","layers":[]}"#,
            ))
        }),
        ("more than 262144 bytes", |_| Some(ok(&vec![b' '; 300 << 10]))),
        ("other bytes than its manifest says", |path| {
            let title = json!({ "org.opencontainers.image.title": "1.json" });
            let digest = format!("sha256:{}", "00".repeat(32));
            let layer = json!({ "digest": digest, "size": 2, "annotations": title });
            let manifest = json!({ "schemaVersion": 2, "layers": [layer] }).to_string();
            Some(ok(if path.contains("/blobs/") { &b"{}"[..] } else { manifest.as_bytes() }))
        }),
        ("answers 500", |_| Some(answer("500 Internal Server Error", "", b""))),
        ("more than three times", |_| Some(answer("307 Temporary Redirect", "Location: /v2/x\r\n", b""))),
        ("does not begin with https", |_| Some(answer("302 Found", "Location: http://127.0.0.1/\r\n", b""))),
        ("a kind that this version does not know", |_| {
            Some(answer("401 Unauthorized", "WWW-Authenticate: Digest x\r\n", b""))
        }),
        ("asks for a password", |_| {
            Some(answer("401 Unauthorized", "WWW-Authenticate: Basic realm=x\r\n", b""))
        }),
        ("breaks off", |_| Some(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_vec())),
    ];
    for (words, lie) in lies {
        let source = repository(move |path, _| lie(path), false).await;
        let refused = document(&source).await.expect_err(words).to_string();
        assert!(refused.contains(words), "{words}: {refused}");
    }
    let silent = repository(|_, _| None, false).await.within(Duration::from_millis(200));
    let refused = document(&silent).await.expect_err("silent");
    assert!(matches!(refused, SourceError::Silent { .. }), "{refused}");
}
