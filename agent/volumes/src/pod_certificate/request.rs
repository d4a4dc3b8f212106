//! What a pod's volumes ask of signers, and what is said of a request.
//!
//! In: a pod; a PodCertificateRequest of the API. Out: [`RequestedCertificate`], the object to create, its [`Verdict`]. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::time::Wall;
use agent_types::{api_time, pem, pod};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1beta1::{PodCertificateRequest, PodCertificateRequestSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::{Deserialize, Serialize};

use super::CertificateSource;
use crate::references::parts;

/// What a source asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedCertificate {
    /// Who is to sign.
    pub signer: String,
    /// For example `ECDSAP256`.
    pub key_type: String,
    /// Longest life, seconds.
    pub life_s_max: Option<i32>,
    /// The pod author's annotations for the signer.
    pub annotations: BTreeMap<String, String>,
    /// The pod's service account.
    pub account: String,
}

/// The identity of the requester, in addition to the pod.
#[derive(Clone, Debug)]
pub struct Asker {
    /// Name of this node.
    pub node: String,
    /// UID of its Node.
    pub node_uid: String,
    /// UID of the pod's service account.
    pub account_uid: String,
}

/// The sources of a pod that ask for certificates.
pub(super) fn of_pod(p: &Pod) -> Vec<(CertificateSource, RequestedCertificate)> {
    let account = pod::spec(p).service_account_name.clone().unwrap_or_default();
    let mut found = Vec::new();
    for volume in pod::spec(p).volumes.iter().flatten() {
        for (index, part) in parts(volume).enumerate() {
            let Some(source) = &part.pod_certificate else { continue };
            let wanted = RequestedCertificate {
                signer: source.signer_name.clone(),
                key_type: source.key_type.clone(),
                life_s_max: source.max_expiration_seconds,
                annotations: source.user_annotations.clone().unwrap_or_default(),
                account: account.clone(),
            };
            found.push((CertificateSource::new(p, &volume.name, index), wanted));
        }
    }
    found
}

impl RequestedCertificate {
    /// The object that asks for it; `pkcs10` is a request over the key, DER.
    #[must_use]
    pub fn request(&self, place: &CertificateSource, asker: Asker, pkcs10: Vec<u8>) -> PodCertificateRequest {
        let key = &place.pod;
        PodCertificateRequest {
            metadata: ObjectMeta {
                namespace: Some(key.namespace.to_string()),
                generate_name: Some("req-".to_owned()),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Pod".to_owned(),
                    name: key.name.to_string(),
                    uid: key.uid.to_string(),
                    ..OwnerReference::default()
                }]),
                ..ObjectMeta::default()
            },
            spec: PodCertificateRequestSpec {
                signer_name: self.signer.clone(),
                pod_name: key.name.to_string(),
                pod_uid: key.uid.to_string(),
                service_account_name: self.account.clone(),
                service_account_uid: asker.account_uid,
                node_name: asker.node,
                node_uid: asker.node_uid,
                max_expiration_seconds: self.life_s_max,
                stub_pkc_s10_request: ByteString(pkcs10),
                unverified_user_annotations: Some(self.annotations.clone()).filter(|a| !a.is_empty()),
                ..PodCertificateRequestSpec::default()
            },
            status: None,
        }
    }
}

/// The refusal of a request: by an approver, or by the signer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Denied,
    Failed,
}

impl Refusal {
    /// Reason of the event.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Refusal::Denied => "Denied",
            Refusal::Failed => "Failed",
        }
    }
}

/// What is said of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing yet.
    Pending,
    /// It was signed.
    Issued {
        /// PEM.
        chain: Arc<[u8]>,
        /// From then on another one may be asked for.
        refresh: Wall,
        /// It is good until then.
        ends: Wall,
    },
    /// It is refused for good.
    Refused {
        /// By whom.
        by: Refusal,
        /// What the event says of the request.
        said: String,
        /// What volumes say.
        words: String,
    },
}

/// The first condition that says something decides.
pub(super) fn verdict(request: &PodCertificateRequest) -> Verdict {
    let Some(status) = &request.status else { return Verdict::Pending };
    for condition in status.conditions.iter().flatten() {
        let why = format!("reason={:?}", condition.reason);
        let message = format!("message={:?}", condition.message);
        match condition.type_.as_str() {
            "Denied" => {
                return Verdict::Refused {
                    by: Refusal::Denied,
                    said: format!("was denied, {why}, {message}"),
                    words: format!("PodCertificateRequest was permanently denied: {why} {message}"),
                };
            }
            "Failed" => {
                return Verdict::Refused {
                    by: Refusal::Failed,
                    said: format!("failed, {why}, {message}"),
                    words: format!("PodCertificateRequest was permanently failed: {why} {message}"),
                };
            }
            "Issued" => {
                let (Some(chain), Some(refresh), Some(ends)) =
                    (&status.certificate_chain, &status.begin_refresh_at, &status.not_after)
                else {
                    continue;
                };
                let chain: String = pem::blocks(chain).map(|der| pem::certificate(&der)).collect();
                let (refresh, ends) = (api_time::wall(refresh), api_time::wall(ends));
                return Verdict::Issued { chain: chain.into_bytes().into(), refresh, ends };
            }
            _ => {}
        }
    }
    Verdict::Pending
}
