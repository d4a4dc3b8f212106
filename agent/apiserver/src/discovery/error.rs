//! Errors of discovery: reasons why a node cannot find and trust its cluster.
//!
//! In: nothing. Out: one error for each cause, with the remedy. Invariant: no error contains the secret half
//! of a token.

use crate::access::ServerError;
use crate::connect::ConnectError;
use crate::tls::TlsError;

/// Why discovery failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiscoveryError {
    /// The address is none.
    #[error("join.server: {0}")]
    Server(#[from] ServerError),
    /// Neither CA nor hash.
    #[error(
        "join: neither caData nor caCertHashes is set; the node would have to believe any server: set one"
    )]
    NothingToTrust,
    /// The token is no bootstrap token.
    #[error("join.token: must have the form abcdef.0123456789abcdef; make one with: kubeadm token create")]
    TokenForm,
    /// A hash is none.
    #[error("join.caCertHashes: {given:?} must be sha256: and 64 hex digits")]
    PinForm {
        /// As given.
        given: String,
    },
    /// The given CA cannot be read.
    #[error("the cluster's CA {reason}")]
    Ca {
        /// Reason of the failure.
        reason: String,
    },
    /// No connection for the first look.
    #[error("{cause}")]
    Connect {
        /// Error of the connection.
        cause: ConnectError,
    },
    /// The CA that the token and the hash vouch for did not sign the server's certificate, or the like.
    #[error(
        "the API server cannot be reached with the CA from cluster-info: {cause}; if the certificate is another's, \
         something between this node and the API server answers in its place"
    )]
    SecondTime {
        /// Error of the connection.
        cause: ConnectError,
    },
    /// The connection broke, or the server has trouble of its own.
    #[error("{server}: cluster-info: {reason}")]
    Broken {
        /// URL.
        server: String,
        /// What happened.
        reason: String,
    },
    /// No such ConfigMap.
    #[error(
        "{server}: has no ConfigMap kube-public/cluster-info; make it (kubeadm init phase bootstrap-token), or set \
         join.caData instead of caCertHashes"
    )]
    NoClusterInfo {
        /// URL.
        server: String,
    },
    /// It may not be read without credentials.
    #[error(
        "{server}: does not show cluster-info to nodes that have not joined (HTTP {code}); allow system:anonymous to \
         get it, or set join.caData instead of caCertHashes"
    )]
    Hidden {
        /// URL.
        server: String,
        /// 401 or 403.
        code: u16,
    },
    /// Its contents are none.
    #[error("cluster-info {reason}")]
    ClusterInfo {
        /// What is wrong.
        reason: String,
    },
    /// The token's id is not among the signatures.
    #[error(
        "cluster-info is not signed for token id {id:?}: the token has expired, was deleted, or is another \
         cluster's; make a new one with: kubeadm token create"
    )]
    UnknownToken {
        /// The public half.
        id: String,
    },
    /// The signature is not by this token.
    #[error(
        "cluster-info's signature for token id {id:?} is not by this token: the secret half is wrong, or the answer \
         was tampered with"
    )]
    Signature {
        /// The public half.
        id: String,
    },
    /// No CA has a wanted hash.
    #[error(
        "none of the cluster's CAs has a hash from join.caCertHashes; found {}; if the cluster is the right one, set \
         the hash to that, else somebody else answers at this address", found.join(", ")
    )]
    WrongHash {
        /// `sha256:…` of each CA found.
        found: Vec<String>,
    },
    /// Two different answers.
    #[error(
        "{server}: cluster-info was another one over the verified connection; somebody may be in between"
    )]
    Changed {
        /// URL.
        server: String,
    },
}

impl DiscoveryError {
    /// True if trying again later may help with nothing changed on this node: the server is down or busy, the
    /// token is about to be created, the clock about to be set.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            DiscoveryError::Connect { cause } | DiscoveryError::SecondTime { cause } => match cause {
                ConnectError::Tls(error) => {
                    matches!(
                        error,
                        TlsError::NotYetValid { .. } | TlsError::Expired { .. } | TlsError::Handshake { .. }
                    )
                }
                _ => true,
            },
            DiscoveryError::Broken { .. }
            | DiscoveryError::NoClusterInfo { .. }
            | DiscoveryError::UnknownToken { .. }
            | DiscoveryError::Changed { .. } => true,
            _ => false,
        }
    }
}
