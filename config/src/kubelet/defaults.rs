//! Defaults that depend on other fields; plain ones stand at the fields themselves.
//!
//! In: the JSON form of a document, checked, "not set" taken out. Out: the same with dependent fields filled in.
//! Upstream term: `SetDefaults_KubeletConfiguration`, and the eviction defaults of the config loader.

use super::enums::AuthorizationMode;
use super::eviction;
use super::gates::FeatureGates;
use super::types::KubeletConfiguration;
use serde_json::{Map, Value, json};

/// Longest restart backoff, seconds.
const RESTART_PERIOD: &str = "5m0s";

/// Fills in what depends on other fields.
pub(super) fn complete(document: &mut Value, gates: &FeatureGates) {
    let Value::Object(map) = document else { return };
    // Only the update frequency set: the report frequency follows it, as it did before it existed.
    if !map.contains_key("nodeStatusReportFrequency")
        && let Some(update) = map.get("nodeStatusUpdateFrequency").cloned()
    {
        map.insert("nodeStatusReportFrequency".to_owned(), update);
    }
    let parallel = map.get("maxParallelImagePulls").and_then(Value::as_i64);
    if !map.contains_key("serializeImagePulls") && parallel.is_some_and(|n| n >= 2) {
        map.insert("serializeImagePulls".to_owned(), Value::Bool(false));
    }
    if map.get("podPidsLimit").and_then(Value::as_i64).is_some_and(|n| n < 0) {
        map.insert("podPidsLimit".to_owned(), json!(-1));
    }
    if map.get("mergeDefaultEvictionSettings") == Some(&Value::Bool(true))
        && let Some(Value::Object(hard)) = map.get_mut("evictionHard")
    {
        for (signal, value) in eviction::default_hard() {
            hard.entry(signal).or_insert(Value::String(value));
        }
    }
    gated(map, gates);
}

/// Fields that have a default only while their gate is on.
fn gated(map: &mut Map<String, Value>, gates: &FeatureGates) {
    let backoff = map.entry("crashLoopBackOff").or_insert_with(|| json!({}));
    if let Value::Object(backoff) = backoff
        && gates.enabled("KubeletCrashLoopBackOffMax")
    {
        backoff.entry("maxContainerRestartPeriod").or_insert_with(|| json!(RESTART_PERIOD));
    }
    if !gates.enabled("KubeletEnsureSecretPulledImages") {
        // An explicit null keeps the type's own default away.
        map.entry("imagePullCredentialsVerificationPolicy").or_insert(Value::Null);
    }
}

/// What holds when there is no configuration file at all: older, more open defaults for the API.
#[must_use]
pub fn without_file() -> KubeletConfiguration {
    let mut config = KubeletConfiguration::default();
    config.authentication.anonymous.enabled = true;
    config.authentication.webhook.enabled = false;
    config.authorization.mode = AuthorizationMode::AlwaysAllow;
    config.read_only_port = 10255;
    config
}
