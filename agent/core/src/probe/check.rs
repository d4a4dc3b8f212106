//! The action of a probe or a hook, ready to run: names resolved, variables expanded.
//!
//! In: handlers of the specification, the container, the pod's address. Out: plain values, or the reason why
//! the action is impossible. Upstream: pkg/probe (`ResolveContainerPort`, `NewRequestForHTTPGetAction`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::{Deserialize, Serialize};

use super::handler_url::{self, HandlerUrl, target};
use crate::container_spec::expansion::expand;

/// `httpGet.scheme`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheme {
    /// Plain text.
    Http,
    /// HTTP over TLS; the certificate is not verified.
    Https,
}

impl Scheme {
    /// As in a URL.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// One GET.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpGet {
    /// Plain or TLS.
    pub scheme: Scheme,
    /// Name or address to connect to.
    pub host: String,
    /// Port to connect to.
    pub port: u16,
    /// Path and query, percent-encoded, beginning with `/`. Otherwise it is an opaque URL, which names no server: the request fails.
    pub target: String,
    /// `httpHeaders` in order; a name may come more than once.
    pub headers: Vec<(String, String)>,
}

impl HttpGet {
    /// Host and port as a URL has them: an IPv6 address in brackets.
    #[must_use]
    pub fn authority(&self) -> String {
        authority(&self.host, self.port)
    }

    /// The URL names no server, as upstream reads a path like `localhost:8080/healthz`.
    #[must_use]
    pub fn is_opaque(&self) -> bool {
        !self.target.starts_with('/')
    }

    /// The whole URL.
    #[must_use]
    pub fn url(&self) -> String {
        if self.is_opaque() {
            return format!("{}:{}", self.scheme.as_str(), self.target);
        }
        format!("{}://{}{}", self.scheme.as_str(), self.authority(), self.target)
    }

    /// Where a `Location` of the answer points, relative to this request; `None` if it is no HTTP URL.
    #[must_use]
    pub fn redirected(&self, location: &str) -> Option<HttpGet> {
        let mut next = self.clone();
        let (scheme, rest) = match location.split_once("://") {
            Some((scheme, rest)) if !scheme.contains(['/', '?', '#']) => (Some(scheme), Some(rest)),
            _ => (None, location.strip_prefix("//")),
        };
        if let Some(scheme) = scheme {
            next.scheme = parse_scheme(scheme)?;
        }
        let Some(rest) = rest else {
            next.target = match location.chars().next() {
                Some('/') => target(location),
                Some('?') => target(&format!("{}{location}", path_of(&self.target))),
                None | Some('#') => self.target.clone(),
                Some(_) => {
                    let path = path_of(&self.target);
                    let directory = path.rfind('/').map_or("/", |end| &path[..=end]);
                    target(&format!("{directory}{location}"))
                }
            };
            return Some(next);
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let authority = rest[..end].rsplit('@').next().unwrap_or("");
        let (host, port) =
            match authority.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']')) {
                Some((host, port)) => (host, Some(port.parse().ok().filter(|port| *port > 0)?)),
                None => (authority, None),
            };
        next.host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        next.port = port.unwrap_or(if next.scheme == Scheme::Http { 80 } else { 443 });
        next.target = target(&rest[end..]);
        // The requested name belongs to the first server's address.
        next.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("host"));
        (!next.host.is_empty()).then_some(next)
    }
}

fn parse_scheme(text: &str) -> Option<Scheme> {
    [Scheme::Http, Scheme::Https].into_iter().find(|s| text.eq_ignore_ascii_case(s.as_str()))
}

fn path_of(target: &str) -> &str {
    target.split('?').next().unwrap_or("")
}

/// `host:port`, with brackets around an IPv6 address.
#[must_use]
pub fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// One question of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Check {
    /// Run this in the container; exit code 0 is success.
    Exec {
        /// Program and arguments, `$(VAR)` expanded.
        command: Vec<String>,
    },
    /// 200 to 399 is success.
    HttpGet(HttpGet),
    /// An accepted connection is success.
    TcpSocket {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// `grpc.health.v1.Health/Check` that answers SERVING is success.
    Grpc {
        /// Address of the pod.
        host: String,
        /// Port.
        port: u16,
        /// Name of the service; empty is the server as a whole.
        service: String,
    },
}

