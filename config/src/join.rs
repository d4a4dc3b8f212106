//! The file that names the cluster to join: init writes it from NodeConfig's `join`, the agent reads it
//! (`--join FILE`).
//!
//! In: text. Out: [`Join`], or everything that is wrong with it; and back. Invariants: the token is never in a
//! message; a file that is taken names a server and something to know it by. See docs/reference/configuration.md.

use crate::field::{self, Describe};
use crate::node::{Join, validate_join};
use crate::problem::{ConfigError, Problem};
use crate::yaml;
use crate::yaml_emit;
use serde_json::json;

/// A kubeconfig of the operator says where the cluster is, so there is no file of this module.
#[must_use]
pub fn has_kubeconfig(join: &Join) -> bool {
    join.kubeconfig.is_some() || join.bootstrap_kubeconfig.is_some()
}

/// What is missing for joining at all, by key; a token may be missing where the node has its identity already.
#[must_use]
pub fn missing(join: &Join) -> Vec<&'static str> {
    if has_kubeconfig(join) {
        return Vec::new();
    }
    let missing = [
        ("server", join.server.is_empty()),
        ("caData or caCertHashes", join.ca_data.is_none() && join.ca_cert_hashes.is_empty()),
    ];
    missing.iter().filter(|(_, missing)| *missing).map(|(key, _)| *key).collect()
}

/// The file's text, **with the token**: for a file of mode 0600 in memory.
#[must_use]
pub fn render(join: &Join) -> String {
    let mut value = json!({ "server": join.server });
    if let Some(token) = &join.token {
        value["token"] = token.reveal().into();
    }
    if let Some(data) = &join.ca_data {
        value["caData"] = data.as_str().into();
    }
    if !join.ca_cert_hashes.is_empty() {
        value["caCertHashes"] = join.ca_cert_hashes.clone().into();
    }
    yaml_emit::emit(&value)
}

/// Reads the file at `path`.
///
/// # Errors
/// Syntax, unknown fields, wrong types and forms, a server or CA that is missing; values are not shown.
pub fn parse(text: &str, path: &str) -> Result<Join, ConfigError> {
    let problem = |reason: String| Problem { source: path.to_owned(), reason, ..Problem::default() };
    // The parser's words may quote the text, and the text may hold the token.
    let document = yaml::parse(text).map_err(|e| Problem {
        line: Some(e.line),
        ..problem("is not the YAML of a map with server, token, caData, caCertHashes".to_owned())
    })?;
    let value = if document.value.is_null() { json!({}) } else { document.value.clone() };
    let mut problems = field::check(&value, Join::KIND, path, &document, false);
    for found in &mut problems {
        found.value = None;
    }
    ConfigError::check(problems)?;
    let join: Join =
        serde_json::from_value(value).map_err(|_| problem("has a field of a wrong type".to_owned()))?;
    if has_kubeconfig(&join) {
        let reason =
            "names a kubeconfig: that is --kubeconfig or --bootstrap-kubeconfig, and not this file's";
        return Err(ConfigError::from(problem(reason.to_owned())));
    }
    let mut problems = validate_join(&join, path, &document);
    let missing = missing(&join);
    if !missing.is_empty() {
        problems.push(problem(format!("lacks {}", missing.join(", "))));
    }
    ConfigError::check(problems)?;
    Ok(join)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Secret;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    #[test]
    fn what_is_written_is_read() {
        let hash = format!("sha256:{}", "ab".repeat(32));
        let joins = [
            Join {
                server: "https://api:6443".to_owned(),
                token: Some(Secret::new(TOKEN)),
                ca_data: Some("YWJj".to_owned()),
                ca_cert_hashes: vec![hash.clone()],
                ..Join::default()
            },
            Join { server: "https://api".to_owned(), ca_cert_hashes: vec![hash], ..Join::default() },
        ];
        for join in joins {
            assert_eq!(parse(&render(&join), "/run/orlop/join.yaml").expect("reads back"), join);
        }
    }

    #[test]
    fn what_is_wrong_is_named_without_values() {
        for (text, said) in [
            ("", "lacks server, caData or caCertHashes"),
            ("server: https://a\n", "lacks caData or caCertHashes"),
            ("caData: YWJj\n", "lacks server"),
            ("server: http://a\ncaData: YWJj\n", "join.server: must be an https:// URL"),
            (
                "server: https://a\ncaData: YWJj\ntoken: zyxwvu.9876543210fedcbaX\n",
                "join.token: must have the form",
            ),
            ("server: https://a\ntokn: zyxwvu.9876543210fedcba\n", "tokn"),
            ("kubeconfig: /a\n", "names a kubeconfig"),
            ("server: [zyxwvu.9876543210fedcba]\n", "server"),
            ("zyxwvu.9876543210fedcba: {\n", "is not the YAML"),
        ] {
            let message = parse(text, "/j").expect_err(text).to_string();
            assert!(message.contains(said) && message.contains("/j"), "{text}: {message}");
            assert!(!message.contains("9876543210"), "{text}: {message}");
        }
    }
}
