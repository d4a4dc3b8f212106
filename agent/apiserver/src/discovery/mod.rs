//! From an address, a token and what is known of the CA to a cluster that can be trusted (as kubeadm's token
//! discovery does it).
//!
//! ```text
//! caData ───────────────────────────────────────────────────────────► trusted
//! caCertHashes ─► cluster-info, unverified ─► JWS by the token ─► pins ─► cluster-info again, verified ─► the same? ─► trusted
//! ```
//! In: [`Join`]. Out: [`Discovered`], or a [`DiscoveryError`] that says what is wrong and what to do.
//! Invariants: the token's secret half never leaves the node and is in no message; nothing that an unverified
//! server said is used before the token and a pin have vouched for it. Forgetting the token after its use is the
//! caller's: nothing here keeps it.

mod error;
mod jws;
mod pins;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use hyper::StatusCode;
use orlop_config::node::Secret;
use serde::Deserialize;

use crate::access::{Access, Credentials, Server, Trust};
use crate::client::{ApiClient, Options};
use crate::connect::Dialer;
use crate::connection::SendError;
use crate::json;
use crate::kubeconfig::Kubeconfig;
pub use error::DiscoveryError;
#[cfg(feature = "testing")]
pub(crate) use jws::sign;
pub use pins::{Pin, pin_of};

const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";

/// What the node's configuration says about joining.
#[derive(Clone, Debug)]
pub struct Join {
    /// URL of the API server.
    pub server: String,
    /// `abcdef.0123456789abcdef`.
    pub token: Secret,
    /// The CA, PEM; wins over the hashes, which then have to match it.
    pub ca_pem: Option<Vec<u8>>,
    /// `sha256:<64 hex digits>` of CA public keys.
    pub ca_cert_hashes: Vec<String>,
}

/// A cluster that can be trusted, and the credentials to ask it for a certificate with.
#[derive(Clone, Debug)]
pub struct Discovered {
    /// The server of [`Join`], the CA, the token.
    pub bootstrap: Access,
    /// The CA, PEM, for the node's kubeconfig.
    pub ca_pem: Vec<u8>,
    /// The address that the cluster itself advertises, if it was asked: kubeadm puts it into kubeconfigs.
    pub advertised: Option<Server>,
}

/// Finds the cluster and why to trust it.
///
/// # Errors
/// See [`DiscoveryError`]; [`DiscoveryError::is_transient`] says which may pass by waiting.
pub async fn discover(join: &Join, options: &Options) -> Result<Discovered, DiscoveryError> {
    discover_over(join, options, Dialer::Tcp).await
}

pub(crate) async fn discover_over(
    join: &Join,
    options: &Options,
    dialer: Dialer,
) -> Result<Discovered, DiscoveryError> {
    let server = Server::parse(&join.server)?;
    let (id, _) = token_parts(&join.token)?;
    let pins: Vec<Pin> = join.ca_cert_hashes.iter().map(|h| Pin::parse(h)).collect::<Result<_, _>>()?;
    let (ca_pem, advertised) = match &join.ca_pem {
        Some(pem) => {
            if !pins.is_empty() {
                pins::check(&pins, pem)?;
            }
            (pem.clone(), None)
        }
        None if pins.is_empty() => return Err(DiscoveryError::NothingToTrust),
        None => {
            let seen = DiscoveryRequest { server: &server, options, dialer: &dialer };
            let first = seen.vouched(&join.token, id, &pins).await?;
            let second = seen.cluster_info(trust(&first.ca_pem)?).await?;
            if second.verified(&join.token, id)? != first.kubeconfig {
                return Err(DiscoveryError::Changed { server: server.to_string() });
            }
            (first.ca_pem, Some(first.advertised))
        }
    };
    let trust = trust(&ca_pem)?;
    let bootstrap = Access { server, trust, credentials: Credentials::Token(join.token.clone()) };
    Ok(Discovered { bootstrap, ca_pem, advertised })
}

/// The cluster's address and the authority that the token and a pin vouch for, without a look at any certificate's dates:
/// for a node whose clock may be wrong. It is enough to ask the server for the time, and for nothing else.
///
/// # Errors
/// See [`DiscoveryError`].
pub async fn authority(join: &Join, options: &Options) -> Result<(Server, Trust), DiscoveryError> {
    authority_over(join, options, Dialer::Tcp).await
}

pub(crate) async fn authority_over(
    join: &Join,
    options: &Options,
    dialer: Dialer,
) -> Result<(Server, Trust), DiscoveryError> {
    let server = Server::parse(&join.server)?;
    let (id, _) = token_parts(&join.token)?;
    let pins: Vec<Pin> = join.ca_cert_hashes.iter().map(|h| Pin::parse(h)).collect::<Result<_, _>>()?;
    if pins.is_empty() {
        return Err(DiscoveryError::NothingToTrust);
    }
    let seen = DiscoveryRequest { server: &server, options, dialer: &dialer };
    let trust = trust(&seen.vouched(&join.token, id, &pins).await?.ca_pem)?;
    Ok((server, trust))
}

