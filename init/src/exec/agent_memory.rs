//! Writes the limits of the agent's memory on a small machine before systemd starts it; `plan::agent_memory` decides.

use super::error::InitError;
use super::steps::{apply_all, read};
use crate::plan::agent_memory::{DROP_IN, drop_in};
use crate::plan::step::BootStep;

/// Writes them. A machine that does not say its size has the unit's.
///
/// # Errors
/// /proc/meminfo cannot be read, or the file cannot be written.
pub fn write() -> Result<(), InitError> {
    let Some(text) = drop_in(&read("/proc/meminfo")?) else { return Ok(()) };
    apply_all(&[BootStep::WriteFile { path: DROP_IN.into(), mode: 0o644, content: text.into_bytes() }])
}
