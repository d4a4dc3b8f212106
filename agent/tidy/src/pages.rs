//! Rules about pages: sizes of table cells, links and mentions of pages.
//!
//! In: the tracked files. Out: a finding for each cell that is too long to read, each link of a page that leads to no
//! file or no heading of the tree, and each page that a text or a Rust comment names and that does not exist. Text
//! inside of code fences is not looked at. Addresses on the web are not looked up.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::tree::SourceFile;

/// Most characters of a table cell, targets of links not counted. A longer text belongs below the table, or on the
/// page of its subsystem.
pub const CELL_CHARS_MAX: usize = 200;

/// Every table cell of a page can be read at a glance.
#[must_use]
pub fn cells(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for page in files.iter().filter(|f| is_page(&f.path)) {
        for (number, line) in text_lines(page).filter(|(_, line)| line.trim_start().starts_with('|')) {
            for cell in row(line) {
                let length = without_targets(cell.trim()).chars().count();
                if length > CELL_CHARS_MAX {
                    let start: String = cell.trim().chars().take(40).collect();
                    let message = format!(
                        "the table cell `{start}…` has {length} characters, more than {CELL_CHARS_MAX}: \
                         split the row, or move the details below the table"
                    );
                    findings.push(Finding::new(&page.path, number, message));
                }
            }
        }
    }
    findings
}

/// Every link of a page to a file of the tree leads to a file that exists, and its anchor to a heading.
#[must_use]
pub fn links(files: &[SourceFile]) -> Vec<Finding> {
    let tree = Tree::of(files);
    let mut findings = Vec::new();
    for page in files.iter().filter(|f| is_page(&f.path)) {
        for (number, line) in text_lines(page) {
            for target in targets(&without_code(line)) {
                if let Some(message) = tree.broken(&page.path, &target) {
                    findings.push(Finding::new(&page.path, number, message));
                }
            }
        }
    }
    findings
}

/// Every page that a Rust comment or another page names by its path in the tree exists.
#[must_use]
pub fn mentions(files: &[SourceFile]) -> Vec<Finding> {
    let tree = Tree::of(files);
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
            for page in named_pages(line).filter(|page| !tree.files.contains(page)) {
                let message = format!("`{page}` does not exist: name the page that has this subject now");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// The paths of the tree, and the anchors of its pages.
struct Tree<'a> {
    files: BTreeSet<&'a str>,
    anchors: BTreeMap<&'a str, BTreeSet<String>>,
}

impl Tree<'_> {
    fn of(files: &[SourceFile]) -> Tree<'_> {
        Tree {
            files: files.iter().map(|f| f.path.as_str()).collect(),
            anchors: files
                .iter()
                .filter(|f| is_page(&f.path))
                .map(|f| (f.path.as_str(), anchors(f)))
                .collect(),
        }
    }

    /// The fault of a link's target as `page` spells it; `None` if the target exists or is not of the tree.
    fn broken(&self, page: &str, target: &str) -> Option<String> {
        if target.contains("://") || target.starts_with("mailto:") {
            return None;
        }
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let Some(path) = resolve(page, path) else {
            return Some(format!("the link `{target}` leads out of the repository"));
        };
        if !self.exists(&path) {
            return Some(format!("the link `{target}` leads to `{path}`, which does not exist"));
        }
        let anchors = self.anchors.get(path.as_str())?;
        (!anchor.is_empty() && !anchors.contains(anchor))
            .then(|| format!("the link `{target}`: `{path}` has no heading of the anchor `{anchor}`"))
    }

    fn exists(&self, path: &str) -> bool {
        let directory = format!("{path}/");
        self.files.contains(path) || path.is_empty() || self.files.iter().any(|f| f.starts_with(&directory))
    }
}

pub(crate) fn is_page(path: &str) -> bool {
    path.ends_with(".md")
}

/// Numbered lines outside of code fences.
pub(crate) fn text_lines(page: &SourceFile) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    page.lines().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Cells of a table's row.
fn row(line: &str) -> Vec<&str> {
    let mut cells = Vec::new();
    let mut start = 0;
    for (at, _) in line.match_indices('|').filter(|(at, _)| !line[..*at].ends_with('\\')) {
        cells.push(&line[start..at]);
        start = at + 1;
    }
    cells.push(&line[start..]);
    cells
}

/// The text as it is read: of links only their words.
fn without_targets(text: &str) -> String {
    let mut read = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        read.push_str(before);
        read.push(']');
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    read + rest
}

/// The line without its code spans, which have no links.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Targets of the links in a line.
fn targets(line: &str) -> Vec<String> {
    line.split("](").skip(1).filter_map(|after| Some(after.split_once(')')?.0.trim().to_owned())).collect()
}

