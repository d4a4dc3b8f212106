//! Explains the image.
use crate::profile::{Dirs, Profile};
use std::process::ExitCode;
/// wip
pub fn run(_: &Dirs, _: Profile, _: bool) -> anyhow::Result<ExitCode> {
    anyhow::bail!("wip")
}
