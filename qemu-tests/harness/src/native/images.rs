//! The image that test pods run: static busybox under all its names, built here and served by [`super::registry`].
//!
//! In: the host's static busybox (package busybox-static). Out: a registry directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::json;

use super::blobs::Blobs;
use super::config;
use super::node::NativeNode;
use super::registry::{HOST, PRIVATE};
use crate::run::Run;

/// Programs of the image for callers that cannot pass a script.
const SCRIPTS: [(&str, &str); 2] = [
    ("runs", "#!/bin/sh\ntrap 'exit 0' TERM\nwhile :; do sleep 3600 & wait; done\n"),
    ("deaf", "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n"),
];

/// The test pods' image.
#[must_use]
pub fn busybox() -> String {
    format!("{HOST}/e2e/busybox:1")
}

/// The same, in the part of the registry that requires [`super::registry::USER`] and its password.
#[must_use]
pub fn private_busybox() -> String {
    format!("{HOST}/{PRIVATE}busybox:1")
}

/// An image of files alone: `README` and `models/a/weights`.
#[must_use]
pub fn model() -> String {
    format!("{HOST}/e2e/model:1")
}

/// The sandbox image of a root that brings none (a developer's tree instead of the image).
#[must_use]
pub fn stand_in_pause() -> String {
    format!("{HOST}/e2e/pause:1")
}

/// The directory of the node's own registry, in the node.
pub const REGISTRY: &str = "/run/e2e/registry";

/// Number of unused images ([`spare`]).
pub const SPARES: u32 = 60;

/// One of many images that differ in their configuration alone.
#[must_use]
pub fn spare(number: u32) -> String {
    format!("{HOST}/e2e/spare:{number}")
}

/// Fills a registry directory.
///
/// # Errors
/// If the host has no static busybox, or the directory cannot be written.
pub fn make_registry(run: &Arc<Run>, dir: &Path) -> Result<()> {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("tmp"))?;
    install_busybox(&tree.join("bin"))?;
    for (name, script) in SCRIPTS {
        let path = tree.join("bin").join(name);
        fs::write(&path, script)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    let blobs = Blobs::at(dir)?;
    let layer = blobs.layer(run, &tree)?;
    fs::remove_dir_all(&tree)?;
    fs::create_dir_all(tree.join("models/a"))?;
    fs::write(tree.join("README"), "read me\n")?;
    fs::write(tree.join("models/a/weights"), "heavy\n")?;
    let files = blobs.layer(run, &tree)?;
    fs::remove_dir_all(&tree)?;
    blobs.image("e2e/model", "1", &json!({}), std::slice::from_ref(&files))?;
    let private = format!("{PRIVATE}busybox");
    for (name, command) in [
        ("e2e/busybox", vec!["/bin/sh"]),
        (private.as_str(), vec!["/bin/sh"]),
        ("e2e/pause", vec!["/bin/sleep", "2147483647"]),
    ] {
        let config = json!({"Env": ["PATH=/bin"], "Cmd": command});
        blobs.image(name, "1", &config, std::slice::from_ref(&layer))?;
    }
    for number in 0..SPARES {
        let config = json!({"Env": ["PATH=/bin", format!("NUMBER={number}")], "Cmd": ["/bin/sh"]});
        blobs.image("e2e/spare", &number.to_string(), &config, std::slice::from_ref(&layer))?;
    }
    Ok(())
}

/// Leads the node's containerd to the registry at `address` (host and port) for images of the registry `host`.
///
/// # Errors
/// If the node's directory cannot be written.
pub fn lead_to_registry(node: &NativeNode, host: &str, address: &str) -> Result<()> {
    let dir = format!("/run/e2e/certs.d/{host}");
    fs::create_dir_all(node.inside(&dir)).with_context(|| format!("make {dir} in the node"))?;
    let file = format!("{dir}/hosts.toml");
    fs::write(node.inside(&file), config::hosts_of(address))
        .with_context(|| format!("write {file} in the node"))
}

/// Puts the host's static busybox into a directory, with a link for each of its programs.
///
/// # Errors
/// If the host has none, or the directory cannot be written.
pub fn install_busybox(bin: &Path) -> Result<()> {
    fs::create_dir_all(bin).with_context(|| format!("make {}", bin.display()))?;
    let busybox = host_busybox()?;
    fs::copy(&busybox, bin.join("busybox")).context("copy busybox")?;
    fs::set_permissions(bin.join("busybox"), fs::Permissions::from_mode(0o755))?;
    let applets = Command::new(&busybox).arg("--list").output().context("run busybox")?;
    for applet in String::from_utf8_lossy(&applets.stdout).lines().filter(|a| *a != "busybox") {
        symlink("busybox", bin.join(applet)).with_context(|| format!("link {applet}"))?;
    }
    Ok(())
}

/// The host's static busybox.
///
/// # Errors
/// If the host has none.
pub fn host_busybox() -> Result<PathBuf> {
    ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .map(PathBuf::from)
        .find(|p| p.exists())
        .context("no busybox on this machine: install busybox-static (`orlop-image requirements --install`)")
}
