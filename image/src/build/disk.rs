//! The last step: mkosi makes UKI, erofs, verity and the disk from root and initrd.

use super::{Builder, VERSION, mkosi};
use crate::plan::Step;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Leaves mkosi's artefacts in `out`.
pub(super) fn build(builder: &Builder, out: &Path) -> Result<String> {
    let root = builder.result(Step::Root)?.join("root");
    let base = builder.result(Step::Base)?.join("base");
    let initrd = builder.result(Step::Initrd)?.join("initrd");
    let boot = boot_tree(builder, &base)?;
    let mut command = mkosi::command(builder, "disk", out)?;
    command.arg(format!("--tools-tree={}", builder.result(Step::Tools)?.join("tools").display()));
    command.arg(format!("--base-tree={}", root.display()));
    command.arg(format!("--extra-tree={}", boot.display()));
    command.arg(format!("--initrd={}", initrd.display()));
    command.arg(format!("--repart-directory={}", definitions(builder, &base)?.display()));
    command.arg(format!("--image-version={VERSION}"));
    mkosi::run(builder, command, "building the disk")?;
    let hash = fs::read_to_string(find(out, ".roothash")?)?;
    Ok(format!("root hash {}", hash.trim().get(..16).unwrap_or_default()))
}

// Kernel and boot loader: needed to make the UKI, left out of the root by the partition definition.
fn boot_tree(builder: &Builder, base: &Path) -> Result<PathBuf> {
    let tree = builder.dirs.work().join("boot-tree");
    let modules = base.join("usr/lib/modules");
    for entry in fs::read_dir(&modules)? {
        let version = entry?.file_name();
        let to = tree.join("usr/lib/modules").join(&version);
        fs::create_dir_all(&to)?;
        fs::copy(modules.join(&version).join("vmlinuz"), to.join("vmlinuz")).context("copying the kernel")?;
    }
    let efi = tree.join("usr/lib/systemd/boot/efi");
    fs::create_dir_all(&efi)?;
    for entry in fs::read_dir(base.join("usr/lib/systemd/boot/efi"))? {
        let entry = entry?;
        fs::copy(entry.path(), efi.join(entry.file_name()))?;
    }
    Ok(tree)
}

// The partition definitions with the kernel's version filled in: its image is in the UKI, not in the root, and a
// definition can leave out exact paths only.
fn definitions(builder: &Builder, base: &Path) -> Result<PathBuf> {
    let to = builder.dirs.work().join("repart");
    fs::create_dir_all(&to)?;
    let versions = fs::read_dir(base.join("usr/lib/modules"))?;
    let version =
        versions.filter_map(Result::ok).next().context("the package tree has no kernel")?.file_name();
    for entry in fs::read_dir(builder.dirs.source.join("mkosi/disk/repart"))? {
        let entry = entry?;
        let text = fs::read_to_string(entry.path())?;
        fs::write(to.join(entry.file_name()), text.replace("@kernel@", &version.to_string_lossy()))?;
    }
    Ok(to)
}

/// The one file in `dir` whose name ends with `suffix`.
pub(super) fn find(dir: &Path, suffix: &str) -> Result<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir)?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().ends_with(suffix)))
        .collect();
    found.sort();
    found.into_iter().next().with_context(|| format!("mkosi left no file *{suffix} in {}", dir.display()))
}
