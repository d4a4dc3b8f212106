//! Answers about the configuration: what a candidate would change, and where each value is from. Pure.
//!
//! In: requests, the sources that the node runs with. Out: messages of the protocol, or refusals. Invariants: a request is bounded
//! before it is read; no message has a secret.

use agent_core::console::text::clean;
use orlop_config::Problem;
use orlop_config::node::{KeyChange, RunningSources, changes};
use orlop_proto::node_api::v1alpha1::{
    ConfigCheckRequest, ConfigCheckResponse, ConfigExplainRequest, ConfigExplainResponse, ConfigExplainedKey,
    ConfigKeyChange, ConfigProblem,
};

use crate::refusal::{Reason, Refusal};

/// Longest candidate, bytes: a document with as many values as it may have takes 256 times as much while it is checked.
pub const DOCUMENT_MAX: usize = 128 << 10;
/// Longest name of a candidate and longest path, characters.
const WORDS_MAX: usize = 200;
/// Name of a candidate without one.
const NO_NAME: &str = "candidate";
/// Name of the API's requests in refusals.
const OBJECT: &str = "configuration";

/// A candidate for the node's own document.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigCandidate {
    /// The text; `None`: the node's own document is taken away.
    pub document: Option<String>,
    /// Its name in messages.
    pub origin: String,
}

impl std::fmt::Debug for ConfigCandidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} bytes)", self.origin, self.document.as_deref().map_or(0, str::len))
    }
}

impl ConfigCandidate {
    /// From a request.
    ///
    /// # Errors
    /// It has neither a document nor `remove`, or both, or one that is too long.
    pub fn new(document: String, origin: &str, remove: bool) -> Result<ConfigCandidate, Refusal> {
        let bad = |message: String| Err(Refusal::new(Reason::BadRequest, OBJECT, message));
        if remove != document.is_empty() {
            return bad("it needs a document, or `remove` without one".to_owned());
        }
        if document.len() > DOCUMENT_MAX {
            return bad(format!("a document has at most {DOCUMENT_MAX} bytes, this one {}", document.len()));
        }
        let origin = clean(origin, WORDS_MAX);
        let origin = if origin.is_empty() { NO_NAME.to_owned() } else { origin };
        Ok(ConfigCandidate { document: (!remove).then_some(document), origin })
    }
}

/// What a checked candidate would change, and what it asks for and does not get.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedAnswer {
    /// Keys whose values differ.
    pub changes: Vec<KeyChange>,
    /// For people.
    pub problems: Vec<Problem>,
}

impl PlannedAnswer {
    /// As messages of the protocol.
    #[must_use]
    pub fn messages(self) -> (Vec<ConfigKeyChange>, Vec<ConfigProblem>) {
        let changes = self.changes.into_iter().map(key_change).collect();
        (changes, self.problems.into_iter().map(problem).collect())
    }
}

impl TryFrom<ConfigCheckRequest> for ConfigCandidate {
    type Error = Refusal;

    fn try_from(request: ConfigCheckRequest) -> Result<ConfigCandidate, Refusal> {
        ConfigCandidate::new(request.document, &request.origin, request.remove)
    }
}

/// What a candidate would change.
#[must_use]
pub fn check(running: &RunningSources, candidate: &ConfigCandidate) -> ConfigCheckResponse {
    let before = running.effective();
    let checked = running.check(&before, candidate.document.as_deref(), &candidate.origin);
    let changes = if checked.accepted { changes(&before, &checked.after) } else { Vec::new() };
    let (changes, problems) = PlannedAnswer { changes, problems: checked.problems }.messages();
    ConfigCheckResponse { accepted: checked.accepted, problems, changes }
}