fn trust(ca_pem: &[u8]) -> Result<Trust, DiscoveryError> {
    Trust::from_pem(ca_pem).map_err(|reason| DiscoveryError::Ca { reason })
}

fn token_parts(token: &Secret) -> Result<(&str, &str), DiscoveryError> {
    let plain = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    token
        .reveal()
        .split_once('.')
        .filter(|(id, secret)| plain(id, 6) && plain(secret, 16))
        .ok_or(DiscoveryError::TokenForm)
}

/// The advertised server and the CA's PEM in a cluster-info kubeconfig.
fn cluster(kubeconfig: &str) -> Result<(Server, Vec<u8>), DiscoveryError> {
    let wrong = |reason: String| DiscoveryError::ClusterInfo { reason };
    // It stands alone: a path in it would be one of this node's files.
    let read = Kubeconfig::parse(Path::new("cluster-info"), kubeconfig).map_err(|e| wrong(e.to_string()))?;
    let pem = read.inline_ca().map_err(|e| wrong(e.to_string()))?;
    let server = read.advertised_server().map_err(|e| wrong(e.to_string()))?;
    Ok((server, pem))
}

/// The ConfigMap, as far as it matters.
#[derive(Deserialize)]
struct ClusterInfo {
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

impl ClusterInfo {
    /// The kubeconfig, if the token vouches for it.
    fn verified(&self, token: &Secret, id: &str) -> Result<&str, DiscoveryError> {
        let value = |key: &str| self.data.as_ref()?.get(key).filter(|v| !v.is_empty());
        let kubeconfig = value("kubeconfig")
            .ok_or_else(|| DiscoveryError::ClusterInfo { reason: "has no key \"kubeconfig\"".to_owned() })?;
        let signature = value(&format!("jws-kubeconfig-{id}"))
            .ok_or_else(|| DiscoveryError::UnknownToken { id: id.to_owned() })?;
        let (_, secret) = token_parts(token)?;
        jws::verify(signature, kubeconfig.as_bytes(), id, secret.as_bytes())?;
        Ok(kubeconfig)
    }
}

/// What the token and a pin vouch for.
struct VouchedCluster {
    kubeconfig: String,
    advertised: Server,
    ca_pem: Vec<u8>,
}

struct DiscoveryRequest<'a> {
    server: &'a Server,
    options: &'a Options,
    dialer: &'a Dialer,
}

impl DiscoveryRequest<'_> {
    /// The first look, at a server that is not verified: only what the token and a pin vouch for leaves it.
    async fn vouched(
        &self,
        token: &Secret,
        id: &str,
        pins: &[Pin],
    ) -> Result<VouchedCluster, DiscoveryError> {
        let answer = self.cluster_info(Trust::Anyone).await?;
        let kubeconfig = answer.verified(token, id)?.to_owned();
        let (advertised, ca_pem) = cluster(&kubeconfig)?;
        pins::check(pins, &ca_pem)?;
        Ok(VouchedCluster { kubeconfig, advertised, ca_pem })
    }

    async fn cluster_info(&self, trust: Trust) -> Result<ClusterInfo, DiscoveryError> {
        let verified = !matches!(trust, Trust::Anyone);
        let access = Access { server: self.server.clone(), trust, credentials: Credentials::None };
        let client = ApiClient::over(access, self.options, self.dialer.clone())
            .map_err(|e| DiscoveryError::Connect { cause: e.into() })?;
        let server = self.server.to_string();
        let (code, body) = match client.get_raw(CLUSTER_INFO).await {
            Ok(answer) => answer,
            Err(SendError::NotSent(cause)) if verified => {
                return Err(DiscoveryError::SecondTime { cause });
            }
            Err(SendError::NotSent(cause)) => return Err(DiscoveryError::Connect { cause }),
            Err(SendError::Broken(reason)) => return Err(DiscoveryError::Broken { server, reason }),
        };
        match code {
            StatusCode::NOT_FOUND => Err(DiscoveryError::NoClusterInfo { server }),
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
                Err(DiscoveryError::Hidden { server, code: code.as_u16() })
            }
            code if code.is_success() => json::read(&body)
                .map_err(|e| DiscoveryError::ClusterInfo { reason: format!("is no ConfigMap: {e}") }),
            code => Err(DiscoveryError::Broken { server, reason: format!("HTTP {code}") }),
        }
    }
}
