//! containerd's `hosts.toml` files from the registry mirrors of NodeConfig.

use super::RunFile;
use crate::node::types::{Mirrors, NodeConfig};
use std::fmt::Write;

/// Directory containerd looks in (`/etc/containerd/certs.d` is a link to it).
const DIR: &str = "/var/lib/orlop/containerd/certs.d";

/// One file per registry that has mirrors.
#[must_use]
pub fn hosts_files(config: &NodeConfig) -> Vec<RunFile> {
    config
        .registries
        .mirrors
        .iter()
        .map(|(host, mirrors)| RunFile {
            path: format!("{DIR}/{host}/hosts.toml"),
            mode: 0o644,
            text: hosts(host, mirrors),
        })
        .collect()
}

/// Validation keeps quotes and control characters out of hosts and URLs.
fn hosts(host: &str, mirrors: &Mirrors) -> String {
    let mut text = String::new();
    if host != "_default" {
        // Docker Hub's registry is not where its name says.
        let server = if host == "docker.io" { "registry-1.docker.io" } else { host };
        let server = match (mirrors.skip_fallback, mirrors.endpoints.last()) {
            (true, Some(last)) => last.clone(),
            _ => format!("https://{server}"),
        };
        let _ = writeln!(text, "server = \"{server}\"");
    }
    for endpoint in &mirrors.endpoints {
        let _ = writeln!(text, "\n[host.\"{endpoint}\"]\n  capabilities = [\"pull\", \"resolve\"]");
        if mirrors.override_path {
            text.push_str("  override_path = true\n");
        }
    }
    text
}
