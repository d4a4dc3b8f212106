//! Problems as a person at a console reads them: an object, what is wrong with it, and a remedy.
//!
//! In: statuses of static pods, reports about manifests, what init wrote about the configuration. Out: [`ConsoleProblem`]s.
//! Invariant: a remedy names a step that is possible on a node without a shell.

use std::time::Duration;

use agent_types::ids::PodKey;
use k8s_openapi::api::core::v1::{ContainerStateWaiting, ContainerStatus, PodStatus};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::runbook::{self, ProblemRunbook};
use super::text::clean;

/// A container that waits for less than this may be on its way.
pub const WAITS_FOR: Duration = Duration::from_secs(10);
/// A static pod may take so long from its manifest to its containers.
pub const STARTS_WITHIN: Duration = Duration::from_secs(120);
/// Longest name of an object, characters.
const SUBJECT_CHARS_MAX: usize = 120;
/// Longest text of a problem, characters; the remedy follows it.
const TEXT_CHARS_MAX: usize = 200;
/// Longest sentence that has its remedy in itself, characters.
const SENTENCE_CHARS_MAX: usize = 400;
/// Mistakes of the configuration that have lines of their own.
const MISTAKES_MAX: usize = 3;

/// Who knows of the problem. The order is that of the banner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProblemSource {
    /// The NodeConfig.
    Configuration,
    /// The way into the cluster.
    Cluster,
    /// Files of static pods, and the server of `staticPodURL`.
    Manifests,
    /// Static pods.
    StaticPods,
}

impl ProblemSource {
    /// Problems of it that are looked at. Pods break in any number, and must not take the places of the node's own troubles.
    pub(super) const fn places(self) -> usize {
        match self {
            ProblemSource::Configuration | ProblemSource::Cluster => 8,
            ProblemSource::Manifests => 16,
            ProblemSource::StaticPods => 32,
        }
    }
}

/// One present problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleProblem {
    /// The object: `static pod default/web, container web`. One problem of a source has this subject.
    pub subject: String,
    /// Changes when another thing is wrong; details of the text may change without it.
    pub kind: String,
    /// What is wrong.
    pub text: String,
    /// What a person can do; empty if the text says it.
    pub remedy: &'static str,
    /// The section of the runbooks ([`ProblemRunbook::id`]); empty without one.
    pub runbook: &'static str,
    /// How long it has to last before it is written.
    pub lasts: Duration,
}

impl ConsoleProblem {
    /// A problem that is written at once.
    #[must_use]
    pub fn new(subject: &str, text: &str, remedy: &'static str) -> ConsoleProblem {
        let text = clean(text, TEXT_CHARS_MAX);
        ConsoleProblem {
            subject: clean(subject, SUBJECT_CHARS_MAX),
            kind: text.clone(),
            text,
            remedy,
            runbook: "",
            lasts: Duration::ZERO,
        }
    }

    /// A problem with the remedy and the section of its runbook; it is written at once.
    #[must_use]
    pub fn of(runbook: &ProblemRunbook, subject: &str, text: &str) -> ConsoleProblem {
        ConsoleProblem { runbook: runbook.id, ..ConsoleProblem::new(subject, text, runbook.remedy) }
    }

    /// A problem whose text says the remedy; it is written at once.
    #[must_use]
    pub fn sentence(runbook: &ProblemRunbook, subject: &str, text: &str) -> ConsoleProblem {
        let text = clean(text, SENTENCE_CHARS_MAX);
        ConsoleProblem {
            kind: text.clone(),
            text,
            runbook: runbook.id,
            ..ConsoleProblem::new(subject, "", "")
        }
    }

    /// Object, problem, remedy and runbook in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let separator = if self.remedy.is_empty() { "" } else { "; " };
        let runbook = match self.runbook {
            "" => String::new(),
            id => format!(" [runbook {id}]"),
        };
        format!("{}: {}{separator}{}{runbook}", self.subject, self.text, self.remedy)
    }
}

