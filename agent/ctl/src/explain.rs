//! `explain`: the kinds of objects and their fields, by the protocol's own text. It asks no node.
//!
//! In: `node.proto` and `operations.proto`, as this program was built with; a path such as `services.mainPid`. Out: fields with types and
//! meanings. Invariant: names are those of the documents that `-o json` shows. Why the text: comments of messages are not in the generated
//! code, and a second list of fields would be another truth.

use clap::Args;
use serde_json::{Value, json};

use crate::cli::OutputForm;
use crate::commands::{Verdict, show};
use crate::failure::CtlError;
use crate::render::table;

const TEXTS: [&str; 2] = [
    include_str!("../../../proto/proto/orlop/node/v1alpha1/node.proto"),
    include_str!("../../../proto/proto/orlop/node/v1alpha1/operations.proto"),
];
/// The message of all objects.
const OBJECT: &str = "Object";
/// Fields whose kinds are no plurals.
const NOT_PLURAL: [&str; 4] = ["node", "boot", "memory", "time"];
/// What is not a kind, but in each object.
const METADATA: (&str, &str) = ("metadata", "Meta");

/// What is explained.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A kind, `metadata`, or a field: services, services.mainPid; without it: the kinds
    #[arg(value_name = "KIND[.FIELD]")]
    path: Option<String>,
}

/// A field of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProtoField {
    name: String,
    /// `repeated`, `optional`, or empty.
    label: String,
    kind: String,
    about: String,
    /// It is one of several, of which an object has one.
    is_alternative: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ProtoMessage {
    name: String,
    fields: Vec<ProtoField>,
}

/// Shows kinds or fields.
pub(crate) fn run(form: OutputForm, args: &ExplainArgs) -> Result<Verdict, CtlError> {
    let messages: Vec<ProtoMessage> = TEXTS.iter().flat_map(|text| messages(text)).collect();
    let rows = match args.path.as_deref() {
        None => kinds(&messages),
        Some(path) => explained(&messages, path)?,
    };
    let document: Vec<Value> =
        rows.iter().map(|row| json!({ "name": row[0], "type": row[1], "meaning": row[2] })).collect();
    let text = || {
        let rows = rows.iter().map(|row| row.to_vec()).collect();
        table::table(&["NAME", "TYPE", "MEANING"], rows)
    };
    show(form, &Value::Array(document), text)?;
    Ok(Verdict::Fine)
}

/// Name, type and meaning.
type ExplainedRow = [String; 3];

fn kinds(messages: &[ProtoMessage]) -> Vec<ExplainedRow> {
    let object = messages.iter().find(|message| message.name == OBJECT);
    let alternatives =
        object.into_iter().flat_map(|object| &object.fields).filter(|field| field.is_alternative);
    let row = |field: &ProtoField| {
        let fields = fields_of(messages, &field.kind).into_iter().map(|field| camel(&field.name));
        [kind_of(&field.name), field.kind.clone(), fields.collect::<Vec<String>>().join(", ")]
    };
    alternatives.map(row).collect()
}

/// The kind of a field of all objects, as requests name it.
fn kind_of(field: &str) -> String {
    match field {
        _ if NOT_PLURAL.contains(&field) => field.to_owned(),
        _ if field.ends_with('s') => format!("{field}es"),
        _ => format!("{field}s"),
    }
}

/// The fields of what a path names, or the one field that it names.
fn explained(messages: &[ProtoMessage], path: &str) -> Result<Vec<ExplainedRow>, CtlError> {
    let missing = |name: &str| {
        CtlError::NotFound(format!("{name:?} in {path:?}; `orlopctl explain` lists kinds and their fields"))
    };
    let mut names = path.split('.');
    let kind = names.next().unwrap_or_default();
    let mut message = message_of(messages, kind).ok_or_else(|| missing(kind))?;
    let mut last = None;
    for name in names {
        let fields = fields_of(messages, &message);
        let field = fields.into_iter().find(|field| camel(&field.name) == name || field.name == name);
        let field = field.ok_or_else(|| missing(name))?;
        message = field.kind.clone();
        last = Some(field);
    }
    let inner = fields_of(messages, &message);
    Ok(last.into_iter().chain(inner).map(row).collect())
}

/// The message of a kind, whose name is the plural of its field.
fn message_of(messages: &[ProtoMessage], kind: &str) -> Option<String> {
    if kind == METADATA.0 {
        return Some(METADATA.1.to_owned());
    }
    let is_kind = |field: &&ProtoField| {
        let ending = kind.strip_prefix(field.name.as_str());
        field.is_alternative && ending.is_some_and(|ending| ["", "s", "es"].contains(&ending))
    };
    fields_of(messages, OBJECT).into_iter().find(is_kind).map(|field| field.kind.clone())
}

