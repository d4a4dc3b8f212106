//! What is wrong with a configuration: source, line, dotted path, value, and what is allowed instead.
//!
//! Invariant: a secret never enters a [`Problem`] (the checker masks values of secret fields).

use serde::Serialize;
use std::fmt;

/// One thing wrong in one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// File path, or the name of the source (`smbios`, `--max-pods`).
    pub source: String,
    /// Line in the source, from 1, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Dotted path of the key (`kubelet.evictionHard."memory.available"`), empty for the whole document.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The offending value as JSON, shortened; none for unknown fields and secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What is allowed, or what to do.
    pub reason: String,
}

/// Everything wrong with one configuration, never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError(Vec<Problem>);

impl ConfigError {
    /// The problems in order of discovery.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }

    /// `Err` with all problems, or `Ok` if there is none.
    ///
    /// # Errors
    /// The problems given.
    pub fn check(problems: Vec<Problem>) -> Result<(), ConfigError> {
        if problems.is_empty() { Ok(()) } else { Err(ConfigError(problems)) }
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> ConfigError {
        ConfigError(vec![problem])
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        f.write_str(": ")?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        if let Some(value) = &self.value {
            write!(f, "{value} ")?;
        }
        f.write_str(&self.reason)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid configuration: ")?;
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}
