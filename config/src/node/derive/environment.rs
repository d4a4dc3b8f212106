//! The environment of containerd and the agent: whom they believe, and their way out. Programs that they start
//! (credential plugins) inherit it.

use super::{RunFile, joins};
use crate::node::effective::Effective;
use crate::node::links::Links;
use crate::node::pem;
use crate::node::types::NodeConfig;
use std::fmt::Write;
use std::net::IpAddr;

/// Environment file of both units; absent without `trust` and `proxy`. A proxy's URL may hold a password.
pub const ENVIRONMENT_FILE: &str = "/run/orlop/environment";
/// Directory of further authorities, as `SSL_CERT_DIR`: Go's programs read it in addition to the image's bundle.
const TRUST_DIR: &str = "/run/orlop/trust";

/// The environment file, and the certificates that it points to.
#[must_use]
pub fn environment_files(effective: &Effective) -> Vec<RunFile> {
    let config = &effective.config;
    let (mut files, mut text) = (Vec::new(), String::new());
    let authorities: String =
        config.trust.ca_certificates.iter().filter_map(|data| pem::decode(data, &pem::CERTIFICATE)).collect();
    if !authorities.is_empty() {
        let path = format!("{TRUST_DIR}/ca-certificates.crt");
        files.push(RunFile { path, mode: 0o644, text: authorities });
        let _ = writeln!(text, "SSL_CERT_DIR={TRUST_DIR}");
    }
    let proxy = &config.proxy;
    for (name, url) in [("HTTP_PROXY", &proxy.http), ("HTTPS_PROXY", &proxy.https)] {
        if let Some(url) = url {
            let _ = writeln!(text, "{name}={}", url.reveal());
        }
    }
    if proxy.http.is_some() || proxy.https.is_some() {
        let _ = writeln!(text, "NO_PROXY={}", exempt(effective).join(","));
    }
    if !text.is_empty() {
        files.push(RunFile { path: ENVIRONMENT_FILE.to_owned(), mode: 0o600, text });
    }
    files
}

/// Hosts and networks that are reached without the proxy: those of the configuration, the node itself, its networks, its pods, the API
/// server, and names of Services. The range of Services' addresses is the cluster's, and no node knows it. Addresses from
/// DHCP come later.
fn exempt(effective: &Effective) -> Vec<String> {
    let (config, kubelet) = (&effective.config, &effective.kubelet);
    let mut all = config.proxy.no_proxy.clone();
    all.extend(["localhost", "127.0.0.0/8", "::1", ".svc"].map(str::to_owned));
    if !kubelet.cluster_domain.is_empty() {
        all.push(format!(".{}", kubelet.cluster_domain));
    }
    all.extend(kubelet.pod_cidr.split(',').filter(|range| !range.is_empty()).map(str::to_owned));
    all.extend(Links::of(&config.network).all().iter().flat_map(|link| link.addressing().addresses).cloned());
    // The unspecified address chooses a family. No host has it.
    let unspecified = |text: &str| text.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    all.extend(config.node.addresses.iter().filter(|text| !unspecified(text)).cloned());
    all.extend(api_server(config).map(str::to_owned));
    all
}

/// Host of the API server's URL, without brackets and port.
fn api_server(config: &NodeConfig) -> Option<&str> {
    let join = config.join.as_ref().filter(|_| joins(config))?;
    let authority = join.server.strip_prefix("https://")?.split(['/', '?', '#']).next()?;
    match authority.strip_prefix('[') {
        Some(ipv6) => ipv6.split(']').next(),
        None => authority.split(':').next(),
    }
}
