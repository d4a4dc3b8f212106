//! Drives mkosi as a process: the pinned .deb, unpacked, run by the system's Python.

use super::{Builder, NEWER, RELEASE};
use crate::arch::Arch;
use crate::host::{apt, run};
use crate::plan::BuildStep;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The mirror of this machine.
///
/// # Errors
/// None is known; the message names the setting.
pub(super) fn mirror() -> Result<apt::Mirror> {
    let mut sources = Vec::new();
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.filter_map(|e| e.ok().map(|e| e.path())));
    }
    files.sort();
    for file in files {
        if let Ok(text) = fs::read_to_string(&file) {
            sources.push(text);
        }
    }
    let variable = std::env::var(apt::MIRROR_VARIABLE).ok();
    apt::find_mirror(variable.as_deref(), &sources).context(apt::no_mirror_message())
}

/// Writes the sandbox tree with apt's configuration for mkosi and returns its path.
pub(super) fn sandbox_tree(builder: &Builder, pins: bool) -> Result<PathBuf> {
    let tree = builder.dirs.work().join(if pins { "sandbox-base" } else { "sandbox-tools" });
    let apt_dir = tree.join("etc/apt");
    for dir in ["sources.list.d", "preferences.d", "apt.conf.d"] {
        fs::create_dir_all(apt_dir.join(dir))?;
    }
    fs::write(apt_dir.join("sources.list.d/mkosi.sources"), apt::sources(&mirror()?, RELEASE, &[]))?;
    fs::write(
        apt_dir.join("apt.conf.d/10orlop"),
        "Acquire::Languages \"none\";\nAcquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
         Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled \"false\";\n",
    )?;
    if pins && !builder.options.update_lock {
        fs::write(apt_dir.join("preferences.d/orlop.pref"), builder.lock.preferences())?;
    }
    Ok(tree)
}

/// A mkosi command for the configuration directory `mkosi/<name>` and an architecture, writing to `output`.
pub(super) fn command(builder: &Builder, arch: Arch, name: &str, output: &Path) -> Result<Command> {
    let python_path = builder.result(BuildStep::Debs)?.join("mkosi/usr/lib/python3/dist-packages");
    let work = builder.dirs.work();
    let cache = builder.dirs.cache.join("image/mkosi");
    let mut command = Command::new("/usr/bin/python3");
    command.env("PYTHONPATH", python_path).env("PYTHONDONTWRITEBYTECODE", "1").arg("-m").arg("mkosi");
    command.arg("--directory").arg(builder.dirs.source.join("mkosi").join(name));
    command.arg(format!("--architecture={}", arch.facts().systemd));
    for (option, dir) in [
        ("--output-directory", output.to_path_buf()),
        ("--cache-directory", cache.join("cache")),
        ("--package-cache-directory", cache.join("packages")),
        ("--workspace-directory", work.join("mkosi")),
    ] {
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        command.arg(format!("{option}={}", dir.display()));
    }
    Ok(command)
}

/// Runs it.
pub(super) fn run(builder: &Builder, mut command: Command, what: &str) -> Result<()> {
    command.arg("--force").arg("build");
    run::logged(&mut command, what, &builder.log)
}

/// The suites searched for newer packages.
pub(super) fn all_sources() -> Result<String> {
    Ok(apt::sources(&mirror()?, RELEASE, &NEWER))
}
