//! The node's rules of access: anonymous users, webhooks, client certificates.

use std::time::Duration;

use orlop_config::kubelet::enums::AuthorizationMode;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};

/// `authentication` and `authorization` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessPolicy {
    /// Who makes no claim is `system:anonymous`.
    pub anonymous: bool,
    /// True if certificates carry UIDs (gate `AllowParsingUserUIDFromCertAuth`).
    pub certificate_uids: bool,
    /// True if the API server reviews bearer tokens; otherwise tokens are ignored.
    pub tokens: bool,
    /// How long a review of a token is believed.
    pub token_ttl: Duration,
    /// True if the API server reviews permissions; otherwise every user may do everything.
    pub review_access: bool,
    /// How long a yes is believed.
    pub allowed_ttl: Duration,
    /// How long a no is believed.
    pub denied_ttl: Duration,
}

impl AccessPolicy {
    /// The policy of the configuration.
    #[must_use]
    pub fn new(kubelet: &KubeletConfiguration, gates: &FeatureGates) -> AccessPolicy {
        let (authn, authz) = (&kubelet.authentication, &kubelet.authorization);
        AccessPolicy {
            anonymous: authn.anonymous.enabled,
            certificate_uids: gates.allow_parsing_user_uid_from_cert_auth,
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
