//! The shape of the configuration documents as data, and the one walk of a JSON value along it (`walk`).
//!
//! In: a `serde_json::Value` and a [`Kind`]. Out: every unknown field, wrong type and value out of range, each
//! with its path and what is allowed. Types get their `Kind` from `config_struct!` and `config_enum!`, so
//! shape and type cannot drift apart. Invariant: a value that passes [`check`] deserialises.

mod walk;

pub use walk::{check, keep_fitting};

use crate::duration::Duration;
use crate::quantity::Quantity;
use serde_json::Value;
use std::collections::BTreeMap;

/// What a value may be.
#[derive(Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// An integer between the two, both included.
    Int(i64, i64),
    /// A number.
    Float,
    /// Text.
    Str,
    /// Text, or a number or boolean taken as text (sysctl values).
    Scalar,
    /// A Go duration.
    Duration,
    /// A Kubernetes quantity, as text or number.
    Quantity,
    /// A Go duration, or an integer of nanoseconds (`logging.flushFrequency`).
    DurationOrNanos,
    /// One of these words.
    Enum(&'static [&'static str]),
    /// A list of such values.
    List(&'static Kind),
    /// A map from free keys to such values.
    Map(&'static Kind),
    /// An object with these fields and no others.
    Object(&'static [Field]),
    /// Any map, checked by the code that uses it (a static pod).
    AnyMap,
}

/// One field of an object.
#[derive(Debug)]
pub struct Field {
    /// JSON name.
    pub name: &'static str,
    /// What it may hold.
    pub kind: &'static Kind,
    /// A zero value (`0`, `""`, `0s`) means "not set": Go cannot distinguish these for non-pointer fields.
    pub zero_is_unset: bool,
    /// Never shown.
    pub secret: bool,
    /// Must be there.
    pub required: bool,
    /// Smallest and largest value: integers as they are, durations in nanoseconds.
    pub range: Option<(i64, i64)>,
}

impl Field {
    /// A field without restrictions.
    #[must_use]
    pub const fn new(name: &'static str, kind: &'static Kind) -> Field {
        Field { name, kind, zero_is_unset: false, secret: false, required: false, range: None }
    }

    /// Zero means "not set".
    #[must_use]
    pub const fn zero_unset(mut self) -> Field {
        self.zero_is_unset = true;
        self
    }

    /// Never shown.
    #[must_use]
    pub const fn secret(mut self) -> Field {
        self.secret = true;
        self
    }

    /// Must be there.
    #[must_use]
    pub const fn required(mut self) -> Field {
        self.required = true;
        self
    }

    /// Between the two, both included.
    #[must_use]
    pub const fn range(mut self, min: i64, max: i64) -> Field {
        self.range = Some((min, max));
        self
    }

    /// Not negative.
    #[must_use]
    pub const fn at_least(self, min: i64) -> Field {
        self.range(min, i64::MAX)
    }
}

/// A type whose shape is known.
pub trait Describe {
    /// Its shape.
    const KIND: &'static Kind;

    /// True if the value is left out of the JSON form.
    fn is_absent(&self) -> bool {
        false
    }
}

macro_rules! describe {
    ($($ty:ty => $kind:expr),* $(,)?) => { $(impl Describe for $ty { const KIND: &'static Kind = &$kind; })* };
}

describe! {
    bool => Kind::Bool,
    i32 => Kind::Int(i32::MIN as i64, i32::MAX as i64),
    u32 => Kind::Int(0, u32::MAX as i64),
    i64 => Kind::Int(i64::MIN, i64::MAX),
    f64 => Kind::Float,
    String => Kind::Str,
    Duration => Kind::Duration,
    Quantity => Kind::Quantity,
}

impl<T: Describe> Describe for Option<T> {
    const KIND: &'static Kind = T::KIND;

    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

impl<T: Describe> Describe for Vec<T> {
    const KIND: &'static Kind = &Kind::List(T::KIND);
}

impl<T: Describe> Describe for BTreeMap<String, T> {
    const KIND: &'static Kind = &Kind::Map(T::KIND);
}

/// Takes out what means "not set": nulls, and zeros of fields where zero means that.
pub fn strip_unset(value: &mut Value, kind: &Kind) {
    match (kind, value) {
        (Kind::Object(fields), Value::Object(map)) => {
            map.retain(|key, value| match fields.iter().find(|f| f.name == key) {
                Some(field) => !(value.is_null() || field.zero_is_unset && is_zero(value, field.kind)),
                None => true,
            });
            for (key, value) in map.iter_mut() {
                if let Some(field) = fields.iter().find(|f| f.name == key) {
                    strip_unset(value, field.kind);
                }
            }
        }
        (Kind::Map(inner), Value::Object(map)) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(|value| strip_unset(value, inner));
        }
        (Kind::List(inner), Value::Array(list)) => list.iter_mut().for_each(|v| strip_unset(v, inner)),
        _ => {}
    }
}

/// Zero of the field's own type; a zero of another type is a wrong type.
fn is_zero(value: &Value, kind: &Kind) -> bool {
    match (kind, value) {
        (Kind::Duration | Kind::DurationOrNanos, Value::String(s)) => {
            Duration::parse(s) == Ok(Duration::ZERO)
        }
        (Kind::Str | Kind::Enum(_), Value::String(s)) => s.is_empty(),
        (Kind::Int(..) | Kind::DurationOrNanos, Value::Number(n)) => n.as_i64() == Some(0),
        _ => false,
    }
}

/// Where a path stands in its source.
pub trait Lines: std::fmt::Debug {
    /// Line of the key, from 1.
    fn line(&self, path: &str) -> Option<usize>;
}

/// For values that come from no text.
#[derive(Clone, Copy, Debug)]
pub struct NoLines;

impl Lines for NoLines {
    fn line(&self, _path: &str) -> Option<usize> {
        None
    }
}

/// Whether a value in the place of such a one may be a secret put one level too high.
fn holds_secret(kind: &Kind) -> bool {
    match kind {
        Kind::Object(fields) => fields.iter().any(|f| f.secret || holds_secret(f.kind)),
        Kind::List(inner) | Kind::Map(inner) => holds_secret(inner),
        _ => false,
    }
}

fn scalar_fits(value: &Value, kind: &Kind, range: Option<(i64, i64)>) -> bool {
    let within = |n: i64| range.is_none_or(|(min, max)| (min..=max).contains(&n));
    match (kind, value) {
        (Kind::Bool, Value::Bool(_))
        | (Kind::Float, Value::Number(_))
        | (Kind::Str, Value::String(_))
        | (Kind::Scalar, Value::String(_) | Value::Number(_) | Value::Bool(_))
        | (Kind::AnyMap, Value::Object(_)) => true,
        (Kind::Int(min, max), Value::Number(n)) => {
            n.as_i64().is_some_and(|n| (*min..=*max).contains(&n) && within(n))
        }
        (Kind::Duration | Kind::DurationOrNanos, Value::String(s)) => {
            Duration::parse(s).is_ok_and(|d| within(d.as_nanos()))
        }
        (Kind::DurationOrNanos, Value::Number(n)) => n.as_i64().is_some_and(within),
        (Kind::Quantity, Value::String(s)) => Quantity::parse(s).is_ok(),
        (Kind::Quantity, Value::Number(n)) => Quantity::parse(&n.to_string()).is_ok(),
        (Kind::Enum(words), Value::String(s)) => words.contains(&s.as_str()),
        _ => false,
    }
}

/// What a value has to be, for a person.
fn expectation(kind: &Kind, range: Option<(i64, i64)>) -> String {
    let bounds = |min: i64, max: i64, unit: fn(i64) -> String| match (min, max) {
        (i64::MIN, i64::MAX) => String::new(),
        (min, i64::MAX) => format!(" of {} or more", unit(min)),
        (i64::MIN, max) => format!(" of {} or less", unit(max)),
        (min, max) => format!(" between {} and {}", unit(min), unit(max)),
    };
    let nanos: fn(i64) -> String = |ns| Duration::from_nanos(ns).to_string();
    match kind {
        Kind::Bool => "must be true or false".to_owned(),
        Kind::Int(min, max) => {
            let (low, high) = range.unwrap_or((*min, *max));
            let (low, high) = (low.max(*min), if high == i64::MAX { high } else { high.min(*max) });
            format!("must be an integer{}", bounds(low, high, |n| n.to_string()))
        }
        Kind::Float => "must be a number".to_owned(),
        Kind::Str => "must be text (quote numbers, true, false and null)".to_owned(),
        Kind::Scalar => "must be text, a number, true or false".to_owned(),
        Kind::Duration => match range {
            Some((min, max)) => format!("must be a duration{}", bounds(min, max, nanos)),
            None => crate::duration::DurationError.to_string(),
        },
        Kind::DurationOrNanos => "must be a duration such as \"5s\", or an integer of nanoseconds".to_owned(),
        Kind::Quantity => crate::quantity::QuantityError.to_string(),
        Kind::Enum(words) => format!("must be one of {}", words.join(", ")),
        Kind::List(_) => "must be a list".to_owned(),
        Kind::Map(_) | Kind::Object(_) | Kind::AnyMap => "must be a map of keys to values".to_owned(),
    }
}

fn unknown(key: &str, fields: &[Field]) -> String {
    let near = fields.iter().map(|f| f.name).find(|name| similar(key, name));
    match near {
        Some(name) => format!("is an unknown field, did you mean {name}?"),
        None if fields.len() <= 12 => {
            let names: Vec<&str> = fields.iter().map(|f| f.name).collect();
            format!("is an unknown field, allowed are {}", names.join(", "))
        }
        None => "is an unknown field".to_owned(),
    }
}

/// Equal but for case, `-`, `_`, and at most one letter too many, missing, wrong or swapped.
fn similar(a: &str, b: &str) -> bool {
    let fold = |s: &str| -> Vec<u8> {
        s.bytes().filter(u8::is_ascii_alphanumeric).map(|b| b.to_ascii_lowercase()).collect()
    };
    let (a, b) = (fold(a), fold(b));
    let same = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[same..], &b[same..]);
    let rest = |s: &[u8], n: usize| s.get(n..).unwrap_or_default().to_vec();
    rest(a, 1) == rest(b, 1) && a.len() == b.len()
        || rest(a, 1) == b && !a.is_empty()
        || rest(b, 1) == a && !b.is_empty()
        || a.len() > 1 && b.len() > 1 && a[0] == b[1] && a[1] == b[0] && a[2..] == b[2..]
}

/// A value for a message: JSON, at most 60 characters.
#[must_use]
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Defines a struct with its JSON names, defaults and [`Kind`]: `field: Type = default, "jsonName" [, rule…];`
/// where a rule is a const method of [`Field`].
macro_rules! config_struct {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $(
                $(#[$fmeta:meta])*
                $field:ident : $ty:ty = $default:expr, $json:literal $(, $rule:ident $(($($arg:expr),*))?)*;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[$fmeta])*
                #[serde(rename = $json, skip_serializing_if = "crate::field::Describe::is_absent")]
                pub $field: $ty,
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl crate::field::Describe for $name {
            const KIND: &'static crate::field::Kind = &crate::field::Kind::Object(&[
                $(crate::field::Field::new($json, <$ty as crate::field::Describe>::KIND)
                    $(.$rule($($($arg),*)?))*,)*
            ]);
        }
    };
}

/// Defines an enum of words with its [`Kind`]; the first word is the default.
macro_rules! config_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $(#[$fmeta:meta])* $first:ident = $fword:literal,
            $( $(#[$vmeta:meta])* $variant:ident = $word:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum $name {
            $(#[$fmeta])*
            #[default]
            #[serde(rename = $fword)]
            $first,
            $(
                $(#[$vmeta])*
                #[serde(rename = $word)]
                $variant,
            )*
        }

        impl $name {
            /// The word that stands for it in a document.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $name::$first => $fword,
                    $($name::$variant => $word,)*
                }
            }
        }

        impl crate::field::Describe for $name {
            const KIND: &'static crate::field::Kind = &crate::field::Kind::Enum(&[$fword, $($word,)*]);
        }
    };
}

pub(crate) use {config_enum, config_struct};

#[cfg(test)]
mod tests;
