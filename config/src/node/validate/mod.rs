//! Rules of NodeConfig beyond the shape of single fields.
//!
//! In: a merged configuration. Out: every broken rule. Rules that only a complete set of sources can meet (a server
//! without a token) are in [`outlook()`], because sources complete each other.

mod api;
mod clashes;
mod files;
mod install;
mod links;
mod network;
mod outlook;
mod registries;
mod update;

use super::derive;
use super::pem;
use super::types::{Join, NodeConfig};
use crate::credential_provider;
use crate::field::{self, Lines};
use crate::formats;
use crate::kubelet::KubeletConfiguration;
use crate::kubelet::flags::args::is_self_label;
use crate::kubelet::gates::FeatureGates;
use crate::path;
use crate::problem::Problem;
use serde_json::Value;
use std::collections::BTreeSet;

pub(super) use outlook::outlook;

/// Less is a mistake in the unit.
const SWAP_BYTES_MIN: i64 = 1 << 20;

struct Rules<'a> {
    source: &'a str,
    lines: &'a dyn Lines,
    problems: Vec<Problem>,
}

impl Rules<'_> {
    fn broken(&mut self, path: &str, value: Option<&str>, reason: &str) {
        self.problems.push(Problem {
            source: self.source.to_owned(),
            line: self.lines.line(path),
            path: path.to_owned(),
            value: value.map(|v| field::shown(&Value::from(v))),
            reason: reason.to_owned(),
        });
    }

    fn rule(&mut self, ok: bool, path: &str, value: &str, reason: &str) {
        if !ok {
            self.broken(path, Some(value), reason);
        }
    }

    /// The same rule for every element of a list.
    fn each(&mut self, list: &[String], at: &str, ok: fn(&str) -> bool, reason: &str) {
        for (i, item) in list.iter().enumerate() {
            self.rule(ok(item), &path::index(at, i), item, reason);
        }
    }
}

/// Everything wrong with `config`; `lines` finds keys in the source merged last.
pub(super) fn validate(config: &NodeConfig, source: &str, lines: &dyn Lines) -> Vec<Problem> {
    let mut rules = Rules { source, lines, problems: Vec::new() };
    rules.node(&config.node);
    rules.network(&config.network);
    rules.trust(config);
    rules.proxy(&config.proxy);
    rules.each(&config.time.servers, "time.servers", is_host, "must be a host name or an IP address");
    rules.registries(config);
    rules.kernel(config);
    rules.swap(config);
    if let Some(install) = &config.install {
        rules.install(install);
    }
    rules.labels_and_taints(config);
    if let Some(join) = &config.join {
        rules.join(join);
    }
    rules.static_pods(config);
    rules.files(config);
    rules.update(&config.update);
    rules.api(&config.api);
    // Problems of the agent's configuration stand where its keys do.
    let (kubelet, problems) = derive::kubelet(config, source);
    rules.credential_providers(config, &kubelet);
    for problem in problems {
        let line = lines.line(&problem.path);
        rules.problems.push(Problem { line, ..problem });
    }
    rules.problems
}

/// The rules of a `join` part by itself.
pub(crate) fn validate_join(join: &Join, source: &str, lines: &dyn Lines) -> Vec<Problem> {
    let mut rules = Rules { source, lines, problems: Vec::new() };
    rules.join(join);
    rules.problems
}

