//! server_policy: who may do what with the node's HTTPS API. Contract 14.2.
//!
//! # For the shell
//! ```text
//! request ─► certificate verified? ─► begin() ─┬─► Verdict
//!                                     AskToken ┴─► cache or TokenReview ─► conclude() ─► Verdict
//! Verdict::User ─► attributes(method, path) ─► next() ─► cache or SubjectAccessReview … ─► allowed | denied
//! ```
//! In: what a request presents, what the API server answered, the time. Out: verdicts, reviews to send, texts of
//! refusals. Invariants: nothing is allowed that was not allowed by a review, by its cached answer within its time, or
//! by `AlwaysAllow`; a review that fails allows nothing; a bad credential is refused, never taken for none; a path that
//! is not known asks for the strictest permission (`nodes/proxy`).
//! Upstream: pkg/kubelet/server/auth.go, apiserver/pkg/authentication/request.

mod attributes;
mod authentication;
mod cache;
mod desk;
mod places;
mod reviews;
mod user;

#[cfg(test)]
mod tests;

pub use attributes::{Attributes, Next, attributes};
pub use authentication::{Begin, CertificateClaim, TokenAnswer, Verdict, bearer_token, begin, conclude};
pub use cache::ReviewCache;
pub use desk::{DeskLimits, RareLine, ReviewDesk, Step};
pub use places::{PlaceLimits, Places, Taken};
pub use reviews::{access_review, is_allowed, review_key, token_review, user_of_review};
pub use user::{Subject, User};

use std::time::Duration;

use orlop_config::kubelet::enums::AuthorizationMode;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};

/// `authentication` and `authorization` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessPolicy {
    /// Who makes no claim is `system:anonymous`.
    pub anonymous: bool,
    /// Certificates tell UIDs (gate `AllowParsingUserUIDFromCertAuth`).
    pub certificate_uids: bool,
    /// Bearer tokens are reviewed by the API server; otherwise they say nothing.
    pub tokens: bool,
    /// How long a review of a token is believed.
    pub token_ttl: Duration,
    /// The API server is asked what a user may do; otherwise every user may do everything.
    pub review_access: bool,
    /// How long a yes is believed.
    pub allowed_ttl: Duration,
    /// How long a no is believed.
    pub denied_ttl: Duration,
}

impl AccessPolicy {
    /// As configured.
    #[must_use]
    pub fn new(kubelet: &KubeletConfiguration) -> AccessPolicy {
        let (authn, authz) = (&kubelet.authentication, &kubelet.authorization);
        AccessPolicy {
            anonymous: authn.anonymous.enabled,
            certificate_uids: FeatureGates::of(kubelet).enabled("AllowParsingUserUIDFromCertAuth"),
            tokens: authn.webhook.enabled,
            token_ttl: authn.webhook.cache_ttl.to_std(),
            review_access: authz.mode == AuthorizationMode::Webhook,
            allowed_ttl: authz.webhook.cache_authorized_ttl.to_std(),
            denied_ttl: authz.webhook.cache_unauthorized_ttl.to_std(),
        }
    }

    /// True if nothing can be decided without an API server.
    #[must_use]
    pub fn needs_api_server(&self) -> bool {
        self.tokens || self.review_access
    }
}
