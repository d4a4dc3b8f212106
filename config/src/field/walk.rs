//! The walk of a value along its shape: what does not fit is a mistake with its place.
//!
//! In: a value and a [`Kind`]. Out: mistakes, which [`check`] turns into problems for a person, and at which [`keep_fitting`]
//! cuts. Invariant: both know the same mistakes, so a value that [`keep_fitting`] has left passes [`check`].

use super::{Field, Kind, Lines, expectation, holds_secret, is_zero, scalar_fits, shown, unknown};
use crate::path;
use crate::problem::Problem;
use serde_json::{Map, Value};

/// A step from a value to one in it.
#[derive(Clone, Copy, Debug)]
enum PathStep<'a> {
    Key(&'a str),
    Index(usize),
}

/// What does not fit.
#[derive(Clone, Copy, Debug)]
enum ShapeMistake<'a> {
    /// A value of another shape.
    Shape {
        value: &'a Value,
        kind: &'a Kind,
        range: Option<(i64, i64)>,
        /// It is not to be shown.
        secret: bool,
    },
    /// A key that no field has.
    Unknown { key: &'a str, fields: &'a [Field] },
    /// A required field that is not there; the place is the field's.
    Missing,
}

/// The walk.
struct ShapeWalk<'a, F> {
    /// Nulls and zeros that mean "not set" are in the value ([`super::strip_unset`] takes them out).
    has_unset: bool,
    /// A merge patch: required fields may be missing.
    patch: bool,
    /// The way to the present value.
    trail: Vec<PathStep<'a>>,
    /// Takes each mistake and the way to it.
    found: F,
}

impl<'a, F: FnMut(&[PathStep<'a>], ShapeMistake<'a>)> ShapeWalk<'a, F> {
    fn value(&mut self, value: &'a Value, kind: &'a Kind, range: Option<(i64, i64)>, secret: bool) {
        match (kind, value) {
            (Kind::Object(fields), Value::Object(map)) => self.object(map, fields),
            (Kind::Map(inner), Value::Object(map)) => {
                for (key, value) in map {
                    if !(self.has_unset && value.is_null()) {
                        self.below(PathStep::Key(key), value, inner, range, secret);
                    }
                }
            }
            (Kind::List(inner), Value::Array(list)) => {
                // A patch replaces lists whole, so their elements have to be complete.
                let patch = std::mem::replace(&mut self.patch, false);
                for (i, value) in list.iter().enumerate() {
                    self.below(PathStep::Index(i), value, inner, range, secret);
                }
                self.patch = patch;
            }
            _ => {
                if !scalar_fits(value, kind, range) {
                    (self.found)(&self.trail, ShapeMistake::Shape { value, kind, range, secret });
                }
            }
        }
    }

    fn object(&mut self, map: &'a Map<String, Value>, fields: &'a [Field]) {
        let has_unset = self.has_unset;
        let is_unset = |field: &Field, value: &Value| {
            has_unset && (value.is_null() || field.zero_is_unset && is_zero(value, field.kind))
        };
        for (key, value) in map {
            match fields.iter().find(|f| f.name == key) {
                Some(field) if is_unset(field, value) => {}
                Some(field) => self.below(PathStep::Key(key), value, field.kind, field.range, field.secret),
                None => self.at(PathStep::Key(key), ShapeMistake::Unknown { key, fields }),
            }
        }
        let whole = !self.patch;
        for field in fields.iter().filter(|f| f.required && whole) {
            if map.get(field.name).is_none_or(|value| value.is_null() || is_unset(field, value)) {
                self.at(PathStep::Key(field.name), ShapeMistake::Missing);
            }
        }
    }

    fn below(
        &mut self,
        step: PathStep<'a>,
        value: &'a Value,
        kind: &'a Kind,
        range: Option<(i64, i64)>,
        secret: bool,
    ) {
        self.trail.push(step);
        self.value(value, kind, range, secret);
        self.trail.pop();
    }

