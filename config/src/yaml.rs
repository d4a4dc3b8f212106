//! YAML or JSON text to one JSON value, with the line of every key.
//!
//! Scalars follow a [`Schema`]: the YAML 1.2 core schema for what is ours, so `no` and `on` are text and numbers with
//! leading zeros are refused (two readings); YAML 1.1 for what tools of Kubernetes write. Refused: duplicate keys, more
//! than one document, keys that are no scalars, tags beyond the core ones, and documents that nest too deeply or grow
//! beyond a bound through aliases. Errors name a line and never quote values.

use crate::field::Lines;
use crate::path;
use granit_parser::{Event, Parser, ScalarStyle, Tag};
use serde_json::{Map, Number, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Most values in a document, aliases expanded.
const VALUES_MAX: usize = 200_000;
/// Deepest nesting: readers of the value recurse (`serde_json` to 128).
const DEPTH_MAX: usize = 64;

/// What plain scalars mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schema {
    /// YAML 1.2, core schema.
    #[default]
    Core,
    /// YAML 1.1 as Kubernetes' own reader has it: `yes` is true, `0644` is octal.
    V1_1,
}

/// A parsed document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// Its value; null for an empty text.
    pub value: Value,
    lines: BTreeMap<String, usize>,
}

/// Why a text is no document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct YamlError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong and what to write instead.
    pub reason: String,
}

impl Lines for Document {
    /// Line of the key, or of the nearest one above it that stands in the text.
    fn line(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(line) = self.lines.get(path) {
                return Some(*line);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }
}

/// Reads one document.
///
/// # Errors
/// [`YamlError`] with the line of the first mistake.
pub fn parse(text: &str) -> Result<Document, YamlError> {
    parse_as(text, Schema::Core)
}

/// Reads one document whose scalars follow `schema`.
///
/// # Errors
/// [`YamlError`] with the line of the first mistake.
pub fn parse_as(text: &str, schema: Schema) -> Result<Document, YamlError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder { schema, ..Builder::default() };
    for event in Parser::new_from_str(text) {
        match event {
            Ok((event, span)) => builder.event(event, span.start.line())?,
            Err(e) => return Err(YamlError { line: e.marker().line(), reason: e.info() }),
        }
    }
    Ok(Document { value: builder.root.unwrap_or_default(), lines: builder.lines })
}

/// A collection that is not complete yet.
#[derive(Debug)]
enum Frame {
    Map { map: Map<String, Value>, key: Option<String>, merges: Vec<Value>, path: String, anchor: usize },
    List { list: Vec<Value>, path: String, anchor: usize },
}

#[derive(Debug, Default)]
struct Builder {
    schema: Schema,
    stack: Vec<Frame>,
    root: Option<Value>,
    documents: usize,
    anchors: BTreeMap<usize, Value>,
    lines: BTreeMap<String, usize>,
    values: usize,
}

/// Key under which the values of merge keys (`<<`) are kept apart.
const MERGE: &str = "<<";

