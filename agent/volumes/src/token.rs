//! Tokens of service accounts: the request to the API server, and the time of renewal.
//!
//! In: a projected volume's source, a clock. Out: a TokenRequest, the time of its renewal. Upstream:
//! pkg/kubelet/token (80 % of the lifetime or 24 h, up to 10 s earlier at random).

use std::time::Duration;

use agent_types::time::Wall;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// Life of a token whose source names none, seconds.
pub const DEFAULT_LIFE_S: i64 = 3600;
/// No token is used longer than this.
const AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Nodes do not renew all at once.
const JITTER_MAX_S: f64 = 10.0;

/// Names a token; nothing of it is secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TokenRef {
    /// Namespace of the pod and its account.
    pub namespace: String,
    /// The pod's service account.
    pub account: String,
    /// UID that the account must have; empty: any.
    #[serde(default)]
    pub account_uid: String,
    /// `audience`; empty is the API server's own.
    pub audience: String,
    /// `expirationSeconds`.
    pub life_s: i64,
    /// Name of the pod that it is bound to.
    pub pod: String,
    /// UID of that pod.
    pub uid: String,
}

impl TokenRef {
    /// The request for it.
    #[must_use]
    pub fn request(&self) -> TokenRequest {
        let audiences = if self.audience.is_empty() { Vec::new() } else { vec![self.audience.clone()] };
        TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(audiences),
                expiration_seconds: Some(self.life_s),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(self.pod.clone()),
                    uid: Some(self.uid.clone()),
                }),
            }),
            metadata: ObjectMeta {
                uid: Some(self.account_uid.clone()).filter(|uid| !uid.is_empty()),
                ..ObjectMeta::default()
            },
            ..TokenRequest::default()
        }
    }
}

/// When a token is to be renewed and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// From then on another one is asked for.
    pub renew: Wall,
    /// From then on it is good for nothing.
    pub ends: Wall,
}

/// The life of a token that ends at `ends` and was granted `granted_s` seconds; `fraction` (0 to 1) is the jitter.
#[must_use]
pub fn life(ends: Wall, granted_s: i64, fraction: f64) -> Life {
    let granted = Duration::from_secs(u64::try_from(granted_s).unwrap_or(0));
    let jitter = Duration::from_secs_f64(fraction.clamp(0.0, 1.0) * JITTER_MAX_S);
    // What is left of it after 80 %, or after a day, whichever comes first.
    let left = (granted / 5).max(granted.saturating_sub(AGE_MAX)) + jitter;
    let left = i64::try_from(left.as_nanos()).unwrap_or(i64::MAX);
    Life { renew: Wall(ends.0.saturating_sub(left)), ends }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    #[test]
    fn renewed_at_four_fifths_or_after_a_day() {
        let at = |granted_s: i64, fraction| life(Wall(granted_s * S), granted_s, fraction).renew.0 / S;
        assert_eq!(at(3600, 0.0), 2880);
        assert_eq!(at(3600, 1.0), 2870);
        assert_eq!(at(365 * 86_400, 0.0), 86_400);
        assert_eq!(at(600, 0.5), 475);
        assert_eq!(life(Wall(5 * S), -1, 0.0), Life { renew: Wall(5 * S), ends: Wall(5 * S) });
    }

    #[test]
    fn bound_to_the_pod() {
        let of = |audience: &str| TokenRef {
            namespace: "ns".to_owned(),
            account: "sa".to_owned(),
            account_uid: String::new(),
            audience: audience.to_owned(),
            life_s: 600,
            pod: "p".to_owned(),
            uid: "u".to_owned(),
        };
        let request = serde_json::to_value(of("vault").request()).unwrap();
        let spec = serde_json::json!({"audiences": ["vault"], "expirationSeconds": 600,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}});
        assert_eq!(request["spec"], spec);
        let of_one = TokenRef { account_uid: "a-1".to_owned(), ..of("") };
        assert_eq!(
            (of_one.request().metadata.uid.as_deref(), of("").request().metadata.uid),
            (Some("a-1"), None)
        );
        assert_eq!(of("").request().spec.unwrap().audiences, Some(Vec::new()));
    }
}
