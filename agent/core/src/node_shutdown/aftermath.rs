//! Conclusions of the next boot from the end of the last one: terminations to continue, pods to delete, and
//! the report of an unclean end.
//!
//! In: the receipt, records of terminations, the API's pods, the kernel's kept messages. Out: terminations,
//! deletions, reports. Invariant: a receipt with an end of the last boot, and only that, makes its end a
//! clean one.

use agent_types::kill::{KillReason, REFUSED_REASON, TerminatingRecord};
use agent_types::pod;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use super::{Kind, POD_MESSAGE, POD_REASON, Receipt};

/// True if the pod failed for a shutdown (ended or rejected), and its controller replaces it without ever
/// deleting it: a ReplicaSet or a ReplicationController. Other controllers delete theirs (StatefulSet,
/// DaemonSet), count them (Job), or are unknown; a pod without a controller is its owner's only evidence of
/// its end.
#[must_use]
pub fn is_left_over(p: &Pod) -> bool {
    let owners = p.metadata.owner_references.iter().flatten();
    let replaced = owners.filter(|owner| owner.controller == Some(true)).any(|owner| {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        matches!((group, owner.kind.as_str()), ("apps", "ReplicaSet") | ("", "ReplicationController"))
    });
    let Some(status) = p.status.as_ref().filter(|_| replaced && !pod::is_static(p)) else { return false };
    if status.phase.as_deref() != Some("Failed") {
        return false;
    }
    match status.reason.as_deref() {
        Some(POD_REASON) => status.message.as_deref() == Some(POD_MESSAGE),
        reason => reason == Some(REFUSED_REASON),
    }
}

/// True if the record is of a static pod that ended for a finished shutdown: it starts again, because no
/// controller would replace it. `resumed`: an earlier agent was in the middle of that shutdown
/// ([`super::NodeShutdown::is_resumed`]). Remains of a pod that is being removed are removed first: they would pass for
/// an earlier run.
#[must_use]
pub fn begins_anew(record: &TerminatingRecord, resumed: bool) -> bool {
    !resumed && !record.ended && record.reason == KillReason::Shutdown { again: true }
}

/// How the last boot ended, for people and for the Node's condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastEnd {
    /// The kernel's id of that boot.
    pub boot_id: String,
    /// What was wrong with it; nothing if its pods were ended in order.
    pub unclean: Option<Unclean>,
    /// The kind of the shutdown that it ended with, or in the middle of; empty if there was none, or it is not known.
    #[serde(default)]
    pub kind: String,
    /// Pods (`namespace/name`) that had not ended in their time, when the machine stopped.
    #[serde(default)]
    pub not_ended: Vec<String>,
    /// A hardware watchdog started the machine again ([`LastEnd::told_by`]).
    #[serde(default)]
    pub watchdog: bool,
}

/// `WDIOF_CARDRESET` of the kernel's `linux/watchdog.h`, in `bootstatus` of a watchdog: it fired, and reset the machine.
const CARD_RESET: u32 = 0x20;

/// An end without order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unclean {
    /// A shutdown had begun.
    pub cut_short: bool,
    /// The kernel's last message before a crash, if it was kept.
    pub panic: Option<String>,
    /// The agent was stopped in order, as when units stop: no component waited for the pods.
    #[serde(default)]
    pub agent_stopped: bool,
}

impl LastEnd {
    /// The end of the boot `boot_id`: `last` is the newest receipt, `panic` the kernel's kept messages,
    /// `agent_stopped` whether its agent had ended in order.
    #[must_use]
    pub fn of(boot_id: &str, last: Option<&Receipt>, panic: Option<String>, agent_stopped: bool) -> LastEnd {
        let clean = last.is_some_and(|receipt| receipt.is_of(boot_id));
        let cut_short = last.is_some_and(|receipt| receipt.boot_id == boot_id && receipt.end_time.is_none());
        let kind =
            last.filter(|_| clean || cut_short).map(|receipt| receipt.kind.clone()).unwrap_or_default();
        let unclean = (!clean).then_some(Unclean { cut_short, panic, agent_stopped });
        let pods = last.filter(|_| clean).into_iter().flat_map(|receipt| &receipt.pods);
        let not_ended =
            pods.filter(|pod| !pod.ended).map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
        LastEnd { boot_id: boot_id.to_owned(), unclean, kind, not_ended, watchdog: false }
    }

