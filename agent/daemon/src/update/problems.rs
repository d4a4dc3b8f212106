//! The failed update for the management API, which is another process and shows it also while the agent is dead.
//!
//! In: what the Node shows of updates. Out: `/run/orlop/update-problems.json` (docs/runbooks/node.md, "update-failed"), replaced whole.
//! Invariant: an agent that has not read the boot record leaves the file of the agent before it as it is.

use std::path::PathBuf;

use agent_core::console::problem::{ShownProblem, render};
use agent_core::console::runbook::UPDATE_FAILED;
use agent_core::console::text::clean;
use agent_linux::files::{self, Durability};
use tokio::sync::watch;

use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;

/// Name of the file, below init's run-time directory.
pub const FILE: &str = "update-problems.json";
/// Longest text, characters.
const TEXT_CHARS_MAX: usize = 400;

/// The problem of a failed update: `failed` has version, failed check and reason.
#[must_use]
pub fn shown(failed: Option<&str>) -> Vec<ShownProblem> {
    let problem = |words: &str| ShownProblem {
        subject: UPDATE_FAILED.subject.to_owned(),
        text: format!("the update failed: {}", clean(words, TEXT_CHARS_MAX)),
        remedy: UPDATE_FAILED.remedy.to_owned(),
        runbook: UPDATE_FAILED.id.to_owned(),
    };
    failed.map(problem).into_iter().collect()
}

/// Keeps the file of problems as they are now.
pub async fn keep(path: PathBuf, mut present: watch::Receiver<Vec<ShownProblem>>, tasks: Tasks) {
    // An error means that the driver has ended.
    while present.changed().await.is_ok() {
        let (path, text) = (path.clone(), render(&present.borrow_and_update()));
        let write = move || files::write_atomic(&path, text.as_bytes(), 0o644, Durability::Rebuildable);
        if let Some(Err(error)) = tasks.blocking(write).await {
            tracing::warn!(error = chain(&error), "the management API does not show a failed update");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_update_names_version_and_check_and_what_to_do() {
        assert_eq!(shown(None), []);
        let found = shown(Some("0.5.0 runtime: containerd did not answer\u{1b}[2J"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].subject, "update");
        assert!(found[0].text.starts_with("the update failed: 0.5.0 runtime: containerd"), "{found:?}");
        assert!(
            !found[0].text.contains('\u{1b}') && found[0].remedy.contains("orlopctl upgrade"),
            "{found:?}"
        );
    }
}
