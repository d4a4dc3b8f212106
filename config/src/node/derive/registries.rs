//! containerd's `hosts.toml` files and the certificates that they name, from the registries of NodeConfig.

use super::RunFile;
use crate::node::pem;
use crate::node::types::{Mirrors, NodeConfig};
use std::fmt::Write;

/// Directory containerd looks in (`/etc/containerd/certs.d` is a link to it).
const DIR: &str = "/var/lib/orlop/containerd/certs.d";
/// First line of each `hosts.toml` that is made here; an add-on's begins otherwise, and is the add-on's to remove.
const HOSTS_MARK: &str = "# Made from the node's configuration.";
/// containerd refuses a registry whose `hosts.toml` names a file that is not there, so both lie in one directory, and
/// init writes and removes them together. Without a `hosts.toml` it would take files that end in `.crt` for authorities.
const CA: &str = "orlop-ca.pem";
const CLIENT: &str = "orlop-client.pem";
const CLIENT_KEY: &str = "orlop-client-key.pem";

/// For each registry of the configuration the certificates and the key, and then the `hosts.toml` that names them.
#[must_use]
pub fn hosts_files(config: &NodeConfig) -> Vec<RunFile> {
    let mut files = Vec::new();
    for (host, mirrors) in &config.registries.mirrors {
        let tls = Tls::new(host, mirrors);
        let text = hosts(host, mirrors, &tls);
        files.extend(tls.files);
        files.push(RunFile { path: format!("{DIR}/{host}/hosts.toml"), mode: 0o644, text });
    }
    files
}

/// All files that [`hosts_files`] may have made for a registry, `hosts.toml` last: while it is there, init finds the
/// others and removes them.
#[must_use]
pub fn hosts_file_paths(host: &str) -> Vec<String> {
    Vec::from([CA, CLIENT, CLIENT_KEY, "hosts.toml"].map(|name| format!("{DIR}/{host}/{name}")))
}

/// Whether the text of a `hosts.toml` was made here.
#[must_use]
pub fn is_own_hosts(text: &str) -> bool {
    text.starts_with(HOSTS_MARK)
}

/// Whether a version that did not mark its files may have made this text of a `hosts.toml`: it has exactly their lines,
/// a server and at least one endpoint.
#[must_use]
pub fn is_unmarked_hosts(text: &str) -> bool {
    let mut lines = text.lines().peekable();
    // `_default` has none.
    let _ = lines.next_if(|line| is_quoted(line, "server = \"", "\""));
    let (mut endpoints, mut overridden) = (0, 0);
    while let Some(blank) = lines.next() {
        let is_endpoint = blank.is_empty()
            && lines.next().is_some_and(|line| is_quoted(line, "[host.\"", "\"]"))
            && lines.next() == Some("  capabilities = [\"pull\", \"resolve\"]");
        if !is_endpoint {
            return false;
        }
        endpoints += 1;
        overridden += usize::from(lines.next_if_eq(&"  override_path = true").is_some());
    }
    text.ends_with('\n') && endpoints > 0 && [0, endpoints].contains(&overridden)
}

fn is_quoted(line: &str, before: &str, after: &str) -> bool {
    let inner = line.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
    inner.is_some_and(|inner| !inner.is_empty() && !inner.contains('"'))
}

/// Authorities that verify the servers of one registry, and the certificate that the node shows them.
struct Tls {
    files: Vec<RunFile>,
    /// Lines of `hosts.toml` for one server; empty without certificates.
    lines: Vec<String>,
}

impl Tls {
    /// Validation has decoded the same data before.
    fn new(host: &str, mirrors: &Mirrors) -> Tls {
        let mut tls = Tls { files: Vec::new(), lines: Vec::new() };
        let path = |name: &str| format!("{DIR}/{host}/{name}");
        let file = |name: &str, mode: u32, text: String| RunFile { path: path(name), mode, text };
        if let Some(text) = mirrors.ca_data.as_deref().and_then(|data| pem::decode(data, &pem::CERTIFICATE)) {
            tls.files.push(file(CA, 0o644, text));
            tls.lines.push(format!("ca = \"{}\"", path(CA)));
        }
        let certificate = mirrors.client_certificate_data.as_deref();
        let certificate = certificate.and_then(|data| pem::decode(data, &pem::CERTIFICATE));
        let key = mirrors.client_key_data.as_ref();
        let key = key.and_then(|data| pem::decode(data.reveal(), &pem::PRIVATE_KEY));
        if let (Some(certificate), Some(key)) = (certificate, key) {
            tls.files.push(file(CLIENT, 0o644, certificate));
            tls.files.push(file(CLIENT_KEY, 0o600, key));
            tls.lines.push(format!("client = [[\"{}\", \"{}\"]]", path(CLIENT), path(CLIENT_KEY)));
        }
        tls
    }

