//! The `path` of an `httpGet` handler, which upstream reads as a URL.
//!
//! In: the text as it is written. Out: path and query of the request, and the `Authorization` header that a user in the text asks for.
//! Upstream replaces scheme, host and port of the URL, so `http://localhost:8080/healthz` and `//localhost/healthz` ask for `/healthz`. A
//! text that Go does not take for a URL is a path with all that is in it. Upstream: `formatURL` of pkg/probe/http/request.go, `Parse` of
//! Go's net/url.

use std::net::Ipv6Addr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// What a handler's path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HandlerUrl {
    /// Path and query, percent-encoded. One that does not begin with `/` is an opaque URL, which names no server.
    pub(super) target: String,
    /// Value of the header `Authorization`.
    pub(super) authorization: Option<String>,
}

/// Go's parser refuses the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NoUrl;

/// What the written path asks for.
pub(super) fn read(written: &str) -> HandlerUrl {
    parse(written)
        .unwrap_or_else(|NoUrl| HandlerUrl { target: escaped(written.as_bytes()), authorization: None })
}

fn parse(written: &str) -> Result<HandlerUrl, NoUrl> {
    let (text, fragment) = written.split_once('#').unwrap_or((written, ""));
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(NoUrl);
    }
    unescaped(fragment)?;
    let (scheme, rest) = split_scheme(text)?;
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let with_query = |path: &str| match query {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    if !rest.starts_with('/') {
        if scheme.is_some() && !rest.is_empty() {
            return Ok(HandlerUrl { target: with_query(rest), authorization: None });
        }
        if rest.split('/').next().is_some_and(|first| first.contains(':')) {
            return Err(NoUrl);
        }
    }
    // Without a scheme, three slashes begin a path; with one, the host is empty.
    let after_slashes = rest.strip_prefix("//").filter(|more| scheme.is_some() || !more.starts_with('/'));
    let (authorization, path) = match after_slashes {
        Some(more) => {
            let (authority, path) = more.split_at(more.find('/').unwrap_or(more.len()));
            (authorization(authority, scheme)?, path)
        }
        None => (None, rest),
    };
    Ok(HandlerUrl { target: target(&with_query(&encoded(path)?)), authorization })
}

/// The scheme, if the text has one, and what follows it. Upstream: `getScheme`.
fn split_scheme(text: &str) -> Result<(Option<&str>, &str), NoUrl> {
    let Some((scheme, rest)) = text.split_once(':') else { return Ok((None, text)) };
    if scheme.is_empty() {
        return Err(NoUrl);
    }
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    Ok(if is_scheme { (Some(scheme), rest) } else { (None, text) })
}

/// The header that the user of an authority asks for, if there is one. Upstream: `parseAuthority`, and `send` of Go's net/http.
fn authorization(authority: &str, scheme: Option<&str>) -> Result<Option<String>, NoUrl> {
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    if !is_host(host, scheme) {
        return Err(NoUrl);
    }
    let Some(user) = user else { return Ok(None) };
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    if !user.bytes().all(is_allowed) {
        return Err(NoUrl);
    }
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let plain = [unescaped(name)?, b":".to_vec(), unescaped(password)?].concat();
    Ok(Some(format!("Basic {}", STANDARD.encode(plain))))
}

/// Host and port as Go reads them. Upstream: `parseHost`.
fn is_host(text: &str, scheme: Option<&str>) -> bool {
    match text.rfind('[') {
        Some(0) => is_ip_literal(&text[1..]),
        Some(_) => false,
        None => {
            let is_http = scheme.is_some_and(|s| ["http", "https"].iter().any(|h| s.eq_ignore_ascii_case(h)));
            // Only other schemes may have colons in the host.
            let colon = if is_http { text.find(':') } else { text.rfind(':') };
            is_port(&text[colon.unwrap_or(text.len())..])
                && is_host_text(text, |byte| byte == b'%' || !byte.is_ascii())
        }
    }
}

/// An IPv6 address, what follows it, without the bracket before it.
fn is_ip_literal(text: &str) -> bool {
    let Some((name, port)) = text.rsplit_once(']') else { return false };
    let (address, zone) = match name.split_once("%25") {
        Some((address, zone)) => (address, Some(zone)),
        None => (name, None),
    };
    let may_be_escaped = |byte: u8| matches!(byte, b'%' | b' ') || is_host_byte(byte);
    is_port(port)
        && address.parse::<Ipv6Addr>().is_ok()
        && zone.is_none_or(|zone| !zone.is_empty() && is_host_text(zone, may_be_escaped))
}

/// Nothing, or a colon and digits.
fn is_port(text: &str) -> bool {
    match text.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => text.is_empty(),
    }
}

/// ASCII that a host may have as it is.
fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte)
}

/// A part of a host, with escapes of certain bytes.
fn is_host_text(text: &str, may_be_escaped: impl Fn(u8) -> bool) -> bool {
    let is_plain = |part: &str| part.bytes().all(|byte| !byte.is_ascii() || is_host_byte(byte));
    let mut parts = text.split('%');
    parts.next().is_none_or(is_plain)
        && parts.all(|part| escape(part).is_some_and(|(byte, rest)| may_be_escaped(byte) && is_plain(rest)))
}

/// The byte of an escape, and what follows it; `after` is what follows the percent sign.
fn escape(after: &str) -> Option<(u8, &str)> {
    let (digits, rest) = after.split_at_checked(2)?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?, rest))
}

