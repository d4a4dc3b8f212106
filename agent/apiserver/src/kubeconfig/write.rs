//! The kubelet's own kubeconfig.
//!
//! In: server, CA, where the certificate will be. Out: the text that upstream's kubelet writes after its bootstrap,
//! on disk. Invariants: no secret is in it; it appears whole or not at all, readable by root alone.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use orlop_files::Durability;
use serde_json::json;

use super::KubeconfigError;
use crate::access::Server;

/// What the node's kubeconfig says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnKubeconfig {
    /// The API server.
    pub server: Server,
    /// Its CA, PEM.
    pub ca_pem: Vec<u8>,
    /// `<cert-dir>/kubelet-client-current.pem`: certificate and key.
    pub client_pem: PathBuf,
}

impl OwnKubeconfig {
    /// Cluster `default-cluster`, user `default-auth`, context `default-context`, namespace `default`.
    #[must_use]
    pub fn render(&self) -> String {
        // A JSON string is a YAML string: every character of a path or a URL stays as it is.
        let text = |s: &str| json!(s).to_string();
        let client = text(&self.client_pem.to_string_lossy());
        let mut cluster = format!(
            "    certificate-authority-data: {}\n    server: {}\n",
            STANDARD.encode(&self.ca_pem),
            text(&self.server.to_string())
        );
        if let Some(name) = &self.server.tls_server_name {
            cluster.push_str(&format!("    tls-server-name: {}\n", text(name)));
        }
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: default-cluster\n\
             \x20 cluster:\n{cluster}\
             contexts:\n\
             - name: default-context\n\
             \x20 context:\n\
             \x20   cluster: default-cluster\n\
             \x20   namespace: default\n\
             \x20   user: default-auth\n\
             current-context: default-context\n\
             users:\n\
             - name: default-auth\n\
             \x20 user:\n\
             \x20   client-certificate: {client}\n\
             \x20   client-key: {client}\n"
        )
    }
}

/// Writes the kubeconfig durably: into a file next to it, which is synced and renamed over it.
/// Blocks for the disk.
///
/// # Errors
/// The directory cannot be made, or the file not written.
pub fn write(path: &Path, kubeconfig: &OwnKubeconfig) -> Result<(), KubeconfigError> {
    let io = |operation| move |source| KubeconfigError::Io { path: path.to_owned(), operation, source };
    let directory = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory).map_err(io("make its directory"))?;
    orlop_files::replace(path, kubeconfig.render().as_bytes(), 0o600, Durability::Synced)
        .map_err(|error| io(error.operation)(error.source))
}