/// The action of `probe` of `container`.
///
/// # Errors
/// The mistake in it: no handler, an unknown port name, a port out of range.
pub fn check(probe: &Probe, container: &Container, pod_ip: &str) -> Result<Check, String> {
    if let Some(exec) = &probe.exec {
        let command = exec.command.as_deref().unwrap_or(&[]);
        return Ok(Check::Exec { command: expanded(command, container) });
    }
    if let Some(http) = &probe.http_get {
        return http_get(http, container, pod_ip).map(Check::HttpGet);
    }
    if let Some(tcp) = &probe.tcp_socket {
        let host = tcp.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(pod_ip).to_owned();
        return Ok(Check::TcpSocket { host, port: port(&tcp.port, container)? });
    }
    if let Some(grpc) = &probe.grpc {
        let service = grpc.service.clone().unwrap_or_default();
        let port = port_number(i64::from(grpc.port))?;
        return Ok(Check::Grpc { host: pod_ip.to_owned(), port, service });
    }
    Err(format!("missing probe handler for container {}", container.name))
}

/// The request of a `httpGet` handler.
///
/// # Errors
/// An unknown port name or scheme, a port out of range.
pub fn http_get(action: &HTTPGetAction, container: &Container, pod_ip: &str) -> Result<HttpGet, String> {
    let scheme = match action.scheme.as_deref().unwrap_or("") {
        "" => Scheme::Http,
        given => parse_scheme(given).ok_or_else(|| format!("unsupported protocol scheme \"{given}\""))?,
    };
    let host = action.host.as_deref().filter(|h| !h.is_empty()).unwrap_or(pod_ip);
    let HandlerUrl { target, authorization } = handler_url::read(action.path.as_deref().unwrap_or(""));
    let headers = action.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone()));
    Ok(HttpGet {
        scheme,
        host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
        port: port(&action.port, container)?,
        target,
        headers: authorized(headers.collect(), authorization),
    })
}

/// The headers with this `Authorization`, unless the handler has one of its own. Upstream: `send` of Go's net/http.
fn authorized(mut headers: Vec<(String, String)>, authorization: Option<String>) -> Vec<(String, String)> {
    const AUTHORIZATION: &str = "Authorization";
    let Some(value) = authorization else { return headers };
    let is_it = |(name, _): &(String, String)| name.eq_ignore_ascii_case(AUTHORIZATION);
    if headers.iter().find(|header| is_it(header)).is_none_or(|(_, own)| own.is_empty()) {
        headers.retain(|header| !is_it(header));
        headers.push((AUTHORIZATION.to_owned(), value));
    }
    headers
}

/// Static variables of the container only: others count as empty, as upstream.
fn expanded(command: &[String], container: &Container) -> Vec<String> {
    let env: BTreeMap<&str, &str> = container
        .env
        .iter()
        .flatten()
        .map(|var| (var.name.as_str(), var.value.as_deref().unwrap_or("")))
        .collect();
    command.iter().map(|word| expand(word, |name| env.get(name).copied())).collect()
}

fn port(given: &IntOrString, container: &Container) -> Result<u16, String> {
    match given {
        IntOrString::Int(number) => port_number(i64::from(*number)),
        IntOrString::String(name) => {
            let ports = container.ports.iter().flatten();
            let named = ports.into_iter().find(|p| p.name.as_deref() == Some(name.as_str()));
            let number = named.map(|p| i64::from(p.container_port)).or_else(|| name.parse().ok());
            port_number(number.ok_or_else(|| format!("port {name} not found"))?)
        }
    }
}

