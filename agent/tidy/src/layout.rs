//! Rules about where things are and how long they are: file sizes, headers, top-level entries.

use std::collections::BTreeSet;

use crate::Finding;
use crate::tree::SourceFile;

/// Longer files are worth a look, lines.
pub const LINES_WARN: usize = 600;
/// Longer files fail, lines.
pub const LINES_FAIL: usize = 800;

/// Generated code and uniform tables, which may be as long as they are: path and reason.
const LONG_ALLOWED: &[(&str, &str)] = &[];

/// What may stand at the top, in addition to dot files and `*.toml`.
const TOP_LEVEL: &[&str] = &[
    "Cargo.lock",
    "LICENSE",
    "README.md",
    "agent",
    "config",
    "docs",
    "image",
    "init",
    "mkosi",
    "proto",
    "qemu-tests",
];

/// Rust files have at most [`LINES_FAIL`] lines; above [`LINES_WARN`] they are reported.
#[must_use]
pub fn sizes(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| f.is_rust()) {
        let lines = file.lines().count();
        if lines <= LINES_WARN || LONG_ALLOWED.iter().any(|(path, _)| *path == file.path) {
            continue;
        }
        let mut finding = Finding::new(
            &file.path,
            0,
            format!("{lines} lines; split it by concern ({LINES_WARN} warns, {LINES_FAIL} fails)"),
        );
        finding.fails = lines > LINES_FAIL;
        findings.push(finding);
    }
    findings
}

/// Every Rust file opens with a `//!` header (generated code is not in the tree).
#[must_use]
pub fn headers(files: &[SourceFile]) -> Vec<Finding> {
    files
        .iter()
        .filter(|f| f.is_rust())
        .filter(|f| !f.lines().next().is_some_and(|(_, line)| line.starts_with("//! ") && line.len() > 8))
        .map(|f| {
            Finding::new(
                &f.path,
                1,
                "opens without a `//!` header: what it owns, what comes in, what goes out",
            )
        })
        .collect()
}

/// Nothing stands at the top that is not in the plan (docs/internals/architecture.md).
#[must_use]
pub fn top_level(files: &[SourceFile]) -> Vec<Finding> {
    let entries: BTreeSet<&str> = files.iter().filter_map(|f| f.path.split('/').next()).collect();
    entries
        .into_iter()
        .filter(|e| !e.starts_with('.') && !e.ends_with(".toml") && !TOP_LEVEL.contains(e))
        .map(|e| Finding::new(e, 0, "is no top-level entry of the plan; put it into the part that needs it"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_warn_then_fail() {
        let of = |n: usize| SourceFile::of("a.rs", &"x\n".repeat(n));
        assert!(sizes(&[of(600)]).is_empty());
        assert!(!sizes(&[of(601)])[0].fails);
        assert!(!sizes(&[of(800)])[0].fails);
        assert!(sizes(&[of(801)])[0].fails);
        assert!(sizes(&[SourceFile::of("docs/long.md", &"x\n".repeat(900))]).is_empty());
    }

    #[test]
    fn a_header_says_something() {
        assert!(headers(&[SourceFile::of("a.rs", "//! Owns a thing.\nfn a() {}\n")]).is_empty());
        for bad in ["", "fn a() {}\n", "// comment\n", "//! x\n", "\n//! Owns a thing.\n"] {
            assert_eq!(headers(&[SourceFile::of("a.rs", bad)]).len(), 1, "{bad:?}");
        }
    }

    #[test]
    fn strange_entries_are_found_once() {
        let of = |path: &str| SourceFile::of(path, "");
        let good =
            ["Cargo.toml", ".ci/run", "deny.toml", "README.md", "agent/core/src/lib.rs", "mkosi/mkosi.conf"];
        assert!(top_level(&good.map(of)).is_empty());
        let bad = top_level(&[of("scripts/a.sh"), of("scripts/b.sh"), of("NOTES.txt")]);
        assert_eq!(bad.iter().map(|f| f.file.as_str()).collect::<Vec<_>>(), ["NOTES.txt", "scripts"]);
    }
}
