//! What the agent says to `orlop-init guard` about a version on trial: the file of its verdict, replaced whole.
//!
//! In: decisions of the machine. Out: `/run/orlop/trial/verdict.json` (docs/internals/agent/updates.md, "The guard's words"). Invariants:
//! only the newest word is written; a boot that is not on trial has no such directory, and nothing is written there; a disk that hangs does
//! not silence the agent.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::node_update::check::{CheckName, FailedCheck, TrialFault};
use agent_core::node_update::watch::TrialDecision;
use agent_linux::files::{self, Durability};
use agent_types::time::Mono;
use orlop_config::slots::{TRIAL_BOOT_FILE, TrialBoot};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;

/// Directory that init makes in a boot on trial.
pub const DIRECTORY: &str = "/run/orlop/trial";
/// Name of the verdict's file.
const FILE: &str = "verdict.json";
/// Longest text of a failure, characters: the guard reads 4 KiB.
const WORDS_MAX: usize = 400;
/// While the runtime does not answer, the guard hears of the agent this often.
const EARLY_EVERY: Duration = Duration::from_secs(10);
/// The runtime has so long to answer an agent that begins after the deadline, in a hold for example. Less than the start of its unit
/// may take: else a new agent would wait anew, without end.
const EARLY_PATIENCE: Duration = Duration::from_secs(90);
/// Longest text of init about a boot on trial, bytes.
const BOOT_BYTES_MAX: u64 = 16 << 10;

/// The newest word; none before the first one.
pub type NewestWord = watch::Sender<Option<Value>>;

/// A decision as the guard reads it, `up` after the boot.
#[must_use]
pub fn word(up: Duration, decision: &TrialDecision) -> Value {
    let up_s = up.as_secs();
    match decision {
        TrialDecision::Wait | TrialDecision::Hold { .. } => json!({"upS": up_s, "verdict": "wait"}),
        TrialDecision::Commit => json!({"upS": up_s, "verdict": "commit"}),
        TrialDecision::Return { failed, words } => {
            let words: String = words.chars().take(WORDS_MAX).collect();
            json!({"upS": up_s, "verdict": "return", "check": failed.to_string(), "words": words})
        }
    }
}

/// Writes the newest word whenever there is another one.
pub async fn write(directory: PathBuf, mut newest: watch::Receiver<Option<Value>>, tasks: Tasks) {
    // An error means that the driver has ended.
    while newest.changed().await.is_ok() {
        let word = newest.borrow_and_update().clone();
        let Some(word) = word else { continue };
        say(&directory, &word, &tasks).await;
    }
}

async fn say(directory: &Path, word: &Value, tasks: &Tasks) {
    let (path, text) = (directory.join(FILE), word.to_string());
    let write = move || files::write_atomic(&path, text.as_bytes(), 0o644, Durability::Rebuildable);
    if let Some(Err(error)) = tasks.blocking(write).await {
        tracing::error!(error = chain(&error), "the guard of the trial hears nothing");
    }
}

/// Speaks for the agent in a boot on trial, until it is dropped: a runtime that never answers keeps the agent from making its checks,
/// and would else be taken for a silent agent.
pub async fn speak_early(run_dir: PathBuf, tasks: Tasks) {
    let path = run_dir.join(Path::new(TRIAL_BOOT_FILE).file_name().unwrap_or_default());
    let read = tasks.blocking(move || files::read_capped(&path, BOOT_BYTES_MAX)).await;
    let Some(Ok(text)) = read else { return };
    let Some(boot) = TrialBoot::parse(&String::from_utf8_lossy(&text)) else { return };
    let deadline = Duration::from_secs(u64::from(boot.deadline_s));
    let directory = run_dir.join(Path::new(DIRECTORY).file_name().unwrap_or_default());
    let limit = deadline.max(tasks.now().mono.since(Mono(0)).saturating_add(EARLY_PATIENCE));
    loop {
        let now = tasks.now().mono;
        let up = now.since(Mono(0));
        say(&directory, &word(up, &early(up, limit)), &tasks).await;
        tasks.wait_until(now.after(EARLY_EVERY)).await;
    }
}

/// What is decided while the runtime does not answer.
fn early(up: Duration, limit: Duration) -> TrialDecision {
    if up < limit {
        return TrialDecision::Wait;
    }
    let words = format!("the container runtime did not answer until {} s after the boot", limit.as_secs());
    let failed = FailedCheck { check: CheckName::Runtime, fault: TrialFault::Slot };
    TrialDecision::Return { failed, words }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use orlop_config::slots::SlotName;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::testing::VirtualClock;

    #[test]
    fn decisions_are_words_of_the_guard() {
        let up = Duration::from_millis(71_900);
        let failed = FailedCheck { check: CheckName::Api, fault: TrialFault::Cluster };
        let (hold, words) = (TrialDecision::Hold { words: "api".into() }, "x".repeat(1000));
        for (decision, want) in [
            (TrialDecision::Wait, json!({"upS": 71, "verdict": "wait"})),
            (hold, json!({"upS": 71, "verdict": "wait"})),
            (TrialDecision::Commit, json!({"upS": 71, "verdict": "commit"})),
            (
                TrialDecision::Return { failed, words },
                json!({"upS": 71, "verdict": "return", "check": "api/cluster", "words": "x".repeat(400)}),
            ),
        ] {
            assert_eq!(word(up, &decision), want);
        }
    }

    #[test]
    fn a_runtime_that_never_answers_is_named_at_the_deadline() {
        let (before, at) = (Duration::from_secs(599), Duration::from_secs(600));
        assert_eq!(early(before, at), TrialDecision::Wait);
        let said = word(at, &early(at, at));
        assert_eq!((said["verdict"].as_str(), said["check"].as_str()), (Some("return"), Some("runtime")));
    }

    #[tokio::test]
    async fn the_early_voice_speaks_in_a_boot_on_trial_only() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        // Without init's file it has nothing to say, and ends.
        speak_early(dir.path().to_owned(), tasks.clone()).await;
        // The deadline is over: an agent that begins in a hold asks the runtime first.
        let boot = TrialBoot {
            slot: SlotName::B,
            update: "u".into(),
            deadline_s: 60,
            record: "/dev/none".into(),
            esp: None,
        };
        std::fs::write(dir.path().join("slot.json"), boot.render()).unwrap();
        std::fs::create_dir(dir.path().join("trial")).unwrap();
        let verdict = dir.path().join("trial").join(FILE);
        tasks.start(speak_early(dir.path().to_owned(), tasks.clone()));
        while !verdict.exists() {
            tokio::task::yield_now().await;
        }
        let said: Value = serde_json::from_slice(&std::fs::read(&verdict).unwrap()).unwrap();
        assert_eq!(said["verdict"], "wait");
        tasks.stop().cancel();
    }
}