    /// The lines for a server at `url`. Given them for http://, containerd would try https:// first.
    fn write(&self, text: &mut String, url: &str, indent: &str) {
        for line in self.lines.iter().filter(|_| url.starts_with("https://")) {
            let _ = writeln!(text, "{indent}{line}");
        }
    }
}

/// Validation keeps quotes and control characters out of hosts and URLs.
fn hosts(host: &str, mirrors: &Mirrors, tls: &Tls) -> String {
    let mut text = format!("{HOSTS_MARK}\n");
    if host == "_default" {
        // Each registry itself, which is asked after the endpoints.
        tls.write(&mut text, "https://", "");
    } else {
        // Docker Hub's registry is not where its name says.
        let server = if host == "docker.io" { "registry-1.docker.io" } else { host };
        let last = mirrors.endpoints.last().filter(|_| mirrors.skip_fallback);
        let server = last.cloned().unwrap_or_else(|| format!("https://{server}"));
        let _ = writeln!(text, "server = \"{server}\"");
        if last.is_some() && mirrors.override_path {
            text.push_str("override_path = true\n");
        }
        tls.write(&mut text, &server, "");
    }
    for endpoint in &mirrors.endpoints {
        let _ = writeln!(text, "\n[host.\"{endpoint}\"]\n  capabilities = [\"pull\", \"resolve\"]");
        if mirrors.override_path {
            text.push_str("  override_path = true\n");
        }
        tls.write(&mut text, endpoint, "  ");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "server = \"https://registry-1.docker.io\"\n";
    const ENDPOINT: &str = "\n[host.\"https://m:5000\"]\n  capabilities = [\"pull\", \"resolve\"]\n";
    const OVERRIDE: &str = "  override_path = true\n";

    #[test]
    fn files_without_a_mark_are_known_by_their_lines() {
        let config = |mirrors: Mirrors| {
            let mut config = NodeConfig::default();
            config.registries.mirrors.insert("docker.io".to_owned(), mirrors);
            config
        };
        let endpoints = vec!["https://m:5000".to_owned(), "http://n".to_owned()];
        for override_path in [false, true] {
            let mirrors = Mirrors { endpoints: endpoints.clone(), override_path, ..Mirrors::default() };
            let files = hosts_files(&config(mirrors));
            assert!(is_own_hosts(&files[0].text) && !is_unmarked_hosts(&files[0].text));
            let (_, unmarked) = files[0].text.split_once('\n').expect("the mark");
            assert!(is_unmarked_hosts(unmarked) && !is_own_hosts(unmarked), "{unmarked}");
        }
        for (text, taken) in [
            (format!("{SERVER}{ENDPOINT}"), true),
            (ENDPOINT.to_owned(), true),
            (format!("{SERVER}{ENDPOINT}{OVERRIDE}{ENDPOINT}{OVERRIDE}"), true),
            (format!("{SERVER}{ENDPOINT}{OVERRIDE}{ENDPOINT}"), false),
            (SERVER.to_owned(), false),
            (String::new(), false),
            (format!("{SERVER}{ENDPOINT}  skip_verify = true\n"), false),
            (format!("# An add-on's.\n{SERVER}{ENDPOINT}"), false),
            (format!("{SERVER}ca = \"/etc/ca.crt\"\n{ENDPOINT}"), false),
            (format!("{SERVER}\n{ENDPOINT}"), false),
            (ENDPOINT.replace("\"pull\", ", ""), false),
            (ENDPOINT.trim_end().to_owned(), false),
        ] {
            assert_eq!(is_unmarked_hosts(&text), taken, "{text:?}");
        }
    }
}