/// Where each value of the running configuration is from.
///
/// # Errors
/// The path is too long.
pub fn explain(
    running: &RunningSources,
    request: &ConfigExplainRequest,
) -> Result<ConfigExplainResponse, Refusal> {
    if request.below.chars().count() > WORDS_MAX {
        let message = format!("a path has at most {WORDS_MAX} characters");
        return Err(Refusal::new(Reason::BadRequest, OBJECT, message));
    }
    let keys = running.effective().explain(&request.below, request.defaults);
    let row = |key: orlop_config::node::ExplainedKey| ConfigExplainedKey {
        path: key.path,
        value: key.value,
        source: key.source,
    };
    Ok(ConfigExplainResponse { keys: keys.into_iter().map(row).collect() })
}

fn problem(problem: Problem) -> ConfigProblem {
    ConfigProblem {
        source: problem.source,
        line: problem.line.and_then(|line| u64::try_from(line).ok()).unwrap_or(0),
        path: problem.path,
        value: problem.value.unwrap_or_default(),
        reason: problem.reason,
    }
}

fn key_change(change: KeyChange) -> ConfigKeyChange {
    ConfigKeyChange {
        path: change.path,
        before: change.before,
        after: change.after,
        effect: change.effect.word().to_owned(),
        is_way_in: change.is_way_in,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\n";

    fn running() -> RunningSources {
        let esp = format!("{HEAD}proxy: {{http: 'http://u:hunter2@p'}}\nlabels: {{a: b}}\n");
        RunningSources::parse(&[("20-esp.yaml".to_owned(), esp)])
    }

    fn candidate(body: &str) -> ConfigCandidate {
        ConfigCandidate::new(format!("{HEAD}{body}"), "edge.yaml", false).unwrap()
    }

    #[test]
    fn a_candidate_is_a_document_or_none() {
        let new = |text: &str, remove: bool| ConfigCandidate::new(text.to_owned(), "", remove);
        assert_eq!(new("x", false).unwrap().origin, "candidate");
        assert_eq!(new("", true).unwrap().document, None);
        for refused in [new("", false), new("x", true), new(&"x".repeat(DOCUMENT_MAX + 1), false)] {
            assert_eq!(refused.unwrap_err().reason, Reason::BadRequest);
        }
        let odd = ConfigCandidate::new("secret".to_owned(), "a\u{1b}\n", false).unwrap();
        assert!(!odd.origin.contains('\u{1b}') && !format!("{odd:?}").contains("secret"));
    }

    #[test]
    fn a_good_candidate_has_changes_and_a_bad_one_all_its_mistakes() {
        let good = check(&running(), &candidate("labels: {a: c}\nproxy: {http: 'http://u:hunter3@p'}\n"));
        assert!(good.accepted && good.problems.is_empty(), "{good:?}");
        let row = |path: &str| good.changes.iter().find(|change| change.path == path).cloned().unwrap();
        assert_eq!(
            (row("labels.a").before, row("labels.a").after),
            (Some("\"b\"".into()), Some("\"c\"".into()))
        );
        assert_eq!(row("proxy.http").effect, "restarts containerd");
        assert!(!format!("{good:?}").contains("hunter"), "{good:?}");
        let bad = check(&running(), &candidate("nod: 1\nlabels: {a: 'a b'}\n"));
        assert!(!bad.accepted && bad.problems.len() == 2 && bad.changes.is_empty(), "{bad:?}");
        assert_eq!((bad.problems[0].source.as_str(), bad.problems[0].line), ("edge.yaml", 3));
    }

    #[test]
    fn values_have_their_sources() {
        let request = ConfigExplainRequest { below: "labels".to_owned(), defaults: false };
        let keys = explain(&running(), &request).unwrap().keys;
        assert_eq!(keys.len(), 1);
        assert_eq!(
            (keys[0].path.as_str(), keys[0].value.as_str(), keys[0].source.as_str()),
            ("labels.a", "\"b\"", "esp")
        );
        let long = ConfigExplainRequest { below: "a".repeat(201), defaults: false };
        assert_eq!(explain(&running(), &long).unwrap_err().reason, Reason::BadRequest);
    }
}
