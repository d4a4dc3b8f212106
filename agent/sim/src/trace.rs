//! The trace of a run: a hash over every event, and the last events as text.
//!
//! Two runs of one seed must have the same hash, or something in the machines depends on more than (state, event, now).

use std::collections::VecDeque;
use std::fmt::Debug;

use agent_core::pod_worker::effect::{Effect, EffectOk, EffectResult};
use agent_types::api::ApiCall;
use agent_types::runtime::observed::{ContainerObserved, PodSnapshot};
use agent_types::time::Mono;
use orlop_config::fnv::Fnv64;

/// Default number of lines of the tail.
const TAIL: usize = 400;

/// A line of the tail is cut after so many characters.
const CHARACTERS_MAX: usize = 400;

/// Where the first `characters` of a text end, if it has more.
fn end_of(text: &str, characters: usize) -> Option<usize> {
    if text.len() <= characters {
        return None;
    }
    text.char_indices().nth(characters).map(|(end, _)| end)
}

/// Hash of all events, and the last events.
#[derive(Clone, Debug)]
pub struct Trace {
    hash: Fnv64,
    steps: u64,
    tail: VecDeque<String>,
    /// Number of lines that are kept.
    pub keep: usize,
}

impl Default for Trace {
    fn default() -> Self {
        Trace { hash: Fnv64::default(), steps: 0, tail: VecDeque::new(), keep: TAIL }
    }
}

impl Trace {
    /// Adds one event.
    pub fn note(&mut self, at: Mono, what: &impl Debug) {
        let (seconds, millis) = seconds(at);
        let mut line = format!("{seconds:>6}.{millis:03} {what:?}");
        self.hash.write(line.as_bytes());
        self.steps += 1;
        if self.tail.len() >= self.keep {
            self.tail.pop_front();
        }
        if let Some(end) = end_of(&line, CHARACTERS_MAX) {
            line.truncate(end);
        }
        self.tail.push_back(line);
    }

    /// FNV-1a over all lines.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// Number of events.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The last events, oldest first.
    #[must_use]
    pub fn tail(&self) -> String {
        self.tail.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

/// A short text of an effect, without its content, which is a function of the pod.
#[must_use]
pub fn brief(effect: &Effect) -> String {
    let verb = effect.verb();
    match effect {
        Effect::RunSandbox { config } => format!("{verb}/{}", config.attempt),
        Effect::StopSandbox { sandbox } | Effect::RemoveSandbox { sandbox } => format!("{verb} {sandbox}"),
        Effect::CreateContainer { sandbox, config, .. } => {
            format!("{verb} {}/{} in {sandbox}", config.name, config.attempt)
        }
        Effect::StartContainer { container } | Effect::RemoveContainer { container, .. } => {
            format!("{verb} {container}")
        }
        Effect::StopContainer { container, grace_s } => format!("{verb} {container} grace {grace_s}s"),
        Effect::InspectImage { image, .. } | Effect::PullImage { image, .. } => format!("{verb} {image}"),
        Effect::ResolveClaim { claim } => format!("{verb} {}", claim.name),
        Effect::SetUpVolume { volume } => format!("{verb} {}", volume.name),
        Effect::RunHook { call, .. } => format!("{verb} {:?} of {}", call.hook, call.container),
        _ => verb.to_owned(),
    }
}

/// A short text of a call to the API server; of a status patch it has the phase only.
#[must_use]
pub fn brief_call(call: &ApiCall) -> String {
    match call {
        ApiCall::PatchPodStatus { patch, .. } => {
            let text: String = patch.to_string().chars().take(240).collect();
            format!("{} {text}", call.describe())
        }
        ApiCall::DeletePod { uid, .. } => format!("{} {uid}", call.describe()),
        _ => call.describe(),
    }
}

/// A short text of an answer.
#[must_use]
pub fn brief_result(result: &EffectResult) -> String {
    match result {
        Ok(EffectOk::Snapshot(s)) => brief_snapshot(s),
        other => format!("{other:?}"),
    }
}

/// A short text of a snapshot.
#[must_use]
pub fn brief_snapshot(s: &PodSnapshot) -> String {
    let sandboxes: Vec<String> =
        s.sandboxes.iter().map(|s| format!("{}/{}:{:?}", s.id, s.attempt, s.state)).collect();
    let one = |c: &ContainerObserved| format!("{}/{}={}:{:?}", c.name, c.attempt, c.id, c.state);
    let containers: Vec<String> = s.containers.iter().map(one).collect();
    let (seconds, millis) = seconds(s.as_of);
    format!("as of {seconds}.{millis:03}: [{}] [{}]", sandboxes.join(" "), containers.join(" "))
}

/// Whole seconds, and the whole milliseconds after them. Integers: a trace has a time in each line.
fn seconds(at: Mono) -> (u64, u64) {
    let millis = at.0 / 1_000_000;
    (millis / 1000, millis % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_seconds_and_milliseconds() {
        let mut trace = Trace::default();
        trace.note(Mono(12_034_999_999), &());
        assert_eq!(trace.tail(), "    12.034 ()");
    }

    #[test]
    fn a_line_is_cut_between_characters_and_hashed_whole() {
        for (text, characters, end) in
            [("", 0, None), ("abc", 3, None), ("abc", 2, Some(2)), ("aüöb", 3, Some(5)), ("üö", 2, None)]
        {
            assert_eq!(end_of(text, characters), end, "{text}");
        }
        let hash_of = |length| {
            let mut trace = Trace::default();
            trace.note(Mono(0), &"ü".repeat(length));
            assert!(trace.tail().chars().count() <= CHARACTERS_MAX);
            trace.hash()
        };
        assert_ne!(hash_of(1000), hash_of(1001));
    }
}
