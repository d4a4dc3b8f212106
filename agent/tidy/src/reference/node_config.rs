//! The page of all keys of NodeConfig: key, type, default and meaning from the schema, which is that of the types; when a key counts
//! and what refuses it from the table of notes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{code, head, opening, row, table, text_of, value};
use crate::Finding;
use crate::tree::SourceFile;

const SCHEMA: &str = "config/schema/node-config.json";
const NOTES: &str = "config/src/node/key_notes.rs";
/// The types whose keys are another document's.
const OTHER_DOCUMENTS: [&str; 2] = ["KubeletPatch", "KubeletConfiguration"];
const ABOUT: &str = "The keys of the document that configures a node. [configuration.md](configuration.md) explains them and has \
the sources; `config/schema/node-config.json` is the same for editors. `[]` stands for an entry of a list, `<name>` for a free name.\n\
\n\
A mistake makes init refuse the whole source that has it. The consoles show source, line, key, value and what is allowed \
([runbook](../runbooks/configuration.md)). In addition to what each section says, init refuses unknown keys, values of another type, \
values out of range, and duplicate keys.";

/// One line of the table.
struct KeyRow {
    key: String,
    kind: String,
    default: String,
    meaning: String,
}

/// The schema with its definitions.
struct Schema<'a> {
    definitions: &'a Value,
    rows: Vec<KeyRow>,
}

pub(super) fn page(files: &[SourceFile]) -> Result<String, Finding> {
    let schema: Value = serde_json::from_str(text_of(files, SCHEMA)?)
        .map_err(|error| Finding::new(SCHEMA, 0, format!("is not JSON: {error}")))?;
    let notes = table(files, NOTES, "KeyNote", 10)?;
    let notes: BTreeMap<&str, (&str, &str)> = notes
        .iter()
        .map(|note| (value(note, "key"), (value(note, "acts"), value(note, "refused"))))
        .collect();
    let mut page =
        opening("NodeConfig", "`config/schema/node-config.json` and `config/src/node/key_notes.rs`", ABOUT);
    let keys =
        schema["properties"].as_object().ok_or_else(|| Finding::new(SCHEMA, 0, "has no properties"))?;
    for (key, property) in keys.iter().filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind")) {
        let Some((acts, refused)) = notes.get(key.as_str()) else {
            let message = format!("has no note about `{key}`: when it counts, and what refuses it");
            return Err(Finding::new(NOTES, 0, message));
        };
        let mut walk = Schema { definitions: &schema["$defs"], rows: Vec::new() };
        walk.key(key, property, false);
        page.push_str(&format!("\n## `{key}`\n\n{}\n\n", description(property)));
        page.push_str(&format!("* A change counts {acts}.\n* init refuses {refused}.\n\n"));
        page.push_str(&head(["key", "type", "default", "meaning"]));
        for KeyRow { key, kind, default, meaning } in walk.rows {
            page.push_str(&row([&code(&key), &kind, &default, &meaning]));
        }
    }
    Ok(page)
}

fn description(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or("")
}

impl<'a> Schema<'a> {
    /// The definition that a schema refers to, with its name; the schema itself without one.
    fn resolve(&self, schema: &'a Value) -> (&'a str, &'a Value) {
        if let Some(choices) = schema["anyOf"].as_array() {
            let choice = choices.iter().find(|choice| choice["type"] != "null");
            return choice.map_or(("", schema), |choice| self.resolve(choice));
        }
        match schema["$ref"].as_str().and_then(|target| target.strip_prefix("#/$defs/")) {
            Some(name) => (name, &self.definitions[name]),
            None => ("", schema),
        }
    }

    /// A key and those below it.
    fn key(&mut self, key: &str, schema: &'a Value, required: bool) {
        let kind = self.words(schema);
        let default = if required { "required".to_owned() } else { default(schema) };
        let meaning = description(schema).to_owned();
        self.rows.push(KeyRow { key: key.to_owned(), kind, default, meaning });
        self.below(key, schema);
    }

