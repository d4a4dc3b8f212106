//! The pages below `docs/reference/`, made from the code: a page that says what the code says cannot be out of date.
//!
//! In: the tracked files. Out: path and text of each page; `tests/reference.rs` compares them with the committed ones. A part of the
//! code that is not as its page's maker expects it is a finding that names the file, so that no page becomes empty by itself.

mod clap_items;
mod command_lines;
pub mod events;
mod metrics;
mod node_config;
pub mod sentences;

use std::collections::BTreeMap;

use crate::Finding;
use crate::tokens::{Token, closing, parts, product, tokens};
use crate::tree::SourceFile;

/// The command that writes the pages again.
pub const COMMAND: &str = "ORLOP_UPDATE_REFERENCE=1 cargo test -p agent-tidy --test reference";

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferencePage {
    /// Path in the repository.
    pub path: &'static str,
    /// The whole text.
    pub text: String,
}

/// A maker of a page.
type PageMaker = fn(&[SourceFile]) -> Result<String, Finding>;

const PAGES: [(&str, PageMaker); 6] = [
    ("docs/reference/command-lines.md", command_lines::page),
    ("docs/reference/conditions.md", events::conditions),
    ("docs/reference/events.md", events::page),
    ("docs/reference/metrics.md", metrics::page),
    ("docs/reference/node-config.md", node_config::page),
    ("docs/reference/problems.md", events::problems),
];

/// All pages.
///
/// # Errors
/// The first part of the code that is not as expected.
pub fn pages(files: &[SourceFile]) -> Result<Vec<ReferencePage>, Finding> {
    PAGES.into_iter().map(|(path, maker)| Ok(ReferencePage { path, text: maker(files)? })).collect()
}

/// Title, the sentence that says where the page comes from, and what else stands above its tables.
fn opening(title: &str, sources: &str, about: &str) -> String {
    format!("# {title}\n\n{about}\n\nThis page is made from {sources}: `{COMMAND}` writes it again.\n")
}

/// The text of a file of the tree.
fn text_of<'a>(files: &'a [SourceFile], path: &str) -> Result<&'a str, Finding> {
    let file = files.iter().find(|file| file.path == path);
    file.and_then(|file| file.text.as_deref())
        .ok_or_else(|| Finding::new(path, 0, "is missing: a page of docs/reference is made from it"))
}

/// The product's tokens of a file of the tree.
fn tokens_of(files: &[SourceFile], path: &str) -> Result<Vec<Token>, Finding> {
    Ok(product(&tokens(text_of(files, path)?)))
}

/// A row of a table.
fn row<const N: usize>(cells: [&str; N]) -> String {
    let cells = cells.map(|cell| cell.replace('|', "\\|").replace('\n', " "));
    format!("| {} |\n", cells.join(" | "))
}

/// The head of a table.
fn head<const N: usize>(titles: [&str; N]) -> String {
    format!("{}{}", row(titles), row([(); N].map(|()| "---")))
}

/// A text between backticks; a dash for an empty one.
fn code(text: &str) -> String {
    if text.is_empty() { "–".to_owned() } else { format!("`{text}`") }
}

/// The values of a table in the code that are literals of the struct `name`, field by field: texts as they are, paths by their last
/// word.
fn literals(all: &[Token], name: &str) -> Vec<BTreeMap<String, String>> {
    let mut found = Vec::new();
    for at in 0..all.len() {
        let [Token::Word(word), Token::Mark('{'), ..] = &all[at..] else { continue };
        if word != name {
            continue;
        }
        let inside = &all[at + 2..closing(all, at + 1).max(at + 2)];
        // A definition and the body of an item are no literals: not all of their parts are `name: value`.
        let fields: Option<BTreeMap<String, String>> = parts(inside).into_iter().map(field).collect();
        found.extend(fields.filter(|fields| !fields.is_empty()));
    }
    found
}

fn field(part: &[Token]) -> Option<(String, String)> {
    let part = part.iter().position(|t| !matches!(t, Token::Doc(_))).map(|first| &part[first..])?;
    let (Token::Word(name), Token::Mark(':')) = (part.first()?, part.get(1)?) else { return None };
    let last = part.last()?;
    let value = last.text().or_else(|| last.word())?;
    Some((name.clone(), value.to_owned()))
}

/// The rows of the table, or a finding: fewer than `least` are not the table.
fn table(
    files: &[SourceFile],
    path: &str,
    name: &str,
    least: usize,
) -> Result<Vec<BTreeMap<String, String>>, Finding> {
    let rows = literals(&tokens_of(files, path)?, name);
    if rows.len() < least {
        let message = format!("has {} literals of `{name}`: mend the maker of its page", rows.len());
        return Err(Finding::new(path, 0, message));
    }
    Ok(rows)
}

/// The value of a field; empty if the literal has none.
fn value<'a>(row: &'a BTreeMap<String, String>, name: &str) -> &'a str {
    row.get(name).map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_heads() {
        assert_eq!(head(["a", "b"]), "| a | b |\n| --- | --- |\n");
        assert_eq!(row(["a|b", "c\nd"]), "| a\\|b | c d |\n");
        assert_eq!((code("x"), code("")), ("`x`".to_owned(), "–".to_owned()));
    }

    #[test]
    fn literals_are_read_and_definitions_are_not() {
        let text = "pub struct A { pub a: &'static str, kind: Kind }\nimpl A { fn f() -> A { g(\"text\") } }\n\
                    const ALL: &[A] = &[A { a: \"one\", kind: Kind::Warning }, A { kind: Kind::Normal, a: \"two, three\" }];";
        let found = literals(&tokens(text), "A");
        let rows: Vec<_> = found.iter().map(|row| (value(row, "a"), value(row, "kind"))).collect();
        assert_eq!(rows, [("one", "Warning"), ("two, three", "Normal")]);
        let files = [SourceFile::of("a.rs", text)];
        assert!(table(&files, "a.rs", "A", 2).is_ok());
        assert_eq!(table(&files, "a.rs", "A", 3).unwrap_err().file, "a.rs");
        assert!(table(&files, "b.rs", "A", 0).is_err());
    }
}
