//! The two Debian trees that mkosi installs: build tools, and the packages of the image.

use super::{Builder, mkosi};
use crate::arch::Arch;
use crate::lock;
use crate::plan::BuildStep;
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Builds the tools tree into `out/tools`.
pub(super) fn tools(builder: &Builder, out: &Path) -> Result<String> {
    let mut command = mkosi::command(builder, Arch::HOST, "tools", out)?;
    command.arg(format!("--sandbox-tree={}", mkosi::sandbox_tree(builder, false)?.display()));
    mkosi::run(builder, command, "building the tools tree")?;
    Ok(String::new())
}

/// Builds the package tree into `out/base` and compares it with the lock.
pub(super) fn base(builder: &mut Builder, out: &Path) -> Result<String> {
    let arch = builder.dirs.arch;
    let mut command = mkosi::command(builder, arch, "base", out)?;
    for package in arch.facts().packages() {
        command.arg(format!("--package={package}"));
    }
    command.arg(format!("--tools-tree={}", builder.result(BuildStep::Tools)?.join("tools").display()));
    command.arg(format!("--sandbox-tree={}", mkosi::sandbox_tree(builder, true)?.display()));
    command.arg(format!("--package-directory={}", builder.result(BuildStep::Debs)?.join("image").display()));
    mkosi::run(builder, command, "building the package tree")?;
    let manifest = fs::read_to_string(out.join("base.manifest")).context("reading mkosi's manifest")?;
    let packages = lock::manifest_packages(&manifest).context("parsing mkosi's manifest")?;
    Ok(format!("{} packages", packages.len()))
}