/// The agent's present problems with pods, below init's run-time directory: for the management API, which is another process
/// (docs/reference/node-api.md).
pub const FILE: &str = "agent-problems.json";

/// A problem as that file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownProblem {
    /// The object.
    pub subject: String,
    /// What is wrong.
    pub text: String,
    /// What a person can do; empty if the text says it.
    #[serde(default)]
    pub remedy: String,
    /// The section of the runbooks ([`ProblemRunbook::id`]); empty without one.
    #[serde(default)]
    pub runbook: String,
}

impl From<&ConsoleProblem> for ShownProblem {
    fn from(problem: &ConsoleProblem) -> ShownProblem {
        let ConsoleProblem { subject, text, remedy, runbook, .. } = problem;
        let (remedy, runbook) = ((*remedy).to_owned(), (*runbook).to_owned());
        ShownProblem { subject: subject.clone(), text: text.clone(), remedy, runbook }
    }
}

/// The text of the file.
#[must_use]
pub fn render(problems: &[ShownProblem]) -> String {
    let mut text = serde_json::to_string_pretty(problems).unwrap_or_default();
    text.push('\n');
    text
}

/// The problems of the file. A text that is no such file has none.
#[must_use]
pub fn parse(text: &str) -> Vec<ShownProblem> {
    serde_json::from_str(text).unwrap_or_default()
}

/// Reasons that are one and the same thing for a person.
fn kind(reason: &str) -> &str {
    match reason {
        "ErrImagePull" | "ImagePullBackOff" | "RegistryUnavailable" => "image pull",
        other => other,
    }
}

/// Reasons of a container that is on its way.
const ON_THE_WAY: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Static pods that do not run, and the reasons.
#[must_use]
pub fn of_static_pods<'a>(
    pods: impl IntoIterator<Item = (&'a PodKey, &'a PodStatus)>,
) -> Vec<ConsoleProblem> {
    let mut problems = Vec::new();
    for (key, status) in pods {
        let pod = format!("static pod {}/{}", key.namespace, key.name);
        if let Some(refused) = refused(&pod, status) {
            problems.push(refused);
        }
        let before = problems.len();
        for container in containers(status) {
            let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
            let Some(ContainerStateWaiting { reason: Some(reason), message }) = waiting else { continue };
            if ON_THE_WAY.contains(&reason.as_str()) {
                continue;
            }
            let subject = format!("{pod}, container {}", container.name);
            let text = format!("{reason}: {}", message.as_deref().unwrap_or("no details"));
            problems.push(ConsoleProblem {
                kind: kind(reason).to_owned(),
                lasts: WAITS_FOR,
                ..ConsoleProblem::of(runbook::of_waiting(reason), &subject, &text)
            });
        }
        if problems.len() == before {
            problems.extend(slow(&pod, status));
        }
    }
    problems
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
}

/// A pod that does not run yet: a problem once it has lasted. Its containers have no reason of their own.
fn slow(pod: &str, status: &PodStatus) -> Option<ConsoleProblem> {
    if !matches!(status.phase.as_deref(), None | Some("" | "Pending")) {
        return None;
    }
    // An init container that runs has its own time: migrations take minutes.
    let mut init = status.init_container_statuses.iter().flatten();
    if init.any(|container| container.state.as_ref().is_some_and(|state| state.running.is_some())) {
        return None;
    }
    let waiting = containers(status).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().unwrap_or("no reason");
        Some(format!("container {} waits: {reason}", container.name))
    });
    let words = waiting.unwrap_or_else(|| "it has no container yet".to_owned());
    let more = status.message.as_deref().map_or_else(String::new, |message| format!(": {message}"));
    let text =
        format!("does not run {} s after its manifest was accepted: {words}{more}", STARTS_WITHIN.as_secs());
    Some(ConsoleProblem {
        kind: "slow start".to_owned(),
        lasts: STARTS_WITHIN,
        ..ConsoleProblem::of(&runbook::POD_SLOW, pod, &text)
    })
}

