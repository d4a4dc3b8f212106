//! Results of a selection for others to read: junit XML, a list, counts. Pure.
//!
//! In: the selected tests and the last result of each. Out: texts. Invariant: a test of the selection counts once,
//! however often it ran; results of other tests do not count.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::kept::TestResult;
use super::report::Verdict;
use super::selection::{Selection, Test};
use crate::counts::Counts;

/// Results of the last runs, by full name.
type Results = BTreeMap<String, TestResult>;

/// Counts of the selected tests that have a result.
pub(super) fn counts(tests: &[Test], results: &Results) -> Counts {
    let of = tests.iter().filter_map(|test| results.get(&test.name));
    of.fold(Counts::default(), |all, kept| all.plus(kept.result.counts()))
}

/// Number of selected tests without a result.
pub(super) fn missing(tests: &[Test], results: &Results) -> usize {
    tests.iter().filter(|test| !results.contains_key(&test.name)).count()
}

/// A line for each selected test, with its result if it has one.
pub(super) fn list(tests: &[Test], results: &Results) -> String {
    let mut text = String::new();
    for test in tests {
        // Writing to a String cannot fail.
        let _ = match results.get(&test.name) {
            Some(kept) => writeln!(text, "{}\t{:.1}\t{}", kept.result.word(), kept.seconds, test.name),
            None => writeln!(text, "-\t-\t{}", test.name),
        };
    }
    text
}

/// One junit document of all results, with the names that ginkgo gives them.
pub(super) fn junit(selection: &Selection, results: &Results) -> String {
    let kept: Vec<&TestResult> = selection.tests.iter().filter_map(|test| results.get(&test.name)).collect();
    let counts = counts(&selection.tests, results);
    let (suite, seconds) = (xml(&selection.suite), kept.iter().map(|k| k.seconds).sum::<f64>());
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let totals = format!(
        "tests=\"{}\" failures=\"{}\" skipped=\"{}\" errors=\"0\" time=\"{seconds:.3}\"",
        kept.len(),
        counts.failed,
        counts.skipped
    );
    // Writing to a String cannot fail.
    let _ = writeln!(text, "<testsuites {totals}>\n<testsuite name=\"{suite}\" {totals}>");
    for kept in kept {
        let _ = write!(
            text,
            "<testcase name=\"[It] {}\" classname=\"{suite}\" time=\"{:.3}\"",
            xml(&kept.test),
            kept.seconds
        );
        let message = xml(&kept.message);
        let first = xml(kept.message.lines().next().unwrap_or_default());
        let _ = match kept.result {
            Verdict::Passed => writeln!(text, "/>"),
            Verdict::Failed => {
                writeln!(text, "><failure message=\"{first}\">{message}</failure></testcase>")
            }
            Verdict::Skipped => writeln!(text, "><skipped message=\"{first}\"/></testcase>"),
        };
    }
    text + "</testsuite>\n</testsuites>\n"
}

/// Escapes text, and leaves out the characters that XML does not have.
fn xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c < ' ' => {}
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection() -> Selection {
        let test = |name: &str, group: &str| Test { name: name.into(), group: group.into() };
        let tests = vec![
            test("[sig-apps] Job runs", "[sig-apps] Job"),
            test("[sig-node] Pods run & <end>", "[sig-node] Pods"),
            test("[sig-node] Pods wait", "[sig-node] Pods"),
            test("[sig-node] Pods not yet", "[sig-node] Pods"),
        ];
        Selection { suite: "Kubernetes e2e suite".into(), tests }
    }

    fn results() -> Results {
        let kept = |test: &str, result: Verdict, message: &str| {
            let (commit, date) = ("c".to_owned(), "d".to_owned());
            let kept =
                TestResult { test: test.into(), result, seconds: 1.5, commit, date, message: message.into() };
            (kept.test.clone(), kept)
        };
        BTreeMap::from([
            kept("[sig-apps] Job runs", Verdict::Passed, ""),
            kept("[sig-node] Pods run & <end>", Verdict::Failed, "expected \"a|b\"\nnot\u{1b} <c>"),
            kept("[sig-node] Pods wait", Verdict::Skipped, "needs two nodes"),
            // Of another selection.
            kept("[sig-node] Secrets are", Verdict::Failed, "no"),
        ])
    }

    #[test]
    fn only_the_selection_counts() {
        let (selection, results) = (selection(), results());
        let counts = counts(&selection.tests, &results);
        assert_eq!(counts, Counts { passed: 1, failed: 1, skipped: 1 });
        assert_eq!(missing(&selection.tests, &results), 1);
        let list = list(&selection.tests, &results);
        assert!(list.starts_with("passed\t1.5\t[sig-apps] Job runs\nfailed\t"), "{list}");
        assert!(list.ends_with("\n-\t-\t[sig-node] Pods not yet\n"), "{list}");
    }

    #[test]
    fn results_of_all_parts_are_one_document() {
        let text = junit(&selection(), &results());
        for line in [
            "<testsuite name=\"Kubernetes e2e suite\" tests=\"3\" failures=\"1\" skipped=\"1\" errors=\"0\" time=\"4.500\">",
            "<testcase name=\"[It] [sig-apps] Job runs\" classname=\"Kubernetes e2e suite\" time=\"1.500\"/>",
            "<testcase name=\"[It] [sig-node] Pods run &amp; &lt;end&gt;\" classname=\"Kubernetes e2e suite\" time=\"1.500\">\
             <failure message=\"expected &quot;a|b&quot;\">expected &quot;a|b&quot;",
            "not &lt;c&gt;</failure></testcase>",
            "<skipped message=\"needs two nodes\"/></testcase>",
        ] {
            assert!(text.lines().any(|have| have.contains(line)), "{line}\n{text}");
        }
        assert!(!text.contains("not yet") && !text.contains("Secrets"), "{text}");
        assert!(text.ends_with("</testsuite>\n</testsuites>\n"));
    }
}
