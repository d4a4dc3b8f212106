//! Rules of where images come from, and of whom clients believe.

use super::{Rules, is_host_port, is_url};
use crate::node::pem;
use crate::node::types::{Mirrors, NodeConfig};
use crate::path;

pub(super) const CERTIFICATES: &str =
    "must be PEM certificates in base64, and no blocks of another kind such as keys";

impl Rules<'_> {
    pub(super) fn registries(&mut self, config: &NodeConfig) {
        const AT: &str = "registries.mirrors";
        for (host, mirrors) in &config.registries.mirrors {
            let at = path::child(AT, host);
            self.rule(
                host == "_default" || is_host_port(host),
                &at,
                host,
                "must be a registry's host, host:port, or _default",
            );
            self.endpoints(mirrors, &at);
            self.certificates(mirrors, &at);
        }
    }

    fn endpoints(&mut self, mirrors: &Mirrors, at: &str) {
        let reason = "must be an http:// or https:// URL without blanks and quotes";
        self.each(&mirrors.endpoints, &path::child(at, "endpoints"), is_url, reason);
        let certificates = mirrors.ca_data.is_some()
            || mirrors.client_certificate_data.is_some()
            || mirrors.client_key_data.is_some();
        if !mirrors.endpoints.is_empty() {
            return;
        }
        if mirrors.skip_fallback || mirrors.override_path {
            let key = if mirrors.skip_fallback { "skipFallback" } else { "overridePath" };
            self.broken(&path::child(at, key), None, "needs endpoints: it says how these are asked");
        } else if !certificates {
            let reason =
                "must name at least one URL, unless caData or clientCertificateData is for the registry";
            self.broken(&path::child(at, "endpoints"), None, reason);
        }
    }

    /// The key is not shown, and certificates are long.
    fn certificates(&mut self, mirrors: &Mirrors, at: &str) {
        for (key, data) in
            [("caData", &mirrors.ca_data), ("clientCertificateData", &mirrors.client_certificate_data)]
        {
            if data.as_ref().is_some_and(|data| pem::decode(data, &pem::CERTIFICATE).is_none()) {
                self.broken(&path::child(at, key), None, CERTIFICATES);
            }
        }
        let key = mirrors.client_key_data.as_ref();
        if key.is_some_and(|key| pem::decode(key.reveal(), &pem::PRIVATE_KEY).is_none()) {
            let reason = "must be an unencrypted private key, PEM in base64";
            self.broken(&path::child(at, "clientKeyData"), None, reason);
        }
    }

    pub(super) fn trust(&mut self, config: &NodeConfig) {
        for (i, data) in config.trust.ca_certificates.iter().enumerate() {
            if pem::decode(data, &pem::CERTIFICATE).is_none() {
                self.broken(&path::index("trust.caCertificates", i), None, CERTIFICATES);
            }
        }
    }
}
