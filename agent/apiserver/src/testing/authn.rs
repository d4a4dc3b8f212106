//! Who a request of the fake comes from. As kube-apiserver does it, a certificate is asked for in the handshake and
//! judged with every request: one that ends while its connection lives is refused from then on.
//!
//! In: the peer's certificate, the `Authorization` header. Out: [`Caller`] and its name. Invariant: what was shown and
//! is not known is 401; who shows nothing is anonymous, which is known and may nothing.

use std::sync::Arc;

use agent_sim::fake_api::Requester;
use agent_types::certificates::CertificateFacts;
use agent_types::lock::Lock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};

use crate::certificates::facts_of_der;

/// What a request comes from.
#[derive(Debug)]
pub(super) enum Caller {
    /// A requester with rights.
    Known(Requester),
    /// A requester without any rights: 403.
    Powerless,
    /// Credentials that are good for nothing: 401.
    Unknown,
}

/// Judges credentials.
pub(super) struct Authenticator {
    clients: Arc<dyn ClientCertVerifier>,
    /// `None`: every token is a bootstrap token.
    tokens: Lock<Option<Vec<String>>>,
}

impl Authenticator {
    pub(super) fn new(clients: Arc<dyn ClientCertVerifier>) -> Authenticator {
        Authenticator { clients, tokens: Lock::default() }
    }

    pub(super) fn accept_tokens(&self, tokens: &[&str]) {
        let tokens = tokens.iter().map(ToString::to_string).collect();
        *self.tokens.lock() = Some(tokens);
    }

    pub(super) fn caller(
        &self,
        certificate: Option<&CertificateDer<'static>>,
        authorization: Option<&str>,
    ) -> (Caller, String) {
        if let Some(der) = certificate {
            let facts = facts_of_der(der);
            let name = facts.as_ref().map(|f| f.common_name.clone()).unwrap_or_default();
            let known = self.clients.verify_client_cert(der, &[], UnixTime::now()).is_ok();
            let caller = facts.filter(|_| known).map_or(Caller::Unknown, |f| of_certificate(&f));
            return (caller, name);
        }
        let Some(token) = authorization.and_then(|a| a.strip_prefix("Bearer ")) else {
            return (Caller::Powerless, "system:anonymous".to_owned());
        };
        let tokens = self.tokens.lock();
        let known = tokens.as_ref().is_none_or(|tokens| tokens.iter().any(|t| t == token));
        let caller = if known { Caller::Known(Requester::Bootstrapper) } else { Caller::Unknown };
        (caller, format!("system:bootstrap:{}", token.get(..6).unwrap_or(token)))
    }
}

fn of_certificate(facts: &CertificateFacts) -> Caller {
    let is_in = |group: &str| facts.organizations.iter().any(|o| o == group);
    match facts.common_name.strip_prefix("system:node:") {
        _ if is_in("system:masters") => Caller::Known(Requester::Admin),
        Some(name) if is_in("system:nodes") => Caller::Known(Requester::Node(name.to_owned())),
        _ => Caller::Powerless,
    }
}

/// Takes any certificate in the handshake, but checks that the peer holds its key.
#[derive(Debug)]
pub(super) struct AnyClient(pub(super) WebPkiSupportedAlgorithms);

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
