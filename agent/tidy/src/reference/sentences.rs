//! Rule: a person who reads a sentence of a node on a console finds it in the runbooks.
//!
//! In: the files whose sentences are shown as problems with the cluster, of the boot, or of the state partition. Out: a finding for each
//! sentence without its words on the page. The words of a sentence are its first part of three words and more between values and marks:
//! what a person would look for.

use super::text_of;
use crate::Finding;
use crate::tokens::{Token, product, tokens};
use crate::tree::SourceFile;

/// Which texts of a file are sentences.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SentenceTexts {
    /// Those of `#[error("…")]`.
    Errors,
    /// All.
    All,
}

use SentenceTexts::{All, Errors};

const CLUSTER: &str = "docs/runbooks/cluster.md";
const BOOT: &str = "docs/runbooks/boot.md";
const NODE: &str = "docs/runbooks/node.md";

const SOURCES: [(&str, SentenceTexts, &str); 16] = [
    ("agent/apiserver/src/connect.rs", Errors, CLUSTER),
    ("agent/apiserver/src/discovery/error.rs", Errors, CLUSTER),
    ("agent/apiserver/src/kubeconfig/mod.rs", Errors, CLUSTER),
    ("agent/apiserver/src/tls.rs", Errors, CLUSTER),
    ("agent/core/src/certs/message.rs", All, CLUSTER),
    ("agent/core/src/clock/machine.rs", All, CLUSTER),
    ("agent/daemon/src/cluster/bootstrap_credentials.rs", All, CLUSTER),
    ("init/src/exec/error.rs", Errors, BOOT),
    ("init/src/plan/cmdline.rs", Errors, BOOT),
    ("init/src/plan/disk.rs", All, BOOT),
    ("init/src/plan/esp.rs", Errors, BOOT),
    ("init/src/plan/gpt.rs", Errors, BOOT),
    ("init/src/plan/gpt_change.rs", Errors, BOOT),
    ("init/src/plan/state.rs", All, NODE),
    ("init/src/plan/swap.rs", Errors, BOOT),
    ("init/src/plan/verity.rs", Errors, BOOT),
];

/// Sentences whose words are not on their page.
#[must_use]
pub fn unanswered(files: &[SourceFile]) -> Vec<Finding> {
    SOURCES.iter().flat_map(|(path, which, page)| of_file(files, path, *which, page)).collect()
}

fn of_file(files: &[SourceFile], path: &str, which: SentenceTexts, page: &str) -> Vec<Finding> {
    let (code, text) = match (text_of(files, path), text_of(files, page)) {
        (Ok(code), Ok(text)) => (code, text),
        (Err(finding), _) | (_, Err(finding)) => return vec![finding],
    };
    let all = product(&tokens(code));
    let words: Vec<String> = texts(&all, which).into_iter().filter_map(words).collect();
    if words.is_empty() {
        return vec![Finding::new(path, 0, "has no sentence any more: take it from the list of this rule")];
    }
    let missing = words.iter().filter(|words| !text.contains(words.as_str()));
    missing
        .map(|words| {
            Finding::new(
                path,
                0,
                format!("says `{words}`: say on {page} what it means and what to do about it"),
            )
        })
        .collect()
}

fn texts(all: &[Token], which: SentenceTexts) -> Vec<&str> {
    if which == All {
        return all.iter().filter_map(Token::text).collect();
    }
    let mut found = Vec::new();
    for at in 0..all.len() {
        if let [
            Token::Mark('#'),
            Token::Mark('['),
            Token::Word(error),
            Token::Mark('('),
            Token::Text(text),
            ..,
        ] = &all[at..]
            && error == "error"
        {
            found.push(text.as_str());
        }
    }
    found
}

/// The first part with three words and more; `None` for a text that has none.
fn words(text: &str) -> Option<String> {
    let mut rest = text;
    loop {
        let (literal, behind) = rest.split_once('{').unwrap_or((rest, ""));
        for part in literal.split([';', ':', '(', ')', '`', '\n']) {
            let part = part.trim_matches([' ', ':', ',', '.', '\'', '"']);
            if part.split_whitespace().count() >= 3 {
                return Some(part.to_owned());
            }
        }
        rest = behind.split_once('}')?.1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_that_a_person_looks_for() {
        for (text, expected) in [
            ("{server}: has no ConfigMap {name}; make it", Some("has no ConfigMap")),
            (
                "join: neither caData nor caCertHashes is set; set one",
                Some("neither caData nor caCertHashes is set"),
            ),
            ("cannot {step}", None),
            ("{0}", None),
            ("a {", None),
            ("", None),
            ("the clock shows {}, but", Some("the clock shows")),
        ] {
            assert_eq!(words(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn sentences_without_words_on_their_page_are_found() {
        let code = SourceFile::of(
            "a.rs",
            "#[error(\"the disk is gone: {0}\")] struct A; f(\"the other text here\")",
        );
        let page = |text: &str| SourceFile::of("p.md", text);
        let found = |which, text: &str| of_file(&[code.clone(), page(text)], "a.rs", which, "p.md").len();
        assert_eq!(found(Errors, "| `the disk is gone` | dead |"), 0);
        assert_eq!(found(Errors, "nothing"), 1);
        assert_eq!(found(All, "the disk is gone"), 1);
        assert_eq!(of_file(std::slice::from_ref(&code), "a.rs", Errors, "p.md").len(), 1);
        assert_eq!(of_file(&[page(""), SourceFile::of("b.rs", "fn b() {}")], "b.rs", All, "p.md").len(), 1);
    }
}