fn fields_of<'a>(messages: &'a [ProtoMessage], name: &str) -> Vec<&'a ProtoField> {
    messages.iter().filter(|message| message.name == name).flat_map(|message| &message.fields).collect()
}

fn row(field: &ProtoField) -> ExplainedRow {
    let kind = match field.label.as_str() {
        "repeated" => format!("list of {}", field.kind),
        "optional" => format!("{}, may be absent", field.kind),
        _ => field.kind.clone(),
    };
    [camel(&field.name), kind, field.about.clone()]
}

/// `main_pid` as documents have it: `mainPid`.
fn camel(name: &str) -> String {
    let mut text = String::new();
    let mut begins = false;
    for c in name.chars() {
        match c {
            '_' => begins = true,
            c if begins => {
                text.push(c.to_ascii_uppercase());
                begins = false;
            }
            c => text.push(c),
        }
    }
    text
}

/// The messages of a file in our own style: one field a line, comments above it.
fn messages(text: &str) -> Vec<ProtoMessage> {
    let mut found: Vec<ProtoMessage> = Vec::new();
    let (mut about, mut is_open, mut is_alternative) = (Vec::new(), false, false);
    for line in text.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("//") {
            about.push(comment.trim());
            continue;
        }
        let comment = std::mem::take(&mut about).join(" ");
        if let Some(rest) = line.strip_prefix("message ") {
            // One with its end in the same line has no kind of ours.
            if let Some(name) = rest.strip_suffix('{') {
                found.push(ProtoMessage { name: name.trim().to_owned(), fields: Vec::new() });
                is_open = true;
            }
        } else if line.starts_with("oneof ") {
            is_alternative = true;
        } else if line == "}" {
            // The end of the alternatives, or of the message.
            is_open &= is_alternative;
            is_alternative = false;
        } else if let Some(message) = found.last_mut().filter(|_| is_open) {
            message.fields.extend(field(line, comment, is_alternative));
        }
    }
    found
}

fn field(line: &str, about: String, is_alternative: bool) -> Option<ProtoField> {
    let (definition, _) = line.split_once('=')?;
    let words: Vec<&str> = definition.split_whitespace().collect();
    let (label, kind, name) = match words[..] {
        [kind, name] => ("", kind, name),
        [label, kind, name] => (label, kind, name),
        _ => return None,
    };
    let [label, kind, name] = [label, kind, name].map(str::to_owned);
    Some(ProtoField { name, label, kind, about, is_alternative })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use orlop_node_api::kinds::ObjectKind;

    use super::*;

    fn all() -> Vec<ProtoMessage> {
        TEXTS.iter().flat_map(|text| messages(text)).collect()
    }

    fn of(path: &str) -> Vec<ExplainedRow> {
        explained(&all(), path).unwrap()
    }

    #[test]
    fn each_kind_of_a_node_is_explained() {
        for kind in ObjectKind::ALL {
            assert!(!of(kind.name()).is_empty(), "{}", kind.name());
        }
        let shown: BTreeSet<String> = kinds(&all()).into_iter().map(|[name, ..]| name).collect();
        let wanted: BTreeSet<String> = ObjectKind::ALL.iter().map(|kind| kind.name().to_owned()).collect();
        assert_eq!(shown, wanted, "a kind is shown as `get` takes it");
    }

    #[test]
    fn fields_have_types_and_meanings() {
        let services = of("services");
        let row = |name: &str| services.iter().find(|row| row[0] == name).unwrap();
        assert_eq!(row("mainPid")[1..], ["uint64".to_owned(), String::new()]);
        assert_eq!(row("memoryBytes")[1], "uint64, may be absent");
        assert_eq!(row("status")[2], "What the service says of itself.");
        assert_eq!(of("disks.partitions"), [["partitions", "list of string", ""].map(str::to_owned)]);
        let pods = of("operations.pods");
        assert_eq!((pods[0][0].as_str(), pods[1][0].as_str()), ("pods", "inOrder"));
        assert_eq!(of("operations.pods.notEnded").len(), 1);
        assert!(of("metadata").iter().any(|row| row[0] == "bootId"));
    }

    #[test]
    fn what_is_not_there_is_named() {
        for path in ["", "pods", "servicess", "services.none", "services.mainPid.x", "objects"] {
            assert_eq!(explained(&all(), path).unwrap_err().exit_code(), 1, "{path}");
        }
        assert_eq!(camel("pressure_some_60s"), "pressureSome60s");
    }
}
