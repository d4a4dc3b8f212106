//! The record of an operation: what was asked for, by whom, how far it is. Pure.
//!
//! In: words of files and of systemd. Out: values with those words, and the message of the protocol. Invariant: a record is bounded:
//! the names of pods in it are a few.

use agent_core::node_shutdown::Receipt;
use agent_types::time::Mono;
use orlop_proto::node_api::v1alpha1::{OperationStatus, PodsEnd};
use serde::{Deserialize, Serialize};

/// Pods that had not ended, by name, in one record.
const NAMES_MAX: usize = 16;

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "camelCase")]
pub enum OperationVerb {
    /// The machine stops and starts again.
    Reboot,
    /// The machine stops, and its power goes off.
    Shutdown,
    /// The machine starts again, and its next boot carries out a factory reset (docs/reference/reset.md).
    Reset {
        /// `keep` or `forget`.
        scope: String,
    },
    /// A version is written into the slot that does not run. Nothing boots it.
    Stage {
        /// The version; empty: the choice of the node's channel.
        version: String,
    },
    /// A version is written into the slot that does not run, and tried by a reboot.
    Upgrade {
        /// The version that was asked for; empty: the choice of the node's channel.
        version: String,
        /// The version that is in the other slot and is tried; empty: it is not there yet.
        to: String,
    },
    /// The version in the slot that does not run, which was good before, is tried by a reboot.
    Rollback {
        /// That version.
        to: String,
    },
    /// A service of systemd stops and starts again.
    Restart {
        /// With its ending.
        unit: String,
        /// InvocationID before the restart; another one is the new run (systemd.exec(5)). Empty: it has never run.
        invocation: String,
    },
}

impl OperationVerb {
    /// Its word in the protocol.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            OperationVerb::Reboot => "reboot",
            OperationVerb::Shutdown => "shutdown",
            OperationVerb::Reset { .. } => "reset",
            OperationVerb::Stage { .. } => "stage",
            OperationVerb::Upgrade { .. } => "upgrade",
            OperationVerb::Rollback { .. } => "rollback",
            OperationVerb::Restart { .. } => "restart",
        }
    }

    /// What it is about, as it was asked for; empty: the machine.
    #[must_use]
    pub fn object(&self) -> &str {
        match self {
            OperationVerb::Reboot | OperationVerb::Shutdown | OperationVerb::Rollback { .. } => "",
            OperationVerb::Stage { version } | OperationVerb::Upgrade { version, .. } => version,
            OperationVerb::Reset { scope } => scope,
            OperationVerb::Restart { unit, .. } => unit,
        }
    }

    /// The machine stops for it.
    #[must_use]
    pub const fn stops_machine(&self) -> bool {
        !matches!(self, OperationVerb::Restart { .. } | OperationVerb::Stage { .. })
    }

    /// The updater has to write a version first.
    #[must_use]
    pub fn has_to_stage(&self) -> bool {
        match self {
            OperationVerb::Stage { .. } => true,
            OperationVerb::Upgrade { to, .. } => to.is_empty(),
            _ => false,
        }
    }

    /// The version that the reboot tries.
    #[must_use]
    pub fn tried(&self) -> Option<&str> {
        match self {
            OperationVerb::Upgrade { to, .. } | OperationVerb::Rollback { to } => Some(to),
            _ => None,
        }
    }
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OperationPhase {
    /// Its time has not come.
    Scheduled,
    /// The updater writes the version.
    Staging,
    /// systemd is being asked, or was asked just before the server ended.
    Asking,
    /// systemd does it.
    Waiting,
    /// Done.
    Finished,
    /// Not done; the record says why.
    Failed,
    /// Called off before its time.
    Cancelled,
}

impl OperationPhase {
    /// Nothing follows.
    #[must_use]
    pub const fn has_ended(self) -> bool {
        matches!(self, OperationPhase::Finished | OperationPhase::Failed | OperationPhase::Cancelled)
    }

