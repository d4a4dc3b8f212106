//! How far a new connection to the API server gets: for a node that has to tell its own faults from the cluster's.
//!
//! ```text
//! name, TCP ─► TLS, verified ─► its certificate
//!                  └─ not trusted ─► TLS once more, unverified ─► its certificate
//! ```
//! In: address and trust. Out: [`ApiReach`]. Invariants: no credentials are sent; nothing is sent over an unverified connection;
//! it ends within the dialer's limits; the client's own connections are not touched.

use ring::digest::{SHA256, digest};

use crate::access::{Access, Credentials, Trust};
use crate::connect::{ConnectError, Dialer, certificate};
use crate::tls::TlsError;

/// What was seen of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiReach {
    /// It accepts a TCP connection; else why not.
    pub connected: Result<(), String>,
    /// Its certificate is trusted; else why not. None if it was not seen.
    pub trusted: Option<Result<(), String>>,
    /// SHA-256 of its certificate, hex; none if it showed none.
    pub certificate: Option<String>,
}

/// Tries it.
pub(crate) async fn reach(access: &Access, dialer: &Dialer) -> ApiReach {
    let own = Access { credentials: Credentials::None, ..access.clone() };
    let (connected, trusted, shown) = match certificate(&own, dialer).await {
        Ok(shown) => (Ok(()), Some(Ok(())), shown),
        Err(ConnectError::Tls(error)) => {
            let anyone = Access { trust: Trust::Anyone, ..own };
            let shown = certificate(&anyone, dialer).await.ok().flatten();
            // A server that wants to know who asks has been verified by then.
            let is_refusal = matches!(error, TlsError::ClientRefused { .. });
            let trusted = if is_refusal { Ok(()) } else { Err(error.to_string()) };
            (Ok(()), Some(trusted), shown)
        }
        // It speaks something else, after a handshake that was verified.
        Err(ConnectError::Protocol { .. }) => (Ok(()), Some(Ok(())), None),
        Err(error) => (Err(error.to_string()), None, None),
    };
    let hex = |der: Vec<u8>| {
        let sum = digest(&SHA256, &der);
        sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    ApiReach { connected, trusted, certificate: shown.map(hex) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::testing::{FakeServer, TestPki, Validity};

    const DAY: i64 = 24 * 3600;

    #[tokio::test]
    async fn a_server_is_told_from_a_stranger_and_from_nobody() {
        let fake = FakeServer::start(Arc::new(TestPki::new())).await.unwrap();
        let client = fake.node("n");
        let first = client.reach().await;
        assert_eq!((&first.connected, &first.trusted), (&Ok(()), &Some(Ok(()))));
        assert_eq!(first.certificate.as_ref().map(String::len), Some(64));
        assert_eq!(client.reach().await, first, "the same server");
        // Another authority has signed the certificate.
        let name = fake.server().host;
        fake.set_tls(TestPki::new().server_config(&[name.as_str()], Validity(-DAY, DAY)));
        let stranger = client.reach().await;
        let words = stranger.trusted.clone().expect("seen").expect_err("not trusted");
        assert!(stranger.connected.is_ok() && words.contains("does not trust"), "{words}");
        assert!(stranger.certificate.is_some() && stranger.certificate != first.certificate);
        assert!(fake.seen().is_empty(), "nothing was asked for");
    }
}
