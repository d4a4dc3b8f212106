//! Compiles the agent and init with cargo, and checks that the agent runs with the image's C library.

use super::Builder;
use crate::format::{digest, elf};
use crate::host::run;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// glibc of Debian trixie.
const IMAGE_GLIBC: (u32, u32) = (2, 41);

/// Path of the freshly compiled agent and init.
pub(super) fn paths(builder: &Builder) -> (PathBuf, PathBuf) {
    let work = builder.dirs.work();
    (work.join("orlop-agent"), work.join("orlop-init"))
}

/// Compiles both and notes the facts `bin.agent` and `bin.init`.
pub(super) fn compile(builder: &mut Builder) -> Result<String> {
    let (agent_to, init_to) = paths(builder);
    match builder.options.binaries.clone() {
        Some(dir) => {
            take(&dir.join("orlop-agent"), &agent_to)?;
            take(&dir.join("orlop-init"), &init_to)?;
        }
        None => compile_both(builder, &agent_to, &init_to)?,
    }
    check_agent(&agent_to)?;
    check_init(&init_to)?;
    builder.facts.set("bin.agent", digest::file(&agent_to)?);
    builder.facts.set("bin.init", digest::file(&init_to)?);
    builder.facts.set("rustc", rustc_version()?);
    let kib = |p: &Path| fs::metadata(p).map_or(0, |m| m.len() >> 10);
    Ok(format!("agent {} KiB, init {} KiB", kib(&agent_to), kib(&init_to)))
}

fn compile_both(builder: &Builder, agent_to: &Path, init_to: &Path) -> Result<()> {
    let target = target_dir(builder)?;
    let mut agent = cargo(builder, "release");
    agent.args(["--package", "orlop-agent"]);
    run::logged(&mut agent, "compiling orlop-agent", &builder.log)?;
    let mut init = cargo(builder, "init");
    // A target of its own keeps these flags away from build scripts and from other builds.
    init.args(["--package", "orlop-init", "--bin", "orlop-init", "--target", TARGET]);
    init.env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static");
    run::logged(&mut init, "compiling orlop-init", &builder.log)?;
    take(&target.join("release/orlop-agent"), agent_to)?;
    take(&target.join(TARGET).join("init/orlop-init"), init_to)
}

fn cargo(builder: &Builder, profile: &str) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(&builder.dirs.source).args(["build", "--locked", "--profile", profile]);
    // Paths of this machine do not belong into the image.
    command.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("RUSTC_WRAPPER");
    command
}

fn target_dir(builder: &Builder) -> Result<PathBuf> {
    let mut command = Command::new("cargo");
    command.current_dir(&builder.dirs.source).args(["metadata", "--no-deps", "--format-version=1"]);
    let out = run::output(&mut command, "cargo metadata")?;
    let value: serde_json::Value = serde_json::from_slice(&out).context("parsing cargo metadata")?;
    Ok(PathBuf::from(value["target_directory"].as_str().context("cargo metadata names a target directory")?))
}

pub(super) fn rustc_version() -> Result<String> {
    let out = run::output(Command::new("rustc").arg("-vV"), "rustc -vV")?;
    Ok(digest::bytes(&out))
}

fn take(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn check_agent(path: &Path) -> Result<()> {
    let facts = elf::parse(&fs::read(path)?).with_context(|| format!("{} is no ELF file", path.display()))?;
    if let Some((major, minor)) = facts.glibc.filter(|v| *v > IMAGE_GLIBC) {
        bail!(
            "orlop-agent as compiled here needs glibc {major}.{minor}, the image has {}.{}: compile on Debian 13 or \
             older, or Ubuntu 24.04 or older",
            IMAGE_GLIBC.0,
            IMAGE_GLIBC.1
        );
    }
    Ok(())
}

fn check_init(path: &Path) -> Result<()> {
    let facts = elf::parse(&fs::read(path)?).with_context(|| format!("{} is no ELF file", path.display()))?;
    if facts.interpreter.is_some() || !facts.needed.is_empty() {
        bail!("orlop-init is not static: it needs {:?} and {:?}", facts.interpreter, facts.needed);
    }
    Ok(())
}
