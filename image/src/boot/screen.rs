//! What a person sees of a boot (pure): host-channel lines in, text out.

use orlop_config::ledger::{HostMessage, LedgerEntry};

/// Whether what was waited for has been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScreenMarker {
    /// Go on.
    NotYet,
    /// The pod runs and has spoken, or the agent is ready.
    Seen,
}

/// The table of phases and the pod's output.
pub(super) struct Screen {
    pod: Option<String>,
    running: bool,
    spoke: bool,
}

impl Screen {
    /// `pod` is `namespace/name` of the pod that is waited for. Static pods have the node's name appended. Without a pod the agent is
    /// waited for.
    pub(super) fn new(pod: Option<&str>) -> Screen {
        Screen { pod: pod.map(str::to_owned), running: false, spoke: pod.is_none() }
    }

    /// Column titles.
    pub(super) fn heading() -> String {
        format!("{:>9}  {:>8}  {:<24}  detail", "at", "took", "phase")
    }

    /// One line of the host channel.
    pub(super) fn host_line(&mut self, line: &str) -> (String, ScreenMarker) {
        let text = match serde_json::from_str::<HostMessage>(line) {
            Ok(HostMessage::Ledger(entry)) => {
                self.running |= match &self.pod {
                    Some(pod) => entry.phase == "pod.running" && entry.detail.starts_with(pod.as_str()),
                    None => entry.phase == "agent.ready",
                };
                row(&entry)
            }
            Ok(HostMessage::PodOutput { pod, line, .. }) => {
                self.spoke |= self.pod.as_ref().is_some_and(|own| pod.starts_with(own.as_str()));
                format!("{pod} | {line}\n")
            }
            Ok(HostMessage::Problem { source, message }) => format!("problem ({source}): {message}\n"),
            Err(_) => format!("unreadable line from the node: {line}\n"),
        };
        (text, if self.running && self.spoke { ScreenMarker::Seen } else { ScreenMarker::NotYet })
    }
}

/// A line of the console as it may be shown: what would move the cursor or change the terminal is left out.
pub(super) fn console_line(line: &str) -> String {
    let mut shown: String = line.chars().filter(|c| *c == '\t' || !c.is_control()).collect();
    shown.push('\n');
    shown
}

fn row(entry: &LedgerEntry) -> String {
    let seconds = |ms: u64| format!("{}.{:03} s", ms / 1000, ms % 1000);
    let took = entry.took_ms.map_or(String::new(), |ms| format!("{ms} ms"));
    let mark = if entry.ok { "" } else { "FAILED " };
    format!("{:>9}  {took:>8}  {:<24}  {mark}{}\n", seconds(entry.at_ms), entry.phase, shorten(&entry.detail))
}

// One screen line; a root hash is longer than that.
fn shorten(text: &str) -> String {
    const MOST: usize = 70;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    let head: String = text.chars().take(MOST - 3).collect();
    format!("{head}...")
}

/// A NodeConfig that runs one static pod and sends its output to the host.
pub(super) fn node_config(pod: &str) -> String {
    let mut out = String::from(
        "apiVersion: orlop/v1alpha1\nkind: NodeConfig\nconsole:\n  podOutput: true\nstaticPods:\n  - name: hello\n    \
         manifest: |\n",
    );
    for line in pod.lines().filter(|l| !l.starts_with('#')) {
        out.push_str("      ");
        out.push_str(line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(phase: &str, detail: &str) -> String {
        let entry = LedgerEntry {
            phase: phase.into(),
            at_ms: 12_345,
            took_ms: Some(6),
            detail: detail.into(),
            ok: true,
        };
        HostMessage::Ledger(entry).render_line()
    }

    fn output(pod: &str) -> String {
        HostMessage::PodOutput { pod: pod.into(), container: "c".into(), line: "hi".into() }.render_line()
    }

    #[test]
    fn the_pod_must_run_and_speak_in_either_order() {
        for order in [[0, 1], [1, 0]] {
            let lines = [ledger("pod.running", "default/hello-node"), output("default/hello-node")];
            let mut screen = Screen::new(Some("default/hello"));
            assert_eq!(screen.host_line(&lines[order[0]]).1, ScreenMarker::NotYet);
            assert_eq!(screen.host_line(&lines[order[1]]).1, ScreenMarker::Seen);
        }
    }

    #[test]
    fn without_a_pod_the_agent_is_waited_for() {
        let mut screen = Screen::new(None);
        assert_eq!(screen.host_line(&ledger("pod.running", "default/web")).1, ScreenMarker::NotYet);
        assert_eq!(screen.host_line(&ledger("agent.ready", "")).1, ScreenMarker::Seen);
    }

    #[test]
    fn other_pods_and_broken_lines_do_not_count() {
        let mut screen = Screen::new(Some("default/hello"));
        for line in [&ledger("pod.running", "kube-system/x"), &output("kube-system/x"), "broken"] {
            assert_eq!(screen.host_line(line).1, ScreenMarker::NotYet);
        }
    }

    #[test]
    fn the_console_cannot_speak_to_the_terminal() {
        assert_eq!(console_line("a\u{1b}[2Jb\tc\r\u{9b}0m"), "a[2Jb\tc0m\n");
    }

    #[test]
    fn rows_are_columns_and_long_details_end() {
        let (text, _) = Screen::new(Some("x")).host_line(&ledger("init.verity", &"a".repeat(200)));
        assert!(text.starts_with(" 12.345 s      6 ms  init.verity "), "{text}");
        assert!(text.chars().count() < 130 && text.ends_with("...\n"), "{text}");
    }

    #[test]
    fn the_sample_configuration_holds_the_manifest_indented() {
        let text = node_config("# c\nkind: Pod\nmetadata:\n  name: hello\n");
        assert!(
            text.ends_with("    manifest: |\n      kind: Pod\n      metadata:\n        name: hello\n"),
            "{text}"
        );
    }
}
