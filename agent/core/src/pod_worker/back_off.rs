//! Events about the crash-loop back-off of containers.

use std::time::Duration;

/// Annotation of containers: the crash-loop delay in seconds at the creation of the instance, and the key of
/// its series. A restarted agent continues the series with it; a container with another image or other
/// resources begins its own series.
pub(super) const RESTART_BACK_OFF: &str = "io.orlop.container.restartBackOffSeconds";

/// The value of [`RESTART_BACK_OFF`].
pub(super) fn noted_back_off(key: &str, delay: Duration) -> String {
    format!("{} {key}", delay.as_secs())
}
