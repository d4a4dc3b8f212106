//! Documents and files of a repository in an OCI registry: manifests by tag, blobs by range, read only.
//!
//! What the registry's words mean is `oci_answers`'. Bounded in time and in bytes as a directory by HTTPS. A login goes to the
//! registry and to the server of its tokens, and to no host to which a blob is redirected. Mirrors and proxies are not used.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, LOCATION, WWW_AUTHENTICATE};
use orlop_config::release::DOCUMENT_BYTES_MAX;
use rustls::ClientConfig;
use tokio::time::timeout;

use super::http::{HttpAnswer, HttpClient, HttpTarget, range_header};
use super::oci_answers::{
    OCI_MANIFEST_TYPE, OciBlob, OciChallenge, OciLogin, OciPlace, blobs, challenge, login, oci_place,
    redirected, repository, token, token_url,
};
use super::source::{ByteRange, ByteSource, DocumentSource, SourceError, TakePiece};

/// Redirects that are followed for one request.
const REDIRECTS_MAX: usize = 3;
/// Longest answer of a server of tokens, bytes.
const TOKEN_ANSWER_MAX: usize = 64 << 10;

/// The blobs of an artifact by their titles.
type OciBlobs = Arc<BTreeMap<String, OciBlob>>;

/// A repository that holds a published directory.
pub struct OciRepository {
    /// As given, without a slash at the end.
    place: String,
    registry: HttpTarget,
    repository: String,
    login: Option<OciLogin>,
    client: HttpClient,
    session: Mutex<OciSession>,
}

/// What was learnt from the registry. Taken for a moment only, never while something is awaited.
#[derive(Default)]
struct OciSession {
    /// Value of the header that the registry has asked for.
    authorization: Option<String>,
    manifests: BTreeMap<String, OciBlobs>,
}

impl std::fmt::Debug for OciRepository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OciRepository").field("place", &self.place).finish_non_exhaustive()
    }
}

impl OciRepository {
    /// The repository at `place`, `oci://host[:port]/name`. `logins` is a `config.json` as `docker login` writes it, or empty.
    ///
    /// # Errors
    /// It is no such text.
    pub fn new(place: &str, tls: Arc<ClientConfig>, logins: &[u8]) -> Result<OciRepository, SourceError> {
        let refused = |why| SourceError::Place { text: place.to_owned(), why };
        let (registry, repository) = repository(place).map_err(refused)?;
        let login = login(logins, &registry, &repository);
        let (place, session) = (place.trim_end_matches('/').to_owned(), Mutex::default());
        Ok(OciRepository { place, registry, repository, login, client: HttpClient::new(tls), session })
    }

