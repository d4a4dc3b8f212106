//! Boots the image.
use crate::profile::Dirs;
use std::process::ExitCode;
/// wip
#[derive(clap::Args)]
pub struct BootArgs {}
/// wip
pub fn run(_: &Dirs, _: &BootArgs) -> anyhow::Result<ExitCode> { anyhow::bail!("wip") }
