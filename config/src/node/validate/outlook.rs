//! What the configuration of all sources together asks for and does not get: halves of which the other never came.
//! A single source may hold one half, so this breaks no rule.

use crate::node::derive;
use crate::node::types::NodeConfig;
use crate::node::update::UpdatePolicy;
use crate::path;
use crate::problem::Problem;

/// What the configuration asks for and does not get.
pub(in crate::node) fn outlook(config: &NodeConfig) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut tell = |path: &str, reason: String| {
        let (source, path) = ("effective".to_owned(), path.to_owned());
        problems.push(Problem { source, path, reason, ..Problem::default() });
    };
    let missing = config.join.as_ref().map(crate::join::missing).unwrap_or_default();
    if !missing.is_empty() {
        tell("join", format!("lacks {}: the node runs standalone", missing.join(", ")));
    }
    if config.node.cloud_provider.is_some() && !derive::joins(config) {
        tell("node.cloudProvider", "needs join: a standalone node has no Node object".to_owned());
    }
    if !config.proxy.no_proxy.is_empty() && config.proxy.http.is_none() && config.proxy.https.is_none() {
        tell("proxy.noProxy", "needs proxy.http or proxy.https: nothing goes through a proxy".to_owned());
    }
    for (host, mirrors) in &config.registries.mirrors {
        let lacks = match (&mirrors.client_certificate_data, &mirrors.client_key_data) {
            (Some(_), None) => "clientKeyData",
            (None, Some(_)) => "clientCertificateData",
            _ => continue,
        };
        let at = path::child("registries.mirrors", host);
        tell(&at, format!("lacks {lacks}: the node shows these servers no certificate"));
    }
    if config.update.policy != UpdatePolicy::Manual && config.update.source.is_empty() {
        tell("update.policy", "needs update.source: releases come from drives only".to_owned());
    }
    problems
}
