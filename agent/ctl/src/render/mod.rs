//! Forms of output. Pure.
//!
//! Invariant: text for people has no control characters of a node's, a pod's or a stranger's texts: a terminal obeys them.

pub(crate) mod amounts;
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
        c if c.is_control() => '?',
        c => c,
    };
    text.chars().map(shown).collect()
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
        assert_eq!(plain("a\u{1b}[2J\nb\tc\u{9b}é"), "a?[2J b\tc?é");
    }
}
