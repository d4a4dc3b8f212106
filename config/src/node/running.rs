//! The sources that a node runs with, as init leaves them in `/run/orlop/config`, and a candidate for the node's own document among
//! them.
//!
//! In: names and texts of the files; a candidate. Out: sources in rising precedence with the values of `orlop.set=`, and what the
//! candidate makes of them. The management API and `orlopctl` read alike, so that host and node give the same answers. Invariant: a
//! candidate counts only if no source that counts today is refused because of it.

use super::effective::{Effective, Source, load};
use crate::problem::Problem;

/// Where init leaves the sources.
pub const RUNNING_DIR: &str = "/run/orlop/config";
/// Name in provenance of the document that the management API has applied.
pub const NODE_SOURCE: &str = "node";
/// Name in provenance of the kernel command line, the only source above the node's own document.
const CMDLINE: &str = "cmdline";
/// The file with `orlop.set=`, without its rank.
const SETS: &str = "set";
/// What stands before a value in that file.
const SET_PREFIX: &str = "# orlop.set=";

/// The sources of a node in rising precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningSources {
    /// Documents.
    pub sources: Vec<Source>,
    /// Values of `orlop.set=`, in order.
    pub sets: Vec<String>,
}

/// What a candidate would make of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedCandidate {
    /// What would count.
    pub after: Effective,
    /// The candidate counts, and no other source is refused because of it.
    pub accepted: bool,
    /// What the candidate brings that is wrong or cannot be done.
    pub problems: Vec<Problem>,
}

impl RunningSources {
    /// From the files of [`RUNNING_DIR`], name (`55-node.yaml`) and text. A file of another form is none of init's.
    #[must_use]
    pub fn parse(files: &[(String, String)]) -> RunningSources {
        let mut ranked: Vec<(&str, &str, &str)> = files
            .iter()
            .filter_map(|(file, text)| ranked(file).map(|(rank, name)| (rank, name, &**text)))
            .collect();
        ranked.sort_by_key(|(rank, name, _)| (*rank, *name));
        let mut found = RunningSources::default();
        for (_, name, text) in ranked {
            if name == SETS {
                let sets = text.lines().filter_map(|line| line.strip_prefix(SET_PREFIX));
                found.sets.extend(sets.map(str::to_owned));
            } else {
                let (name, text) = (name.to_owned(), text.to_owned());
                found.sources.push(Source { origin: name.clone(), name, text });
            }
        }
        found
    }

    /// The same node with this text as its own document; `None`: without one. `origin` is its name in messages.
    #[must_use]
    pub fn with_node(&self, document: Option<&str>, origin: &str) -> RunningSources {
        let others = self.sources.iter().filter(|source| source.name != NODE_SOURCE).cloned();
        let mut sources: Vec<Source> = others.collect();
        if let Some(text) = document {
            let above = sources.iter().position(|source| source.name == CMDLINE).unwrap_or(sources.len());
            let (name, origin, text) = (NODE_SOURCE.to_owned(), origin.to_owned(), text.to_owned());
            sources.insert(above, Source { name, origin, text });
        }
        RunningSources { sources, sets: self.sets.clone() }
    }

    /// What counts.
    #[must_use]
    pub fn effective(&self) -> Effective {
        load(&self.sources, &self.sets)
    }

    /// Checks a candidate for the node's own document against the other sources. `before` is what counts today.
    #[must_use]
    pub fn check(&self, before: &Effective, document: Option<&str>, origin: &str) -> CheckedCandidate {
        let candidate = self.with_node(document, origin);
        let after = candidate.effective();
        let own = |name: &String| self.sources.iter().any(|s| s.name == NODE_SOURCE && s.origin == *name);
        let others_count = before.accepted.iter().all(|name| own(name) || after.accepted.contains(name));
        // A name that another source has, too, counts as often as it is there.
        let named = candidate.sources.iter().filter(|source| source.origin == origin).count();
        let counts =
            document.is_none() || after.accepted.iter().filter(|name| *name == origin).count() == named;
        let is_new = |problem: &&Problem| !before.problems.contains(problem);
        let problems = after.problems.iter().filter(is_new).cloned().collect();
        CheckedCandidate { accepted: counts && others_count, problems, after }
    }
}

/// Rank and name of a file: `55-node.yaml`.
fn ranked(file: &str) -> Option<(&str, &str)> {
    let (rank, name) = file.strip_suffix(".yaml")?.split_once('-')?;
    let is_rank = rank.len() == 2 && rank.bytes().all(|b| b.is_ascii_digit());
    (is_rank && !name.is_empty()).then_some((rank, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\n";

    fn file(name: &str, text: &str) -> (String, String) {
        (name.to_owned(), text.to_owned())
    }

    fn running() -> RunningSources {
        RunningSources::parse(&[
            file("70-set.yaml", "# orlop.set=labels.zone=a\n# orlop.set=console.podOutput=true\n"),
            file("60-cmdline.yaml", &format!("{HEAD}time: {{servers: [c]}}\n")),
            file("10-image.yaml", &format!("{HEAD}kubelet: {{maxPods: 5}}\n")),
            file("readme", "x"),
            file("1-image.yaml", "x"),
        ])
    }

    #[test]
    fn files_are_sources_by_their_ranks() {
        let found = running();
        let names: Vec<&str> = found.sources.iter().map(|source| source.name.as_str()).collect();
        assert_eq!(names, ["image", "cmdline"]);
        assert_eq!(found.sets, ["labels.zone=a", "console.podOutput=true"]);
        let effective = found.effective();
        assert_eq!(effective.problems, []);
        assert_eq!((effective.kubelet.max_pods, effective.config.labels["zone"].as_str()), (5, "a"));
    }

    #[test]
    fn the_node_s_own_document_stands_below_the_command_line_and_replaces_the_last_one() {
        let first = running().with_node(Some("one"), "node");
        let second = first.with_node(Some("two"), "node");
        let names: Vec<&str> = second.sources.iter().map(|source| source.name.as_str()).collect();
        assert_eq!(names, ["image", "node", "cmdline"]);
        assert_eq!(second.sources[1].text, "two");
        assert_eq!(second.with_node(None, "node"), running());
    }

    #[test]
    fn a_candidate_counts_if_it_is_right_and_refuses_no_other_source() {
        let node = running();
        let before = node.effective();
        let check = |body: &str| node.check(&before, Some(&format!("{HEAD}{body}")), "new.yaml");
        let good = check("labels: {disk: ssd}\n");
        assert!(good.accepted && good.problems.is_empty(), "{:?}", good.problems);
        assert_eq!(good.after.config.labels["disk"], "ssd");
        let bad = check("nod: {}\nkubelet: {maxPods: many}\n");
        let said: Vec<String> = bad.problems.iter().map(ToString::to_string).collect();
        assert!(
            !bad.accepted && said.len() == 2 && said.iter().all(|s| s.starts_with("new.yaml:")),
            "{said:?}"
        );
        assert!(node.check(&before, None, "new.yaml").accepted);
        // A source above the candidate that is wrong only together with it.
        let above = RunningSources::parse(&[file(
            "60-cmdline.yaml",
            &format!("{HEAD}taints: [{{key: a, effect: NoSchedule}}]\n"),
        )]);
        let before = above.effective();
        assert_eq!(before.problems, []);
        let taints = "kubelet: {registerWithTaints: [{key: b, effect: NoSchedule}]}\n";
        let clash = above.check(&before, Some(&format!("{HEAD}{taints}")), "new.yaml");
        assert!(!clash.accepted && !clash.problems.is_empty(), "{:?}", clash.problems);
    }
}