    /// The same end, with the causes from the machine's watchdogs (`bootstatus` of each).
    #[must_use]
    pub fn told_by(mut self, watchdogs: &[u32]) -> LastEnd {
        self.watchdog = watchdogs.iter().any(|status| status & CARD_RESET != 0);
        self
    }

    /// `reason` of the condition.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match &self.unclean {
            None if !self.not_ended.is_empty() => "PodsNotEnded",
            None => "ShutdownInOrder",
            Some(Unclean { panic: Some(_), .. }) => "KernelPanic",
            Some(_) if self.watchdog => "WatchdogReset",
            Some(Unclean { agent_stopped: true, .. }) => "ShutdownNotAwaited",
            Some(Unclean { cut_short: true, .. }) => "ShutdownCutShort",
            Some(_) => "PowerLossOrReset",
        }
    }

    /// Who was not in order, for the message: a few by name.
    fn cut_off(&self) -> String {
        const NAMES_MAX: usize = 5;
        let (count, named) = (self.not_ended.len(), self.not_ended.iter().take(NAMES_MAX));
        if count == 0 {
            return String::new();
        }
        let names = named.map(String::as_str).collect::<Vec<_>>().join(", ");
        let others = if count > NAMES_MAX { ", …" } else { "" };
        format!(
            "; {count} had not ended when their time was over, and were killed with the machine: {names}{others}"
        )
    }

    /// `message` of the condition and of the event.
    #[must_use]
    pub fn message(&self) -> String {
        let boot = &self.boot_id;
        let kind = if self.kind.is_empty() { String::new() } else { format!(" ({})", self.kind) };
        let Some(unclean) = &self.unclean else {
            // Its receipt would not be valid any more if its userspace had come back.
            let instead = match Kind::of(&self.kind) {
                Kind::SoftReboot => ", and the machine was started anew instead",
                _ => "",
            };
            let cut = self.cut_off();
            let hung = if self.watchdog {
                "; what came after them hung, until a hardware watchdog reset it"
            } else {
                ""
            };
            return format!("The last boot ({boot}) ended its pods in order{kind}{instead}{cut}{hung}");
        };
        let when = if unclean.cut_short {
            format!(" in the middle of its shutdown{kind}")
        } else {
            " without a shutdown".to_owned()
        };
        let why = match &unclean.panic {
            Some(words) if self.watchdog => {
                format!("its kernel died ({words}), and a hardware watchdog started the machine again")
            }
            Some(words) => format!("its kernel died ({words})"),
            None if self.watchdog => {
                "its kernel or its service manager hung, and a hardware watchdog started the machine again"
                    .to_owned()
            }
            None if unclean.agent_stopped => {
                "its agent was stopped, and nobody waited for its pods (no delay lock, or one that ran out)"
                    .to_owned()
            }
            None => "power was cut, it was reset, or its kernel died without a word".to_owned(),
        };
        format!("The last boot ({boot}) ended{when}: {why}; its pods were not ended in order")
    }
}

