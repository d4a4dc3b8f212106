//! ginkgo's output while it runs, as one line for each test. Pure.
//!
//! In: its verbose output without colours. Out: `PASSED 12.3 s [sig-node] …`. The results are in the report;
//! these lines are for the person who watches, and keep what has passed if there is never a report.

use std::collections::BTreeSet;
use std::fmt;

/// A test that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedTest {
    /// ginkgo's word for the result: `PASSED`, `FAILED`, `SKIPPED` and others.
    pub state: String,
    /// Duration, seconds.
    pub seconds: f64,
    /// The name as ginkgo prints it: with its labels, and perhaps with the step that failed.
    pub printed: String,
}

impl EndedTest {
    /// The name without what ginkgo adds, if it is one of `names`.
    #[must_use]
    pub fn name<'a>(&'a self, names: &BTreeSet<&str>) -> Option<&'a str> {
        let mut name = self.printed.as_str();
        while !names.contains(name) {
            // Labels and version constraints are in brackets, one pair each.
            name = name.rsplit_once(" [")?.0;
        }
        Some(name)
    }
}

impl fmt::Display for EndedTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<7} {:>6.1} s  {}", self.state, self.seconds, without_labels(&self.printed))
    }
}

/// Reads line after line.
#[derive(Debug, Default)]
pub struct Lines {
    /// State and seconds of the test whose name is on the next line.
    ended: Option<(String, f64)>,
    /// The line after the last rule: with one process it is the name, printed before the test begins.
    begun: String,
    is_after_rule: bool,
}

impl Lines {
    /// Reads a line; returns the test that ended.
    pub fn next(&mut self, line: &str) -> Option<EndedTest> {
        let is_rule = line.starts_with("----------");
        if let Some((state, seconds)) = self.ended.take() {
            let printed = if is_rule { self.begun.clone() } else { line.trim().to_owned() };
            self.is_after_rule = is_rule;
            return Some(EndedTest { state, seconds, printed });
        }
        self.ended = header(line);
        if self.is_after_rule {
            line.trim().clone_into(&mut self.begun);
        }
        self.is_after_rule = is_rule;
        None
    }
}

/// `• [5.045 seconds]`, `• [FAILED] [300.1 seconds]`, `S [SKIPPED] [0.1 seconds]`.
fn header(line: &str) -> Option<(String, f64)> {
    let rest = line.strip_prefix("• [").or_else(|| line.strip_prefix("S ["))?;
    let (state, rest) = match rest.split_once("] [") {
        Some((state, rest)) => (state, rest),
        None => ("PASSED", rest),
    };
    let seconds = rest.strip_suffix(" seconds]")?.parse().ok()?;
    Some((state.to_owned(), seconds))
}

/// ginkgo repeats the labels in brackets behind the name.
fn without_labels(name: &str) -> &str {
    match name.rsplit_once(" [") {
        Some((name, labels)) if labels.contains(", ") => name,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_told_as_they_end() {
        let text = "\
            Running Suite: Kubernetes e2e suite\n\
            SSSSSSS\n\
            ------------------------------\n\
            • [5.045 seconds]\n\
            [sig-node] Pods should be updated [NodeConformance] [Conformance] [sig-node, NodeConformance, Conformance]\n\
            k8s.io/kubernetes/test/e2e/common/node/pods.go:1\n\
            ------------------------------\n\
            • [FAILED] [300.16 seconds]\n\
            [sig-node] Secrets should work [sig-node, NodeConformance]\n\
            S [SKIPPED] [0.012 seconds]\n\
            [sig-node] AppArmor [LinuxOnly]\n\
            • [not seconds]\n";
        let mut lines = Lines::default();
        let alone = "\
            ------------------------------\n\
            [sig-node] Pods alone [sig-node, Serial]\n\
            k8s.io/kubernetes/test/e2e/common/node/pods.go:1\n\
            • [27.1 seconds]\n\
            ------------------------------\n";
        let told: Vec<String> = alone.lines().filter_map(|l| Some(lines.next(l)?.to_string())).collect();
        assert_eq!(told, ["PASSED    27.1 s  [sig-node] Pods alone"]);
        let said: Vec<String> = text.lines().filter_map(|l| Some(lines.next(l)?.to_string())).collect();
        assert_eq!(
            said,
            [
                "PASSED     5.0 s  [sig-node] Pods should be updated [NodeConformance] [Conformance]",
                "FAILED   300.2 s  [sig-node] Secrets should work",
                "SKIPPED    0.0 s  [sig-node] AppArmor [LinuxOnly]",
            ]
        );
    }

    #[test]
    fn a_printed_name_is_found_among_the_suites() {
        let names = BTreeSet::from(["[sig-node] Pods run [Slow]", "[sig-node] Pods run", "alone"]);
        let of = |printed: &str| {
            let ended = EndedTest { state: "PASSED".into(), seconds: 1.0, printed: printed.into() };
            ended.name(&names).map(str::to_owned)
        };
        assert_eq!(of("[sig-node] Pods run [Slow] [sig-node, Slow]").unwrap(), "[sig-node] Pods run [Slow]");
        assert_eq!(of("[sig-node] Pods run [sig-node] [>= 1.36.0]").unwrap(), "[sig-node] Pods run");
        assert_eq!(of("alone").unwrap(), "alone");
        // A failed step is in the middle of its name.
        assert_eq!(of("[sig-node] Pods [It] run [sig-node]"), None);
        assert_eq!(of(""), None);
    }
}