/// The text without its escapes. Upstream: `unescape`.
fn unescaped(text: &str) -> Result<Vec<u8>, NoUrl> {
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or("").as_bytes().to_vec();
    for part in parts {
        let (byte, rest) = escape(part).ok_or(NoUrl)?;
        out.push(byte);
        out.extend_from_slice(rest.as_bytes());
    }
    Ok(out)
}

/// A URL's path: as it is written if all of it may stand so, otherwise escaped again. Upstream: `EscapedPath`.
fn encoded(path: &str) -> Result<String, NoUrl> {
    let plain = unescaped(path)?;
    let may_stand = |byte: u8| is_path_byte(byte) || b"!'()*[]%".contains(&byte);
    Ok(if path.bytes().all(may_stand) { path.to_owned() } else { escaped(&plain) })
}

/// ASCII that Go leaves in a path.
fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@".contains(&byte)
}

/// All of the bytes as a path.
fn escaped(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len() + 1);
    if path.first() != Some(&b'/') {
        out.push('/');
    }
    for byte in path {
        if is_path_byte(*byte) {
            out.push(char::from(*byte));
        } else {
            percent(*byte, &mut out);
        }
    }
    out
}

fn percent(byte: u8, out: &mut String) {
    out.push('%');
    for nibble in [byte >> 4, byte & 15] {
        out.extend(char::from_digit(u32::from(nibble), 16).map(|c| c.to_ascii_uppercase()));
    }
}

/// Path and query as they go on the wire: nothing that would end the request line, no fragment.
pub(super) fn target(path: &str) -> String {
    let path = path.split('#').next().unwrap_or("");
    let mut out = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        out.push('/');
    }
    for byte in path.bytes() {
        match byte {
            0..=0x20 | 0x7f.. | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => {
                percent(byte, &mut out);
            }
            _ => out.push(char::from(byte)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_as_upstream_reads_them() {
        let table = [
            ("", "/"),
            ("/a?b=c#d", "/a?b=c"),
            ("healthz", "/healthz"),
            ("*", "/*"),
            ("/a?", "/a?"),
            ("?q", "/?q"),
            // A whole URL: its server is replaced.
            ("http://localhost:8080/healthz", "/healthz"),
            ("HTTPS://localhost/healthz?x=/y#z", "/healthz?x=/y"),
            ("grpc+x-1.0://localhost", "/"),
            ("http:///x", "/x"),
            ("http:/x", "/x"),
            // Go looks for the query before it looks for the host.
            ("http://x?q", "/?q"),
            ("http:", "/"),
            ("http:?q", "/?q"),
            ("http:////x", "//x"),
            ("http://[fe80::1%25en%20]:80/x", "/x"),
            ("http://b%C3%BCcher/x", "/x"),
            ("other://a:b:1/x", "/x"),
            // The same without a scheme.
            ("//foo/bar?q#f", "/bar?q"),
            ("//foo:8080", "/"),
            ("//foo:/x", "/x"),
            ("//foo@bar/x", "/x"),
            ("//a:b:1/x", "/x"),
            ("///foo/bar", "///foo/bar"),
            // An opaque URL, of which Go's client says that it has no host.
            ("localhost:8080/healthz", "8080/healthz"),
            ("a:b c?d#e", "b c?d"),
            // No URL: a path as it is written.
            (":x", "/:x"),
            ("1a:b", "/1a:b"),
            ("a_b:c/d", "/a_b:c/d"),
            ("//foo:bar/x", "//foo:bar/x"),
            ("http://foo:bar/x", "/http://foo:bar/x"),
            ("http://a:b:1/x", "/http://a:b:1/x"),
            ("http://a b/x", "/http://a%20b/x"),
            ("http://a%41/x", "/http://a%2541/x"),
            ("http://[::1/x", "/http://%5B::1/x"),
            ("http://x[::1]/x", "/http://x%5B::1%5D/x"),
            ("http://[10.0.0.1]/x", "/http://%5B10.0.0.1%5D/x"),
            ("http://[fe80::1%25]/x", "/http://%5Bfe80::1%2525%5D/x"),
            ("http://a<@b/x", "/http://a%3C@b/x"),
            ("http://%zz@b/x", "/http://%25zz@b/x"),
            ("%zz", "/%25zz"),
            ("/a?b#%", "/a%3Fb%23%25"),
            ("/a\nb", "/a%0Ab"),
            // Escapes stay as they are, unless another byte of the path needs one.
            ("/a%20b?%zz", "/a%20b?%zz"),
            ("/%41!(b)", "/%41!(b)"),
            ("/%41!(b) c", "/A%21%28b%29%20c"),
            ("%2Fx", "/%2Fx"),
            ("/ä", "/%C3%A4"),
            ("/a:b", "/a:b"),
            ("a/b:c", "/a/b:c"),
            ("/%+1", "/%25+1"),
        ];
        for (written, target) in table {
            assert_eq!(read(written).target, target, "{written}");
        }
    }

    #[test]
    fn a_user_in_the_path_becomes_a_header() {
        let of = |written: &str| read(written).authorization;
        // `u:p w`, `u:`, `:`, `a@b:c`.
        assert_eq!(of("http://u:p%20w@localhost/x").as_deref(), Some("Basic dTpwIHc="));
        assert_eq!(of("//u@localhost/x").as_deref(), Some("Basic dTo="));
        assert_eq!(of("//@localhost/x").as_deref(), Some("Basic Og=="));
        assert_eq!(of("//a@b:c@localhost").as_deref(), Some("Basic YUBiOmM="));
        for without in ["http://localhost/x", "/x@y", "u:p@localhost", "http://u:p@a b/x"] {
            assert_eq!(of(without), None, "{without}");
        }
    }
}
