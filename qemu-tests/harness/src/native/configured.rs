//! A native node with parts of a NodeConfig: the files that init would write for them, as far as containerd and the agent
//! read them here.
//!
//! In: keys of a NodeConfig. Out: `hosts.toml` with certificates, authorities, `files`, and the environment of containerd.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use orlop_config::node::{API_VERSION, KIND, Source, derive, load};
use serde_json::{Value, json};

use super::node::NativeNode;

/// Where the image's containerd looks for `hosts.toml`.
const HOSTS_DIR: &str = "/var/lib/orlop/containerd/certs.d";
/// Where the native node's containerd looks.
const NATIVE_HOSTS_DIR: &str = "/run/e2e/certs.d";

/// Writes the files; returns the environment that containerd and the agent would be started with.
///
/// # Errors
/// If the NodeConfig has a mistake, or a file cannot be written.
pub fn configure(node: &NativeNode, parts: &Value) -> Result<Vec<(String, String)>> {
    let mut document = parts.clone();
    document["apiVersion"] = json!(API_VERSION);
    document["kind"] = json!(KIND);
    let source = Source { name: "case".into(), origin: "case".into(), text: document.to_string() };
    let effective = load(&[source], &[]);
    ensure!(effective.problems.is_empty(), "the case's NodeConfig: {:?}", effective.problems);
    let config = &effective.config;
    let environment = derive::environment_files(&effective);
    for file in derive::hosts_files(config).iter().chain(&environment) {
        write(node, &file.path, file.mode, file.text.as_bytes())?;
    }
    for host in config.registries.mirrors.keys() {
        let link = node.inside(&format!("{NATIVE_HOSTS_DIR}/{host}"));
        match symlink(format!("{HOSTS_DIR}/{host}"), &link) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => made.with_context(|| format!("link {}", link.display()))?,
        }
    }
    for file in derive::placed_files(config) {
        write(node, &format!("/var/{}", file.below_var), file.mode, &file.content)?;
    }
    let variables = environment.iter().find(|file| file.path == derive::ENVIRONMENT_FILE);
    let lines = variables.map(|file| file.text.as_str()).unwrap_or_default().lines();
    let variable = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(lines.filter_map(variable).collect())
}

fn write(node: &NativeNode, path: &str, mode: u32, content: &[u8]) -> Result<()> {
    let file = node.inside(path);
    let dir = file.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    fs::write(&file, content).with_context(|| format!("write {path} in the node"))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).with_context(|| format!("chmod {path}"))
}