    /// Its word in the protocol.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            OperationPhase::Scheduled => "scheduled",
            OperationPhase::Staging => "staging",
            OperationPhase::Asking => "asking",
            OperationPhase::Waiting => "waiting",
            OperationPhase::Finished => "finished",
            OperationPhase::Failed => "failed",
            OperationPhase::Cancelled => "cancelled",
        }
    }
}

/// Why an operation failed, for programs. Words are added, never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum OperationFailure {
    /// systemd said no.
    Refused,
    /// The machine or the server stopped before it was carried out, or its end cannot be known.
    Interrupted,
    /// Its time was over before the server was there again.
    Missed,
    /// systemd was asked, and it did not happen in time.
    DidNotHappen,
    /// The service does not run after the restart.
    UnitFailed,
    /// The record could not be kept.
    NotRecorded,
    /// The updater has not written the version.
    NotStaged,
    /// The version was tried, and the node runs the one before again.
    Returned,
}

impl OperationFailure {
    /// Its word in the protocol.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            OperationFailure::Refused => "REFUSED",
            OperationFailure::Interrupted => "INTERRUPTED",
            OperationFailure::Missed => "MISSED",
            OperationFailure::DidNotHappen => "DID_NOT_HAPPEN",
            OperationFailure::UnitFailed => "UNIT_FAILED",
            OperationFailure::NotRecorded => "NOT_RECORDED",
            OperationFailure::NotStaged => "NOT_STAGED",
            OperationFailure::Returned => "RETURNED",
        }
    }
}

/// How the pods of a boot ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodsOutcome {
    /// The agent has ended all of them before the machine stopped.
    pub in_order: bool,
    /// All of them.
    pub pods: u32,
    /// Those that have ended.
    pub ended: u32,
    /// Some of the others, `namespace/name`.
    pub not_ended: Vec<String>,
}

impl PodsOutcome {
    /// By the agent's receipt of the shutdown.
    #[must_use]
    pub fn of(receipt: &Receipt) -> PodsOutcome {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let not_ended: Vec<String> = receipt
            .pods
            .iter()
            .filter(|pod| !pod.ended)
            .map(|pod| format!("{}/{}", pod.namespace, pod.name))
            .collect();
        PodsOutcome {
            in_order: receipt.end_time.is_some() && not_ended.is_empty(),
            pods: count(receipt.pods.len()),
            ended: count(receipt.pods.len() - not_ended.len()),
            not_ended: not_ended.into_iter().take(NAMES_MAX).collect(),
        }
    }
}

/// The record, as its file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationRecord {
    /// UUID, chosen by the client.
    pub id: String,
    /// What is done.
    pub what: OperationVerb,
    /// Who began it, and by which door.
    pub by: String,
    /// How far it is.
    pub phase: OperationPhase,
    /// RFC 3339.
    pub accepted_at: String,
    /// RFC 3339; empty: it has not ended.
    #[serde(default)]
    pub ended_at: String,
    /// The boot in which it began.
    pub boot_id_before: String,
    /// The boot that followed a stop of the machine.
    #[serde(default)]
    pub boot_id_after: String,
    /// When it begins, by the clock of the boot in which it was accepted.
    pub due: Mono,
    /// Carried out even if the record cannot be kept.
    #[serde(default)]
    pub unrecorded: bool,
    /// Of the stop that it has caused.
    #[serde(default)]
    pub pods: Option<PodsOutcome>,
    /// Of a failed one.
    #[serde(default)]
    pub failure: Option<OperationFailure>,
    /// For people: why it failed, or how far it is.
    #[serde(default)]
    pub message: String,
}

