//! Certificates of the node: facts read from a certificate, and the names of the node's template.
//!
//! In: facts read from a certificate, a Node's addresses. Out: [`CertTemplate`], and the reason why a
//! certificate does not satisfy it. Invariant: extra names in a certificate are no reason to renew it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::NodeAddress;

use crate::time::Wall;

/// The two certificates of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertKind {
    /// The node's identity towards the API server, `kubelet-client-current.pem`.
    Client,
    /// The node's HTTPS server, `kubelet-server-current.pem`.
    Serving,
}

impl CertKind {
    /// `spec.signerName`.
    #[must_use]
    pub fn signer_name(self) -> &'static str {
        match self {
            CertKind::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            CertKind::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// `spec.usages` for a key of the ECDSA kind.
    #[must_use]
    pub fn usages(self) -> [&'static str; 2] {
        match self {
            CertKind::Client => ["digital signature", "client auth"],
            CertKind::Serving => ["digital signature", "server auth"],
        }
    }

    /// Name of the certificate in messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            CertKind::Client => "client",
            CertKind::Serving => "serving",
        }
    }
}

/// Settings of a certificate, which do not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertConfig {
    /// Certificate that these settings are for.
    pub kind: CertKind,
    /// Name of the node.
    pub node_name: Arc<str>,
    /// `rotateCertificates` or `serverTLSBootstrap`; false renews only a missing or expired certificate.
    pub rotate: bool,
    /// Build time of the image: a clock that shows an earlier time is wrong.
    pub clock_floor: Wall,
    /// Seed for the spread of rotations and retries.
    pub seed: u64,
}

/// Facts read from one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Start of the validity (`notBefore`).
    pub not_before: Wall,
    /// End of the validity (`notAfter`).
    pub not_after: Wall,
    /// Common name (CN) of the subject.
    pub common_name: String,
    /// All organizations (O) of the subject.
    pub organizations: Vec<String>,
    /// DNS subject alternative names.
    pub dns_names: Vec<String>,
    /// IP subject alternative names.
    pub ips: Vec<IpAddr>,
    /// True if the certificate came with the bootstrap credentials; the node replaces it with its own.
    pub from_bootstrap: bool,
}

/// What an API server proved and said about the time. It proved its identity by everything but dates: a pinned authority signed
/// its chain, and it has the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerClock {
    /// Latest `notBefore` of the chain: it is not earlier than this, or the authority's clock was wrong.
    pub not_before: Wall,
    /// Earliest `notAfter` of the chain.
    pub not_after: Wall,
    /// `Date` of its answer, whole seconds; `None` if it had none.
    pub date: Option<Wall>,
}

/// Names that a certificate must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertTemplate {
    /// Subject CN: `system:node:<name>`.
    pub common_name: String,
    /// Subject O: `system:nodes`.
    pub organization: String,
    /// DNS subject alternative names, sorted.
    pub dns_names: Vec<String>,
    /// IP subject alternative names, sorted by their text.
    pub ips: Vec<IpAddr>,
}

impl CertTemplate {
    /// The required names for `config`; `None` for a serving certificate of a node without any IP.
    #[must_use]
    pub fn of(config: &CertConfig, addresses: &[NodeAddress]) -> Option<CertTemplate> {
        let (dns_names, ips) = match config.kind {
            CertKind::Client => (Vec::new(), Vec::new()),
            CertKind::Serving => serving_names(addresses),
        };
        if config.kind == CertKind::Serving && ips.is_empty() {
            return None;
        }
        Some(CertTemplate {
            common_name: format!("system:node:{}", config.node_name),
            organization: "system:nodes".to_owned(),
            dns_names,
            ips,
        })
    }

    /// Reason for which `facts` do not satisfy the template; `None` if they do.
    #[must_use]
    pub fn unmet(&self, facts: &CertificateFacts) -> Option<String> {
        if facts.common_name != self.common_name {
            return Some(format!("its common name is {:?}, not {:?}", facts.common_name, self.common_name));
        }
        if !facts.organizations.contains(&self.organization) {
            return Some(format!("it lacks the organization {:?}", self.organization));
        }
        let dns = self.dns_names.iter().filter(|name| !facts.dns_names.contains(name)).cloned();
        let ips = self.ips.iter().filter(|ip| !facts.ips.contains(ip)).map(ToString::to_string);
        let missing: Vec<String> = dns.chain(ips).collect();
        (!missing.is_empty()).then(|| format!("it does not name {}", missing.join(", ")))
    }
}

/// DNS names and IPs among a Node's addresses, each sorted by its text.
pub fn serving_names(addresses: &[NodeAddress]) -> (Vec<String>, Vec<IpAddr>) {
    let mut dns = BTreeSet::new();
    let mut ips = BTreeSet::new();
    for NodeAddress { type_, address } in addresses.iter().filter(|a| !a.address.is_empty()) {
        match (type_.as_str(), address.parse::<IpAddr>()) {
            ("Hostname" | "InternalIP" | "ExternalIP", Ok(ip)) => {
                ips.insert((ip.to_string(), ip));
            }
            ("Hostname" | "InternalDNS" | "ExternalDNS", _) => {
                dns.insert(address.clone());
            }
            _ => {}
        }
    }
    (dns.into_iter().collect(), ips.into_iter().map(|(_, ip)| ip).collect())
}
