//! Rules about images and their removal.

use super::Rules;
use crate::kubelet::enums::ImagePullCredentialsVerificationPolicy as Policy;
use crate::path;
use serde_json::Value;

impl Rules<'_> {
    pub(super) fn images(&mut self) {
        let c = self.config;
        self.rule(
            c.image_gc_low_threshold_percent < c.image_gc_high_threshold_percent,
            "imageGCLowThresholdPercent",
            c.image_gc_low_threshold_percent,
            "must be less than imageGCHighThresholdPercent",
        );
        self.rule(
            c.image_maximum_gc_age.is_zero() || c.image_maximum_gc_age > c.image_minimum_gc_age,
            "imageMaximumGCAge",
            c.image_maximum_gc_age.to_string(),
            "must be more than imageMinimumGCAge, or 0s for never",
        );
        let parallel = c.max_parallel_image_pulls.unwrap_or(1);
        self.rule(
            parallel <= 1 || !c.serialize_image_pulls,
            "maxParallelImagePulls",
            parallel,
            "needs serializeImagePulls: false when it is more than 1",
        );
        self.verification();
    }

    fn verification(&mut self) {
        let c = self.config;
        let policy = c.image_pull_credentials_verification_policy;
        let list = &c.preloaded_images_verification_allowlist;
        if !self.gate("KubeletEnsureSecretPulledImages") {
            for (path, set) in [
                ("imagePullCredentialsVerificationPolicy", policy.is_some()),
                ("preloadedImagesVerificationAllowlist", !list.is_empty()),
            ] {
                self.rule(!set, path, Value::Null, "needs feature gate KubeletEnsureSecretPulledImages");
            }
            return;
        }
        self.rule(
            policy.is_some(),
            "imagePullCredentialsVerificationPolicy",
            Value::Null,
            "must be set while feature gate KubeletEnsureSecretPulledImages is on",
        );
        self.rule(
            list.is_empty() || policy == Some(Policy::NeverVerifyAllowlistedImages),
            "preloadedImagesVerificationAllowlist",
            Value::Null,
            "needs imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages",
        );
        for (i, pattern) in list.iter().enumerate() {
            let path = path::index("preloadedImagesVerificationAllowlist", i);
            self.rule(
                is_image_pattern(pattern),
                &path,
                pattern.as_str(),
                "must be an image name without tag and digest, or a prefix that ends in /*",
            );
        }
    }
}

/// An image name, or a registry (and path) followed by `/*`.
fn is_image_pattern(pattern: &str) -> bool {
    let name = pattern.strip_suffix("/*").unwrap_or(pattern);
    let last = name.rsplit('/').next().unwrap_or_default();
    // Without a wildcard, a colon in the last part is a tag; with one, it may be a registry's port.
    let tagged = last.contains(':') && name == pattern;
    let part = |p: &str| {
        !p.is_empty()
            && p.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:".contains(&b))
            && !p.starts_with('-')
    };
    !tagged && name.split('/').all(part)
}
