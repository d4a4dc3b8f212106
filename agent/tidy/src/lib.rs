//! agent-tidy: rules about the tree that no compiler checks. Development only; `tests/tree.rs` runs them.
//!
//! In: the tracked files and `cargo metadata`. Out: findings, each naming file, line and what to do. Every
//! rule is a pure function with a test on a bad example, so that a rule which can no longer fail is noticed.
#![forbid(unsafe_code)]

pub mod cases;
pub mod commands;
pub mod crates;
pub mod features;
pub mod layout;
pub mod manifest;
pub mod messages;
pub mod names;
pub mod pages;
pub mod ranks;
pub mod readers;
pub mod reference;
pub mod references;
pub mod remedies;
pub mod text;
pub mod tokens;
pub mod tree;

use std::fmt;

/// One breach of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path in the repository.
    pub file: String,
    /// Line, from 1; 0 if the whole file is meant.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
    /// False if it is only worth a look.
    pub fails: bool,
}

impl Finding {
    pub(crate) fn new(file: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { file: file.to_owned(), line, message: message.into(), fails: true }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{}: {}", self.file, self.message)
        } else {
            write!(f, "{}:{}: {}", self.file, self.line, self.message)
        }
    }
}
