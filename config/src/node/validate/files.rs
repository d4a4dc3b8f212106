//! Rules of files that a document brings, and of kubeconfigs among them.

use super::Rules;
use crate::node::node_file::is_path;
use crate::node::types::{Join, NodeConfig};
use crate::path;
use std::collections::BTreeSet;

impl Rules<'_> {
    /// Contents are never shown.
    pub(super) fn files(&mut self, config: &NodeConfig) {
        let all: BTreeSet<&str> = config.files.iter().map(|file| file.path.as_str()).collect();
        let mut seen = BTreeSet::new();
        for (i, file) in config.files.iter().enumerate() {
            let at = path::index("files", i);
            let named = path::child(&at, "path");
            let is_directory = |above: &&str| all.contains(*above);
            if let Some((key, reason)) = file.problem() {
                let value = (key == "path").then_some(file.path.as_str());
                let at = if key.is_empty() { at } else { path::child(&at, key) };
                self.broken(&at, value, reason);
            } else if !seen.insert(file.path.as_str()) {
                self.broken(&named, Some(&file.path), "is there twice: paths of files differ");
            } else if let Some(above) = above(&file.path).find(is_directory) {
                let reason = format!("is below {above}, which is a file");
                self.broken(&named, Some(&file.path), &reason);
            }
        }
    }

    /// A kubeconfig takes the place of all else that says where the cluster is.
    pub(super) fn kubeconfigs(&mut self, join: &Join) {
        let given = [("kubeconfig", &join.kubeconfig), ("bootstrapKubeconfig", &join.bootstrap_kubeconfig)];
        for (key, file) in given {
            let at = path::child("join", key);
            if file.as_deref().is_some_and(|file| !is_path(file)) {
                self.broken(&at, None, "must be the absolute path of a file, without blanks and quotes");
            }
        }
        let others = !join.server.is_empty()
            || join.token.is_some()
            || join.ca_data.is_some()
            || !join.ca_cert_hashes.is_empty();
        let both = join.kubeconfig.is_some() && join.bootstrap_kubeconfig.is_some();
        if both {
            self.broken("join.kubeconfig", None, "excludes bootstrapKubeconfig: give one of them");
        }
        if others && crate::join::has_kubeconfig(join) {
            let key = if join.kubeconfig.is_some() { "kubeconfig" } else { "bootstrapKubeconfig" };
            let reason = "excludes server, token, caData and caCertHashes: the kubeconfig has them";
            self.broken(&path::child("join", key), None, reason);
        }
    }
}

/// The directories of a path, the nearest first.
fn above(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(path.rsplit_once('/').map(|(above, _)| above), |path| {
        path.rsplit_once('/').map(|(above, _)| above)
    })
}
