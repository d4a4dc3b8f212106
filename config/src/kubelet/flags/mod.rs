//! Command-line flags that set configuration fields, and the overlay they form.
//!
//! In: flag names and their texts. Out: an [`Overlay`] that wins over file and drop-ins; feature gates are merged
//! with the file's. Flags that are no configuration are in [`args`]. Upstream term: `AddKubeletConfigFlags`.

pub mod args;
mod table;

use super::load;
use super::types::KubeletConfiguration;
use crate::field::{self, Describe, Kind, NoLines};
use crate::path;
use crate::problem::{ConfigError, Problem};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub use table::{FLAGS, Flag, Form};

/// What the flags set, typed; later flags win over earlier ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overlay {
    /// JSON path to value and the flag that set it.
    values: BTreeMap<&'static str, (Value, String)>,
    gates: BTreeMap<String, bool>,
}

/// The flag of that name; `_` and `-` are the same.
#[must_use]
pub fn flag(name: &str) -> Option<&'static Flag> {
    let name = name.replace('_', "-");
    FLAGS.iter().find(|f| f.name == name)
}

impl Overlay {
    /// True if no flag was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.gates.is_empty()
    }

    /// Takes one flag with its text. Repeated lists and maps grow, everything else is replaced.
    ///
    /// # Errors
    /// The text does not fit the flag.
    pub fn set(&mut self, flag: &'static Flag, text: &str) -> Result<(), Problem> {
        let wrong = |reason: String| Problem {
            source: format!("--{}", flag.name),
            path: flag.path.to_owned(),
            value: (flag.form != Form::Headers).then(|| field::shown(&json!(text))),
            reason,
            ..Problem::default()
        };
        let value = read(flag.form, text).map_err(|reason| wrong(reason.to_owned()))?;
        if flag.form == Form::Gates {
            for (name, on) in value.as_object().into_iter().flatten() {
                self.gates.insert(name.clone(), on.as_bool().unwrap_or_default());
            }
            return Ok(());
        }
        let slot = self.values.entry(flag.path).or_insert((Value::Null, String::new()));
        slot.1 = format!("--{}", flag.name);
        match (&mut slot.0, value) {
            (Value::Array(old), Value::Array(new)) => old.extend(new),
            (Value::Object(old), Value::Object(new)) => extend(old, new),
            (old, new) => *old = new,
        }
        Ok(())
    }

    /// `config` with the flags over it.
    ///
    /// # Errors
    /// Every value that does not fit its field.
    pub fn apply(&self, config: &KubeletConfiguration) -> Result<KubeletConfiguration, ConfigError> {
        let mut document = load::to_value(config);
        let mut problems = Vec::new();
        for (path, (value, source)) in &self.values {
            let lone = nested(path, value.clone());
            problems.extend(field::check(&lone, KubeletConfiguration::KIND, source, &NoLines, true));
            place(&mut document, path, value.clone());
        }
        for (name, on) in &self.gates {
            place(&mut document, &path::child("featureGates", name), Value::Bool(*on));
        }
        ConfigError::check(problems)?;
        load::retype(document, "flags")
    }
}

/// Headers may come several times under one name: their lists grow.
fn extend(old: &mut Map<String, Value>, new: Map<String, Value>) {
    for (key, value) in new {
        match (old.get_mut(&key), value) {
            (Some(Value::Array(old)), Value::Array(new)) => old.extend(new),
            (_, value) => {
                old.insert(key, value);
            }
        }
    }
}

/// A document that holds just `value` at `path`.
fn nested(path: &str, value: Value) -> Value {
    let mut document = Value::Object(Map::new());
    place(&mut document, path, value);
    document
}

/// Puts `value` at `path`, making maps on the way.
fn place(document: &mut Value, path: &str, value: Value) {
    let Some((key, rest)) = path::split_first(path) else { return };
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    if let Value::Object(map) = document {
        let slot = map.entry(key).or_insert(Value::Null);
        if rest.is_empty() { *slot = value } else { place(slot, rest, value) }
    }
}

