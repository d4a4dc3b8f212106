//! TLS to containers. Their certificates are not verified, as everywhere in Kubernetes: a probe asks whether somebody
//! answers, and sends no secret of the node.

use std::sync::Arc;

use agent_apiserver::Unverified;
use rustls::crypto::ring;
use rustls::{ClientConfig, Error, InvalidMessage};

/// A client that talks to whoever answers.
///
/// # Errors
/// The provider does not know the protocol versions.
pub(super) fn client() -> Result<Arc<ClientConfig>, Error> {
    let provider = ring::default_provider();
    let verifier = Unverified::new(&provider);
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The handshake failed because the other end does not speak TLS at all.
pub(super) fn is_plain_text(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(inner, Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)))
}
