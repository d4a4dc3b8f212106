//! The task that owns the operations.
//!
//! In: orders of clients, the time. Out: what [`OperationLife::next`] says, done; all records for readers. Invariants: an order waits for
//! one step of the running operation at most, which is bounded by the answers of systemd, of the updater and of the disk; readers see the
//! newest records.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_core::console::text::clean;
use agent_core::node_shutdown::{FILE, Receipt};
use agent_linux::clock::boottime;
use agent_linux::files::read_capped;
use agent_types::time::Mono;
use orlop_config::release::ReleaseVersion;
use orlop_config::slots::{RESET_END_FILE, ResetEnd};
use orlop_proto::node_api::v1alpha1::OperationStatus;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::handle::{OperationHandle, OperationOrder, OperationsShown, ends, unknown};
use super::life::{AskOutcome, LifeAction, OperationLife, OperationNow, UnitLook};
use super::notices::NoticeSender;
use super::record::{OperationPhase, OperationRecord, OperationVerb};
use super::request::{OperationWish, UNIT_PROPERTIES, check_restart, unit_look};
use super::store::{OperationStore, RECORDS_MAX, disk_words};
use super::systemd::{STOP_ANSWER_MAX, answer_max, systemctl_arguments};
use super::updates::{self, Staging, StagingNow};
use crate::blocking::ANSWER_MAX;
use crate::collect::Collector;
use crate::connection::{DoorPlaces, TakenPlace};
use crate::refusal::{Reason, Refusal};

/// Where the agent writes its receipt, below the root directory.
const AGENT_DIRECTORY: &str = "var/lib/kubelet";
/// Enough for a receipt of some thousand pods, bytes.
const RECEIPT_BYTES_MAX: u64 = 1 << 20;
/// Words of systemd in a record, characters.
const WORDS_MAX: usize = 600;
/// Enough for the end of a reset, bytes.
const RESET_END_BYTES_MAX: u64 = 4 << 10;

/// The task, and the handle to it.
pub(crate) fn keeper(
    collector: Arc<Collector>,
    open: watch::Sender<usize>,
    notices: NoticeSender,
) -> (OperationHandle, OperationKeeper) {
    let (shown, _) = watch::channel(None);
    let (handle, orders) = OperationHandle::open(shown.subscribe());
    let root = &collector.sources().root;
    let boot_id = read_capped(&root.join("proc/sys/kernel/random/boot_id"), 128).unwrap_or_default();
    let keeper = OperationKeeper {
        store: OperationStore::new(root),
        boot_id: String::from_utf8_lossy(&boot_id).trim().to_owned(),
        collector,
        orders,
        shown,
        open: DoorPlaces::new(1, open),
        stays: None,
        notices,
        records: Vec::new(),
        unread: None,
        life: None,
        later: VecDeque::new(),
        refused: None,
        staging: None,
    };
    (handle, keeper)
}

/// The task.
pub(crate) struct OperationKeeper {
    collector: Arc<Collector>,
    store: OperationStore,
    boot_id: String,
    orders: mpsc::Receiver<OperationOrder>,
    shown: watch::Sender<Option<OperationsShown>>,
    open: DoorPlaces,
    /// Keeps the process while an operation is open.
    stays: Option<TakenPlace>,
    /// Tells the agent.
    notices: NoticeSender,
    records: Vec<OperationRecord>,
    /// Why the records of earlier servers are not known.
    unread: Option<Refusal>,
    /// The operation that is driven.
    life: Option<OperationLife>,
    /// Further ones that an earlier server has left open.
    later: VecDeque<OperationLife>,
    /// Identifier of an operation that was refused because its record could not be written.
    refused: Option<String>,
    /// The request to the updater of the operation that is driven.
    staging: Option<Staging>,
}

impl OperationKeeper {
    /// Drives operations for as long as there are handles.
    pub(crate) async fn run(mut self) {
        self.load().await;
        loop {
            let now = self.now();
            let action = self.life.as_mut().map_or(LifeAction::Over, |life| life.next(&now));
            // Readers see what the disk has, not what it is about to have.
            if action != LifeAction::Keep {
                self.publish();
            }
            let goes_on = match action {
                LifeAction::Keep => {
                    // The life knows what a failure means.
                    let _ = self.keep().await;
                    self.publish();
                    true
                }
                LifeAction::Stage => self.stage(),
                LifeAction::Ask => self.ask().await,
                LifeAction::Look { again } => {
                    self.look().await;
                    // An end is kept before another operation can begin.
                    if self.life.as_ref().is_some_and(OperationLife::is_kept) {
                        self.publish();
                        self.wait(Some(again)).await
                    } else {
                        true
                    }
                }
                LifeAction::Wait { until } => self.wait(Some(until)).await,
                LifeAction::Over => self.over().await,
            };
            if !goes_on {
                return;
            }
        }
    }

