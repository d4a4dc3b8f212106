//! The image that test pods run: static busybox with a few names, built here and served by [`super::registry`].
//!
//! What comes in: the host's static busybox (package busybox-static). What goes out: a registry directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::registry::{HOST, tag_file};
use crate::process::must;
use crate::run::Run;

/// Programs of the image for callers that cannot pass a script.
const SCRIPTS: [(&str, &str); 2] = [
    ("runs", "#!/bin/sh\ntrap 'exit 0' TERM\nwhile :; do sleep 3600 & wait; done\n"),
    ("deaf", "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n"),
];

const APPLETS: [&str; 10] = ["sh", "sleep", "echo", "cat", "date", "true", "false", "touch", "ls", "head"];

/// The test pods' image.
#[must_use]
pub fn busybox() -> String {
    format!("{HOST}/e2e/busybox:1")
}

/// The sandbox image of a root that brings none (a developer's tree instead of the image).
#[must_use]
pub fn stand_in_pause() -> String {
    format!("{HOST}/e2e/pause:1")
}

/// Fills a registry directory.
///
/// # Errors
/// If the host has no static busybox, or the directory cannot be written.
pub fn make_registry(run: &Arc<Run>, dir: &Path) -> Result<()> {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("bin"))?;
    fs::create_dir_all(tree.join("tmp"))?;
    fs::copy(host_busybox()?, tree.join("bin/busybox")).context("copy busybox")?;
    fs::set_permissions(tree.join("bin/busybox"), fs::Permissions::from_mode(0o755))?;
    for applet in APPLETS {
        symlink("busybox", tree.join("bin").join(applet))?;
    }
    for (name, script) in SCRIPTS {
        let path = tree.join("bin").join(name);
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let layer = dir.join("layer.tar");
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner", "-cf"]);
    must(run, tar.arg(&layer).arg("-C").arg(&tree).arg("."))?;
    fs::create_dir_all(dir.join("blobs/sha256"))?;
    fs::create_dir_all(dir.join("tags"))?;
    let layer_bytes = fs::read(&layer)?;
    fs::remove_file(&layer)?;
    fs::remove_dir_all(&tree)?;
    let layer = put(dir, &layer_bytes)?;
    for (name, command) in
        [("e2e/busybox", r#"["/bin/sh"]"#), ("e2e/pause", r#"["/bin/sleep","2147483647"]"#)]
    {
        let config = format!(
            r#"{{"architecture":"amd64","os":"linux","config":{{"Env":["PATH=/bin"],"Cmd":{command}}},"rootfs":{{"type":"layers","diff_ids":["sha256:{layer}"]}}}}"#
        );
        let config_digest = put(dir, config.as_bytes())?;
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": format!("sha256:{config_digest}"), "size": config.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": format!("sha256:{layer}"), "size": layer_bytes.len()}],
        });
        let digest = put(dir, manifest.to_string().as_bytes())?;
        let file = tag_file(name, "1").context("the names above are valid")?;
        fs::write(dir.join("tags").join(file), digest)?;
    }
    Ok(())
}

fn put(dir: &Path, bytes: &[u8]) -> Result<String> {
    let digest = hex::encode(Sha256::digest(bytes));
    let path = dir.join("blobs/sha256").join(&digest);
    fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))?;
    Ok(digest)
}

fn host_busybox() -> Result<PathBuf> {
    ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .map(PathBuf::from)
        .find(|p| p.exists())
        .context("no busybox on this machine: install busybox-static (`orlop-image requirements --install`)")
}
