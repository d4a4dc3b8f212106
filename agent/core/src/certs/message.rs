//! Sentences for the operator: the obstacle to a certificate, and its remedy.
//!
//! In: errors and verdicts. Out: one line each, without secrets.

use agent_types::api::ApiError;
use agent_types::certificates::CertKind;

use super::CertIdentity;

/// A call failed.
pub(super) fn call_failed(kind: CertKind, with: CertIdentity, error: &ApiError) -> String {
    let advice = match (error.code, with) {
        (Some(401), CertIdentity::Bootstrap) => {
            "; the first-boot token was refused, it has expired or was deleted: make a new one \
             (kubeadm token create) and give it to the node; no restart is needed"
        }
        (Some(401), CertIdentity::Node) => {
            "; the API server does not accept the node's client certificate: it has expired, or this is another \
             cluster's API server. Give the node a new first-boot token"
        }
        (Some(403), CertIdentity::Bootstrap) => {
            "; the first-boot token may not ask for certificates: bind the cluster role system:node-bootstrapper \
             to the group system:bootstrappers"
        }
        (Some(403), CertIdentity::Node) => {
            "; the node may not ask for certificates: bind the cluster role system:node to its user or turn on the \
             Node authorizer"
        }
        _ => "",
    };
    format!("asking for a {} certificate: {error}{advice}", kind.as_str())
}

pub(super) fn pending(kind: CertKind, csr: &str) -> String {
    format!(
        "the request {csr} for a {} certificate waits for approval: kubectl certificate approve {csr}",
        kind.as_str()
    )
}

pub(super) fn approved(csr: &str) -> String {
    format!("the request {csr} is approved and waits for its signer: is kube-controller-manager running?")
}

pub(super) fn not_approved(csr: &str, minutes: u64) -> String {
    format!(
        "the request {csr} was not approved and signed within {minutes} minutes, a new one follows: \
         kubectl certificate approve NAME, or turn on automatic approval"
    )
}

pub(super) fn denied(csr: &str, why: &str) -> String {
    format!(
        "the request {csr} was denied ({why}), a new one follows: if this node belongs to the cluster, \
         kubectl certificate approve NAME"
    )
}

pub(super) fn failed(csr: &str, why: &str) -> String {
    format!("the request {csr} could not be signed ({why}), a new one follows: see the signer's log")
}

pub(super) fn replaced(csr: &str) -> String {
    format!("the request {csr} was deleted or replaced, a new one follows")
}

/// No identity can send requests: the state of the certificate, and `why` there is no other way, with its
/// remedy.
pub(super) fn no_credentials(expired: Option<String>, why: &str) -> String {
    match expired {
        Some(at) => format!("the node's client certificate expired at {at}; to ask for a new one: {why}"),
        None => format!("the node has no client certificate; to ask for one: {why}"),
    }
}

pub(super) const NO_ADDRESS: &str =
    "the node has no IP address yet, so no serving certificate is asked for: is the network up?";
