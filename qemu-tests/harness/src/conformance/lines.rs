//! ginkgo's output while it runs, as one line for each test. Pure.
//!
//! What comes in: its verbose output without colours. What goes out: `PASSED 12.3 s [sig-node] …`. The result is in the
//! report; these lines are for the person who watches.

/// Reads line after line.
#[derive(Debug, Default)]
pub struct Lines {
    /// State and seconds of the test whose name is on the next line.
    ended: Option<(String, String)>,
    /// The line after the last rule: with one process it is the name, printed before the test begins.
    begun: String,
    is_after_rule: bool,
}

impl Lines {
    /// Reads a line; returns the line to print if a test ended.
    pub fn next(&mut self, line: &str) -> Option<String> {
        let is_rule = line.starts_with("----------");
        if let Some((state, seconds)) = self.ended.take() {
            let name = if is_rule { &self.begun } else { line.trim() };
            let said = format!("{state:<7} {seconds:>6} s  {}", without_labels(name));
            self.is_after_rule = is_rule;
            return Some(said);
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
fn header(line: &str) -> Option<(String, String)> {
    let rest = line.strip_prefix("• [").or_else(|| line.strip_prefix("S ["))?;
    let (state, rest) = match rest.split_once("] [") {
        Some((state, rest)) => (state, rest),
        None => ("PASSED", rest),
    };
    let seconds: f64 = rest.strip_suffix(" seconds]")?.parse().ok()?;
    Some((state.to_owned(), format!("{seconds:.1}")))
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
        let told: Vec<String> = alone.lines().filter_map(|l| lines.next(l)).collect();
        assert_eq!(told, ["PASSED    27.1 s  [sig-node] Pods alone"]);
        let said: Vec<String> = text.lines().filter_map(|l| lines.next(l)).collect();
        assert_eq!(
            said,
            [
                "PASSED     5.0 s  [sig-node] Pods should be updated [NodeConformance] [Conformance]",
                "FAILED   300.2 s  [sig-node] Secrets should work",
                "SKIPPED    0.0 s  [sig-node] AppArmor [LinuxOnly]",
            ]
        );
    }
}
