//! Certificates for tests: an authority, servers, clients, signed requests.
//!
//! In: names, validity. Out: PEM, TLS configurations. Invariant: nothing is kept on disk.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::authn::AnyClient;
use crate::access::{Access, Credentials, Server, Trust};
use crate::discovery::pin_of;

/// From and until when, seconds relative to now.
#[derive(Clone, Copy, Debug)]
pub struct Validity(pub i64, pub i64);

impl Default for Validity {
    fn default() -> Self {
        Validity(-60, 3600)
    }
}

/// A cluster's certificate authority.
pub struct TestPki {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, PEM.
    pub ca_pem: String,
}

impl Default for TestPki {
    fn default() -> Self {
        TestPki::new()
    }
}

fn at(seconds: i64) -> SystemTime {
    let by = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { SystemTime::now() - by } else { SystemTime::now() + by }
}

impl TestPki {
    /// A new authority.
    #[must_use]
    pub fn new() -> TestPki {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "test CA");
        let ca_pem = params.self_signed(&key).expect("CA").pem();
        TestPki { issuer: Issuer::new(params, key), ca_pem }
    }

    /// `sha256:…` of the authority's key.
    #[must_use]
    pub fn pin(&self) -> String {
        let der = CertificateDer::from_pem_slice(self.ca_pem.as_bytes()).expect("CA");
        pin_of(&der).expect("CA").to_string()
    }

    /// Trust in this authority.
    #[must_use]
    pub fn trust(&self) -> Trust {
        Trust::from_pem(self.ca_pem.as_bytes()).expect("CA")
    }

    /// Access to a server of this authority as a user in a group; certificate valid for an hour.
    #[must_use]
    pub fn access(&self, server: Server, common_name: &str, organization: &str) -> Access {
        let pem = self.client_pem(common_name, organization, Validity::default());
        let credentials = Credentials::from_pem(pem.as_bytes(), pem.as_bytes()).expect("client");
        Access { server, trust: self.trust(), credentials }
    }

    /// A client certificate with its key, one PEM text.
    #[must_use]
    pub fn client_pem(&self, common_name: &str, organization: &str, validity: Validity) -> String {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (at(validity.0).into(), at(validity.1).into());
        let certificate = params.signed_by(&key, &self.issuer).expect("client");
        format!("{}{}", certificate.pem(), key.serialize_pem())
    }

    /// Signs a request as the cluster's signer would, PEM in and out.
    #[must_use]
    pub fn sign(&self, csr_pem: &str, validity: Validity) -> String {
        let mut request = CertificateSigningRequestParams::from_pem(csr_pem).expect("CSR");
        request.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        (request.params.not_before, request.params.not_after) =
            (at(validity.0).into(), at(validity.1).into());
        request.signed_by(&self.issuer).expect("signed").pem()
    }

    /// Knows the certificates that this authority has signed.
    pub(super) fn clients(&self) -> Arc<dyn ClientCertVerifier> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca_pem.as_bytes()).expect("CA")).expect("root");
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().expect("verifier")
    }

    /// A server's TLS: HTTP/2, client certificates asked for, and judged later.
    #[must_use]
    pub fn server_config(&self, names: &[&str], validity: Validity) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("key");
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        (params.not_before, params.not_after) = (at(validity.0).into(), at(validity.1).into());
        let certificate = params.signed_by(&key, &self.issuer).expect("server");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = Arc::new(AnyClient(provider.signature_verification_algorithms));
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).expect("key");
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("pair");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }
}