    /// The same with another limit of time for a document.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> OciRepository {
        self.client.limit = limit;
        self
    }

    fn session(&self) -> MutexGuard<'_, OciSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a request below the repository; logs in if the registry wants that, once.
    async fn ask(
        &self,
        path: &str,
        url: &str,
        headers: &[(HeaderName, String)],
    ) -> Result<HttpAnswer, SourceError> {
        let path = format!("/v2/{}/{path}", self.repository);
        let target = HttpTarget { path, ..self.registry.clone() };
        let answer = self.ask_registry(&target, url, headers).await?;
        if answer.status() != 401 {
            return self.followed(answer, url, headers).await;
        }
        let wanted = challenge_of(answer.headers());
        drop(answer);
        let authorization = self.log_in(wanted, url).await?;
        self.session().authorization = Some(authorization);
        let answer = self.ask_registry(&target, url, headers).await?;
        match answer.status() {
            401 | 403 => Err(self.no_login(url, "it refuses the login that it has asked for")),
            _ => self.followed(answer, url, headers).await,
        }
    }

    async fn ask_registry(
        &self,
        target: &HttpTarget,
        url: &str,
        headers: &[(HeaderName, String)],
    ) -> Result<HttpAnswer, SourceError> {
        let mut all = headers.to_vec();
        all.extend(self.session().authorization.clone().map(|value| (AUTHORIZATION, value)));
        self.client.ask(target, url, &all).await
    }

    /// Registries keep blobs at other servers.
    async fn followed(
        &self,
        mut answer: HttpAnswer,
        url: &str,
        headers: &[(HeaderName, String)],
    ) -> Result<HttpAnswer, SourceError> {
        let failed = |why| SourceError::Redirect { url: url.to_owned(), why };
        let mut from = self.registry.clone();
        for _ in 0..REDIRECTS_MAX {
            if !matches!(answer.status(), 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            from = redirected(&from, location.unwrap_or_default()).map_err(failed)?;
            let is_registry = from.host == self.registry.host && from.port == self.registry.port;
            answer = if is_registry {
                self.ask_registry(&from, url, headers).await?
            } else {
                self.client.ask(&from, url, headers).await?
            };
        }
        match answer.status() {
            301 | 302 | 303 | 307 | 308 => Err(failed("from one server to the next, more than three times")),
            _ => Ok(answer),
        }
    }

    fn no_login(&self, url: &str, why: &'static str) -> SourceError {
        SourceError::Login { url: url.to_owned(), why }
    }

    /// The value of `Authorization` for the registry.
    async fn log_in(&self, wanted: Option<OciChallenge>, url: &str) -> Result<String, SourceError> {
        let basic = self.login.as_ref().map(OciLogin::basic);
        let (realm, service) = match wanted {
            None => {
                return Err(
                    self.no_login(url, "it asks for a login of a kind that this version does not know")
                );
            }
            Some(OciChallenge::Basic) => {
                return basic.ok_or_else(|| {
                    self.no_login(url, "it asks for a password, and the node has none for it")
                });
            }
            Some(OciChallenge::Bearer { realm, service }) => (realm, service),
        };
        let at = token_url(&realm, &service, &self.repository);
        let target = HttpTarget::parse(&at).map_err(|why| self.no_login(url, why))?;
        let headers: Vec<(HeaderName, String)> =
            basic.into_iter().map(|value| (AUTHORIZATION, value)).collect();
        let mut answer = self.client.ask(&target, &realm, &headers).await?;
        if answer.status() != 200 {
            return Err(self.no_login(url, "the server of its tokens gives none"));
        }
        let token = token(&answer.whole(&realm, TOKEN_ANSWER_MAX).await?);
        let token =
            token.ok_or_else(|| self.no_login(url, "the server of its tokens gives something else"))?;
        Ok(format!("Bearer {token}"))
    }

    /// The blobs of an artifact; `None` if there is no such tag.
    async fn manifest(&self, tag: &str, url: &str) -> Result<Option<OciBlobs>, SourceError> {
        let known = self.session().manifests.get(tag).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let headers = [(ACCEPT, OCI_MANIFEST_TYPE.to_owned())];
        let mut answer = self.ask(&format!("manifests/{tag}"), url, &headers).await?;
        match answer.status() {
            200 => {}
            404 | 410 => return Ok(None),
            status => return Err(SourceError::Status { url: url.to_owned(), status }),
        }
        let text = answer.whole(url, DOCUMENT_BYTES_MAX).await?;
        let found = blobs(&text).map_err(|why| SourceError::Manifest { url: url.to_owned(), why })?;
        let found = Arc::new(found);
        self.session().manifests.insert(tag.to_owned(), Arc::clone(&found));
        Ok(Some(found))
    }

    async fn blob(&self, place: &OciPlace, url: &str) -> Result<Option<OciBlob>, SourceError> {
        let manifest = self.manifest(&place.tag, url).await?;
        Ok(manifest.and_then(|blobs| blobs.get(&place.title).cloned()))
    }

    async fn get(&self, path: &str, url: &str) -> Result<Option<Vec<u8>>, SourceError> {
        let Some(place) = oci_place(path) else { return Ok(None) };
        let Some(blob) = self.blob(&place, url).await? else { return Ok(None) };
        let mut answer = self.ask(&blob_path(&blob), url, &[]).await?;
        match answer.status() {
            200 => {}
            404 | 410 => return Ok(None),
            status => return Err(SourceError::Status { url: url.to_owned(), status }),
        }
        let body = answer.whole(url, DOCUMENT_BYTES_MAX).await?;
        let digest = ring::digest::digest(&ring::digest::SHA256, &body);
        if digest.as_ref() != blob.digest.0.as_slice() {
            let why = "the registry gives other bytes than its manifest says";
            return Err(SourceError::Manifest { url: url.to_owned(), why });
        }
        Ok(Some(body))
    }

    /// The answer to a request for a part of a file.
    async fn ask_part(&self, path: &str, url: &str, range: ByteRange) -> Result<HttpAnswer, SourceError> {
        let missing = || SourceError::NoSuchFile(url.to_owned());
        let place = oci_place(path).ok_or_else(missing)?;
        let blob = self.blob(&place, url).await?.ok_or_else(missing)?;
        self.ask(&blob_path(&blob), url, &[range_header(range)]).await
    }
}

fn blob_path(blob: &OciBlob) -> String {
    format!("blobs/sha256:{}", blob.digest)
}

fn challenge_of(headers: &HeaderMap) -> Option<OciChallenge> {
    headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()).find_map(challenge)
}

impl DocumentSource for OciRepository {
    fn place(&self) -> String {
        self.place.clone()
    }

    async fn document(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        let url = format!("{}/{path}", self.place);
        let limit = self.client.limit;
        let late = || SourceError::Silent { url: url.clone(), seconds: limit.as_secs() };
        timeout(limit, self.get(path, &url)).await.unwrap_or_else(|_| Err(late()))
    }
}

impl ByteSource for OciRepository {
    async fn bytes(&self, path: &str, range: ByteRange, take: &mut TakePiece<'_>) -> Result<(), SourceError> {
        let url = format!("{}/{path}", self.place);
        let limit = self.client.limit;
        let late = || SourceError::Silent { url: url.clone(), seconds: limit.as_secs() };
        let asked = timeout(limit, self.ask_part(path, &url, range)).await;
        let answer = asked.unwrap_or_else(|_| Err(late()))?;
        self.client.give(answer, &url, range, take).await
    }
}