fn port_number(number: i64) -> Result<u16, String> {
    u16::try_from(number).ok().filter(|n| *n > 0).ok_or_else(|| format!("invalid port number: {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn checked(probe: Value) -> Result<Check, String> {
        let container = json!({
            "name": "c", "ports": [{"name": "web", "containerPort": 8080}, {"name": "far", "containerPort": 70000}],
            "env": [{"name": "A", "value": "1"}, {"name": "F", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]});
        let container: Container = serde_json::from_value(container).unwrap();
        check(&serde_json::from_value(probe).unwrap(), &container, "10.0.0.7")
    }

    fn get(action: Value) -> Result<String, String> {
        checked(json!({"httpGet": action})).map(|check| match check {
            Check::HttpGet(get) => get.url(),
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn urls() {
        let table = [
            (json!({"port": 80}), "http://10.0.0.7:80/"),
            (json!({"port": "web", "path": "/a?b=c#d"}), "http://10.0.0.7:8080/a?b=c"),
            (json!({"port": "81", "path": "healthz", "scheme": "HTTPS"}), "https://10.0.0.7:81/healthz"),
            (
                json!({"port": 80, "host": "fd00::1", "path": "/a b\r\nX: y"}),
                "http://[fd00::1]:80/a%20b%0D%0AX:%20y",
            ),
            (json!({"port": 80, "host": "[fd00::1]"}), "http://[fd00::1]:80/"),
            (json!({"port": 80, "host": "", "path": "/ä"}), "http://10.0.0.7:80/%C3%A4"),
            // A URL: the host in it is replaced, and so is the scheme.
            (json!({"port": 80, "path": "//foo/bar?q#f"}), "http://10.0.0.7:80/bar?q"),
            (json!({"port": 81, "path": "https://localhost:8080/healthz"}), "http://10.0.0.7:81/healthz"),
            // An opaque URL has no host.
            (json!({"port": 80, "path": "localhost:8080/healthz", "scheme": "HTTPS"}), "https:8080/healthz"),
            // No URL: a path as it is written.
            (json!({"port": 80, "path": "//foo:bar/x"}), "http://10.0.0.7:80//foo:bar/x"),
        ];
        for (action, url) in table {
            assert_eq!(get(action).as_deref(), Ok(url));
        }
    }

    #[test]
    fn a_user_in_the_path_is_a_header_unless_the_handler_has_one() {
        let headers = |own: Value| match checked(
            json!({"httpGet": {"port": 80, "path": "http://u:p@h/", "httpHeaders": own}}),
        ) {
            Ok(Check::HttpGet(get)) => get.headers,
            other => panic!("a GET, not {other:?}"),
        };
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let basic = header("Authorization", "Basic dTpw");
        assert_eq!(headers(json!([])), std::slice::from_ref(&basic));
        let own = json!([{"name": "authorization", "value": ""}, {"name": "X", "value": "y"}]);
        assert_eq!(headers(own), [header("X", "y"), basic]);
        let own = json!([{"name": "authorization", "value": "Bearer t"}]);
        assert_eq!(headers(own), [header("authorization", "Bearer t")]);
    }

    #[test]
    fn redirects() {
        let Ok(Check::HttpGet(from)) = checked(json!({"httpGet": {"port": 81, "path": "/a/b?c=d",
            "httpHeaders": [{"name": "host", "value": "web"}, {"name": "X", "value": "y"}]}}))
        else {
            panic!("a GET")
        };
        let table = [
            ("/x", "http://10.0.0.7:81/x"),
            ("x?y#z", "http://10.0.0.7:81/a/x?y"),
            ("?q", "http://10.0.0.7:81/a/b?q"),
            ("", "http://10.0.0.7:81/a/b?c=d"),
            ("https://10.0.0.7/", "https://10.0.0.7:443/"),
            ("HTTP://u:p@10.0.0.7:82?q", "http://10.0.0.7:82/?q"),
            ("//other", "http://other:80/"),
            ("http://[fd00::1]:9/x", "http://[fd00::1]:9/x"),
            ("http://[fd00::1]", "http://[fd00::1]:80/"),
            ("/login?next=http://x/", "http://10.0.0.7:81/login?next=http://x/"),
        ];
        for (location, url) in table {
            let next = from.redirected(location).unwrap();
            assert_eq!(next.url(), url, "{location}");
            let absolute = location.contains("//") && !location.starts_with("/l");
            assert_eq!(next.headers.len(), if absolute { 1 } else { 2 }, "{location}");
        }
        for location in ["ftp://x/", "http:///x", "http://x:0/", "http://x:http/"] {
            assert_eq!(from.redirected(location), None, "{location}");
        }
    }

    #[test]
    fn what_cannot_be_asked() {
        let table = [
            (json!({"httpGet": {"port": "nowhere"}}), "port nowhere not found"),
            (json!({"httpGet": {"port": 0}}), "invalid port number: 0"),
            (json!({"httpGet": {"port": "far"}}), "invalid port number: 70000"),
            (json!({"tcpSocket": {"port": -1}}), "invalid port number: -1"),
            (json!({"grpc": {"port": 65536}}), "invalid port number: 65536"),
            (json!({"httpGet": {"port": 1, "scheme": "ftp"}}), "unsupported protocol scheme \"ftp\""),
            (json!({}), "missing probe handler for container c"),
        ];
        for (probe, message) in table {
            assert_eq!(checked(probe).unwrap_err(), message);
        }
    }

    #[test]
    fn other_handlers() {
        let command = json!({"exec": {"command": ["sh", "-c", "$(A)$(F)$(B)$$(A)"]}});
        let words = ["sh", "-c", "1$(B)$(A)"].map(str::to_owned).to_vec();
        assert_eq!(checked(command), Ok(Check::Exec { command: words }));
        let tcp = Check::TcpSocket { host: "10.0.0.7".to_owned(), port: 8080 };
        assert_eq!(checked(json!({"tcpSocket": {"port": "web"}})), Ok(tcp));
        let grpc = Check::Grpc { host: "10.0.0.7".to_owned(), port: 9, service: "s".to_owned() };
        assert_eq!(checked(json!({"grpc": {"port": 9, "service": "s"}})), Ok(grpc));
    }
}
