//! Writes the environment of containerd's Go runtime before systemd starts it; `plan::go_memory` decides.

use super::error::InitError;
use super::steps::{apply_all, read};
use crate::plan::go_memory::{FILE, environment};
use crate::plan::step::BootStep;

/// Writes it. A machine that does not say its size has no file, and Go's defaults.
///
/// # Errors
/// /proc/meminfo cannot be read, or the file cannot be written.
pub fn write() -> Result<(), InitError> {
    let Some(text) = environment(&read("/proc/meminfo")?) else { return Ok(()) };
    apply_all(&[BootStep::WriteFile { path: FILE.into(), mode: 0o644, content: text.into_bytes() }])
}