impl OperationRecord {
    /// The message of the protocol.
    #[must_use]
    pub fn status(&self) -> OperationStatus {
        OperationStatus {
            id: self.id.clone(),
            verb: self.what.word().to_owned(),
            object: self.what.object().to_owned(),
            by: self.by.clone(),
            phase: self.phase.word().to_owned(),
            ended: self.phase.has_ended(),
            accepted_at: self.accepted_at.clone(),
            ended_at: self.ended_at.clone(),
            boot_id_before: self.boot_id_before.clone(),
            boot_id_after: self.boot_id_after.clone(),
            pods: self.pods.clone().map(|pods| PodsEnd {
                in_order: pods.in_order,
                pods: pods.pods,
                ended: pods.ended,
                not_ended: pods.not_ended,
            }),
            reason: self.failure.map(OperationFailure::word).unwrap_or_default().to_owned(),
            message: self.message.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receipt of the agent, with pods that ended or not.
    fn receipt(end: &str, pods: &[bool]) -> Receipt {
        let pods: Vec<serde_json::Value> = pods
            .iter()
            .enumerate()
            .map(|(n, ended)| {
                serde_json::json!({
                    "namespace": "a", "name": format!("p{n}"), "uid": "u", "ended": ended, "told": true
                })
            })
            .collect();
        let text = format!(r#"{{"startTime":"2026-11-30T09:00:00Z"{end},"bootId":"b1","kind":"reboot"}}"#);
        let mut receipt: serde_json::Value = serde_json::from_str(&text).unwrap();
        receipt["pods"] = pods.into();
        serde_json::from_value(receipt).unwrap()
    }

    #[test]
    fn pods_ended_in_order_if_all_did_and_the_receipt_has_an_end() {
        const END: &str = r#","endTime":"2026-11-30T09:00:07Z""#;
        let whole = PodsOutcome::of(&receipt(END, &[true, true]));
        assert_eq!((whole.in_order, whole.pods, whole.ended), (true, 2, 2));
        assert!(!PodsOutcome::of(&receipt("", &[true, true])).in_order, "it has no end");
        let some = PodsOutcome::of(&receipt(END, &[true, false]));
        assert_eq!(
            (some.in_order, some.ended, some.not_ended.as_slice()),
            (false, 1, &["a/p1".to_owned()][..])
        );
        let many = PodsOutcome::of(&receipt(END, &[false; 100]));
        assert_eq!((many.pods, many.ended, many.not_ended.len()), (100, 0, NAMES_MAX));
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_shown_with_the_words_of_the_page() {
        let record = OperationRecord {
            id: "018f".to_owned(),
            what: OperationVerb::Restart { unit: "kubelet.service".to_owned(), invocation: "ab".to_owned() },
            by: "ops-1 (admin, tcp)".to_owned(),
            phase: OperationPhase::Failed,
            accepted_at: "2026-11-30T09:00:00Z".to_owned(),
            ended_at: String::new(),
            boot_id_before: "b1".to_owned(),
            boot_id_after: String::new(),
            due: Mono(7),
            unrecorded: false,
            pods: Some(PodsOutcome { in_order: true, pods: 1, ended: 1, not_ended: Vec::new() }),
            failure: Some(OperationFailure::DidNotHappen),
            message: "no".to_owned(),
        };
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<OperationRecord>(&text).unwrap(), record);
        assert!(
            text.contains(r#""verb":"restart""#) && text.contains(r#""failure":"DID_NOT_HAPPEN""#),
            "{text}"
        );
        let shown = record.status();
        assert_eq!((shown.verb.as_str(), shown.object.as_str()), ("restart", "kubelet.service"));
        assert_eq!(
            (shown.phase.as_str(), shown.ended, shown.reason.as_str()),
            ("failed", true, "DID_NOT_HAPPEN")
        );
        assert_eq!(shown.pods.map(|pods| (pods.pods, pods.in_order)), Some((1, true)));
        for failure in [
            OperationFailure::Refused,
            OperationFailure::UnitFailed,
            OperationFailure::NotRecorded,
            OperationFailure::NotStaged,
            OperationFailure::Returned,
        ] {
            assert_eq!(
                serde_json::to_value(failure).unwrap(),
                failure.word(),
                "the file has the protocol's word"
            );
        }
    }
}
