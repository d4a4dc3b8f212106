//! The table of a suite's results for docs/internals/conformance.md. Pure except [`write_to_page`] and [`ensure_place`].
//!
//! In: the selected tests, the last result of each, the lists of tests that are left out. Out: a table with a row for each
//! group of tests, then each test that did not pass with its reason, then what the run leaves out with the reason.
//! Invariants: a test of the selection counts once; no cell is longer than a page may have.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result, ensure};

use super::kept::TestResult;
use super::report::Verdict;
use super::selection::Test;
use super::skips::Skip;
use super::summary;
use crate::counts::Counts;
use crate::workspace::workspace;

/// Results of the last runs, by full name.
type Results = BTreeMap<String, TestResult>;

/// The page with the table.
const PAGE: &str = "docs/internals/conformance.md";
/// Largest number of characters of a reason.
const REASON: usize = 160;
/// Largest number of characters of a group's name in a cell.
const GROUP: usize = 150;

/// Renders the table.
pub(super) fn render(tests: &[Test], results: &Results, left_out: &[Skip]) -> String {
    let mut text = head(tests, results);
    text.push_str("\n\n| tests | passed | failed | skipped | not run |\n| --- | --- | --- | --- | --- |\n");
    let mut groups: BTreeMap<&str, Vec<Test>> = BTreeMap::new();
    for test in tests {
        groups.entry(&test.group).or_default().push(test.clone());
    }
    for (group, of_group) in &groups {
        text.push_str(&row(&cell(&cut(group, GROUP)), of_group, results));
    }
    text.push_str(&row("**all**", tests, results));
    for verdict in [Verdict::Failed, Verdict::Skipped] {
        text.push_str(&reasons(verdict, tests, results));
    }
    if !left_out.is_empty() {
        text.push_str("\nLeft out, as regular expressions of names:\n\n");
        for skip in left_out {
            text.push_str(&line(&skip.skip, &skip.reason));
        }
    }
    text
}

/// Counts in one sentence, and the days of the results.
fn head(tests: &[Test], results: &Results) -> String {
    let (counts, missing) = (summary::counts(tests, results), summary::missing(tests, results));
    let mut days: Vec<&str> =
        tests.iter().filter_map(|test| results.get(&test.name)?.date.get(..DAY)).collect();
    days.sort_unstable();
    let when = match (days.first(), days.last()) {
        (Some(first), Some(last)) if first == last => format!(" ({first})"),
        (Some(first), Some(last)) => format!(" ({first} to {last})"),
        _ => String::new(),
    };
    let Counts { passed, failed, skipped } = counts;
    format!(
        "{} tests: {passed} passed, {failed} failed, {skipped} skipped by the suite, {missing} not run{when}.",
        tests.len()
    )
}

/// Length of a date without its time.
const DAY: usize = "2026-11-30".len();

fn row(name: &str, tests: &[Test], results: &Results) -> String {
    let Counts { passed, failed, skipped } = summary::counts(tests, results);
    let missing = summary::missing(tests, results);
    format!("| {name} | {passed} | {failed} | {skipped} | {missing} |\n")
}

/// The tests with this result and their reasons; nothing if there are none.
fn reasons(verdict: Verdict, tests: &[Test], results: &Results) -> String {
    let with = |test: &&Test| results.get(&test.name).is_some_and(|kept| kept.result == verdict);
    let mut text = String::new();
    for test in tests.iter().filter(with) {
        if text.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n{}:\n\n", if verdict == Verdict::Failed { "Failed" } else { "Skipped" });
        }
        let why = results.get(&test.name).map(|kept| reason(&kept.message)).unwrap_or_default();
        text.push_str(&line(&test.name, &why));
    }
    text
}

/// One entry of a list.
fn line(name: &str, why: &str) -> String {
    let why = if why.is_empty() { "no message" } else { why };
    // A backtick would end the code that the text is set as.
    format!("* `{}`: `{}`\n", name.replace('`', "'"), why.replace('`', "'"))
}

/// The first words of a message, in one line.
fn reason(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    let line: String = words.join(" ").chars().filter(|c| !c.is_control()).collect();
    cut(&line, REASON)
}

/// The first characters of a text.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Writes a table into the page of this checkout, in the place of the one of the same name.
///
/// # Errors
/// If the page has no place for it, or cannot be written.
pub(super) fn write_to_page(name: &str, table: &str) -> Result<()> {
    let path = workspace().join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let page = embed(&page, name, table)?;
    fs::write(&path, page).with_context(|| format!("write {}", path.display()))
}

/// Fails unless the page of this checkout has a place for the table of this name: hours of tests would come before.
///
/// # Errors
/// If it has none.
pub(super) fn ensure_place(name: &str) -> Result<()> {
    let path = workspace().join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    embed(&page, name, "").map(drop)
}

/// The page with the table between the marks of this name. Pure.
fn embed(page: &str, name: &str, table: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- table {name}: begin -->\n"), format!("<!-- table {name}: end -->"));
    let lacks = || format!("{PAGE} has no place for the table of {name}: add `{}` and `{end}`", begin.trim());
    let (before, rest) = page.split_once(&begin).with_context(lacks)?;
    let (_, after) = rest.split_once(&end).with_context(lacks)?;
    ensure!(!after.contains(&begin), "{PAGE} has two places for the table of {name}");
    Ok(format!("{before}{begin}\n{}\n\n{end}{after}", table.trim()))
}