impl Rules<'_> {
    fn swap(&mut self, config: &NodeConfig) {
        let size = &config.swap.size;
        self.rule(
            size.signum() == 0 || size.value() >= SWAP_BYTES_MIN,
            "swap.size",
            size.as_str(),
            "must be 0, or a quantity of 1Mi or more",
        );
    }

    fn kernel(&mut self, config: &NodeConfig) {
        for (name, value) in &config.kernel.sysctls {
            let at = path::child("kernel.sysctls", name);
            let named = formats::is_sysctl_name(name) && !name.contains('*');
            self.rule(named, &at, name, "must be a kernel setting such as net.ipv4.ip_forward");
            let line = !value.0.is_empty() && !value.0.contains(['\n', '\r', '\0']);
            self.rule(line, &at, &value.0, "must be one line of text");
        }
        let module =
            |m: &str| !m.is_empty() && m.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
        self.each(
            &config.kernel.modules,
            "kernel.modules",
            module,
            "must be a module's name without path and suffix",
        );
    }

    fn labels_and_taints(&mut self, config: &NodeConfig) {
        for (key, value) in &config.labels {
            let at = path::child("labels", key);
            self.rule(
                formats::is_qualified_name(key),
                &at,
                key,
                "must be a label key such as example.com/role",
            );
            self.rule(
                formats::is_label_value(value),
                &at,
                value,
                "must be at most 63 letters, digits, -, _ or ., with a letter or digit at both ends",
            );
            self.rule(
                is_self_label(key),
                &at,
                key,
                "is the control plane's to set: a node's own are under node.kubernetes.io/ and kubelet.kubernetes.io/",
            );
        }
        let both = !config.taints.is_empty() && config.kubelet.0.contains_key("registerWithTaints");
        if both {
            self.broken("taints", None, "excludes kubelet.registerWithTaints: set one of them");
        }
    }

    /// Values of this part are never shown: the author may have put the token in the wrong place.
    fn join(&mut self, join: &Join) {
        let https = is_url(&join.server) && join.server.starts_with("https://");
        if !join.server.is_empty() && !https {
            self.broken("join.server", None, "must be an https:// URL");
        }
        if join.token.as_ref().is_some_and(|t| !is_token(t.reveal())) {
            self.broken("join.token", None, "must have the form abcdef.0123456789abcdef");
        }
        if join
            .ca_data
            .as_deref()
            .is_some_and(|d| !is_base64(d) || pem::has_other_blocks(d, &pem::CERTIFICATE))
        {
            self.broken("join.caData", None, registries::CERTIFICATES);
        }
        for (i, hash) in join.ca_cert_hashes.iter().enumerate() {
            let hex = hash.strip_prefix("sha256:");
            if !hex.is_some_and(|h| h.len() == 64 && h.bytes().all(|b| b.is_ascii_hexdigit())) {
                let at = path::index("join.caCertHashes", i);
                self.broken(&at, None, "must be sha256: and 64 hex digits");
            }
        }
        self.kubeconfigs(join);
    }

    fn credential_providers(&mut self, config: &NodeConfig, kubelet: &KubeletConfiguration) {
        let entries = config.registries.credential_providers.iter().map(|p| &p.0);
        let tokens = FeatureGates::of(kubelet).kubelet_service_account_token_for_credential_providers;
        for mistake in credential_provider::check(entries, tokens) {
            let at = format!("registries.credentialProviders{}", mistake.path);
            self.broken(&at, None, &mistake.reason);
        }
    }

    fn static_pods(&mut self, config: &NodeConfig) {
        let mut seen = BTreeSet::new();
        for (i, pod) in config.static_pods.iter().enumerate() {
            let at = path::index("staticPods", i);
            if let Some((key, reason)) = pod.problem() {
                let at = if key.is_empty() { at.clone() } else { path::child(&at, key) };
                self.broken(&at, None, &reason);
            } else if !seen.insert(pod.name()) {
                self.broken(&at, Some(pod.name()), "is there twice: names of static pods differ");
            }
        }
    }
}

fn is_host(text: &str) -> bool {
    formats::is_ip(text) || formats::is_dns_name(text)
}

fn is_host_port(text: &str) -> bool {
    match text.rsplit_once(':') {
        Some((host, port)) => is_host(host) && port.parse::<u16>().is_ok_and(|p| p > 0),
        None => is_host(text),
    }
}

fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let safe = |b: u8| b.is_ascii_graphic() && !b"\"\\<>".contains(&b);
    rest.is_some_and(|r| {
        r.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[') && r.bytes().all(safe)
    })
}

fn is_token(text: &str) -> bool {
    let part =
        |p: &str, n: usize| p.len() == n && p.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    text.split_once('.').is_some_and(|(id, secret)| part(id, 6) && part(secret, 16))
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    !digits.is_empty()
        && text.len().is_multiple_of(4)
        && text.len() - digits.len() <= 2
        && digits.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/".contains(&b))
}

#[cfg(test)]
mod tests;
