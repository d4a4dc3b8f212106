//! Documents and files of a web server: a directory by HTTPS. It reads no proxy and follows no redirect.

use std::sync::Arc;
use std::time::Duration;

use orlop_config::release::DOCUMENT_BYTES_MAX;
use rustls::ClientConfig;
use tokio::time::timeout;

use super::http::{HttpClient, HttpTarget, range_header};
use super::source::{ByteRange, ByteSource, DocumentSource, SourceError, TakePiece};

/// A directory by HTTPS.
#[derive(Clone)]
pub struct HttpsDirectory {
    /// As given, without a slash at the end.
    base: String,
    /// Its path has no slash at the end.
    target: HttpTarget,
    client: HttpClient,
}

impl std::fmt::Debug for HttpsDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpsDirectory").field("base", &self.base).finish_non_exhaustive()
    }
}

impl HttpsDirectory {
    /// The directory at `base`, `https://host[:port]/path`.
    ///
    /// # Errors
    /// It is no such URL.
    pub fn new(base: &str, tls: Arc<ClientConfig>) -> Result<HttpsDirectory, SourceError> {
        let refused = |why| SourceError::Place { text: base.to_owned(), why };
        let mut target = HttpTarget::parse(base).map_err(refused)?;
        if target.path.contains('?') {
            return Err(refused("it has a query, and documents are found by their path"));
        }
        target.path = target.path.trim_end_matches('/').to_owned();
        let base = base.trim_end_matches('/').to_owned();
        Ok(HttpsDirectory { base, target, client: HttpClient::new(tls) })
    }

    /// The same with another limit of time for a document.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> HttpsDirectory {
        self.client.limit = limit;
        self
    }

    fn target(&self, path: &str) -> HttpTarget {
        HttpTarget { path: format!("{}/{path}", self.target.path), ..self.target.clone() }
    }

    async fn get(&self, path: &str, url: &str) -> Result<Option<Vec<u8>>, SourceError> {
        let mut answer = self.client.ask(&self.target(path), url, &[]).await?;
        match answer.status() {
            200 => answer.whole(url, DOCUMENT_BYTES_MAX).await.map(Some),
            404 | 410 => Ok(None),
            status => Err(SourceError::Status { url: url.to_owned(), status }),
        }
    }

    async fn give(
        &self,
        path: &str,
        url: &str,
        range: ByteRange,
        take: &mut TakePiece<'_>,
    ) -> Result<(), SourceError> {
        let limit = self.client.limit;
        let silent = || SourceError::Silent { url: url.to_owned(), seconds: limit.as_secs() };
        let (target, headers) = (self.target(path), [range_header(range)]);
        let asked = timeout(limit, self.client.ask(&target, url, &headers)).await;
        let answer = asked.unwrap_or_else(|_| Err(silent()))?;
        self.client.give(answer, url, range, take).await
    }
}

impl DocumentSource for HttpsDirectory {
    fn place(&self) -> String {
        self.base.clone()
    }

    async fn document(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        let url = format!("{}/{path}", self.base);
        let late = || SourceError::Silent { url: url.clone(), seconds: self.client.limit.as_secs() };
        timeout(self.client.limit, self.get(path, &url)).await.unwrap_or_else(|_| Err(late()))
    }
}

impl ByteSource for HttpsDirectory {
    async fn bytes(&self, path: &str, range: ByteRange, take: &mut TakePiece<'_>) -> Result<(), SourceError> {
        let url = format!("{}/{path}", self.base);
        self.give(path, &url, range, take).await
    }
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;

    use super::*;

    fn tls() -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Arc::new(
            ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth(),
        )
    }

    #[test]
    fn a_source_is_a_directory_by_https() {
        for (base, host, port, path) in [
            ("https://updates.example/orlop", "updates.example", 443, "/orlop"),
            ("https://updates.example/orlop//", "updates.example", 443, "/orlop"),
            ("https://updates.example:8443", "updates.example", 8443, ""),
            ("https://[2001:db8::1]:444/a/b/", "2001:db8::1", 444, "/a/b"),
        ] {
            let directory = HttpsDirectory::new(base, tls()).expect(base);
            assert_eq!(
                (directory.target.host.as_str(), directory.target.port, directory.target.path.as_str()),
                (host, port, path),
                "{base}"
            );
        }
        for bad in [
            "",
            "updates.example",
            "/orlop",
            "http://updates.example",
            "https://u:p@updates.example",
            "https://a/b?c",
            "https://a:99999/b",
            "https://a:/b",
        ] {
            assert!(matches!(HttpsDirectory::new(bad, tls()), Err(SourceError::Place { .. })), "{bad}");
        }
    }
}