    fn now(&self) -> OperationNow {
        OperationNow {
            mono: boottime(),
            at: jiff::Timestamp::now().to_string(),
            boot_id: self.boot_id.clone(),
        }
    }

    /// What earlier servers have left, once the disk says it.
    async fn load(&mut self) {
        let store = self.store.clone();
        let read = match self.collector.state().look(move || store.load()).await {
            Ok(read) => {
                read.map_err(|error| Refusal::new(Reason::PartDown, "operations", disk_words(&error)))
            }
            Err(refusal) => Err(refusal),
        };
        let mut records = match read {
            Ok(records) => records,
            Err(refusal) => {
                self.unread = Some(refusal);
                return;
            }
        };
        self.unread = None;
        // Those of this server that no disk has kept.
        let is_new = |record: &OperationRecord| records.iter().all(|kept| kept.id != record.id);
        let unkept: Vec<OperationRecord> = self.records.drain(..).filter(is_new).collect();
        records.extend(unkept);
        self.records = records;
        let receipt = self.receipt().await;
        let now = self.now();
        let left = self.records.iter().filter(|record| !record.phase.has_ended());
        let reset = self.reset_end();
        let recovered = |record: &OperationRecord| {
            let mut life = OperationLife::recovered(record.clone(), &now, receipt.as_ref());
            life.seen_reset(reset.as_ref(), &now);
            life
        };
        self.later = left.map(recovered).collect();
        self.life = self.later.pop_front();
    }

    /// Shows the records to readers, and keeps the process while an operation is open.
    fn publish(&mut self) {
        if let Some(life) = &self.life {
            let record = life.record();
            match self.records.iter_mut().find(|known| known.id == record.id) {
                Some(known) => known.clone_from(record),
                None => self.records.push(record.clone()),
            }
        }
        if self.life.is_none() {
            self.stays = None;
        } else if self.stays.is_none() {
            self.stays = self.open.take();
        }
        let present = match &self.unread {
            Some(refusal) if self.records.is_empty() => Err(refusal.clone()),
            _ => Ok(Arc::new(self.records.clone())),
        };
        self.shown.send_if_modified(|shown| {
            let is_new = shown.as_ref() != Some(&present);
            if is_new {
                *shown = Some(present);
            }
            is_new
        });
    }

    /// Nothing is open: waits for an order.
    async fn over(&mut self) -> bool {
        self.staging = None;
        self.life = self.later.pop_front();
        if self.life.is_some() {
            return true;
        }
        self.publish();
        self.wait(None).await
    }

    /// Waits for an order, or until a time; false: no handle is left.
    async fn wait(&mut self, until: Option<Mono>) -> bool {
        let pause = until.map(|until| until.since(boottime()));
        let ordered = tokio::select! {
            // Cancel-safe: an order that is not taken stays in the channel.
            ordered = self.orders.recv() => ordered,
            () = sleep_until(Instant::now() + pause.unwrap_or_default()), if pause.is_some() => return true,
        };
        let Some(ordered) = ordered else { return false };
        let (done, answer) = match ordered {
            OperationOrder::Begin(wish, answer) => (self.begin(wish).await, answer),
            OperationOrder::Cancel(id, answer) => (self.cancel(&id).await, answer),
        };
        self.publish();
        // A client that is gone asks again by the identifier.
        let _ = answer.send(done);
        self.forget_refused().await;
        true
    }

    /// A refused operation leaves no record, also if the write that was given up ends later: a later server would carry it out.
    async fn forget_refused(&mut self) {
        let Some(id) = self.refused.take() else { return };
        let store = self.store.clone();
        // A thread that hangs removes the record when the disk goes on.
        let _ = self.collector.state().look(move || store.forget(&id)).await;
    }

