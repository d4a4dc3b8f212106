//! Authentication: certificate, then token, then anonymous; and the result of a failed credential.
//!
//! A client with an invalid credential is refused even where anonymous requests are allowed (upstream's
//! fail-on-error union); a valid token makes up for an invalid certificate.

use super::user::User;
use crate::server_policy::policy::AccessPolicy;

/// Result of the client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateClaim {
    /// None was shown, or no client CA is configured to judge it.
    None,
    /// Signed by a client CA, valid now, for clients.
    Verified(User),
    /// A certificate that is not valid for a user.
    Refused,
}

/// What is known of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenAnswer {
    /// The API server knows the token's user.
    User(User),
    /// The API server does not accept it.
    Unknown,
    /// The API server could not be reached, and no answer is cached.
    Failed,
}

/// Result of authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This user's.
    User(User),
    /// Status 401.
    Unauthorized,
}

/// The first step of an authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// It is over.
    Done(Verdict),
    /// The bearer token decides: look it up or have it reviewed, then [`conclude`].
    AskToken,
}

/// The token of an `Authorization` header; `None` if it has another scheme or none.
#[must_use]
pub fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, rest) = header.trim().split_once(' ')?;
    let token = rest.split(' ').next().unwrap_or_default();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// What a certificate claim and the presence of a token lead to.
#[must_use]
pub fn begin(policy: &AccessPolicy, certificate: &CertificateClaim, has_token: bool) -> Begin {
    match certificate {
        CertificateClaim::Verified(user) => Begin::Done(Verdict::User(user.clone().authenticated())),
        _ if has_token && policy.tokens => Begin::AskToken,
        CertificateClaim::Refused => Begin::Done(Verdict::Unauthorized),
        CertificateClaim::None if policy.anonymous => Begin::Done(Verdict::User(User::anonymous())),
        CertificateClaim::None => Begin::Done(Verdict::Unauthorized),
    }
}

/// What the answer about a token means.
#[must_use]
pub fn conclude(answer: TokenAnswer) -> Verdict {
    match answer {
        TokenAnswer::User(user) => Verdict::User(user.authenticated()),
        TokenAnswer::Unknown | TokenAnswer::Failed => Verdict::Unauthorized,
    }
}
