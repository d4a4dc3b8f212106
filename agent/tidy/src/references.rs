//! Rules about references: a reader can resolve each of them with the repository and public sources alone.
//!
//! In: the tracked files. Out: a finding for each numbered chapter of a text outside of the repository, and for each path
//! of the tree between backticks, in a Rust comment or on a page, that does not exist.

use std::collections::BTreeSet;

use crate::Finding;
use crate::pages::{comment, is_page, text_lines};
use crate::tree::SourceFile;

/// Words for a text outside of the repository. A number after one of them, or one of [`PARTS`], is a reference.
const TEXTS: &[&str] = &[concat!("contr", "act"), concat!("contr", "acts")];
/// Words for a part of such a text. A number after one of them is a reference; the text before it does not matter.
const SECTIONS: &[&str] = &[concat!("chap", "ter"), concat!("chap", "ters")];
/// Words that refer to a part of one of [`TEXTS`] without a number.
const PARTS: &[&str] = &[concat!("chap", "ter"), concat!("chap", "ters"), "fact", "facts", "rule", "rules"];
/// Marks that only a text outside of the repository explains.
const MARKS: &[&str] = &[concat!("[", "U]")];

/// No file cites a numbered chapter of a text that is not in the repository.
#[must_use]
pub fn outside_texts(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| f.is_rust() || is_page(&f.path)) {
        for (number, line) in file.lines() {
            let read = if file.is_rust() { comment(line).unwrap_or_default() } else { line };
            let mark = MARKS.iter().find(|mark| read.contains(**mark)).map(|mark| (*mark).to_owned());
            if let Some(cited) = mark.or_else(|| cited(line)) {
                let message = format!(
                    "`{cited}` is in no text of the repository: name the KEP, the API field, the CRI message, the \
                     kernel document or the upstream path, or state the rule itself"
                );
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// Every path of the tree that a Rust comment or a page names between backticks exists.
#[must_use]
pub fn paths(files: &[SourceFile]) -> Vec<Finding> {
    let tree = Paths::of(files);
    let mut findings = Vec::new();
    for file in files {
        let lines: Vec<(usize, &str)> = if file.is_rust() {
            file.lines().filter_map(|(number, line)| Some((number, comment(line)?))).collect()
        } else if is_page(&file.path) {
            text_lines(file).collect()
        } else {
            continue;
        };
        for (number, line) in lines {
            for path in line.split('`').skip(1).step_by(2).filter(|span| tree.lacks(span)) {
                let message =
                    format!("`{path}` is not in the tree: name the file or directory that is there now");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// Files and directories of the tree.
struct Paths<'a> {
    all: BTreeSet<&'a str>,
    top: BTreeSet<&'a str>,
    /// Texts between quotes of the end-to-end cases: an area may have the name of a top-level directory.
    cases: BTreeSet<&'a str>,
}

/// The end-to-end cases.
const CASES: &str = "qemu-tests/src/cases/";

impl Paths<'_> {
    fn of(files: &[SourceFile]) -> Paths<'_> {
        let mut all = BTreeSet::new();
        let (mut top, mut cases) = (BTreeSet::new(), BTreeSet::new());
        for file in files {
            let path = file.path.as_str();
            all.insert(path);
            all.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
            top.extend(path.split_once('/').map(|(first, _)| first));
            if path.starts_with(CASES) {
                cases.extend(file.lines().flat_map(|(_, line)| line.split('"').skip(1).step_by(2)));
            }
        }
        Paths { all, top, cases }
    }

    /// True if `span` spells a path below a top-level directory, and the tree has no such path.
    fn lacks(&self, span: &str) -> bool {
        let spells_path =
            span.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-'));
        let below_top = span.split_once('/').is_some_and(|(first, _)| self.top.contains(first));
        spells_path
            && below_top
            && !self.cases.contains(span)
            && !self.all.contains(span.trim_end_matches('/'))
    }
}

/// The first reference of a line to a numbered chapter, as two words.
fn cited(line: &str) -> Option<String> {
    let words: Vec<String> = line
        .split(|c: char| !(c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '\'' | ':')))
        .map(|word| word.trim_matches(|c| matches!(c, '.' | '-' | '\'' | ':')).to_lowercase())
        .filter(|word| !word.is_empty())
        .collect();
    words.windows(2).find_map(|pair| {
        let (word, next) = (pair[0].trim_end_matches("'s"), pair[1].as_str());
        let numbered = is_section(next) && (TEXTS.contains(&word) || SECTIONS.contains(&word));
        (numbered || (TEXTS.contains(&word) && PARTS.contains(&next))).then(|| format!("{} {next}", pair[0]))
    })
}

/// True for numbers of chapters and sections: `7`, `10.6`, `7.4a`.
fn is_section(word: &str) -> bool {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_lowercase());
    word.len() - digits.len() <= 1
        && !digits.is_empty()
        && digits.split('.').all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(path: &str, text: &str) -> [SourceFile; 1] {
        [SourceFile::of(path, text)]
    }

    #[test]
    fn numbered_chapters_are_found_with_their_line() {
        let (text, part) = (TEXTS[0], SECTIONS[0]);
        for bad in [
            format!("//! CSI drivers ({text} 10.6): plugins."),
            format!("//! The connection ({text} {part} 7.4a)."),
            format!("/// Mode ({text}, 10.2)."),
            format!("// In the {text}'s order ({part} 3.4)."),
            format!("/// Hash of {part} 4."),
            format!("see {part}s 3.3 and 11.2"),
            format!("/// At least 2 ({text} fact 3)."),
            format!("let x = \"{text} 1.1\";"),
            format!("// Kept as upstream has it {}.", MARKS[0]),
        ] {
            for path in ["agent/core/src/a.rs", "docs/a.md"] {
                let findings = outside_texts(&one(path, &format!("//! A.\n{bad}\n")));
                assert_eq!(findings.len(), 1, "{bad}");
                assert_eq!(findings[0].line, 2, "{bad}");
            }
        }
        // At the start of a sentence, too.
        let capital = format!("Con{} {part} 12. When memory runs short.", &text[3..]);
        assert_eq!(outside_texts(&one("docs/a.md", &capital)).len(), 1);
    }

    #[test]
    fn other_words_and_files_are_no_references() {
        let (text, part) = (TEXTS[0], SECTIONS[0]);
        for good in [
            format!("the {text} suite runs twice"),
            format!("docs/reference/boot.md is the {text}."),
            format!("one {part} for each subsystem"),
            format!("`cargo run --example api-{text}` 3 times"),
            "RFC 7386, section 2; KEP-1790; 7.4 s".to_owned(),
            format!("{text}_suite(1.0)"),
            format!("localhost/orlop/{text}:1"),
        ] {
            assert_eq!(outside_texts(&one("docs/a.md", &good)), [], "{good}");
        }
        assert_eq!(outside_texts(&one("a.toml", &format!("# {text} 10.6"))), []);
    }

    #[test]
    fn paths_that_do_not_exist_are_found() {
        let tree =
            ["agent/core/src/a.rs", "qemu-tests/src/vm/mod.rs", "docs/a.md"].map(|p| SourceFile::of(p, ""));
        let with = |path: &str, text: &str| {
            let mut files = tree.to_vec();
            files.push(SourceFile::of(path, text));
            paths(&files)
        };
        for bad in [
            "//! See `agent/core/src/gone.rs`.\n",
            "/// Upstream's; `qemu-tests/src/gone/` has the case.\n",
            concat!("    let x = 1; /", "/ `agent/gone`\n"),
        ] {
            let findings = with("agent/b.rs", bad);
            assert_eq!((findings.len(), findings[0].line), (1, 1), "{bad}");
        }
        assert_eq!(with("docs/b.md", "# B\n\nCode: `agent/core/src/gone`.\n")[0].line, 3);
        for good in [
            "//! See `agent/core/src/a.rs`, `agent/core/src`, `qemu-tests/src/vm/` and `docs/`.\n",
            "//! `pkg/kubelet/gone.go` is upstream's, `agent/<name>` and `agent/*.rs` are patterns.\n",
            "//! `agent::core::gone`, `and/or`.\n",
            "let x = \"`agent/core/src/gone.rs`\";\n",
        ] {
            assert_eq!(with("agent/b.rs", good), [], "{good}");
        }
        assert_eq!(with("docs/b.md", "```\n`agent/gone`\n```\n"), []);
        // An end-to-end case, whose area has the name of a directory.
        let mut files =
            vec![SourceFile::of("qemu-tests/src/cases/agent/killed.rs", "    \"agent/killed\",\n")];
        files.extend([
            SourceFile::of("agent/a.rs", ""),
            SourceFile::of("docs/b.md", "`agent/killed`, `agent/lost`\n"),
        ]);
        let found = paths(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("agent/lost"), "{found:?}");
    }
}
