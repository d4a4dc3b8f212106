//! The CertificateSigningRequest object: creates it, and reads its answer.
//!
//! In: PEM of a request, or the object of the API server. Out: the object to create, or a [`Verdict`].

use agent_types::certificates::CertKind;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};

/// What has become of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No approver has approved it yet.
    Pending,
    /// Approved; the signer has not signed yet.
    Approved,
    /// Signed: the chain, PEM.
    Issued(Vec<u8>),
    /// A signer or approver denied it.
    Denied(String),
    /// The signer could not sign it.
    Failed(String),
    /// Another object has its name.
    Replaced,
}

/// The object to create.
pub(super) fn object(kind: CertKind, request_pem: String) -> CertificateSigningRequest {
    let mut csr = CertificateSigningRequest {
        spec: CertificateSigningRequestSpec {
            request: ByteString(request_pem.into_bytes()),
            signer_name: kind.signer_name().to_owned(),
            usages: Some(kind.usages().map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    csr.metadata.generate_name = Some("csr-".to_owned());
    csr
}

/// Verdict of `csr` about the request with UID `uid`.
pub(super) fn verdict(csr: &CertificateSigningRequest, uid: Option<&str>) -> Verdict {
    if csr.metadata.uid.as_deref() != uid {
        return Verdict::Replaced;
    }
    let Some(status) = &csr.status else { return Verdict::Pending };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let said = |wanted: &str| {
        let condition = conditions.iter().find(|c| c.type_ == wanted)?;
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        Some(format!("reason: {}, message: {}", part(&condition.reason), part(&condition.message)))
    };
    if let Some(why) = said("Denied") {
        return Verdict::Denied(why);
    }
    if let Some(why) = said("Failed") {
        return Verdict::Failed(why);
    }
    match (&status.certificate, said("Approved")) {
        (_, None) => Verdict::Pending,
        (Some(chain), Some(_)) if !chain.0.is_empty() => Verdict::Issued(chain.0.clone()),
        (_, Some(_)) => Verdict::Approved,
    }
}
