//! Both slots for the management API, and its order of a trial. The agent orders its own trials without the updater
//! ([`SlotDisk::order_trial`]); these requests need no agent.
//!
//! In: the disk, os-release, the node's settings. Out: reports. Invariants: an order names the version that the other slot holds, so that
//! a slot which another request has written meanwhile is not tried; what the boot record refuses is not ordered.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use orlop_config::error_chain::chain;
use orlop_config::release::ReleaseVersion;
use orlop_config::slots::{BootRecord, SlotName};
use tokio::task::spawn_blocking;

use super::job::UpdaterPaths;
use super::protocol::{SlotsSeen, UpdateReport, UpdateState};
use crate::disk::SlotDisk;

/// The agent's facts before its last update, in the directory of what the node keeps.
const BASELINE: &str = "baseline.json";

/// Does work of the disk on a thread of its own: the record's lock may be held for half a minute.
pub(crate) async fn apart(work: impl FnOnce() -> UpdateReport + Send + 'static) -> UpdateReport {
    spawn_blocking(work)
        .await
        .unwrap_or_else(|error| failed(format!("the slots were not looked at: {error}")))
}

/// What the boot record says.
pub(crate) fn seen(paths: &UpdaterPaths) -> UpdateReport {
    looked(paths).unwrap_or_else(|report| report)
}

fn looked(paths: &UpdaterPaths) -> Result<UpdateReport, UpdateReport> {
    let disk = SlotDisk::running().map_err(|error| failed(chain(&error)))?;
    let (record, _) = disk.record().map_err(|error| failed(chain(&error)))?;
    // The slots are of interest also if the image has no version that can be compared.
    let version = paths.running().map(|version| version.to_string()).unwrap_or_default();
    let slots = slots_seen(&record, disk.places.running, &version);
    let report = UpdateReport::new(UpdateState::Idle, words(&slots));
    Ok(UpdateReport { slots: Some(Box::new(slots)), ..report })
}

/// Orders a trial of the other slot, which must hold this version.
pub(crate) fn order(paths: &UpdaterPaths, version: ReleaseVersion) -> UpdateReport {
    ordered(paths, version).unwrap_or_else(|report| report)
}

fn ordered(paths: &UpdaterPaths, version: ReleaseVersion) -> Result<UpdateReport, UpdateReport> {
    let disk = SlotDisk::running().map_err(|error| failed(chain(&error)))?;
    let (settings, running) = (paths.settings()?, paths.running()?);
    let (record, _) = disk.record().map_err(|error| failed(chain(&error)))?;
    may_try(&record, disk.places.running, version).map_err(failed)?;
    let deadline_s = u32::try_from(settings.trial.deadline.to_std().as_secs()).unwrap_or(u32::MAX);
    // A baseline of an earlier update would ask this trial for pods that are gone since then.
    match std::fs::remove_file(paths.kept.join(BASELINE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, "the facts before an earlier update stay: the trial may ask for more than it should");
        }
        _ => {}
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let update = format!("{version}-{}", since.as_secs());
    let order = disk.order_trial(&update, deadline_s, &running.to_string());
    order.map_err(|error| failed(chain(&error)))?;
    let message =
        format!("the next boot tries {version}, and the node returns to {running} if it is not good");
    tracing::warn!(report = message.as_str(), "update");
    Ok(UpdateReport::new(UpdateState::Ordered, message).about(version))
}

/// Whether a trial of this version may be ordered; the record itself refuses what has no way back.
fn may_try(record: &BootRecord, running: SlotName, version: ReleaseVersion) -> Result<(), String> {
    if let Some(trial) = &record.trial {
        return Err(format!("slot {} is to be tried, or is on trial, and has no verdict yet", trial.slot));
    }
    let other = record.slot(running.other());
    match other.version.parse::<ReleaseVersion>() {
        Ok(holds) if holds == version => Ok(()),
        _ => Err(format!("slot {} does not hold {version} but {:?}", running.other(), other.version)),
    }
}

