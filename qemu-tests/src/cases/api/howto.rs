//! The commands of the how-tos as they stand there, against a node of a cluster: those of code fences with the mark `ci`.

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined};

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "api/howto",
    level: Level::L4n,
    expected_s: 15,
    about: "the commands of the how-tos that are marked for it run as they stand there",
    group: GROUP,
    run: howto,
}];

/// The node that stands for `NODE`.
const FIRST: &str = "first";

const PAGES: [(&str, &str); 4] = [
    ("debug.md", include_str!("../../../../docs/howto/debug.md")),
    ("join-kubeadm.md", include_str!("../../../../docs/howto/join-kubeadm.md")),
    ("logs.md", include_str!("../../../../docs/howto/logs.md")),
    ("metrics.md", include_str!("../../../../docs/howto/metrics.md")),
];

fn howto(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    for (page, text) in PAGES {
        for command in commands(text) {
            let words = words(command);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let said = joined.cluster.kubectl(&words).with_context(|| format!("{page}: {command}"))?;
            // A list may be empty; a document is not.
            ensure!(!words.contains(&"--raw") || !said.trim().is_empty(), "{page}: {command}: no answer");
        }
    }
    joined.cluster.ensure_nothing_forbidden()
}

/// Lines of the fences that are marked.
fn commands(page: &str) -> Vec<&str> {
    let fences = page.split("```ci\n").skip(1).filter_map(|rest| rest.split("```").next());
    fences.flat_map(str::lines).collect()
}

/// Arguments of kubectl, with this node's name.
fn words(command: &str) -> Vec<String> {
    let words = command.split_whitespace().skip(1);
    words.map(|word| word.trim_matches('"').replace("NODE", FIRST)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_commands_of_kubectl() {
        for (page, text) in PAGES {
            let commands = commands(text);
            assert!(!commands.is_empty(), "{page}");
            for command in commands {
                assert!(command.starts_with("kubectl "), "{page}: {command}");
            }
        }
        assert_eq!(
            words("kubectl get --raw \"/api/v1/nodes/NODE/proxy\""),
            ["get", "--raw", "/api/v1/nodes/first/proxy"]
        );
    }
}
