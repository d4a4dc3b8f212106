//! ginkgo's JSON report as results. Pure.
//!
//! In: the report's bytes. Out: one result for each test that began, and for each step of the suite itself
//! that failed. Tests that the focus or the skips exclude are not results.

use std::fmt::Write;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::counts::Counts;

/// Result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The test passed.
    Passed,
    /// Did not, or was interrupted.
    Failed,
    /// The test found that it cannot run here.
    Skipped,
}

impl Verdict {
    /// `passed`, `failed` or `skipped`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "failed",
            Verdict::Skipped => "skipped",
        }
    }

    /// This verdict as counts.
    #[must_use]
    pub fn counts(self) -> Counts {
        match self {
            Verdict::Passed => Counts::one(true),
            Verdict::Failed => Counts::one(false),
            Verdict::Skipped => Counts::one_skipped(),
        }
    }
}

/// One test.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Full name, the one that focus and skips match.
    pub name: String,
    /// Its result.
    pub verdict: Verdict,
    /// Its duration.
    pub seconds: f64,
    /// Its last message, if it did not pass.
    pub message: String,
}

/// ginkgo's report of one suite.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Report {
    #[serde(default)]
    pub(super) suite_description: String,
    pub(super) spec_reports: Option<Vec<Spec>>,
}

/// A test, or a step of the suite.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    #[serde(default)]
    pub(super) leaf_node_text: String,
    pub(super) state: String,
    /// Nanoseconds.
    #[serde(default)]
    run_time: u64,
    failure: Option<Failure>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

impl Spec {
    /// Texts of its containers without the empty ones: ginkgo has those in no full name.
    pub(super) fn container_texts(&self) -> Vec<String> {
        let all = self.container_hierarchy_texts.iter().flatten();
        all.filter(|text| !text.is_empty()).cloned().collect()
    }

    /// True for a test, false for a step of the suite.
    pub(super) fn is_test(&self) -> bool {
        self.leaf_node_type == "It"
    }
}

/// The reports of all suites in the text.
///
/// # Errors
/// If the text is not a report.
pub(super) fn suites(report: &[u8]) -> Result<Vec<Report>> {
    serde_json::from_slice(report).context("read ginkgo's report")
}

/// Reads a report.
///
/// # Errors
/// If the text is not a report.
pub fn results(report: &[u8]) -> Result<Vec<Outcome>> {
    let mut results: Vec<Outcome> = suites(report)?
        .into_iter()
        .flat_map(|s| s.spec_reports.unwrap_or_default())
        .filter_map(outcome)
        .collect();
    results.sort_by(|a, b| (a.verdict, &a.name).cmp(&(b.verdict, &b.name)));
    Ok(results)
}

fn outcome(spec: Spec) -> Option<Outcome> {
    let (is_test, mut name) = (spec.is_test(), spec.container_texts());
    let message = spec.failure.unwrap_or_default().message;
    let verdict = match spec.state.as_str() {
        "passed" if is_test => Verdict::Passed,
        // A test that a filter excluded has no message.
        "skipped" if is_test && !message.is_empty() => Verdict::Skipped,
        "passed" | "skipped" | "pending" => return None,
        _ => Verdict::Failed,
    };
    // Steps of the suite have no text of their own.
    name.push(if spec.leaf_node_text.is_empty() { spec.leaf_node_type } else { spec.leaf_node_text });
    Some(Outcome { name: name.join(" "), verdict, seconds: spec.run_time as f64 / 1e9, message })
}

/// Counts of the results.
#[must_use]
pub fn counts(results: &[Outcome]) -> Counts {
    results.iter().fold(Counts::default(), |all, r| all.plus(r.verdict.counts()))
}

/// A line for each, to be compared with another run's.
#[must_use]
pub fn table(results: &[Outcome]) -> String {
    let mut text = String::new();
    for r in results {
        let verdict = r.verdict.word();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{verdict}\t{:.1}\t{}", r.seconds, r.name);
    }
    text
}

/// Largest number of lines of a message that are shown: some messages include whole pods.
const SHOWN_LINES: usize = 40;

/// A message's first lines, indented.
#[must_use]
pub fn indented(message: &str) -> String {
    let mut lines: Vec<String> = message.lines().take(SHOWN_LINES).map(|l| format!("    {l}")).collect();
    let more = message.lines().count().saturating_sub(SHOWN_LINES);
    if more > 0 {
        lines.push(format!("    … {more} more lines in report.json"));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_begun_counts() {
        let it = |state: &str, text: &str, message: Option<&str>| {
            let mut spec = json!({"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It",
                "LeafNodeText": text, "State": state, "RunTime": 1_500_000_000_u64});
            if let Some(message) = message {
                spec["Failure"] = json!({"Message": message, "Location": {"LineNumber": 1}});
            }
            spec
        };
        let suite = json!({"ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite",
            "LeafNodeText": "", "State": "failed", "Failure": {"Message": "no nodes"}});
        let report = json!([{"SpecReports": [
            it("passed", "b", None), it("failed", "c", Some("it broke\nthere")), it("skipped", "left out", None),
            it("skipped", "not here", Some("needs two nodes")), it("timedout", "d", Some("late")),
            it("pending", "e", None), suite,
        ]}, {"SpecReports": null}]);
        let results = results(report.to_string().as_bytes()).unwrap();
        assert_eq!(counts(&results), Counts { passed: 1, failed: 3, skipped: 1 });
        let table = table(&results);
        assert!(table.starts_with("passed\t1.5\t[sig-node] Pods b\n"), "{table}");
        assert!(table.contains("failed\t0.0\tSynchronizedBeforeSuite\n"), "{table}");
        assert!(table.contains("skipped\t1.5\t[sig-node] Pods not here\n"), "{table}");
        assert!(super::results(b"{}").is_err());
    }

    #[test]
    fn an_empty_container_text_is_not_in_the_name() {
        let spec = json!({"ContainerHierarchyTexts": ["[sig-node] Memory", "none policy", ""],
            "LeafNodeType": "It", "LeafNodeText": "starts", "State": "passed"});
        let results = results(json!([{"SpecReports": [spec]}]).to_string().as_bytes()).unwrap();
        assert_eq!(results[0].name, "[sig-node] Memory none policy starts");
    }

    #[test]
    fn a_long_message_is_cut() {
        assert_eq!(indented("a\nb"), "    a\n    b");
        let long = indented(&"x\n".repeat(100));
        assert!(long.ends_with("    … 60 more lines in report.json"), "{long}");
    }
}