impl Builder {
    fn event(&mut self, event: Event<'_>, line: usize) -> Result<(), YamlError> {
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err(at(line, "a second document starts here: only one is allowed"));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                if self.wants_key() {
                    return self.key(&text, style, line);
                }
                let value =
                    scalar(self.schema, &text, style, tag.as_deref()).map_err(|reason| at(line, reason))?;
                self.count(1, line)?;
                self.place(value, anchor, line)?;
            }
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned();
                let value = value.ok_or_else(|| at(line, "an alias inside the value it stands for"))?;
                if self.wants_key() {
                    return match value {
                        Value::String(key) => self.key(&key, ScalarStyle::DoubleQuoted, line),
                        _ => Err(at(line, "a key must be text")),
                    };
                }
                self.count(size(&value), line)?;
                self.place(value, 0, line)?;
            }
            Event::MappingStart(_, anchor, tag) => {
                let path = self.open(tag.as_deref(), "map", line)?;
                self.stack.push(Frame::Map { map: Map::new(), key: None, merges: Vec::new(), path, anchor });
            }
            Event::SequenceStart(_, anchor, tag) => {
                let path = self.open(tag.as_deref(), "seq", line)?;
                self.stack.push(Frame::List { list: Vec::new(), path, anchor });
            }
            Event::MappingEnd | Event::SequenceEnd => self.close(line)?,
            _ => {}
        }
        Ok(())
    }

    fn wants_key(&self) -> bool {
        matches!(self.stack.last(), Some(Frame::Map { key: None, .. }))
    }

    fn count(&mut self, n: usize, line: usize) -> Result<(), YamlError> {
        self.values += n;
        if self.values > VALUES_MAX { Err(at(line, "the document is too large")) } else { Ok(()) }
    }

    fn key(&mut self, text: &str, style: ScalarStyle, line: usize) -> Result<(), YamlError> {
        let Some(Frame::Map { map, key, merges, path, .. }) = self.stack.last_mut() else {
            return Ok(());
        };
        let merge = text == MERGE && style == ScalarStyle::Plain;
        if merge && !merges.is_empty() || map.contains_key(text) {
            let path = path::child(path, text);
            return Err(at(line, format!("duplicate key {path}")));
        }
        self.lines.insert(path::child(path, text), line);
        *key = Some(text.to_owned());
        if merge {
            // Marks the merge key as seen; the value replaces it in `place`.
            merges.push(Value::Null);
        }
        Ok(())
    }

    /// Path of the collection that starts here.
    fn open(&mut self, tag: Option<&Tag>, core: &str, line: usize) -> Result<String, YamlError> {
        if tag.is_some_and(|t| t.core_suffix() != Some(core)) {
            return Err(at(line, "an unknown tag: only the core tags of YAML are allowed"));
        }
        self.count(1, line)?;
        if self.stack.len() >= DEPTH_MAX {
            return Err(at(line, "the document nests too deeply"));
        }
        match self.stack.last() {
            Some(Frame::Map { key: None, .. }) => Err(at(line, "a key must be text")),
            Some(Frame::Map { key: Some(key), path, .. }) => Ok(path::child(path, key)),
            Some(Frame::List { list, path, .. }) => {
                let path = path::index(path, list.len());
                self.lines.insert(path.clone(), line);
                Ok(path)
            }
            None => Ok(String::new()),
        }
    }

    fn close(&mut self, line: usize) -> Result<(), YamlError> {
        match self.stack.pop() {
            Some(Frame::Map { mut map, merges, anchor, .. }) => {
                for merged in merges {
                    merge_into(&mut map, merged).map_err(|reason| at(line, reason))?;
                }
                self.place(Value::Object(map), anchor, line)
            }
            Some(Frame::List { list, anchor, .. }) => self.place(Value::Array(list), anchor, line),
            None => Ok(()),
        }
    }

    /// Puts a complete value where it belongs.
    fn place(&mut self, value: Value, anchor: usize, line: usize) -> Result<(), YamlError> {
        if anchor != 0 {
            self.count(size(&value), line)?;
            self.anchors.insert(anchor, value.clone());
        }
        match self.stack.last_mut() {
            Some(Frame::Map { map, key, merges, .. }) => {
                let Some(key) = key.take() else {
                    return Err(at(line, "a key must be text"));
                };
                if key == MERGE && merges == &[Value::Null] {
                    *merges = vec![value];
                } else {
                    map.insert(key, value);
                }
            }
            Some(Frame::List { list, path, .. }) => {
                self.lines.entry(path::index(path, list.len())).or_insert(line);
                list.push(value);
            }
            None => self.root = Some(value),
        }
        Ok(())
    }
}

/// A merge key's value: keys that are there already win.
fn merge_into(map: &mut Map<String, Value>, merged: Value) -> Result<(), &'static str> {
    match merged {
        Value::Object(other) => {
            for (key, value) in other {
                map.entry(key).or_insert(value);
            }
            Ok(())
        }
        Value::Array(list) => list.into_iter().try_for_each(|other| match other {
            Value::Object(_) => merge_into(map, other),
            _ => Err("<< needs a map or a list of maps"),
        }),
        _ => Err("<< needs a map or a list of maps"),
    }
}

fn at(line: usize, reason: impl Into<String>) -> YamlError {
    YamlError { line, reason: reason.into() }
}

/// Number of values in `value`, itself included.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(size).sum(),
        Value::Object(map) => map.values().map(size).sum(),
        _ => 0,
    }
}

fn scalar(
    schema: Schema,
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
) -> Result<Value, Cow<'static, str>> {
    let plain = |text| match schema {
        Schema::Core => plain(text),
        Schema::V1_1 => Ok(v1_1::plain(text)),
    };
    match tag.map(Tag::core_suffix) {
        None if style == ScalarStyle::Plain => plain(text),
        None | Some(Some("str")) => Ok(Value::String(text.to_owned())),
        Some(Some("null" | "bool" | "int" | "float")) => plain(text),
        Some(_) => Err("an unknown tag: only the core tags of YAML are allowed".into()),
    }
}

/// A plain scalar by the core schema.
fn plain(text: &str) -> Result<Value, Cow<'static, str>> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "true" | "True" | "TRUE" => return Ok(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Value::Bool(false)),
        _ => {}
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Ok(Value::String(text.to_owned()));
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return Ok(radix(text, hex, 16));
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return Ok(radix(text, octal, 8));
    }
    if unsigned.bytes().all(|b| b.is_ascii_digit()) {
        if unsigned.len() > 1 && unsigned.starts_with('0') {
            return Err("a number with a leading zero: quote it if it is text, write 0o for octal".into());
        }
        let digits = text.strip_prefix('+').unwrap_or(text);
        if let Ok(n) = digits.parse::<i64>() {
            return Ok(Value::Number(n.into()));
        }
        if let Ok(n) = digits.parse::<u64>() {
            return Ok(Value::Number(n.into()));
        }
    }
    let float = unsigned.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b))
        && unsigned.bytes().any(|b| b.is_ascii_digit());
    let number = if float { text.parse::<f64>().ok().and_then(Number::from_f64) } else { None };
    Ok(number.map_or_else(|| Value::String(text.to_owned()), Value::Number))
}

fn radix(text: &str, digits: &str, radix: u32) -> Value {
    match i64::from_str_radix(digits, radix) {
        Ok(n) if n >= 0 && !digits.starts_with('+') => Value::Number(n.into()),
        _ => Value::String(text.to_owned()),
    }
}

mod v1_1;

#[cfg(test)]
mod tests;