/// Both slots. `version` is that of the running one, by os-release: it counts only if the record has none, as after an image was written to
/// the disk. Versions are compared with those that the record has of trials.
fn slots_seen(record: &BootRecord, running: SlotName, version: &str) -> SlotsSeen {
    let (own, other) = (record.slot(running), record.slot(running.other()));
    let reason = match (other.failed_check.as_str(), other.reason.as_str()) {
        ("", reason) => reason.to_owned(),
        (check, "") => check.to_owned(),
        (check, reason) => format!("{check}: {reason}"),
    };
    SlotsSeen {
        running: running.letter().to_owned(),
        desired: record.desired.letter().to_owned(),
        trial: record.trial.as_ref().map(|trial| trial.slot.letter()).unwrap_or_default().to_owned(),
        running_version: if own.version.is_empty() { version.to_owned() } else { own.version.clone() },
        running_state: own.state.name().to_owned(),
        other_version: other.version.clone(),
        other_state: other.state.name().to_owned(),
        other_reason: reason,
    }
}

fn words(slots: &SlotsSeen) -> String {
    let SlotsSeen { running, running_version, other_version, other_state, .. } = slots;
    format!("slot {running} runs {running_version}; the other one has {other_version} ({other_state})")
}

fn failed(why: String) -> UpdateReport {
    UpdateReport::new(UpdateState::Failed, why)
}

#[cfg(test)]
mod tests {
    use orlop_config::slots::SlotState;

    use super::*;

    fn version(text: &str) -> ReleaseVersion {
        text.parse().expect("a version")
    }

    fn staged() -> BootRecord {
        let mut record = BootRecord::new(SlotName::A);
        record.b.state = SlotState::Staged;
        record.b.version = "0.2.0".into();
        record
    }

    #[test]
    fn slots_as_they_are_shown() {
        let mut record = staged();
        let seen = slots_seen(&record, SlotName::A, "0.1.0");
        assert_eq!((seen.running.as_str(), seen.desired.as_str(), seen.trial.as_str()), ("a", "a", ""));
        assert_eq!((seen.running_version.as_str(), seen.running_state.as_str()), ("0.1.0", "good"));
        assert_eq!((seen.other_version.as_str(), seen.other_state.as_str()), ("0.2.0", "staged"));
        assert_eq!(words(&seen), "slot a runs 0.1.0; the other one has 0.2.0 (staged)");
        record.order_trial(SlotName::A, "u", 600).expect("staged");
        let seen = slots_seen(&record, SlotName::B, "0.1.9");
        assert_eq!((seen.running.as_str(), seen.trial.as_str()), ("b", "b"));
        assert_eq!((seen.running_version.as_str(), seen.running_state.as_str()), ("0.2.0", "trial"));
        record.return_from_trial(SlotName::B, "runtime", "it does not answer").expect("on trial");
        let seen = slots_seen(&record, SlotName::A, "0.1.0");
        assert_eq!((seen.trial.as_str(), seen.other_reason.as_str()), ("", "runtime: it does not answer"));
        // The old slot has made the same check.
        record.settle_trial(SlotName::A, Some("runtime: it does not answer"));
        let seen = slots_seen(&record, SlotName::A, "0.1.0");
        assert_eq!(
            (seen.other_state.as_str(), seen.other_reason.as_str()),
            ("refused", "runtime: it does not answer")
        );
    }

    #[test]
    fn only_the_version_of_the_other_slot_is_tried_and_only_once() {
        let mut record = staged();
        assert_eq!(may_try(&record, SlotName::A, version("0.2.0")), Ok(()));
        for (running, other) in [(SlotName::A, "0.3.0"), (SlotName::B, "0.2.0")] {
            let refused = may_try(&record, running, version(other)).expect_err("another version");
            assert!(refused.contains("does not hold"), "{refused}");
        }
        record.order_trial(SlotName::A, "u", 600).expect("staged");
        let refused = may_try(&record, SlotName::A, version("0.2.0")).expect_err("ordered");
        assert!(refused.contains("has no verdict yet"), "{refused}");
    }
}
