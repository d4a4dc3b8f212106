//! Images: references as pods spell them, and whether an image must be pulled.
//!
//! In: `container.image`, `imagePullPolicy`, presence. Out: normalised references, [`PullDecision`].
//! Upstream: pkg/kubelet/images, pkg/util/parsers.

pub mod gc;
pub mod keyring;
mod pattern;
pub mod providers;
pub mod pull_rate;
pub mod pull_records;
pub mod reference;
pub mod uses;

use agent_types::runtime::image::PullPolicy;
use k8s_openapi::api::core::v1::Container;

pub use reference::{ReferenceError, normalize, repository};

/// What to do about a container's image before it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullDecision {
    /// Create the container from the present image.
    UsePresent,
    /// Pull first.
    Pull,
    /// Fail with `ErrImageNeverPull`.
    NeverPull,
}

/// Decides by pull policy and presence (upstream: pkg/kubelet/images/image_manager.go).
#[must_use]
pub fn pull_decision(policy: PullPolicy, present: bool) -> PullDecision {
    match (policy, present) {
        (PullPolicy::Always, _) | (PullPolicy::IfNotPresent, false) => PullDecision::Pull,
        (PullPolicy::IfNotPresent | PullPolicy::Never, true) => PullDecision::UsePresent,
        (PullPolicy::Never, false) => PullDecision::NeverPull,
    }
}

/// The container's pull policy: as written, otherwise `Always` for the tag `latest` (also when it is only
/// implied) and `IfNotPresent` for everything else.
#[must_use]
pub fn pull_policy(container: &Container) -> PullPolicy {
    policy_of(container.image_pull_policy.as_deref(), container.image.as_deref().unwrap_or(""))
}

/// The policy that is written down for `image`, else the one that the API server would fill in.
#[must_use]
pub fn policy_of(written: Option<&str>, image: &str) -> PullPolicy {
    match written {
        Some("Always") => PullPolicy::Always,
        Some("IfNotPresent") => PullPolicy::IfNotPresent,
        Some("Never") => PullPolicy::Never,
        _ => default_pull_policy(image),
    }
}

/// The policy that the API server would fill in for `image`.
#[must_use]
pub fn default_pull_policy(image: &str) -> PullPolicy {
    match normalize(image) {
        Ok(full) if !full.contains('@') && full.ends_with(":latest") => PullPolicy::Always,
        _ => PullPolicy::IfNotPresent,
    }
}

/// The API's word for a policy.
#[must_use]
pub fn policy_name(policy: PullPolicy) -> &'static str {
    match policy {
        PullPolicy::Always => "Always",
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Never => "Never",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions() {
        use PullDecision as D;
        use PullPolicy as P;
        let table = [
            (P::Always, true, D::Pull),
            (P::Always, false, D::Pull),
            (P::IfNotPresent, true, D::UsePresent),
            (P::IfNotPresent, false, D::Pull),
            (P::Never, true, D::UsePresent),
            (P::Never, false, D::NeverPull),
        ];
        for (policy, present, decision) in table {
            assert_eq!(pull_decision(policy, present), decision, "{policy:?} {present}");
        }
    }

    #[test]
    fn default_policy_depends_on_the_tag() {
        let digest = format!("busybox@sha256:{}", "0".repeat(64));
        let tagged_digest = format!("busybox:latest@sha256:{}", "0".repeat(64));
        let table = [
            ("busybox", PullPolicy::Always),
            ("busybox:latest", PullPolicy::Always),
            ("busybox:1", PullPolicy::IfNotPresent),
            ("localhost:5000/busybox", PullPolicy::Always),
            ("localhost:5000/busybox:1", PullPolicy::IfNotPresent),
            (digest.as_str(), PullPolicy::IfNotPresent),
            (tagged_digest.as_str(), PullPolicy::IfNotPresent),
            ("", PullPolicy::IfNotPresent),
        ];
        for (image, policy) in table {
            assert_eq!(default_pull_policy(image), policy, "{image}");
        }
    }
}
