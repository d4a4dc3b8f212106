//! TLS to containers. As everywhere in Kubernetes, their certificates are not verified: a probe asks whether a server
//! answers, and sends no secret of the node. A certificate that cannot be parsed is accepted as well.

use std::sync::Arc;

use agent_apiserver::{Unverified, provider};
use rustls::{CertificateError, ClientConfig, Error, InvalidMessage};

use super::net;

/// A client that accepts every server.
///
/// # Errors
/// The provider does not support the protocol versions.
pub(super) fn client() -> Result<Arc<ClientConfig>, Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unverified))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// True if the handshake failed because the peer does not use TLS.
pub(super) fn is_plain_text(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(inner, Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}

/// The reason of a failed handshake. A server whose certificate is verified may have one of an unknown issuer.
pub(super) fn words(error: &std::io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    if let Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) = inner {
        return format!(
            "its certificate is signed by an authority that this machine does not trust: give the server one of an \
             authority in {}, or add its own there (on the appliance: trust.caCertificates of NodeConfig)",
            agent_apiserver::SYSTEM_BUNDLE
        );
    }
    net::words(error)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_certificate_of_an_unknown_authority_is_said_with_what_to_do() {
        let of = |error: CertificateError| words(&io::Error::other(Error::InvalidCertificate(error)));
        let unknown = of(CertificateError::UnknownIssuer);
        assert!(unknown.contains("does not trust") && unknown.contains("/etc/ssl/certs"), "{unknown}");
        assert!(!of(CertificateError::Revoked).contains("does not trust"));
        assert_eq!(words(&io::Error::from_raw_os_error(111)), "connection refused");
    }
}
