//! Forms of output. Pure.
//!
//! Invariant: no output has control characters of a node's, a pod's or a stranger's texts, and none that change the direction of what
//! is shown: a terminal obeys them.

pub(crate) mod amounts;
pub(crate) mod boot_plot;
pub(crate) mod jsonpath;
pub(crate) mod operation;
pub(crate) mod processes;
pub(crate) mod screen;
pub(crate) mod table;

use orlop_proto::node_api::API_VERSION;
use orlop_proto::node_api::v1alpha1::{GetResponse, Object, VersionInfo};
use serde_json::{Value, json};

/// A text without control characters but tabs; line ends of a message stay apart.
pub(crate) fn plain(text: &str) -> String {
    let shown = |c: char| match c {
        '\t' => '\t',
        '\n' => ' ',
        c if c.is_control() || is_direction(c) => '?',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// A character that changes the order in which a terminal shows others (Unicode UAX #9), or ends their line.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A JSON text, or a YAML text with JSON's strings, in which also those control characters are escaped that JSON lets stand.
pub(crate) fn escaped(document: &str) -> String {
    let mut text = String::with_capacity(document.len());
    for c in document.chars() {
        if (c.is_control() && c != '\n') || is_direction(c) {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

/// The objects and failures of an answer as one document.
pub(crate) fn list(response: &GetResponse) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "List",
        "items": response.objects,
        "failures": response.failures,
    })
}

/// The name of an object.
pub(crate) fn name(object: &Object) -> &str {
    object.metadata.as_ref().map_or("", |meta| meta.name.as_str())
}

/// One line for each object.
pub(crate) fn names(objects: &[Object]) -> String {
    let line = |object: &Object| format!("{}/{}\n", plain(&object.kind), plain(name(object)));
    objects.iter().map(line).collect()
}

/// Versions for people.
pub(crate) fn version(own: &str, node: &VersionInfo) -> String {
    let rows = [
        ("client", own),
        ("node", node.node.as_str()),
        ("image", node.image_version.as_str()),
        ("server", node.server_version.as_str()),
        ("API", node.api_version.as_str()),
        ("server key", node.server_key.as_str()),
        ("kernel", node.kernel.as_str()),
        ("architecture", node.architecture.as_str()),
        ("boot", node.boot_id.as_str()),
    ];
    rows.iter().map(|(key, value)| format!("{key:<13}{}\n", plain(value))).collect()
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::v1alpha1::object::Status;
    use orlop_proto::node_api::v1alpha1::{Meta, TimeStatus};

    use super::*;

    fn clock() -> Object {
        Object {
            api_version: API_VERSION.to_owned(),
            kind: "time".to_owned(),
            metadata: Some(Meta { name: "clock".to_owned(), ..Meta::default() }),
            status: Some(Status::Time(TimeStatus {
                now: "2026".to_owned(),
                ntp_synchronized: true,
                ..TimeStatus::default()
            })),
        }
    }

    #[test]
    fn a_list_is_one_document_with_failures() {
        let response = GetResponse { objects: vec![clock()], failures: Vec::new() };
        let document = list(&response);
        assert_eq!(document["items"][0]["status"]["ntpSynchronized"], true);
        assert_eq!((&document["kind"], &document["failures"]), (&json!("List"), &json!([])));
        let yaml = orlop_config::yaml_emit::emit(&document);
        assert!(yaml.contains("ntpSynchronized: true"), "{yaml}");
        assert_eq!(names(&response.objects), "time/clock\n");
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(plain("a\u{1b}[2J\nb\tc\u{9b}é\u{202e}"), "a?[2J b\tc?é?");
        let document = json!({"a": "\u{1b}[2J\n\u{9b}é\u{202e}\u{7f}"});
        for text in
            [format!("{document}\n"), format!("{document:#}"), orlop_config::yaml_emit::emit(&document)]
        {
            let text = escaped(&text);
            assert!(text.contains("\\n\\u009bé\\u202e\\u007f") && text.contains("\\u001b[2J"), "{text}");
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        }
        assert_eq!(serde_json::from_str::<Value>(&escaped(&document.to_string())).unwrap(), document);
    }
}
