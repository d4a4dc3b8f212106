//! The updater, as operations use it: both slots, a version that is staged, an order of a trial.
//!
//! In: the updater's socket. Out: what it says, as values of [`life`](super::life), and refusals. Invariants: neither the agent nor the
//! network is needed for a look at the slots and for an order; the updater is asked to stage by a task of its own, so that the keeper
//! goes on meanwhile; each other question has an end.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::console::text::clean;
use orlop_config::release::ReleaseVersion;
use orlop_config::slots::SlotState;
use orlop_update::service::client::ask_from_task;
use orlop_update::service::protocol::{SOCKET, SlotsSeen, UpdateReport, UpdateRequest, UpdateState};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::life::{AskOutcome, StageOutcome};
use super::record::OperationVerb;
use crate::refusal::{Reason, Refusal};

/// Who answers, for people.
const UPDATER: &str = "orlop-update";
/// A look or an order: the updater starts, and waits half a minute for another writer of the boot record.
const ANSWER_MAX: Duration = Duration::from_secs(45);
/// An updater that does another request is asked again after this.
const BUSY_AGAIN: Duration = Duration::from_secs(5);
/// Words of the updater in a record, characters.
const WORDS_MAX: usize = 600;

/// How far the updater is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StagingNow {
    /// It is at work.
    Goes(String),
    /// It has ended.
    Ended(StageOutcome),
}

/// A request to stage a version. If it is dropped, the updater goes on without a listener.
pub(crate) struct Staging {
    now: watch::Receiver<StagingNow>,
    _task: JoinSet<()>,
}

impl Staging {
    /// Asks for the version; none: the channel's choice.
    pub(crate) fn begin(socket: PathBuf, version: Option<ReleaseVersion>) -> Staging {
        let (tell, now) = watch::channel(StagingNow::Goes("asks the updater".to_owned()));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let outcome = staged(&socket, version, &tell).await;
            tell.send_replace(StagingNow::Ended(outcome));
        });
        Staging { now, _task: task }
    }

    /// How far it is.
    pub(crate) fn now(&self) -> StagingNow {
        self.now.borrow().clone()
    }
}

async fn staged(
    socket: &Path,
    version: Option<ReleaseVersion>,
    tell: &watch::Sender<StagingNow>,
) -> StageOutcome {
    let request = UpdateRequest::Take { version };
    loop {
        let show = |report: &UpdateReport| {
            tell.send_replace(StagingNow::Goes(clean(&report.message, WORDS_MAX)));
        };
        match ask_from_task(socket, &request, show).await {
            // A request of the timer or of the agent. It ends.
            Ok(report) if report.state == UpdateState::Busy => {
                tell.send_replace(StagingNow::Goes(clean(&report.message, WORDS_MAX)));
                sleep_until(Instant::now() + BUSY_AGAIN).await;
            }
            Ok(report) => return outcome(&report, version),
            Err(error) => return StageOutcome::Failed(format!("{UPDATER} cannot be asked: {error}")),
        }
    }
}

/// What the last report of a request to stage says. `asked` is the version that it named.
fn outcome(report: &UpdateReport, asked: Option<ReleaseVersion>) -> StageOutcome {
    let words = clean(&report.message, WORDS_MAX);
    match (report.state, report.version.or(asked)) {
        (UpdateState::Staged, Some(version)) => StageOutcome::Staged(version.to_string()),
        (UpdateState::UpToDate | UpdateState::Waits | UpdateState::Idle, _) => StageOutcome::Nothing(words),
        _ => StageOutcome::Failed(words),
    }
}

/// The updater's socket below a root directory.
pub(crate) fn socket(root: &Path) -> PathBuf {
    root.join(SOCKET.trim_start_matches('/'))
}

/// Both slots.
///
/// # Errors
/// The updater does not say it.
pub(crate) async fn slots(socket: &Path) -> Result<SlotsSeen, Refusal> {
    let report = match timeout(ANSWER_MAX, ask_from_task(socket, &UpdateRequest::Slots, |_| {})).await {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => return Err(Refusal::new(Reason::PartDown, UPDATER, error.to_string())),
        Err(_) => {
            let message = format!("no answer within {} s", ANSWER_MAX.as_secs());
            return Err(Refusal::new(Reason::PartSilent, UPDATER, message));
        }
    };
    let words = clean(&report.message, WORDS_MAX);
    report.slots.map(|slots| *slots).ok_or_else(|| Refusal::new(Reason::PartDown, UPDATER, words))
}

/// Orders a trial of this version, which the other slot holds.
pub(crate) async fn order_trial(socket: &Path, version: &str) -> AskOutcome {
    let Ok(version) = version.parse::<ReleaseVersion>() else {
        return AskOutcome::Refused(format!("{version:?} is no version that can be tried"));
    };
    match timeout(ANSWER_MAX, ask_from_task(socket, &UpdateRequest::Try { version }, |_| {})).await {
        Ok(Ok(report)) if report.state == UpdateState::Ordered => AskOutcome::Accepted,
        Ok(Ok(report)) => AskOutcome::Refused(clean(&report.message, WORDS_MAX)),
        // It may have been ordered.
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => AskOutcome::Silent,
        Ok(Err(error)) => AskOutcome::Refused(format!("{UPDATER} cannot be asked: {error}")),
        Err(_) => AskOutcome::Silent,
    }
}

/// Whether the slots allow what is wanted; what is in the other slot already is noted in `what`.
///
/// # Errors
/// Another trial is under way, or the other slot holds nothing that may be tried.
pub(crate) fn settle(what: &mut OperationVerb, seen: &SlotsSeen) -> Result<(), Refusal> {
    let other = if seen.running == "a" { "slot B" } else { "slot A" };
    let refused = |reason, message: String| Err(Refusal::new(reason, other, message));
    if !seen.trial.is_empty() {
        let on_trial = if seen.trial == seen.running { &seen.running_version } else { &seen.other_version };
        return refused(Reason::TrialUnderWay, format!("{on_trial} has no verdict of its trial yet"));
    }
    if seen.desired != seen.running || seen.running_state != SlotState::Good.name() {
        let message = format!("{} runs, and it is not the version that the node boots", seen.running_version);
        return refused(Reason::TrialUnderWay, message);
    }
    let (is, holds) = (|state: SlotState| seen.other_state == state.name(), &seen.other_version);
    match what {
        OperationVerb::Rollback { .. } if is(SlotState::Refused) => {
            refused(Reason::VersionRefused, format!("{holds} is not booted again: {}", seen.other_reason))
        }
        OperationVerb::Rollback { to } if is(SlotState::Good) => {
            if holds.parse::<ReleaseVersion>().is_err() {
                let message = format!("it is good, and its version {holds:?} cannot be compared");
                return refused(Reason::NoOtherVersion, message);
            }
            to.clone_from(holds);
            Ok(())
        }
        OperationVerb::Rollback { .. } => {
            let held = if holds.is_empty() { String::new() } else { format!(" with {holds}") };
            let message = format!("it is {}{held}: no version that was good before", seen.other_state);
            refused(Reason::NoOtherVersion, message)
        }
        OperationVerb::Upgrade { version, .. } | OperationVerb::Stage { version }
            if !version.is_empty() && *version == seen.running_version =>
        {
            refused(Reason::NoOtherVersion, format!("{version} runs already"))
        }
        OperationVerb::Upgrade { version, to } => {
            // A version that somebody names, and that is whole in the other slot, needs no source.
            let is_there = is(SlotState::Staged) || is(SlotState::Good);
            if is_there && !version.is_empty() && *version == *holds {
                to.clone_from(holds);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
