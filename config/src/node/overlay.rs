//! `orlop.set=path=value`: one key from the kernel command line.
//!
//! In: the text after `orlop.set=`. Out: a merge patch. The path is read along the shape of NodeConfig, so a key
//! with dots needs no quotes where only one reading is left (`kernel.sysctls.net.ipv4.ip_forward=1`).

use super::types::NodeConfig;
use crate::field::{Describe, Kind};
use crate::path;
use crate::yaml;
use serde_json::{Map, Value};

/// A key and its value as a merge patch; the path is for messages and holds no value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Overlay {
    pub(super) path: String,
    pub(super) patch: Value,
}

/// Reads `path=value`. The value is YAML in one line; nothing after `=` takes the key back.
///
/// # Errors
/// The path for messages, and what is wrong with it.
pub(super) fn parse(text: &str) -> Result<Overlay, (String, String)> {
    let Some((path, value)) = split(text) else {
        return Err((String::new(), "must be path=value".to_owned()));
    };
    let (keys, kind) = resolve(path).map_err(|reason| (path.to_owned(), reason))?;
    let parsed = yaml::parse(value).map_err(|e| (path.to_owned(), format!("is no YAML value: {e}")))?;
    let value = match (kind, parsed.value) {
        // A name may look like a number.
        (Kind::Str | Kind::Enum(_) | Kind::Scalar, Value::Number(_) | Value::Bool(_)) => Value::from(value),
        (_, value) => value,
    };
    let dotted = keys.iter().fold(String::new(), |p, k| path::child(&p, k));
    let patch = keys.into_iter().rev().fold(value, |value, key| {
        let mut map = Map::new();
        map.insert(key, value);
        Value::Object(map)
    });
    Ok(Overlay { path: dotted, patch })
}

/// At the first `=` outside quotes.
fn split(text: &str) -> Option<(&str, &str)> {
    let mut quoted = false;
    let at = text.bytes().position(|b| {
        quoted ^= b == b'"';
        b == b'=' && !quoted
    })?;
    Some((&text[..at], &text[at + 1..]))
}

/// The keys of a path, and the kind of value it leads to.
fn resolve(text: &str) -> Result<(Vec<String>, &'static Kind), String> {
    let mut kind = NodeConfig::KIND;
    let mut keys = Vec::new();
    let mut rest = text;
    loop {
        if let Kind::Map(inner) = kind
            && !matches!(inner, Kind::Object(_) | Kind::Map(_))
            && !rest.starts_with('"')
        {
            // Only one reading is left: all of it is the key.
            keys.push(rest.to_owned());
            return Ok((keys, inner));
        }
        let (key, tail) = path::split_first(rest).ok_or("is no path: write keys with dots between")?;
        kind = match kind {
            Kind::Object(fields) => {
                let field = fields.iter().find(|f| f.name == key);
                let list = key.contains('[');
                field.map(|f| f.kind).ok_or_else(|| match list {
                    true => "lists are set whole: write path=[a, b]".to_owned(),
                    false => format!("has an unknown field {key}"),
                })?
            }
            Kind::Map(inner) => inner,
            _ => return Err(format!("{} holds no keys", keys.join("."))),
        };
        keys.push(key);
        if tail.is_empty() {
            return Ok((keys, kind));
        }
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn keys_with_and_without_dots() {
        let table = [
            ("node.name=a", json!({"node": {"name": "a"}})),
            ("node.name=7", json!({"node": {"name": "7"}})),
            ("node.name=", json!({"node": {"name": null}})),
            ("console.podOutput=true", json!({"console": {"podOutput": true}})),
            (
                "kernel.sysctls.net.ipv4.ip_forward=1",
                json!({"kernel": {"sysctls": {"net.ipv4.ip_forward": "1"}}}),
            ),
            ("labels.example.com/a=b=c", json!({"labels": {"example.com/a": "b=c"}})),
            ("labels.\"a=b\"=c", json!({"labels": {"a=b": "c"}})),
            ("kubelet.maxPods=5", json!({"kubelet": {"maxPods": 5}})),
            (
                "kubelet.evictionHard.memory.available=5%",
                json!({"kubelet": {"evictionHard": {"memory.available": "5%"}}}),
            ),
            (
                "kubelet.featureGates.MemoryQoS=true",
                json!({"kubelet": {"featureGates": {"MemoryQoS": true}}}),
            ),
            (
                "registries.mirrors.\"docker.io\".endpoints=[https://m.example]",
                json!({"registries": {"mirrors": {"docker.io": {"endpoints": ["https://m.example"]}}}}),
            ),
            ("time.servers=[a, b]", json!({"time": {"servers": ["a", "b"]}})),
        ];
        for (text, patch) in table {
            assert_eq!(parse(text).expect(text).patch, patch, "{text}");
        }
    }

    #[test]
    fn mistakes() {
        let table = [
            ("", "must be path=value"),
            ("node.name", "must be path=value"),
            ("=x", "is no path: write keys with dots between"),
            ("nod.name=x", "has an unknown field nod"),
            ("node.name.x=y", "node.name holds no keys"),
            ("network.interfaces[0].dhcp=true", "lists are set whole: write path=[a, b]"),
            ("node.name=[", "is no YAML value: "),
        ];
        for (text, want) in table {
            let (_, reason) = parse(text).expect_err(text);
            assert!(reason.starts_with(want), "{text}: {reason}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "\\PC{0,60}") {
            let _ = parse(&text);
        }
    }
}
