//! Events about the crash-loop back-off of containers.

use std::time::Duration;

/// Annotation on containers: the crash-loop delay in seconds that was in force when the instance was made, and the key of
/// its series. With it a restarted agent continues the series instead of starting it over; a container of another image
/// or with other resources begins a series of its own.
pub(super) const RESTART_BACK_OFF: &str = "io.orlop.container.restartBackOffSeconds";

/// The value of [`RESTART_BACK_OFF`].
pub(super) fn noted_back_off(key: &str, delay: Duration) -> String {
    format!("{} {key}", delay.as_secs())
}