    async fn begin(&mut self, mut wish: OperationWish) -> Result<OperationStatus, Refusal> {
        let is_free = self.life.as_ref().is_none_or(|life| life.record().phase.has_ended());
        if self.unread.is_some() && is_free && !wish.unrecorded {
            self.load().await;
        }
        if let Some(known) = self.records.iter().find(|record| record.id == wish.id) {
            let is_same = (known.what.word(), known.what.object()) == (wish.what.word(), wish.what.object());
            let message = "it is the identifier of another operation";
            return if is_same {
                Ok(known.status())
            } else {
                Err(Refusal::new(Reason::BadRequest, "operation", message))
            };
        }
        if let Some(running) = self.life.as_ref().map(OperationLife::record).filter(|r| !r.phase.has_ended())
        {
            let message = format!("{} of {} has not ended: {}", running.what.word(), running.by, running.id);
            return Err(Refusal::new(Reason::OperationRunning, "operation", message));
        }
        if let Some(refusal) = self.unread.as_ref().filter(|_| !wish.unrecorded) {
            return Err(Refusal::new(Reason::NotRecorded, "operation", refusal.to_string()));
        }
        if let OperationVerb::Restart { unit, invocation } = &mut wish.what {
            let look = self.unit(unit).await?;
            check_restart(unit, look.as_ref())?;
            *invocation = look.map(|look| look.invocation).unwrap_or_default();
        }
        if wish.what.has_to_stage() || wish.what.tried().is_some() {
            let seen = updates::slots(&self.updater()).await?;
            updates::settle(&mut wish.what, &seen)?;
        }
        let (now, unrecorded) = (self.now(), wish.unrecorded);
        self.life = Some(OperationLife::begin(wish.into_record(&now), &now));
        if let Err(words) = self.keep().await
            && !unrecorded
        {
            self.refused = self.life.take().map(|life| life.record().id.clone());
            return Err(Refusal::new(Reason::NotRecorded, "operation", words));
        }
        self.publish();
        self.forget_old().await;
        if let Some(life) = &self.life {
            self.notices.send(life.record().status());
        }
        self.life.as_ref().map(|life| life.record().status()).ok_or_else(ends)
    }

    async fn cancel(&mut self, id: &str) -> Result<OperationStatus, Refusal> {
        // The client may have lost the first answer.
        let is_of = |record: &&OperationRecord| record.id == id && record.phase == OperationPhase::Cancelled;
        if let Some(off) = self.records.iter().find(is_of) {
            return Ok(off.status());
        }
        let now = self.now();
        let is_off = match self.life.as_mut().filter(|life| life.record().id == id) {
            Some(life) => {
                let is_off = life.cancel(&now);
                if is_off {
                    self.staging = None;
                }
                is_off
            }
            None if self.records.iter().any(|record| record.id == id) => false,
            None => return Err(unknown(id)),
        };
        if !is_off {
            return Err(Refusal::new(
                Reason::TooLate,
                format!("operation {id}"),
                "it has begun, or has ended",
            ));
        }
        if let Err(words) = self.keep().await {
            let message = format!("it is called off, but a server that starts again would not know: {words}");
            return Err(Refusal::new(Reason::NotRecorded, format!("operation {id}"), message));
        }
        self.life.as_ref().map(|life| life.record().status()).ok_or_else(ends)
    }

    /// Writes the record; the words of the disk if that fails.
    async fn keep(&mut self) -> Result<(), String> {
        let Some(record) = self.life.as_ref().map(|life| life.record().clone()) else { return Ok(()) };
        say(&record);
        if record.phase.has_ended() {
            self.notices.send(record.status());
        }
        let (store, id) = (self.store.clone(), record.id.clone());
        let written = match self.collector.state().look(move || store.keep(&record)).await {
            Ok(written) => written.map_err(|error| disk_words(&error)),
            Err(refusal) => Err(refusal.to_string()),
        };
        if let Err(error) = &written {
            tracing::warn!(id, error, "the record of an operation is not kept");
        }
        let now = self.now();
        if let Some(life) = &mut self.life {
            life.kept(written.is_ok(), &now);
        }
        written
    }

    async fn forget_old(&mut self) {
        let too_many = self.records.len().saturating_sub(RECORDS_MAX);
        let old: Vec<String> = self.records.drain(..too_many).map(|record| record.id).collect();
        if old.is_empty() {
            return;
        }
        let store = self.store.clone();
        // Files that stay are removed by the next server.
        let _ = self.collector.state().look(move || old.iter().for_each(|id| store.forget(id))).await;
    }

    fn updater(&self) -> PathBuf {
        updates::socket(&self.collector.sources().root)
    }

    /// Asks the updater for the version of the operation; true.
    fn stage(&mut self) -> bool {
        let Some(life) = &self.life else { return true };
        // Its form was checked; an empty one is the channel's choice.
        let version = life.record().what.object().parse::<ReleaseVersion>().ok();
        self.staging = Some(Staging::begin(self.updater(), version));
        if let Some(life) = &mut self.life {
            life.stage_begun();
        }
        true
    }