/// The cause of death in a kernel's log: its line of a panic, or else of the first fault. `None` if there is
/// neither, as in a log that was kept for another reason.
#[must_use]
pub fn died_of(log: &str) -> Option<String> {
    const WORDS_MAX: usize = 200;
    let line = |mark: &str| log.lines().find_map(|line| line.find(mark).map(|at| line[at..].trim_end()));
    let words = ["Kernel panic", "Oops:", "BUG:", "watchdog:"].into_iter().find_map(line)?;
    Some(words.chars().take(WORDS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::node_shutdown::PodReceipt;
    use agent_types::ids::PodKey;
    use agent_types::time::Wall;

    #[test]
    fn what_nobody_else_takes_away() {
        let owner = |api: &str, kind: &str, controller: bool| json!([{"apiVersion": api, "kind": kind, "name": "o", "uid": "o", "controller": controller}]);
        let set = owner("apps/v1", "ReplicaSet", true);
        let ended = json!({"phase": "Failed", "reason": POD_REASON, "message": POD_MESSAGE});
        let refused = json!({"phase": "Failed", "reason": "NodeShutdown", "message": "Pod was rejected: x"});
        for (owners, status, left_over) in [
            (&set, &ended, true),
            (&set, &refused, true),
            (&owner("v1", "ReplicationController", true), &ended, true),
            // It has an owner, but no controller.
            (&owner("apps/v1", "ReplicaSet", false), &ended, false),
            (&owner("example.org/v1", "ReplicaSet", true), &ended, false),
            (&owner("v1", "ReplicaSet", true), &ended, false),
            // They see to it themselves.
            (&owner("apps/v1", "StatefulSet", true), &ended, false),
            (&owner("apps/v1", "DaemonSet", true), &ended, false),
            (&owner("batch/v1", "Job", true), &ended, false),
            (&owner("v1", "Node", true), &ended, false),
            (&json!([]), &ended, false),
            // Not for a shutdown.
            (&set, &json!({"phase": "Running", "reason": POD_REASON, "message": POD_MESSAGE}), false),
            (&set, &json!({"phase": "Succeeded", "reason": POD_REASON, "message": POD_MESSAGE}), false),
            (&set, &json!({"phase": "Failed", "reason": "Evicted", "message": POD_MESSAGE}), false),
            (&set, &json!({"phase": "Failed", "reason": POD_REASON, "message": "of somebody else"}), false),
            (&set, &json!({"phase": "Failed"}), false),
        ] {
            let pod = json!({"metadata": {"name": "p", "ownerReferences": owners}, "status": status});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(is_left_over(&pod), left_over, "{pod:?}");
        }
        assert_eq!(crate::admission::Rejection::shutdown().reason, REFUSED_REASON);
    }

    #[test]
    fn only_a_receipt_with_an_end_is_a_clean_end() {
        let begun = Receipt::begin("b1", "reboot", Wall(0));
        let ended = Receipt { end_time: Some(begun.start_time.clone()), ..begun.clone() };
        let called_off = Receipt { boot_id: String::new(), ..ended.clone() };
        let soft = Receipt { kind: "soft-reboot".to_owned(), ..ended.clone() };
        let went_on = Receipt { boot_went_on: true, ..soft.clone() };
        for (last, reason, words) in [
            (Some(&ended), "ShutdownInOrder", "ended its pods in order (reboot)"),
            (
                Some(&soft),
                "ShutdownInOrder",
                "in order (soft-reboot), and the machine was started anew instead",
            ),
            (Some(&begun), "ShutdownCutShort", "in the middle of its shutdown (reboot): power was cut"),
            (Some(&called_off), "PowerLossOrReset", "without a shutdown: power was cut"),
            // After its soft-reboot the power was cut: that receipt is no excuse.
            (Some(&went_on), "PowerLossOrReset", "without a shutdown: power was cut"),
            (None, "PowerLossOrReset", "were not ended in order"),
        ] {
            let end = LastEnd::of("b1", last, None, false);
            assert_eq!(end.reason(), reason);
            assert!(end.message().contains(words), "{}", end.message());
        }
        let key = |name: &str| PodKey { namespace: "ns".into(), name: name.into(), uid: name.into() };
        let pods = |names: &[&str]| names.iter().map(|name| PodReceipt::of(&key(name))).collect::<Vec<_>>();
        let mut cut_off = pods(&["a", "b", "c", "d", "e", "f", "g"]);
        cut_off[0].ended = true;
        for (pods, words) in [
            (
                pods(&["a"]),
                "in order (reboot); 1 had not ended when their time was over, and were killed with the machine: ns/a",
            ),
            (
                cut_off,
                "6 had not ended when their time was over, and were killed with the machine: ns/b, ns/c, ns/d, ns/e, ns/f, …",
            ),
        ] {
            let end = LastEnd::of("b1", Some(&Receipt { pods: pods.clone(), ..ended.clone() }), None, true);
            assert_eq!((end.reason(), end.unclean.is_some()), ("PodsNotEnded", false));
            assert!(end.message().ends_with(words), "{}", end.message());
            let short = LastEnd::of("b1", Some(&Receipt { pods, ..begun.clone() }), None, false);
            assert_eq!(short.reason(), "ShutdownCutShort", "its receipt says nothing of the rest");
        }
        let other = LastEnd::of("b2", Some(&ended), Some("Kernel panic - not syncing: x".to_owned()), true);
        assert_eq!(other.reason(), "KernelPanic");
        assert!(other.message().contains("its kernel died (Kernel panic - not syncing: x)"));
        for last in [None, Some(&begun)] {
            let end = LastEnd::of("b1", last, None, true);
            assert_eq!(end.reason(), "ShutdownNotAwaited");
            assert!(end.message().contains("nobody waited for its pods"), "{}", end.message());
        }
        assert_eq!(LastEnd::of("b1", Some(&ended), None, true).reason(), "ShutdownInOrder");
        let older = r#"{"bootId":"b1","unclean":{"cutShort":true,"panic":null}}"#;
        assert_eq!(serde_json::from_str::<LastEnd>(older).unwrap().reason(), "ShutdownCutShort");
    }

    #[test]
    fn what_a_watchdog_says() {
        let begun = Receipt::begin("b1", "reboot", Wall(0));
        let ended = Receipt { end_time: Some(begun.start_time.clone()), ..begun.clone() };
        let panic = || Some("Kernel panic - x".to_owned());
        for (last, panic, stopped, watchdogs, reason, words) in [
            (
                None,
                None,
                false,
                &[0x20][..],
                "WatchdogReset",
                "without a shutdown: its kernel or its service manager hung",
            ),
            // The second one of two, with other flags (WDIOF_POWERUNDER, WDIOF_OVERHEAT).
            (None, None, true, &[0, 0x31], "WatchdogReset", "a hardware watchdog started the machine again;"),
            (
                Some(&begun),
                None,
                false,
                &[0x20],
                "WatchdogReset",
                "in the middle of its shutdown (reboot): its kernel or",
            ),
            (
                None,
                panic(),
                false,
                &[0x20],
                "KernelPanic",
                "(Kernel panic - x), and a hardware watchdog started",
            ),
            (
                Some(&ended),
                None,
                false,
                &[0x20],
                "ShutdownInOrder",
                "in order (reboot); what came after them hung",
            ),
            // WDIOF_OVERHEAT, WDIOF_EXTERN1, and no cause.
            (None, None, false, &[0x01, 0x04], "PowerLossOrReset", "power was cut"),
            (None, None, false, &[], "PowerLossOrReset", "power was cut"),
        ] {
            let end = LastEnd::of("b1", last, panic, stopped).told_by(watchdogs);
            assert_eq!(end.reason(), reason, "{watchdogs:?}");
            assert!(end.message().contains(words), "{}", end.message());
            assert_eq!(
                end.clone().told_by(&[]),
                LastEnd { watchdog: false, ..end },
                "asked again, it may be otherwise"
            );
        }
    }

    #[test]
    fn a_kernels_last_words() {
        let log = "Panic#1 Part1\n<4>[ 12.1] Oops: 0002 [#1]\n<0>[   12.3] Kernel panic - not syncing: Fatal exception \n";
        assert_eq!(died_of(log).as_deref(), Some("Kernel panic - not syncing: Fatal exception"));
        assert_eq!(died_of("<4>[ 12.1] Oops: 0002 [#1]\n").as_deref(), Some("Oops: 0002 [#1]"));
        assert_eq!(died_of("<6>[1.0] reboot: Restarting system\n"), None);
        let long = format!("Kernel panic - {}", "ä".repeat(500));
        assert_eq!(died_of(&long).map(|words| words.chars().count()), Some(200));
    }
}
