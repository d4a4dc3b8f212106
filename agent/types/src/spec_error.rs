//! The refusal to configure a sandbox or a container: waiting reason and message.

/// Why a sandbox or container cannot be configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SpecError {
    /// Waiting reason of the container status (`CreateContainerConfigError`, `FailedCreatePodSandBox`).
    pub reason: &'static str,
    /// The detailed message of the status and of the event.
    pub message: String,
}

/// Waiting reason: the container's configuration cannot be made.
pub const CREATE_CONTAINER_CONFIG_ERROR: &str = "CreateContainerConfigError";

/// Event reason: the sandbox's configuration cannot be made.
pub const FAILED_CREATE_POD_SANDBOX: &str = "FailedCreatePodSandBox";

impl SpecError {
    /// A container's configuration failed.
    #[must_use]
    pub fn container(message: impl Into<String>) -> SpecError {
        SpecError { reason: CREATE_CONTAINER_CONFIG_ERROR, message: message.into() }
    }

    /// A sandbox's configuration failed.
    #[must_use]
    pub fn sandbox(message: impl Into<String>) -> SpecError {
        SpecError { reason: FAILED_CREATE_POD_SANDBOX, message: message.into() }
    }
}
