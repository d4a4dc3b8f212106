//! Publishes a build: links or copies the artefacts to `$ORLOP_CACHE/image/<profile>/` and writes `manifest.json`.

use super::{Builder, disk};
use crate::format::digest;
use crate::lock::{self, Moved};
use crate::plan::BuildStep;
use crate::profile::{Dirs, Profile};
use anyhow::{Context, Result};
use orlop_files::Durability;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Size and digest of an artefact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artefact {
    /// Bytes.
    pub size: u64,
    /// Hex.
    pub sha256: String,
}

/// `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Image version.
    pub version: String,
    /// Profile.
    pub profile: String,
    /// Verity root hash.
    pub roothash: String,
    /// Step -> key.
    pub steps: BTreeMap<String, String>,
    /// Named digests of what went in.
    pub inputs: BTreeMap<String, String>,
    /// Name -> artefact.
    pub outputs: BTreeMap<String, Artefact>,
    /// Packages of the package tree.
    pub packages: BTreeMap<String, String>,
    /// What differs from the lock.
    pub moved: Vec<Moved>,
}

/// The packages of the package tree, with their versions.
pub(super) fn packages(builder: &Builder) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(builder.result(BuildStep::Base)?.join("base.manifest"))?;
    lock::manifest_packages(&text).context("parsing mkosi's manifest")
}

/// Publishes and returns the manifest.
pub(super) fn publish(builder: &mut Builder) -> Result<Manifest> {
    let to = builder.dirs.output(builder.profile);
    fs::create_dir_all(&to)?;
    let from = builder.result(BuildStep::Disk)?;
    let packages = packages(builder)?;
    if builder.options.update_lock {
        update_lock(builder, &packages)?;
    }
    let moved = builder.lock.moved(&packages);
    if !moved.is_empty() {
        println!(
            "  warning: {} packages differ from {} (recorded in manifest.json)",
            moved.len(),
            builder.dirs.arch.facts().lock
        );
    }
    let manifest_path = to.join("manifest.json");
    let steps = builder.plan().into_iter().filter_map(|p| Some((p.step.name().to_owned(), p.key?))).collect();
    let roothash = fs::read_to_string(disk::find(&from, ".roothash")?)?.trim().to_owned();
    let mut manifest = Manifest {
        version: builder.options.version(),
        profile: builder.profile.name().to_owned(),
        roothash,
        steps,
        inputs: builder.facts.0.clone(),
        outputs: BTreeMap::new(),
        packages,
        moved,
    };
    if let Some(old) = read_manifest(&builder.dirs, builder.profile)
        && old.steps == manifest.steps
        && old.outputs.keys().all(|name| to.join(name).is_file())
    {
        manifest.outputs = old.outputs;
    } else {
        // A reader of the manifest sees either the old build or the new one, never a mixture.
        let _ = fs::remove_file(&manifest_path);
        copy_artefacts(builder, &from, &to, &manifest.roothash)?;
        manifest.outputs = digests(&to)?;
    }
    let text = serde_json::to_string_pretty(&manifest)? + "\n";
    orlop_files::replace(&manifest_path, text.as_bytes(), 0o644, Durability::Rebuildable)?;
    Ok(manifest)
}

const NAMES: [&str; 8] =
    ["orlop.raw", "orlop.efi", "vmlinuz", "initrd", "cmdline", "roothash", "root.erofs", "contents.json"];

fn copy_artefacts(builder: &Builder, from: &Path, to: &Path, roothash: &str) -> Result<()> {
    for (suffix, name) in
        [(".raw", "orlop.raw"), (".efi", "orlop.efi"), (".vmlinuz", "vmlinuz"), (".root.raw", "root.erofs")]
    {
        let source = match suffix {
            ".raw" => from.join("orlop.raw"),
            _ => disk::find(from, suffix)?,
        };
        replace(&source, &to.join(name))?;
    }
    replace(&builder.result(BuildStep::Initrd)?.join("initrd"), &to.join("initrd"))?;
    replace(&builder.result(BuildStep::Root)?.join("contents.json"), &to.join("contents.json"))?;
    fs::write(to.join("roothash"), format!("{roothash}\n"))?;
    fs::write(to.join("cmdline"), format!("{}\n", disk::command_line(builder.dirs.arch, roothash)))?;
    Ok(())
}

// A hard link where possible: artefacts are never written in place.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let _ = fs::remove_file(to);
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to).with_context(|| format!("publishing {}", to.display()))?;
    }
    Ok(())
}

fn digests(dir: &Path) -> Result<BTreeMap<String, Artefact>> {
    let mut out = BTreeMap::new();
    for name in NAMES {
        let path = dir.join(name);
        let size = fs::metadata(&path).with_context(|| format!("publishing {name}"))?.len();
        out.insert(name.to_owned(), Artefact { size, sha256: digest::file(&path)? });
    }
    Ok(out)
}

fn update_lock(builder: &mut Builder, packages: &BTreeMap<String, String>) -> Result<()> {
    builder.lock.packages = packages.clone();
    builder.lock.epoch =
        SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?.as_secs();
    let path = builder.dirs.lock();
    fs::write(&path, builder.lock.render()).with_context(|| format!("writing {}", path.display()))?;
    println!("  {}: {} packages written", builder.dirs.arch.facts().lock, packages.len());
    Ok(())
}

/// The manifest of a published build, if there is one.
#[must_use]
pub fn read_manifest(dirs: &Dirs, profile: Profile) -> Option<Manifest> {
    let text = fs::read_to_string(dirs.output(profile).join("manifest.json")).ok()?;
    serde_json::from_str(&text).ok()
}
