//! Images of the control plane's programs, for nodes that carry a control plane themselves.
//!
//! In: the programs that are compiled here, Debian's etcd. Out: images in a registry's directory, and their names. Invariant: the names
//! are the published ones with this release's tag, but etcd's, because Debian's is of another version.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::build;
use super::programs::{NAMES, Programs};
use crate::conformance::tools;
use crate::native::blobs::Blobs;
use crate::run::Run;

/// The registry of the published images.
pub(super) const REGISTRY: &str = "registry.k8s.io";
/// Name and tag of etcd's image.
const ETCD: (&str, &str) = ("e2e/etcd", "debian");
/// Directory of the programs in the images.
const BIN: &str = "usr/local/bin";

/// Makes the images; returns `NAME=IMAGE` for each, as `orlopctl controlplane gen --images` takes them.
///
/// # Errors
/// If a program is missing, or the directory cannot be written.
pub(super) fn make(run: &Arc<Run>, dir: &Path, programs: &Programs) -> Result<Vec<String>> {
    let blobs = Blobs::at(dir)?;
    let version = build::version()?;
    let layer = blobs.layer_of(run, |tree| kubernetes(programs, tree))?;
    let mut images = Vec::new();
    for name in NAMES {
        blobs.image(name, version, &config(name), std::slice::from_ref(&layer))?;
        images.push(format!("{name}={REGISTRY}/{name}:{version}"));
    }
    let (name, tag) = ETCD;
    let etcd = blobs.layer_of(run, |tree| {
        tools::install(run, Path::new("/"), programs.etcd(), tree, &format!("{BIN}/etcd"))
    })?;
    blobs.image(name, tag, &config("etcd"), std::slice::from_ref(&etcd))?;
    images.push(format!("etcd={REGISTRY}/{name}:{tag}"));
    Ok(images)
}

/// An image's configuration. The title is a part of it: images with equal files are one image with several names otherwise. Pure.
fn config(name: &str) -> Value {
    json!({"Env": [format!("PATH=/{BIN}")], "Labels": {"org.opencontainers.image.title": name}})
}

/// All programs in one layer. Names of one program are links to it, so that it is there once.
fn kubernetes(programs: &Programs, tree: &Path) -> Result<()> {
    let bin = tree.join(BIN);
    fs::create_dir_all(&bin).with_context(|| format!("make {}", bin.display()))?;
    for name in NAMES {
        let program = fs::canonicalize(programs.path(name)).with_context(|| format!("find {name}"))?;
        let own = program.file_name().context("a program has a name")?;
        let file = bin.join(own);
        if !file.exists() {
            fs::copy(&program, &file).with_context(|| format!("copy {}", program.display()))?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).context("set a mode")?;
        }
        if own != name {
            symlink(own, bin.join(name)).with_context(|| format!("link {name}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_several_names_is_there_once_and_images_differ() {
        let dir = tempfile::tempdir().unwrap();
        let (bin, tree) = (dir.path().join("programs/bin"), dir.path().join("tree"));
        fs::create_dir_all(&bin).unwrap();
        fs::write(dir.path().join("programs/controlplane"), "a program").unwrap();
        for name in NAMES {
            symlink("../controlplane", bin.join(name)).unwrap();
        }
        kubernetes(&Programs::of(bin.clone(), bin.join("etcd")), &tree).unwrap();
        let names = fs::read_dir(tree.join(BIN)).unwrap().count();
        assert_eq!(names, NAMES.len() + 1);
        for name in NAMES {
            assert_eq!(fs::read_link(tree.join(BIN).join(name)).unwrap(), Path::new("controlplane"));
        }
        assert_ne!(config("kubectl"), config("kube-scheduler"));
    }
}
