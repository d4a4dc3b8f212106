//! The text that an installed disk gets in place of the sources on the medium that it came from.
//!
//! In: the medium's documents in rising precedence. Out: one document that has the effect of all of them, without
//! `install`: the disk is not to install itself elsewhere. It may hold a token, as its sources do.

use super::effective::Source;
use super::types::{API_VERSION, KIND};
use crate::merge;
use crate::yaml;
use serde_json::{Map, Value, json};

/// The documents as one, as JSON; `None` without any. Nulls stay: they take back keys of sources that are merged before
/// this one. A document that is not YAML adds nothing; [`super::load`] has refused it.
#[must_use]
pub fn carried(sources: &[Source]) -> Option<String> {
    if sources.is_empty() {
        return None;
    }
    let mut whole = Value::Object(Map::new());
    for source in sources {
        if let Ok(document) = yaml::parse(&source.text) {
            merge::apply_keeping_nulls(&mut whole, document.value);
        }
    }
    let Value::Object(map) = &mut whole else { return None };
    map.remove("install");
    map.insert("apiVersion".to_owned(), json!(API_VERSION));
    map.insert("kind".to_owned(), json!(KIND));
    let mut text = serde_json::to_string_pretty(&whole).ok()?;
    text.push('\n');
    Some(text)
}

/// Does a document ask for an installation? Also one that [`super::load`] refuses: a stick whose text has a mistake must
/// not become a node.
#[must_use]
pub fn asks_to_install(source: &Source) -> bool {
    match yaml::parse(&source.text) {
        Ok(document) => document.value.get("install").is_some_and(|value| !value.is_null()),
        Err(_) => source.text.lines().any(names_install),
    }
}

/// Has a line of a text that cannot be parsed a key `install`, at whatever depth and in quotes or not? A key of that name
/// further down, or in a value, is taken for it, too: the boot ends and says why, where it would go on with half of a
/// configuration.
fn names_install(line: &str) -> bool {
    const KEY: &str = "install";
    let is_quote = |c: char| c == '"' || c == '\'';
    let is_key = |at: usize| {
        let before = line[..at].trim_end_matches(is_quote).chars().next_back();
        let after = line[at + KEY.len()..].trim_start_matches(is_quote).trim_start();
        before.is_none_or(|c| c.is_whitespace() || c == '{' || c == ',' || c == '\u{feff}')
            && after.starts_with(':')
    };
    !line.trim_start().starts_with('#') && line.match_indices(KEY).any(|(at, _)| is_key(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::load;
    use crate::node::tests::source;

    const TOKEN: &str = "abcdef.0123456789abcdef";

    #[test]
    fn all_of_the_medium_but_the_installer_with_its_secrets() {
        let join = format!("join: {{server: 'https://a', token: {TOKEN}, caData: YWJj}}");
        let esp = source(
            "esp",
            &format!("install: {{disk: S1}}\nnode: {{name: a}}\nlabels: {{x: null, y: '1'}}\n{join}"),
        );
        let drive = source("drive", "node: {name: '7'}\nkubelet: {maxPods: 5}\ninstall: {wipe: true}");
        assert!(load(&[esp.clone(), drive.clone()], &[]).config.install.expect("asked for").wipe);
        let text = carried(&[esp, drive]).expect("a document");
        // What the image has set is taken back by the null.
        let image = source("image", "labels: {x: '1'}");
        let copied = Source { name: "esp".into(), origin: "ESP".into(), text };
        let effective = load(&[image, copied], &[]);
        assert_eq!(effective.problems, []);
        let config = effective.config;
        assert_eq!((config.node.name.as_str(), config.install), ("7", None));
        assert_eq!(config.labels, [("y".to_owned(), "1".to_owned())].into());
        assert_eq!(config.join.expect("kept").token.expect("kept").reveal(), TOKEN);
        assert_eq!(effective.kubelet.max_pods, 5);
    }

    #[test]
    fn a_refused_document_asks_all_the_same() {
        for (body, asks) in [
            ("install: {disk: sda}", true),
            ("nod: {}\ninstall: {disk: S1}", true),
            ("node: [\ninstall: {disk: S1}", true),
            ("node: [\n  install: {disk: S1}", true),
            ("node: [\n{\"install\": {\"disk\": \"S1\"}}", true),
            ("node: [\n{node: {}, 'install' : {disk: S1}}", true),
            ("node: [\n? install\n# install: {disk: S1}", false),
            ("node: [\nuninstall: {disk: S1}\ninstaller: x\na: install", false),
            ("install: null", false),
            ("node: {name: install}", false),
        ] {
            assert_eq!(asks_to_install(&source("esp", body)), asks, "{body}");
        }
    }

    #[test]
    fn nothing_of_nothing() {
        assert_eq!(carried(&[]), None);
        let alone = carried(&[source("esp", "install: {disk: S1}")]).expect("a document");
        let copied = Source { name: "esp".into(), origin: "ESP".into(), text: alone };
        assert_eq!(load(&[copied], &[]).problems, []);
    }
}
