//! The tests of a selection as the suite itself lists them (ginkgo's dry run), and their parts. Pure except `read`.
//!
//! In: focus and skips, the suite's report of the dry run, the results so far. Out: names, and [`Part`]s that name
//! their tests exactly. Invariant: a test is in at most one part; tests that need the cluster for themselves are
//! in the last ones, one at a time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::images;
use super::kept::TestResult;
use super::report::{self, Report, Spec, Verdict};
use crate::process::must;
use crate::run::Run;

/// Number of tests that ginkgo runs at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Regular expression of full names.
    pub focus: String,
    /// Regular expressions of names that are left out again.
    pub skips: Vec<String>,
    /// Tests at once.
    pub procs: u8,
}

/// A test of the suite.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    /// Full name.
    pub name: String,
    /// The text of its outermost container, for example `[sig-node] Pods`.
    pub group: String,
}

/// The selected tests of a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The suite's own name; ginkgo puts it in front of full names before it compares them with focus and skips.
    pub suite: String,
    /// Sorted by name.
    pub tests: Vec<Test>,
}

/// Asks the suite `program` which tests `part` has. Files of the question go below `dir`.
///
/// # Errors
/// If the suite does not answer.
pub(super) fn read(run: &Arc<Run>, program: &Path, dir: &Path, part: &Part) -> Result<Selection> {
    let report = dir.join("selection.json");
    let mut command = Command::new(program);
    command.args(["--ginkgo.dry-run", "--ginkgo.no-color"]);
    command.arg(format!("--ginkgo.json-report={}", report.display()));
    command.arg(format!("--ginkgo.focus={}", part.focus));
    command.args(part.skips.iter().map(|skip| format!("--ginkgo.skip={skip}")));
    // The suite of the node makes a directory where it is started.
    command.current_dir(dir).env("HOME", dir).env_remove("KUBECONFIG");
    must(run, images::keep_names(&mut command)).context("ask the suite for its tests")?;
    let text = fs::read(&report).with_context(|| format!("read {}", report.display()))?;
    parse(&text)
}

/// Asks the suite `program` for the number of tests that its release's conformance list has.
///
/// # Errors
/// If the suite does not answer.
pub(super) fn conformance_tests(run: &Arc<Run>, program: &Path, dir: &Path) -> Result<usize> {
    let mut command = Command::new(program);
    command.arg("--list-conformance-tests").current_dir(dir).env("HOME", dir).env_remove("KUBECONFIG");
    let list =
        must(run, images::keep_names(&mut command)).context("ask the suite for its conformance tests")?;
    Ok(listed(&list))
}

/// Number of entries in upstream's `conformance.yaml`.
fn listed(list: &str) -> usize {
    list.lines().filter(|line| line.starts_with("- testname: ")).count()
}

/// Reads the report of a dry run, in which the selected tests "pass".
fn parse(report: &[u8]) -> Result<Selection> {
    let [suite] = <[Report; 1]>::try_from(report::suites(report)?)
        .map_err(|all| anyhow::anyhow!("the report has {} suites instead of one", all.len()))?;
    let selected = |spec: &Spec| spec.is_test() && spec.state == "passed";
    let specs = suite.spec_reports.unwrap_or_default();
    let mut tests: Vec<Test> = specs.into_iter().filter(selected).map(test).collect();
    tests.sort();
    tests.dedup();
    Ok(Selection { suite: suite.suite_description, tests })
}

fn test(spec: Spec) -> Test {
    let mut texts = spec.container_texts();
    texts.push(spec.leaf_node_text);
    Test { group: texts[0].clone(), name: texts.join(" ") }
}

/// Tests that have no result yet, or failed; also those that the suite skipped, if the run `wants_all` to pass.
pub(super) fn left<'a>(
    tests: &'a [Test],
    kept: &BTreeMap<String, TestResult>,
    wants_all: bool,
) -> Vec<&'a Test> {
    let is_over = |test: &Test| {
        kept.get(&test.name).is_some_and(|k| match k.result {
            Verdict::Passed => true,
            Verdict::Skipped => !wants_all,
            Verdict::Failed => false,
        })
    };
    tests.iter().filter(|test| !is_over(test)).collect()
}

/// Parts of at most `size` tests, `procs` tests at once; those that want the cluster for themselves come last.
pub(super) fn parts(suite: &str, left: &[&Test], size: usize, procs: u8) -> Vec<Part> {
    let (alone, beside): (Vec<&Test>, Vec<&Test>) =
        left.iter().copied().partition(|test| is_alone(&test.name));
    let cut = |tests: &[&Test], procs: u8| -> Vec<Part> {
        let of = |some: &[&Test]| Part { focus: exactly(suite, some), skips: Vec::new(), procs };
        tests.chunks(size.max(1)).map(of).collect()
    };
    [cut(&beside, procs), cut(&alone, 1)].concat()
}