    fn at(&mut self, step: PathStep<'a>, mistake: ShapeMistake<'a>) {
        self.trail.push(step);
        (self.found)(&self.trail, mistake);
        self.trail.pop();
    }
}

/// What is wrong with `value`, from which [`super::strip_unset`] took the nulls, as a `kind`; `lines` finds a path's line in
/// the source.
#[must_use]
pub fn check(value: &Value, kind: &Kind, source: &str, lines: &dyn Lines, patch: bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    let found = |trail: &[PathStep<'_>], mistake: ShapeMistake<'_>| {
        let (value, reason) = match mistake {
            ShapeMistake::Shape { value, kind, range, secret } => {
                ((!secret && !holds_secret(kind)).then(|| shown(value)), expectation(kind, range))
            }
            ShapeMistake::Unknown { key, fields } => (None, unknown(key, fields)),
            ShapeMistake::Missing => (None, "is missing".to_owned()),
        };
        let path = joined(trail);
        problems.push(Problem { source: source.to_owned(), line: lines.line(&path), path, value, reason });
    };
    ShapeWalk { has_unset: false, patch, trail: Vec::new(), found }.value(value, kind, None, false);
    problems
}

/// Where a value is cut: the nearest key around a mistake, because elements of a list keep their numbers.
struct PatchCut {
    /// JSON pointer to the object.
    object: String,
    /// The key that goes.
    key: String,
    /// Its path.
    path: String,
    /// No field has this key.
    is_unknown: bool,
}

/// Removes from a patch what [`check`] would report: unknown fields, and the nearest key around each other mistake. Nulls and
/// other values that mean "not set" stay. Returns the paths of removed values that are no unknown fields.
pub fn keep_fitting(value: &mut Value, kind: &Kind) -> Vec<String> {
    let mut lost = Vec::new();
    // What is cut may be required where it was. Each round takes a key away, so there is an end.
    loop {
        let cuts = cuts(value, kind);
        if cuts.is_empty() {
            return lost;
        }
        for cut in cuts {
            let Some(PatchCut { object, key, path, is_unknown }) = cut else {
                *value = Value::Null;
                return vec![String::new()];
            };
            let object = value.pointer_mut(&object).and_then(Value::as_object_mut);
            if object.and_then(|map| map.remove(&key)).is_some() && !is_unknown {
                lost.push(path);
            }
        }
    }
}

/// The cuts of one round; `None` stands for all of the value.
fn cuts(value: &Value, kind: &Kind) -> Vec<Option<PatchCut>> {
    let mut cuts = Vec::new();
    if value.is_null() {
        return cuts;
    }
    let found = |trail: &[PathStep<'_>], mistake: ShapeMistake<'_>| {
        let trail = match mistake {
            ShapeMistake::Missing => trail.split_last().map_or(trail, |(_, object)| object),
            ShapeMistake::Shape { .. } | ShapeMistake::Unknown { .. } => trail,
        };
        let nearest = trail.iter().enumerate().rev().find_map(|(at, step)| match step {
            PathStep::Key(key) => Some((at, *key)),
            PathStep::Index(_) => None,
        });
        cuts.push(nearest.map(|(at, key)| PatchCut {
            object: trail[..at].iter().map(pointer).collect(),
            key: key.to_owned(),
            path: joined(&trail[..=at]),
            is_unknown: matches!(mistake, ShapeMistake::Unknown { .. }),
        }));
    };
    ShapeWalk { has_unset: true, patch: true, trail: Vec::new(), found }.value(value, kind, None, false);
    cuts
}

/// A step of a JSON pointer (RFC 6901).
fn pointer(step: &PathStep<'_>) -> String {
    match step {
        PathStep::Key(key) => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
        PathStep::Index(index) => format!("/{index}"),
    }
}

/// The path as messages have it.
fn joined(trail: &[PathStep<'_>]) -> String {
    trail.iter().fold(String::new(), |at, step| match step {
        PathStep::Key(key) => path::child(&at, key),
        PathStep::Index(index) => path::index(&at, *index),
    })
}