#[cfg(test)]
mod tests {
    use super::super::junit;
    use super::*;

    /// As ginkgo writes it, with tests that a filter excluded and a step of the suite.
    const SAMPLE: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="7" disabled="2" errors="0" failures="1" time="12.5">
  <testsuite name="E2eNode Suite" package="/var/lib/suite" tests="7" failures="1" skipped="2">
    <properties><property name="SuiteSucceeded" value="false"></property></properties>
    <testcase name="[SynchronizedBeforeSuite]" classname="E2eNode Suite" status="passed" time="1.5"></testcase>
    <testcase name="[It] [sig-node] Pods run &amp; &lt;end&gt; [NodeConformance] [sig-node, NodeConformance]" classname="E2eNode Suite" status="passed" time="2.5"></testcase>
    <testcase name="[It] [sig-node] Pods wait" classname="E2eNode Suite" status="skipped" time="0.5">
      <skipped message="skipped - needs `two` nodes"></skipped>
    </testcase>
    <testcase name="[It] [sig-node] Summary API tells" classname="E2eNode Suite" status="failed" time="8">
      <failure message="expected &#34;a|b&#34;&#xA;not c" type="failed">[FAILED] at summary_test.go:1</failure>
      <system-err>a > b</system-err>
    </testcase>
    <testcase name="[It] [sig-node] Secrets are left out" classname="E2eNode Suite" status="skipped" time="0">
      <skipped message="skipped"></skipped>
    </testcase>
  </testsuite>
</testsuites>
"#;

    fn tests() -> Vec<Test> {
        let test = |name: &str, group: &str| Test { name: name.into(), group: group.into() };
        vec![
            test("[sig-node] Pods run & <end> [NodeConformance]", "[sig-node] Pods"),
            test("[sig-node] Pods wait", "[sig-node] Pods"),
            test("[sig-node] Secrets are left out", "[sig-node] Secrets"),
            test("[sig-node] Summary API tells", "[sig-node] Summary API"),
        ]
    }

    fn of_sample() -> Results {
        let tests = tests();
        let names = tests.iter().map(|test| test.name.as_str()).collect();
        let kept = junit::read(SAMPLE, &names).unwrap().into_iter().map(|outcome| TestResult {
            test: outcome.name,
            result: outcome.verdict,
            seconds: outcome.seconds,
            commit: "c".into(),
            date: "2026-11-30T10:00:00Z".into(),
            message: outcome.message,
        });
        kept.map(|kept| (kept.test.clone(), kept)).collect()
    }

    #[test]
    fn the_table_of_a_junit_file_has_counts_and_reasons() {
        let skips = [Skip { skip: r"\[Slow\]|x".into(), reason: "the place".into(), not_with_serial: false }];
        let text = render(&tests(), &of_sample(), &skips);
        let expected = "4 tests: 1 passed, 1 failed, 1 skipped by the suite, 1 not run (2026-11-30).\n\
            \n\
            | tests | passed | failed | skipped | not run |\n\
            | --- | --- | --- | --- | --- |\n\
            | [sig-node] Pods | 1 | 0 | 1 | 0 |\n\
            | [sig-node] Secrets | 0 | 0 | 0 | 1 |\n\
            | [sig-node] Summary API | 0 | 1 | 0 | 0 |\n\
            | **all** | 1 | 1 | 1 | 1 |\n\
            \nFailed:\n\n\
            * `[sig-node] Summary API tells`: `expected \"a|b\" not c`\n\
            \nSkipped:\n\n\
            * `[sig-node] Pods wait`: `needs 'two' nodes`\n\
            \nLeft out, as regular expressions of names:\n\n\
            * `\\[Slow\\]|x`: `the place`\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn without_results_no_test_has_run() {
        let text = render(&tests(), &Results::new(), &[]);
        assert!(
            text.starts_with("4 tests: 0 passed, 0 failed, 0 skipped by the suite, 4 not run.\n"),
            "{text}"
        );
        assert!(!text.contains("Failed") && !text.contains("Left out"), "{text}");
    }

    #[test]
    fn long_texts_are_cut_and_cells_stay_cells() {
        assert_eq!(reason(&"é ".repeat(200)).chars().count(), REASON + 1);
        assert_eq!(reason("two\n lines\u{1b}"), "two lines");
        assert_eq!(cell(&cut("a|b", GROUP)), "a\\|b");
    }

    #[test]
    fn a_page_keeps_all_but_the_table_of_that_name() {
        let page = "before\n<!-- table node-vm: begin -->\nold\n<!-- table node-vm: end -->\nafter\n";
        let new = embed(page, "node-vm", "new\n").unwrap();
        let expected = "before\n<!-- table node-vm: begin -->\n\nnew\n\n<!-- table node-vm: end -->\nafter\n";
        assert_eq!(new, expected);
        assert_eq!(embed(&new, "node-vm", "new").unwrap(), new);
        let error = embed(page, "node-native", "new").unwrap_err().to_string();
        assert!(error.contains("has no place for the table of node-native"), "{error}");
        assert!(embed(&page.repeat(2), "node-vm", "new").is_err());
    }

    #[test]
    fn the_page_of_this_checkout_has_places_for_the_suite_of_the_node() {
        for name in ["node-vm", "node-native"] {
            ensure_place(name).unwrap();
        }
        assert!(ensure_place("certified-native").is_err());
    }
}