/// True for tests that run while no other does.
fn is_alone(name: &str) -> bool {
    name.contains("[Serial]") || name.contains("[Disruptive]")
}

/// A regular expression that matches these tests of the suite and no others.
fn exactly(suite: &str, tests: &[&Test]) -> String {
    let names: Vec<String> = tests.iter().map(|test| escape(&test.name)).collect();
    format!("^{} (?:{})$", escape(suite), names.join("|"))
}

/// Escapes the characters that mean something to Go's regular expressions (`regexp.QuoteMeta`).
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(name: &str) -> Test {
        Test { name: name.into(), group: "g".into() }
    }

    fn kept(result: Verdict) -> TestResult {
        TestResult {
            test: "x".into(),
            result,
            seconds: 1.0,
            commit: "c".into(),
            date: "d".into(),
            message: String::new(),
        }
    }

    #[test]
    fn the_suite_lists_its_tests() {
        let spec = |kind: &str, texts: &[&str], text: &str, state: &str| {
            let mut spec = json!({"LeafNodeType": kind, "LeafNodeText": text});
            spec["ContainerHierarchyTexts"] = json!(texts);
            spec["State"] = json!(state);
            spec
        };
        let report = json!([{"SuiteDescription": "E2eNode Suite", "SpecReports": [
            spec("It", &["[sig-node] Pods", "when b"], "run", "passed"),
            spec("It", &["[sig-node] Pods", "when c", ""], "run", "passed"),
            spec("It", &["[sig-node] Pods"], "are left out", "skipped"),
            spec("It", &["[sig-node] Pods"], "wait", "pending"),
            spec("It", &["[sig-apps] Job"], "runs", "passed"),
            spec("SynchronizedBeforeSuite", &[], "", "passed"),
        ]}]);
        let selection = parse(report.to_string().as_bytes()).unwrap();
        assert_eq!(selection.suite, "E2eNode Suite");
        let named = |name: &str, group: &str| Test { name: name.into(), group: group.into() };
        let expected = [
            named("[sig-apps] Job runs", "[sig-apps] Job"),
            named("[sig-node] Pods when b run", "[sig-node] Pods"),
            named("[sig-node] Pods when c run", "[sig-node] Pods"),
        ];
        assert_eq!(selection.tests, expected);
        assert!(parse(b"[]").is_err() && parse(b"{}").is_err());
    }

    #[test]
    fn the_releases_list_has_an_entry_for_each_test() {
        let list = "- testname: Pods, run\n  codename: '[sig-node] Pods run\n    [Conformance]'\n  description: x\n\
                    - testname: Pods, wait\n  codename: '- testname: y'\n";
        assert_eq!(listed(list), 2);
        assert_eq!(listed(""), 0);
    }

    #[test]
    fn what_is_left_has_no_result_or_failed() {
        let tests = ["a", "b", "c", "d"].map(of);
        let results =
            [("a", Verdict::Passed), ("b", Verdict::Failed), ("c", Verdict::Skipped), ("z", Verdict::Failed)];
        let kept: BTreeMap<String, TestResult> =
            results.into_iter().map(|(name, verdict)| (name.to_owned(), kept(verdict))).collect();
        let names = |wants_all: bool| -> Vec<&str> {
            left(&tests, &kept, wants_all).into_iter().map(|t| t.name.as_str()).collect()
        };
        assert_eq!(names(false), ["b", "d"]);
        assert_eq!(names(true), ["b", "c", "d"]);
    }

    #[test]
    fn serial_tests_come_last_and_alone() {
        let tests = ["a [Serial]", "b", "c", "d [Disruptive]", "e"].map(of);
        let left: Vec<&Test> = tests.iter().collect();
        let parts = parts("S", &left, 2, 4);
        let told: Vec<(&str, u8)> = parts.iter().map(|p| (p.focus.as_str(), p.procs)).collect();
        let expected = [("^S (?:b|c)$", 4), ("^S (?:e)$", 4), (r"^S (?:a \[Serial\]|d \[Disruptive\])$", 1)];
        assert_eq!(told, expected);
        assert!(parts.iter().all(|part| part.skips.is_empty()));
        assert!(super::parts("S", &[], 2, 4).is_empty());
    }

    #[test]
    fn names_are_no_expressions() {
        let name = r"[sig-node] it's (a+b)? {x|y} 1.5* ^$ c:\d";
        assert_eq!(escape(name), r"\[sig-node\] it's \(a\+b\)\? \{x\|y\} 1\.5\* \^\$ c:\\d");
    }
}