    fn below(&mut self, key: &str, schema: &'a Value) {
        let (name, schema) = self.resolve(schema);
        if OTHER_DOCUMENTS.contains(&name) {
            return;
        }
        if schema["items"].is_object() {
            return self.below(&format!("{key}[]"), &schema["items"]);
        }
        if schema["additionalProperties"].is_object() {
            return self.below(&format!("{key}.<name>"), &schema["additionalProperties"]);
        }
        let required =
            |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|r| r == name));
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            self.key(&format!("{key}.{name}"), property, required(name));
        }
    }

    /// The type in words.
    fn words(&self, schema: &'a Value) -> String {
        let (name, schema) = self.resolve(schema);
        if let Some(choices) = schema["oneOf"].as_array() {
            let words = choices.iter().filter_map(|choice| choice["const"].as_str());
            return words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => kinds.iter().find(|kind| *kind != "null").and_then(Value::as_str),
            kind => kind.as_str(),
        };
        match (name, kind.unwrap_or("map")) {
            ("Secret", _) => "text, never shown".to_owned(),
            ("Scalar", _) => "text, number or boolean".to_owned(),
            ("Quantity", _) => "amount, such as 100Mi".to_owned(),
            ("StaticPod", _) => "Pod".to_owned(),
            (_, "string") => "text".to_owned(),
            (_, "boolean") => "true or false".to_owned(),
            (_, "integer") => integer(schema),
            (_, "array") => format!("list: {}", self.words(&schema["items"])),
            _ if schema["additionalProperties"].is_object() => {
                format!("map: {}", self.words(&schema["additionalProperties"]))
            }
            _ => "map".to_owned(),
        }
    }
}

fn integer(schema: &Value) -> String {
    match (schema["minimum"].as_i64(), schema["maximum"].as_i64()) {
        (Some(min), Some(max)) => format!("integer, {min} to {max}"),
        (Some(min), None) => format!("integer, {min} or more"),
        _ => "integer".to_owned(),
    }
}

/// The default, if it is one word.
fn default(schema: &Value) -> String {
    match &schema["default"] {
        Value::String(text) => code(text),
        Value::Bool(on) => code(&on.to_string()),
        Value::Number(number) => code(&number.to_string()),
        _ => code(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(properties: &str, notes: &str) -> Result<String, Finding> {
        let schema = format!(
            "{{\"properties\": {{{properties}}}, \"$defs\": {{\"A\": {{\"properties\": {{\"n\": {{\"type\": [\"integer\", \
             \"null\"], \"minimum\": 1, \"maximum\": 9, \"description\": \"Number.\"}}}}, \"required\": [\"n\"], \"type\": \
             \"object\"}}, \"Mode\": {{\"oneOf\": [{{\"const\": \"x\"}}, {{\"const\": \"y\"}}]}}}}}}"
        );
        let others = (0..9).map(|n| format!("KeyNote {{ key: \"o{n}\", acts: \"\", refused: \"\" }}, "));
        let notes = format!("const A: [KeyNote; 10] = [{}{notes}];", others.collect::<String>());
        page(&[SourceFile::of(SCHEMA, &schema), SourceFile::of(NOTES, &notes)])
    }

    #[test]
    fn lists_maps_and_words_have_their_rows() {
        let properties = "\"a\": {\"description\": \"All.\", \"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/A\"}}, \
                          \"m\": {\"anyOf\": [{\"$ref\": \"#/$defs/Mode\"}, {\"type\": \"null\"}], \"default\": \"x\"}";
        let both = "KeyNote { key: \"a\", acts: \"at each boot\", refused: \"nothing\" }, KeyNote { key: \"m\", acts: \"\", refused: \"b\" }";
        let text = made(properties, both).unwrap();
        assert!(
            text.contains("## `a`\n\nAll.\n\n* A change counts at each boot.\n* init refuses nothing.\n"),
            "{text}"
        );
        assert!(
            text.contains(
                "| `a` | list: map | – | All. |\n| `a[].n` | integer, 1 to 9 | required | Number. |\n"
            ),
            "{text}"
        );
        assert!(text.contains("| `m` | `x`, `y` | `x` |  |\n"), "{text}");
    }

    #[test]
    fn a_key_without_a_note_is_found() {
        let error =
            made("\"a\": {\"type\": \"string\"}", "KeyNote { key: \"b\", acts: \"\", refused: \"\" }")
                .unwrap_err();
        assert!(error.file == NOTES && error.message.contains("`a`"), "{error}");
    }
}