    /// Asks systemd; true.
    async fn ask(&mut self) -> bool {
        let Some(record) = self.life.as_ref().map(|life| life.record().clone()) else { return true };
        let OperationRecord { id, what, .. } = record;
        // The order is in the boot record before the machine starts again.
        let ordered = match &what {
            OperationVerb::Reset { scope } => {
                let unit = format!("orlop-reset@{scope}:{id}.service");
                self.ask_systemd(&["start", "--no-ask-password", "--", &unit], STOP_ANSWER_MAX).await
            }
            OperationVerb::Upgrade { to, .. } | OperationVerb::Rollback { to } => {
                updates::order_trial(&self.updater(), to).await
            }
            _ => AskOutcome::Accepted,
        };
        let stands = match &what {
            OperationVerb::Reset { .. } => "the reset is ordered, and the next boot carries it out",
            OperationVerb::Upgrade { .. } | OperationVerb::Rollback { .. } => {
                "the trial is ordered, and the next boot begins it"
            }
            _ => "",
        };
        let outcome = match (ordered, systemctl_arguments(&what)) {
            (AskOutcome::Accepted, Some(arguments)) => {
                match self.ask_systemd(&arguments, answer_max(&what)).await {
                    // Who reads that it has failed must not lose the node's state, or its version, by another reboot.
                    AskOutcome::Refused(words) if !stands.is_empty() => {
                        AskOutcome::Refused(format!("{words}; {stands}"))
                    }
                    asked => asked,
                }
            }
            (ordered, _) => ordered,
        };
        let now = self.now();
        if let Some(life) = &mut self.life {
            life.answered(outcome, &now);
        }
        true
    }

    async fn ask_systemd(&self, arguments: &[&str], longest: Duration) -> AskOutcome {
        match self.collector.systemctl(arguments, longest).await {
            Ok(_) => AskOutcome::Accepted,
            Err(refusal) if refusal.reason == Reason::PartSilent => AskOutcome::Silent,
            Err(refusal) => AskOutcome::Refused(clean(&refusal.message, WORDS_MAX)),
        }
    }

    /// What init has said about the last factory reset. The file is in memory.
    fn reset_end(&self) -> Option<ResetEnd> {
        let file = self.collector.sources().root.join(RESET_END_FILE.trim_start_matches('/'));
        ResetEnd::parse(&read_capped(&file, RESET_END_BYTES_MAX).ok()?)
    }

    async fn look(&mut self) {
        let Some(record) = self.life.as_ref().map(|life| life.record().clone()) else { return };
        if record.phase == OperationPhase::Staging {
            self.look_at_staging();
            return;
        }
        let what = record.what;
        if what.tried().is_some() && !record.boot_id_after.is_empty() {
            let seen = updates::slots(&self.updater()).await;
            let now = self.now();
            // An updater that does not answer is asked again.
            if let (Some(life), Ok(seen)) = (&mut self.life, seen) {
                life.seen_slots(&seen, &now);
            }
            return;
        }
        if let OperationVerb::Restart { unit, .. } = &what {
            let look = self.unit(unit).await;
            let now = self.now();
            // A systemd that does not answer is asked again.
            if let (Some(life), Ok(Some(look))) = (&mut self.life, look) {
                life.seen_unit(&look, &now);
            }
        } else {
            let receipt = self.receipt().await;
            if let Some(life) = &mut self.life {
                life.seen_receipt(receipt.as_ref());
            }
        }
    }

    fn look_at_staging(&mut self) {
        let now = self.now();
        let (Some(life), Some(staging)) = (&mut self.life, &self.staging) else { return };
        match staging.now() {
            StagingNow::Goes(words) => life.stage_goes_on(&words),
            StagingNow::Ended(outcome) => {
                life.staged(outcome, &now);
                self.staging = None;
            }
        }
    }

    async fn unit(&self, unit: &str) -> Result<Option<UnitLook>, Refusal> {
        let show = ["show", "--no-pager", "--no-ask-password", "--property", UNIT_PROPERTIES, "--", unit];
        Ok(unit_look(&self.collector.systemctl(&show, ANSWER_MAX).await?, unit))
    }

    /// The agent's newest receipt of a shutdown.
    async fn receipt(&self) -> Option<Receipt> {
        let file = self.collector.sources().root.join(AGENT_DIRECTORY).join(FILE);
        let read = self.collector.state().look(move || read_capped(&file, RECEIPT_BYTES_MAX)).await;
        serde_json::from_slice(&read.ok()?.ok()?).ok()
    }
}

fn say(record: &OperationRecord) {
    let OperationRecord { id, what, by, phase, message: why, .. } = record;
    let (verb, object, phase) = (what.word(), what.object(), phase.word());
    tracing::info!(id, verb, object, by, phase, why, "operation");
}

#[cfg(test)]
mod tests;
