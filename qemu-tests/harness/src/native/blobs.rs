//! Fills a registry's directory: layers from trees, images from layers. [`super::registry`] serves the directory.
//!
//! In: trees on disk, configurations. Out: `blobs/sha256/<hex>` and `tags/<name>@<tag>`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use orlop_image::arch::Arch;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::registry::tag_file;
use crate::process::must;
use crate::run::Run;

/// A registry's directory.
#[derive(Clone, Copy)]
pub struct Blobs<'a> {
    dir: &'a Path,
}

/// A blob that is there.
#[derive(Clone, Debug)]
pub struct Blob {
    /// SHA-256 in hexadecimal.
    pub hex: String,
    /// Bytes.
    pub size: usize,
}

impl<'a> Blobs<'a> {
    /// Uses a directory, and makes it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn at(dir: &'a Path) -> Result<Blobs<'a>> {
        for part in ["blobs/sha256", "tags"] {
            fs::create_dir_all(dir.join(part))
                .with_context(|| format!("make {part} in {}", dir.display()))?;
        }
        Ok(Blobs { dir })
    }

    /// The file of a blob.
    #[must_use]
    pub fn path(&self, hex: &str) -> PathBuf {
        self.dir.join("blobs/sha256").join(hex)
    }

    /// Packs a tree as a layer, everything owned by root.
    ///
    /// # Errors
    /// If tar fails or the disk is full.
    pub fn layer(&self, run: &Arc<Run>, tree: &Path) -> Result<Blob> {
        let packed = self.dir.join("layer.tar");
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-cf"]);
        must(run, tar.arg(&packed).arg("-C").arg(tree).arg("."))?;
        let blob = self.put(&fs::read(&packed)?)?;
        fs::remove_file(&packed)?;
        Ok(blob)
    }

    /// A layer of the files that `fill` puts into an empty tree.
    ///
    /// # Errors
    /// Those of `fill`, or of [`Blobs::layer`].
    pub fn layer_of(&self, run: &Arc<Run>, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Blob> {
        let tree = self.dir.join("tree");
        fs::create_dir_all(&tree).with_context(|| format!("make {}", tree.display()))?;
        fs::set_permissions(&tree, fs::Permissions::from_mode(0o755)).context("set a mode")?;
        fill(&tree)?;
        let layer = self.layer(run, &tree)?;
        fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))?;
        Ok(layer)
    }

    /// Writes an image of these layers with a name and a tag; `config` is its `config` object (entry point,
    /// environment, user). Returns the manifest.
    ///
    /// # Errors
    /// If it cannot be written, or the name is invalid.
    pub fn image(&self, name: &str, tag: &str, config: &Value, layers: &[Blob]) -> Result<Blob> {
        let digests: Vec<String> = layers.iter().map(|l| format!("sha256:{}", l.hex)).collect();
        let rootfs = json!({"type": "layers", "diff_ids": digests});
        let config =
            json!({"architecture": Arch::HOST.name(), "os": "linux", "config": config, "rootfs": rootfs});
        let config = self.put(config.to_string().as_bytes())?;
        let of = |kind: &str, blob: &Blob| {
            json!({"mediaType": format!("application/vnd.oci.image.{kind}"),
                "digest": format!("sha256:{}", blob.hex), "size": blob.size})
        };
        let layers: Vec<Value> = layers.iter().map(|l| of("layer.v1.tar", l)).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": of("config.v1+json", &config),
            "layers": layers,
        });
        let manifest = self.put(manifest.to_string().as_bytes())?;
        let file = tag_file(name, tag).with_context(|| format!("{name}:{tag} is no name of an image"))?;
        fs::write(self.dir.join("tags").join(file), &manifest.hex)?;
        Ok(manifest)
    }

    fn put(&self, bytes: &[u8]) -> Result<Blob> {
        let hex = hex::encode(Sha256::digest(bytes));
        let path = self.path(&hex);
        fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))?;
        Ok(Blob { hex, size: bytes.len() })
    }
}
