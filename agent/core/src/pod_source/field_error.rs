//! Mistakes in a pod, each with the path of its field and the API server's wording.
//!
//! In: path, invalid value, allowed values. Out: [`FieldError`]. Upstream:
//! apimachinery/pkg/util/validation/field.

use std::fmt;

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It is missing or empty.
    Required,
    /// Its value is not allowed.
    Invalid(String),
    /// Its value is not one of a list.
    NotSupported(String, &'static [&'static str]),
    /// It occurs twice.
    Duplicate(String),
    /// It names something that is not there.
    NotFound(String),
    /// It must not be set here.
    Forbidden,
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// For example `spec.containers[0].image`.
    pub path: String,
    /// What is wrong.
    pub problem: Problem,
    /// What would be right; may be empty.
    pub detail: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path)?;
        match &self.problem {
            Problem::Required => f.write_str("Required value")?,
            Problem::Invalid(value) => write!(f, "Invalid value: {value:?}")?,
            Problem::NotSupported(value, allowed) => {
                let allowed: Vec<String> = allowed.iter().map(|a| format!("{a:?}")).collect();
                write!(f, "Unsupported value: {value:?}: supported values: {}", allowed.join(", "))?;
            }
            Problem::Duplicate(value) => write!(f, "Duplicate value: {value:?}")?,
            Problem::NotFound(value) => write!(f, "Not found: {value:?}")?,
            Problem::Forbidden => f.write_str("Forbidden")?,
        }
        if self.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.detail) }
    }
}

/// Collects mistakes.
#[derive(Debug, Default)]
pub struct Errors {
    list: Vec<FieldError>,
}

impl Errors {
    fn push(&mut self, path: impl Into<String>, problem: Problem, detail: impl Into<String>) {
        self.list.push(FieldError { path: path.into(), problem, detail: detail.into() });
    }

    /// Something is missing.
    pub fn required(&mut self, path: impl Into<String>, detail: &str) {
        self.push(path, Problem::Required, detail);
    }

    /// A value is not allowed; `detail` describes the allowed ones.
    pub fn invalid(&mut self, path: impl Into<String>, value: impl fmt::Display, detail: &str) {
        self.push(path, Problem::Invalid(value.to_string()), detail);
    }

    /// A value is none of `allowed`.
    pub fn not_supported(&mut self, path: impl Into<String>, value: &str, allowed: &'static [&'static str]) {
        self.push(path, Problem::NotSupported(value.to_owned(), allowed), "");
    }

    /// Like [`Errors::not_supported`] if the value is set and none of `allowed`.
    pub fn one_of(&mut self, path: impl Into<String>, value: Option<&str>, allowed: &'static [&'static str]) {
        if let Some(value) = value.filter(|v| !allowed.contains(v)) {
            self.not_supported(path, value, allowed);
        }
    }

    /// A value occurs twice.
    pub fn duplicate(&mut self, path: impl Into<String>, value: impl fmt::Display) {
        self.push(path, Problem::Duplicate(value.to_string()), "");
    }

    /// A value names nothing.
    pub fn not_found(&mut self, path: impl Into<String>, value: &str) {
        self.push(path, Problem::NotFound(value.to_owned()), "");
    }

    /// A field must not be set here.
    pub fn forbidden(&mut self, path: impl Into<String>, detail: &str) {
        self.push(path, Problem::Forbidden, detail);
    }

    /// Everything collected, in order.
    #[must_use]
    pub fn into_list(self) -> Vec<FieldError> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wording() {
        let mut errors = Errors::default();
        errors.required("a", "");
        errors.invalid("b[0]", 70_000, "must be between 1 and 65535, inclusive");
        errors.one_of("c", Some("x"), &["y", "z"]);
        errors.one_of("c", Some("y"), &["y", "z"]);
        errors.duplicate("d", "n");
        errors.not_found("e", "v");
        errors.forbidden("f", "may not be set");
        let text: Vec<String> = errors.into_list().iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "a: Required value",
                "b[0]: Invalid value: \"70000\": must be between 1 and 65535, inclusive",
                "c: Unsupported value: \"x\": supported values: \"y\", \"z\"",
                "d: Duplicate value: \"n\"",
                "e: Not found: \"v\"",
                "f: Forbidden: may not be set",
            ]
        );
    }
}
