//! Asks the gate while the machine wants it.
//!
//! In: the machine's wish, the senses, the baseline of before the reboot. Out: [`UpdateEvent::Gate`]. The rules are core's; a node
//! without static pods cannot run a probe pod, and is not asked for one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::node_update::check::{CheckName, GateFacts};
use agent_core::node_update::gate::{CheckRule, GateRules, gate, verdict};
use agent_core::node_update::plan::UpdatePhase;
use agent_core::node_update::{NodeUpdate, UpdateEvent};
use agent_linux::files::{self, Durability};
use agent_types::failure::Class;
use tokio::sync::watch;

use super::senses::GateSenses;
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;

/// Between two looks of a trial or an examination.
const SOON: Duration = Duration::from_secs(5);
/// Between two looks at a check that has to pass before a version is tried again.
const LATER: Duration = Duration::from_secs(60);
/// Longest baseline that is read, bytes: a few hundred pods.
const BASELINE_BYTES_MAX: u64 = 1 << 20;

/// What the machine wants of the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateWish {
    /// It is asked at all.
    pub asks: bool,
    /// A trial or an examination waits for it.
    pub is_urgent: bool,
    /// The slot that runs is on trial.
    pub on_trial: bool,
    /// With a probe pod.
    pub probes: bool,
}

impl GateWish {
    /// Of a machine.
    #[must_use]
    pub fn of(machine: &NodeUpdate) -> GateWish {
        let on_trial = machine.is_on_trial();
        let is_urgent = on_trial || machine.plan().phase == UpdatePhase::Examine;
        let awaited = machine.plan().awaits.as_deref().unwrap_or_default();
        let probes = is_urgent || awaited.starts_with(CheckName::ProbePod.name());
        GateWish { asks: machine.wants_gate(), is_urgent, on_trial, probes }
    }
}

/// What the gate needs.
pub struct GateLoop {
    /// Facts.
    pub senses: Arc<dyn GateSenses>,
    /// File of the baseline.
    pub baseline: PathBuf,
    /// This node can run a probe pod.
    pub can_probe: bool,
    /// The machine.
    pub to: Sender<UpdateEvent>,
    /// The node's tasks.
    pub tasks: Tasks,
}

impl GateLoop {
    /// Asks the gate while it is wanted.
    pub async fn follow(self, mut wishes: watch::Receiver<GateWish>) {
        let mut baseline = None;
        // What an earlier agent has left.
        self.senses.rest().await;
        loop {
            let wish = *wishes.borrow_and_update();
            if !wish.asks {
                if baseline.take().is_some() {
                    self.senses.rest().await;
                }
                // An error means that the machine has ended.
                if wishes.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let before = match baseline.take() {
                Some(before) => before,
                None => read_baseline(&self.baseline, &self.tasks).await,
            };
            let now = self.senses.facts(wish.probes && self.can_probe).await;
            let red = gate(&self.rules(), &before, &now);
            let verdict = verdict(&red, &before, &now);
            self.to.send(UpdateEvent::Gate { red, verdict });
            baseline = Some(before);
            let next = self.tasks.now().mono.after(if wish.is_urgent { SOON } else { LATER });
            tokio::select! {
                // Both only wait.
                () = self.tasks.wait_until(next) => {}
                changed = wishes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn rules(&self) -> GateRules {
        let rules = GateRules::default();
        if self.can_probe { rules } else { rules.with(CheckName::ProbePod, CheckRule::Off) }
    }
}

/// The facts of before the reboot; none known if they were lost, and then only what every node needs counts.
async fn read_baseline(path: &Path, tasks: &Tasks) -> GateFacts {
    let file = path.to_owned();
    let read = tasks.blocking_update(move || files::read_capped(&file, BASELINE_BYTES_MAX)).await;
    let text = match read {
        Some(Ok(text)) => text,
        Some(Err(error)) if error.class() == Class::NotFound => return GateFacts::default(),
        Some(Err(error)) => {
            tracing::warn!(error = chain(&error), "what the node saw before its reboot is lost");
            return GateFacts::default();
        }
        None => return GateFacts::default(),
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "what the node saw before its reboot is damaged");
        GateFacts::default()
    })
}

/// Keeps the facts for the time after the reboot.
///
/// # Errors
/// For people: why they are not kept.
pub async fn write_baseline(path: &Path, facts: &GateFacts, tasks: &Tasks) -> Result<(), String> {
    let text = serde_json::to_vec(facts).map_err(|e| e.to_string())?;
    write_durably(path.to_owned(), text, tasks).await
}

/// Writes a file of the driver, and makes its directory.
///
/// # Errors
/// For people: why it is not written.
pub async fn write_durably(path: PathBuf, text: Vec<u8>, tasks: &Tasks) -> Result<(), String> {
    let write = move || {
        if let Some(directory) = path.parent().filter(|directory| !directory.exists()) {
            files::make_dir(directory, 0o755)?;
        }
        files::write_atomic(&path, &text, 0o600, Durability::Synced)
    };
    match tasks.blocking_update(write).await {
        Some(written) => written.map_err(|e| chain(&e)),
        None => Err("the agent stops".to_owned()),
    }
}