/// The path in the tree that `target`, written in `page`, means; `None` if it is outside.
fn resolve(page: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(page.to_owned());
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Anchors of a page's headings, as GitHub makes them.
fn anchors(page: &SourceFile) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in text_lines(page) {
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if !(1..=6).contains(&level) || !title.starts_with(' ') {
            continue;
        }
        let slug = slug(&without_targets(title.trim()));
        let count = counts.entry(slug.clone()).or_default();
        anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    anchors
}

fn slug(title: &str) -> String {
    title
        .chars()
        .flat_map(char::to_lowercase)
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// The comment of a line of Rust.
pub(crate) fn comment(line: &str) -> Option<&str> {
    let code = line.trim_start();
    if code.starts_with("//") { Some(code) } else { line.split_once(" // ").map(|(_, comment)| comment) }
}

/// Paths of pages below `docs/` that a text names.
fn named_pages(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("docs/").filter_map(|(at, _)| {
        if text[..at].chars().next_back().is_some_and(is_path) {
            return None;
        }
        let rest = &text[at..];
        let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
        Some(rest[..end].trim_end_matches('.')).filter(|path| path.ends_with(".md"))
    })
}

fn is_path(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> SourceFile {
        SourceFile::of("docs/a.md", text)
    }

    #[test]
    fn long_cells_are_found_with_their_line() {
        let long = "x".repeat(CELL_CHARS_MAX + 1);
        let findings = cells(&[page(&format!("# A\n\n| a | {long} |\n"))]);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 3);

        let fits = "x".repeat(CELL_CHARS_MAX);
        for text in [
            format!("| a | {fits} | {fits} |"),
            format!("```\n| {long} |\n```"),
            long.clone(),
            format!("| [{}]({long}) |", "x".repeat(CELL_CHARS_MAX - 2)),
        ] {
            assert!(cells(&[page(&text)]).is_empty(), "{text}");
        }
        // A bar that is escaped does not end a cell.
        assert_eq!(cells(&[page(&format!("| {fits}\\|{fits} |"))]).len(), 1);
        assert!(cells(&[SourceFile::of("a.rs", &format!("| {long} |"))]).is_empty());
    }

    #[test]
    fn broken_links_are_found() {
        let other = SourceFile::of(
            "docs/agent/b.md",
            "# B\n## One `thing`: two\n## Twice\n## Twice\n```\n# No\n```\n",
        );
        let broken = [
            "see [b](b.md)",
            "see [b](agent/b.md#absent)",
            "see [b](agent/b.md#no)",
            "see [b](agent/b.md#twice-2)",
            "see [b](../../b.md)",
            "see [here](#absent)",
            "| a | [`code`](absent/) |",
        ];
        for text in broken {
            let findings = links(&[page(text), other.clone()]);
            assert_eq!(findings.len(), 1, "{text}");
            assert_eq!(findings[0].line, 1, "{text}");
        }
        let whole = [
            "# Here\nsee [b](agent/b.md), [b](agent/b.md#one-thing-two), [b](agent/b.md#twice-1), [a](#here)",
            "[the web](https://example.org/b.md#x), [all](agent/), [root](..), [a](../docs/a.md)",
            "```\n[b](b.md)\n```\n`[b](b.md)`",
        ];
        for text in whole {
            assert_eq!(links(&[page(text), other.clone()]), [], "{text}");
        }
        let up = SourceFile::of("docs/agent/c.md", "[a](../a.md#a) [b](b.md)\n[gone](../gone.md)\n");
        let findings = links(&[page("# A\n"), other, up]);
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].file.as_str(), findings[0].line), ("docs/agent/c.md", 2));
    }

    #[test]
    fn mentions_of_missing_pages_are_found() {
        let bad = [
            ("a.rs", "//! See docs/gone.md.\n"),
            ("a.rs", concat!("    let x = 1; /", "/ docs/gone.md, \"Title\"\n")),
            ("b.md", "as written (docs/gone.md)\n"),
        ];
        for (path, text) in bad {
            assert_eq!(mentions(&[page(""), SourceFile::of(path, text)]).len(), 1, "{text}");
        }
        let good = [
            ("a.rs", "//! See docs/a.md. And other/docs/gone.md, docs/decisions/.\n"),
            ("a.rs", "let x = \"docs/gone.md\";\n"),
            ("b.md", "```\ndocs/gone.md\n```\ndocs/a.md\n"),
            ("b.toml", "# docs/gone.md\n"),
        ];
        for (path, text) in good {
            assert_eq!(mentions(&[page(""), SourceFile::of(path, text)]), [], "{text}");
        }
    }
}
