//! Checks whether a device plugin may register, by the `Register` call or by the plugin watcher.
//!
//! In: a plugin's version and resource name. Out: nothing, or upstream's message. Invariant: nothing changes before
//! [`super::manager::DeviceManager::connect`]. Upstream: plugin/v1beta1/server.go, plugin/v1beta1/handler.go.

use std::time::Duration;

use orlop_config::formats::is_qualified_name;

/// The only version of the plugin API.
pub const API_VERSION: &str = "v1beta1";

/// Reason for which a `Register` call fails; the texts are upstream's (gRPC code Unknown).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistrationError {
    /// The plugin has another version.
    #[error("requested API version {0:?} is not supported by kubelet. Supported version is [\"v1beta1\"]")]
    Version(String),
    /// The name is not an extended resource.
    #[error("the ResourceName {0:?} is invalid")]
    ResourceName(String),
    /// No process answers on the plugin's socket.
    #[error("failed to dial device plugin: {0}")]
    Dial(String),
    /// `GetDevicePluginOptions` failed.
    #[error("failed to get device plugin options: {0}")]
    Options(String),
    /// The plugin registers in a loop; the time is the wait for its next attempt. Upstream takes every attempt.
    #[error("device plugin registers too often, and may do so again in {} s", .0.as_secs().saturating_add(1))]
    TooOften(Duration),
}

/// Reason for which the plugin watcher does not register a plugin; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginNotValid {
    /// The plugin does not have the version.
    #[error("manager version, v1beta1, is not among plugin supported versions [{}]", .0.join(" "))]
    Versions(Vec<String>),
    /// The name is not an extended resource.
    #[error("invalid name of device plugin socket: {0}")]
    ResourceName(RegistrationError),
}

/// Upstream's text of the check `device-plugin` of `/healthz` after the registration server has ended.
#[must_use]
pub fn server_failed(error: Option<&str>) -> String {
    let failed = "device registration error: device plugin registration gRPC server failed and no device plugins can register";
    error.map_or_else(|| failed.to_owned(), |error| format!("{failed}: {error}"))
}

/// Checks a `Register` call before the agent connects to the plugin.
///
/// # Errors
/// The version or the name is wrong.
pub fn check_register(version: &str, resource: &str) -> Result<(), RegistrationError> {
    if version != API_VERSION {
        return Err(RegistrationError::Version(version.to_owned()));
    }
    check_name(resource)
}

/// Checks a plugin that the watcher found (`GetInfo` with type `DevicePlugin`).
///
/// # Errors
/// The versions or the name are wrong.
pub fn check_plugin(resource: &str, versions: &[String]) -> Result<(), PluginNotValid> {
    if !versions.iter().any(|version| version == API_VERSION) {
        return Err(PluginNotValid::Versions(versions.to_vec()));
    }
    check_name(resource).map_err(PluginNotValid::ResourceName)
}

fn check_name(resource: &str) -> Result<(), RegistrationError> {
    if is_extended_resource(resource) {
        Ok(())
    } else {
        Err(RegistrationError::ResourceName(resource.to_owned()))
    }
}

/// True for a resource name that is neither Kubernetes' own nor a quota's.
#[must_use]
pub fn is_extended_resource(name: &str) -> bool {
    const QUOTA_PREFIX: &str = "requests.";
    name.contains('/')
        && !name.contains("kubernetes.io/")
        && !name.starts_with(QUOTA_PREFIX)
        && is_qualified_name(&format!("{QUOTA_PREFIX}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_call_is_judged_by_version_and_then_by_name() {
        assert_eq!(check_register("v1beta1", "example.com/gpu"), Ok(()));
        for (version, name, message) in [
            (
                "v1alpha",
                "gpu",
                "requested API version \"v1alpha\" is not supported by kubelet. Supported version is [\"v1beta1\"]",
            ),
            ("v1beta1", "gpu", "the ResourceName \"gpu\" is invalid"),
        ] {
            assert_eq!(check_register(version, name).map_err(|e| e.to_string()), Err(message.to_owned()));
        }
        assert_eq!(
            RegistrationError::Dial("no socket".to_owned()).to_string(),
            "failed to dial device plugin: no socket"
        );
        assert_eq!(
            RegistrationError::Options("gone".to_owned()).to_string(),
            "failed to get device plugin options: gone"
        );
        assert_eq!(
            RegistrationError::TooOften(Duration::from_millis(9_500)).to_string(),
            "device plugin registers too often, and may do so again in 10 s"
        );
    }

    #[test]
    fn the_watcher_has_messages_of_its_own() {
        let versions = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<String>>();
        assert_eq!(check_plugin("example.com/gpu", &versions(&["v1alpha", "v1beta1"])), Ok(()));
        let error = |name, all: &[&str]| check_plugin(name, &versions(all)).map_err(|e| e.to_string());
        assert_eq!(
            error("gpu", &["a", "b"]),
            Err("manager version, v1beta1, is not among plugin supported versions [a b]".to_owned())
        );
        assert_eq!(
            error("gpu", &["v1beta1"]),
            Err("invalid name of device plugin socket: the ResourceName \"gpu\" is invalid".to_owned())
        );
    }

    #[test]
    fn names_of_extended_resources() {
        let longest = format!("{}/gpu", ["a"; 122].join("."));
        for good in ["example.com/gpu", "a/b", "example.com/GPU_1.x", &longest] {
            assert!(is_extended_resource(good), "{good}");
        }
        let long_domain = format!("{}.aa/gpu", ["a"; 122].join("."));
        let long_name = format!("example.com/{}", "a".repeat(64));
        for bad in [
            "gpu",
            "",
            "kubernetes.io/gpu",
            "node.kubernetes.io/gpu",
            "requests.example.com/gpu",
            "Example.com/gpu",
            "example.com/",
            "/gpu",
            "example.com/a/b",
            &long_domain,
            &long_name,
        ] {
            assert!(!is_extended_resource(bad), "{bad}");
        }
    }
}