/// A pod that failed as a whole: admission refused it, or the node evicted it.
fn refused(pod: &str, status: &PodStatus) -> Option<ConsoleProblem> {
    let reason = status.reason.as_deref().filter(|_| status.phase.as_deref() == Some("Failed"))?;
    let text = format!("{reason}: {}", status.message.as_deref().unwrap_or("no details"));
    Some(ConsoleProblem { kind: reason.to_owned(), ..ConsoleProblem::of(&runbook::POD_FAILED, pod, &text) })
}

/// A manifest that is not used as it is written.
#[must_use]
pub fn of_manifest(path: &str, text: &str) -> ConsoleProblem {
    ConsoleProblem::of(&runbook::MANIFEST, &format!("manifest {path}"), text)
}

/// What init refused: `document` is `/run/orlop/node-config.json`. A text that is no such document has none.
#[must_use]
pub fn of_configuration(document: &str) -> Vec<ConsoleProblem> {
    let document: Value = serde_json::from_str(document).unwrap_or_default();
    let mistakes = document["problems"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let shown = mistakes.iter().take(MISTAKES_MAX).enumerate();
    let of = mistakes.len();
    let problem = |(n, m): (usize, &Value)| {
        let subject = format!("configuration, {} of {of}", n + 1);
        ConsoleProblem::of(&runbook::CONFIGURATION, &subject, &mistake(m))
    };
    shown.map(problem).collect()
}

/// One mistake as `orlop_config::Problem` shows it.
fn mistake(mistake: &Value) -> String {
    let word = |key: &str| mistake[key].as_str().unwrap_or("");
    let line = mistake["line"].as_u64().map_or(String::new(), |line| format!(":{line}"));
    let parts = [
        format!("{}{line}:", word("source")),
        colon(word("path")),
        word("value").to_owned(),
        word("reason").to_owned(),
    ];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn colon(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("{path}:") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key() -> PodKey {
        PodKey { namespace: "default".into(), name: "web-edge-7".into(), uid: "u".into() }
    }

    fn lines(status: Value) -> Vec<String> {
        let status: PodStatus = serde_json::from_value(status).unwrap();
        of_static_pods([(&key(), &status)]).iter().map(ConsoleProblem::line).collect()
    }

    fn waiting(reason: &str, message: &str) -> Value {
        let state = json!({"waiting": {"reason": reason, "message": message}});
        json!({"phase": "Pending", "containerStatuses": [{"name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]})
    }

    #[test]
    fn each_reason_has_a_remedy() {
        for (reason, remedy) in [
            ("ErrImagePull", "registries"),
            ("ImagePullBackOff", "registries"),
            ("ErrImageNeverPull", "Never"),
            ("InvalidImageName", "correct `image`"),
            ("CrashLoopBackOff", "podOutput"),
            ("CreateContainerConfigError", "staticPods"),
        ] {
            let found = lines(waiting(reason, "why\u{1b}[2J"));
            assert_eq!(found.len(), 1, "{reason}");
            let start = format!("static pod default/web-edge-7, container web: {reason}: why [2J; ");
            assert!(found[0].starts_with(&start) && found[0].contains(remedy), "{found:?}");
        }
    }

    #[test]
    fn a_pod_whose_init_container_works_is_on_its_way() {
        let mut status = waiting("PodInitializing", "");
        let of = |state: Value| json!([{"name": "migrate", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
        status["initContainerStatuses"] = of(json!({"running": {}}));
        assert!(lines(status.clone()).is_empty());
        status["initContainerStatuses"] = of(json!({"waiting": {"reason": "PodInitializing"}}));
        assert_eq!(lines(status).len(), 1);
    }

    #[test]
    fn a_pod_on_its_way_is_a_problem_only_when_it_lasts() {
        let found = |status: Value| {
            let status: PodStatus = serde_json::from_value(status).unwrap();
            of_static_pods([(&key(), &status)])
        };
        let start = "does not run 120 s after its manifest was accepted: ";
        for (status, why) in [
            (waiting("ContainerCreating", ""), "container web waits: ContainerCreating"),
            (waiting("PodInitializing", ""), "container web waits: PodInitializing"),
            (json!({}), "it has no container yet"),
        ] {
            let problems = found(status);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert_eq!(
                (problems[0].lasts, problems[0].subject.as_str()),
                (STARTS_WITHIN, "static pod default/web-edge-7")
            );
            assert_eq!(problems[0].text, format!("{start}{why}"));
        }
        // A container with a reason of its own, and a pod that runs.
        assert_eq!(found(waiting("ErrImagePull", "no")).len(), 1);
        assert_eq!(found(json!({"phase": "Running"})), []);
    }

    #[test]
    fn a_pull_that_fails_is_one_problem_whatever_its_reason_is_now() {
        let problem = |reason| {
            let status: PodStatus = serde_json::from_value(waiting(reason, "m")).unwrap();
            of_static_pods([(&key(), &status)]).remove(0)
        };
        let (first, later) = (problem("ErrImagePull"), problem("ImagePullBackOff"));
        assert_eq!((first.kind, first.subject, first.lasts), (later.kind, later.subject, WAITS_FOR));
    }

    #[test]
    fn a_pod_that_admission_refused_is_a_problem_and_one_that_ended_is_none() {
        let found =
            lines(json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough"}));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("static pod default/web-edge-7: OutOfcpu: Node didn't"), "{found:?}");
        assert!(lines(json!({"phase": "Failed"})).is_empty());
        assert!(lines(json!({"phase": "Running", "reason": "Odd"})).is_empty());
    }

    #[test]
    fn mistakes_of_the_configuration_are_counted_and_the_first_ones_told() {
        let all: Vec<Value> = (1..=5)
            .map(|n| json!({"source": "fw_cfg", "line": n, "path": "kubelet.maxPods", "value": "\"many\"", "reason": "must be"}))
            .collect();
        let found = of_configuration(&json!({ "problems": all }).to_string());
        assert_eq!(found.len(), 3);
        let start = "configuration, 1 of 5: fw_cfg:1: kubelet.maxPods: \"many\" must be; correct it";
        assert!(found[0].line().starts_with(start), "{}", found[0].line());
        let bare = json!({"problems": [{"source": "init", "reason": "full"}]}).to_string();
        assert!(of_configuration(&bare)[0].line().starts_with("configuration, 1 of 1: init: full; "));
        for nothing in ["", "{", "[]", "{\"problems\": 1}"] {
            assert!(of_configuration(nothing).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn the_file_of_problems_is_read_as_it_was_written() {
        let problem = of_manifest("web.yaml", "no \"kind\"\u{1b}");
        let shown = [ShownProblem::from(&problem)];
        let remedy = runbook::MANIFEST.remedy;
        assert_eq!((shown[0].subject.as_str(), shown[0].remedy.as_str()), ("manifest web.yaml", remedy));
        assert_eq!(shown[0].runbook, "manifest");
        assert_eq!(parse(&render(&shown)), shown);
        for other in ["", "{", "{}", "[1]"] {
            assert_eq!(parse(other), [], "{other}");
        }
    }

    #[test]
    fn long_texts_are_cut_and_keep_their_remedy() {
        let problem = of_manifest(&"p".repeat(500), &"x".repeat(5000));
        assert!(problem.line().len() < 480, "{}", problem.line().len());
        let end = format!("{} [runbook manifest]", runbook::MANIFEST.remedy);
        assert!(problem.line().ends_with(&end), "{}", problem.line());
    }
}