fn read(form: Form, text: &str) -> Result<Value, &'static str> {
    Ok(match form {
        Form::Text => json!(text),
        Form::Bool => json!(read_bool(text).ok_or("must be true or false")?),
        Form::Int => json!(text.parse::<i64>().map_err(|_| "must be an integer")?),
        Form::Bare => match text.parse::<u32>() {
            Ok(n) => json!(n),
            Err(_) => return Err("must be an integer of 0 or more"),
        },
        Form::List if text.is_empty() => json!([]),
        Form::List => text.split(',').map(str::trim).collect(),
        Form::Pairs => pairs(text, '=', "must be key=value pairs with commas between")?,
        Form::Thresholds => pairs(text, '<', "must be signal<amount pairs with commas between")?,
        Form::Gates => gates(text)?,
        Form::Headers => headers(text)?,
        Form::Taints => taints(text)?,
        Form::NumaMemory => numa_memory(text)?,
        Form::VModule => vmodule(text)?,
    })
}

/// A truth value as Go's `strconv.ParseBool` reads it.
#[must_use]
pub fn read_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn pairs(text: &str, separator: char, reason: &'static str) -> Result<Value, &'static str> {
    let mut map = Map::new();
    for pair in text.split(',').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once(separator).ok_or(reason)?;
        map.insert(key.trim().to_owned(), json!(value.trim()));
    }
    Ok(Value::Object(map))
}

fn gates(text: &str) -> Result<Value, &'static str> {
    const REASON: &str = "must be Name=true or Name=false pairs with commas between";
    let Value::Object(map) = pairs(text, '=', REASON)? else { return Err(REASON) };
    map.into_iter()
        .map(|(name, value)| {
            let on = value.as_str().and_then(read_bool).ok_or(REASON)?;
            Ok((name, Value::Bool(on)))
        })
        .collect()
}

fn headers(text: &str) -> Result<Value, &'static str> {
    let mut map = Map::new();
    for pair in text.split(',').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once(':').ok_or("must be name:value pairs with commas between")?;
        if let Value::Array(list) = map.entry(key.trim()).or_insert(json!([])) {
            list.push(json!(value.trim()));
        }
    }
    Ok(Value::Object(map))
}

fn taints(text: &str) -> Result<Value, &'static str> {
    let one = |taint: &str| {
        let (key, effect) =
            taint.rsplit_once(':').ok_or("must be key=value:effect items with commas between")?;
        let (key, value) = key.split_once('=').unwrap_or((key, ""));
        Ok(json!({ "key": key, "value": value, "effect": effect }))
    };
    text.split(',').filter(|t| !t.is_empty()).map(one).collect()
}

fn numa_memory(text: &str) -> Result<Value, &'static str> {
    const REASON: &str = "must be node:type=amount,type=amount items with ; between";
    let one = |item: &str| {
        let (node, limits) = item.split_once(':').ok_or(REASON)?;
        let node: i32 = node.parse().map_err(|_| REASON)?;
        Ok(json!({ "numaNode": node, "limits": pairs(limits, '=', REASON)? }))
    };
    text.split(';').filter(|t| !t.is_empty()).map(one).collect()
}

fn vmodule(text: &str) -> Result<Value, &'static str> {
    const REASON: &str = "must be pattern=N items with commas between";
    let one = |item: &str| {
        let (pattern, verbosity) = item.split_once('=').ok_or(REASON)?;
        let verbosity: u32 = verbosity.parse().map_err(|_| REASON)?;
        Ok(json!({ "filePattern": pattern, "verbosity": verbosity }))
    };
    text.split(',').filter(|t| !t.is_empty()).map(one).collect()
}

/// The kind of the field at `path`; every flag's path leads to one (tested).
#[must_use]
pub fn kind_at(path: &str) -> Option<&'static Kind> {
    let mut kind = KubeletConfiguration::KIND;
    let mut rest = path;
    while let Some((key, tail)) = path::split_first(rest) {
        let Kind::Object(fields) = kind else { return None };
        kind = fields.iter().find(|f| f.name == key)?.kind;
        rest = tail;
    }
    rest.is_empty().then_some(kind)
}

#[cfg(test)]
mod tests;
