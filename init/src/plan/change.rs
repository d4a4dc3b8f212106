//! What init and `orlop-init change` do about a change of the node's own document, beyond its machine (`orlop_config::change`).
//!
//! In: the record before and after an event, the effective configuration. Out: the line for people; the steps that start the driver
//! with the system; whether the document on trial counts. Pure.

use super::step::BootStep;
use orlop_config::change::{ChangeOutcome, ChangeRecord, ChangeStage, ChangeTime, Confirmation};
use serde_json::{Value, json};

/// Where the node's own document is from, in messages.
pub const ORIGIN: &str = "the node's own document";
/// The open change as a problem of the node, for the management API; in the form of the agent's problems.
pub const SHOWN_FILE: &str = "/run/orlop/change-problems.json";
/// Its section of `docs/runbooks/configuration.md`.
const RUNBOOK: &str = "open-change";
/// Starts the driver with the node's target.
const LINK: &str = "/run/systemd/system/orlop.target.wants/orlop-change.service";
const LINK_DIRECTORY: &str = "/run/systemd/system/orlop.target.wants";
/// The driver's unit.
const UNIT: &str = "/usr/lib/systemd/system/orlop-change.service";
/// What a node runs with while its files are being written: no document.
pub const HALF_WRITTEN: &str = "\u{0}";

/// The driver starts with the system, because a change has not ended.
#[must_use]
pub fn driver_steps() -> Vec<BootStep> {
    vec![
        BootStep::MakeDir(LINK_DIRECTORY.into()),
        BootStep::MakeLink { path: LINK.into(), target: UNIT.into() },
    ]
}

/// The number of the change that is tried in this boot.
#[must_use]
pub fn tried(record: &ChangeRecord, now: ChangeTime<'_>) -> Option<u64> {
    let open = record.open.as_ref()?;
    matches!(&open.stage, ChangeStage::Trying { boot, .. } if boot == now.boot).then_some(open.number)
}

/// Whether the node does without the document on trial, although it has taken its files: it is none of the accepted sources of
/// `node_config` (`/run/orlop/node-config.json`).
#[must_use]
pub fn is_refused(record: &ChangeRecord, node_config: &str) -> bool {
    let tried = record.open.as_ref().filter(|open| matches!(open.stage, ChangeStage::Trying { .. }));
    let has_document = tried.is_some_and(|open| open.document.is_some());
    let effective: Value = serde_json::from_str(node_config).unwrap_or_default();
    let accepted = effective["accepted"].as_array().map(Vec::as_slice).unwrap_or_default();
    has_document && !accepted.iter().any(|origin| origin == ORIGIN)
}

/// What is to be said of the change that an event has ended or turned back; `None` if it has done neither.
#[must_use]
pub fn said(before: &ChangeRecord, after: &ChangeRecord) -> Option<ChangeLine> {
    let was = before.open.as_ref()?;
    let line = |text: String, is_problem: bool| Some(ChangeLine { text, is_problem });
    let (number, who, keys) = (was.number, &was.author.who, was.keys.join(", "));
    match &after.open {
        None => {
            let ended = after.history.last().filter(|ended| ended.number == number)?;
            match ended.outcome {
                ChangeOutcome::Confirmed => {
                    line(format!("change {number} of {who} counts: {}", ended.why), false)
                }
                ChangeOutcome::Reverted => {
                    line(format!("change {number} of {who} was taken back ({keys}): {}", ended.why), true)
                }
            }
        }
        Some(now) => match (&was.stage, &now.stage) {
            (ChangeStage::Trying { .. }, ChangeStage::Reverting { why }) => {
                line(format!("change {number} of {who} is taken back ({keys}): {why}"), false)
            }
            (ChangeStage::Waiting, ChangeStage::Trying { .. }) => {
                line(format!("change {number} of {who} is tried in this boot ({keys})"), false)
            }
            _ => None,
        },
    }
}

/// The text of [`SHOWN_FILE`]; `None` without an open change.
#[must_use]
pub fn shown(record: &ChangeRecord) -> Option<String> {
    let open = record.open.as_ref()?;
    let (stage, remedy) = match (&open.stage, open.confirmation) {
        (ChangeStage::Waiting, _) => {
            ("waits for the next boot".to_owned(), "reboot, or take it back: `orlopctl config revert`")
        }
        (ChangeStage::Trying { .. }, Confirmation::Asked) => {
            let remedy = "confirm it before its deadline, or it is taken back: `orlopctl config confirm`";
            ("is tried and not confirmed".to_owned(), remedy)
        }
        (ChangeStage::Trying { .. }, Confirmation::Applied) => {
            ("is being applied".to_owned(), "`orlopctl config history` shows how it ends")
        }
        (ChangeStage::Reverting { why }, _) => {
            (format!("is being taken back: {why}"), "`orlopctl config history` shows how it ends")
        }
    };
    let text = format!("change {} of {} ({}) {stage}", open.number, open.author.who, open.keys.join(", "));
    let problem = json!({ "subject": "configuration", "text": text, "remedy": remedy, "runbook": RUNBOOK });
    Some(format!("{}\n", json!([problem])))
}

/// A line about a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeLine {
    /// For people.
    pub text: String,
    /// It stays on the list of problems of this boot.
    pub is_problem: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use orlop_config::change::{ChangeAuthor, Confirmation, DocumentText, DriverNote, NewChange};

    fn now(boot: &str, up_ms: u64) -> ChangeTime<'_> {
        ChangeTime { boot, up_ms, wall_s: 0 }
    }

    fn begun(at_boot: bool) -> ChangeRecord {
        let mut record = ChangeRecord::default();
        let change = NewChange {
            document: Some(DocumentText("secret".into())),
            author: ChangeAuthor { who: "ops-1".into(), door: "tcp".into() },
            keys: vec!["labels.a".into(), "time.servers".into()],
            window_ms: 5000,
            confirmation: Confirmation::Asked,
            confirm_door: None,
            at_boot,
        };
        record.begin(change, now("a", 0)).expect("none is open");
        record
    }

    #[test]
    fn each_turn_of_a_change_has_a_line_without_its_document() {
        let turn = |before: &ChangeRecord, event: &dyn Fn(&mut ChangeRecord)| {
            let mut after = before.clone();
            event(&mut after);
            (said(before, &after), after)
        };
        let live = begun(false);
        let (line, reverting) = turn(&live, &|record| record.note(DriverNote::Expired, now("a", 5000)));
        let line = line.expect("a line");
        assert_eq!(
            line.text,
            "change 1 of ops-1 is taken back (labels.a, time.servers): it was not confirmed within 5 s"
        );
        assert!(!line.is_problem);
        let (line, _) = turn(&reverting, &|record| record.note(DriverNote::Reverted, now("a", 5001)));
        assert!(line.is_some_and(|line| line.is_problem && line.text.contains("was taken back")));
        let (line, _) = turn(&live, &|record| {
            record.boot(now("b", 0));
        });
        assert!(line.is_some_and(|line| line.is_problem && line.text.contains("started again")));
        let (line, tried_now) = turn(&begun(true), &|record| {
            record.boot(now("b", 0));
        });
        assert!(line.is_some_and(|line| line.text.contains("is tried in this boot")));
        assert_eq!((tried(&tried_now, now("b", 1)), tried(&tried_now, now("c", 1))), (Some(1), None));
        let (line, _) = turn(&live, &|record| record.note(DriverNote::Applied, now("a", 1)));
        assert_eq!(line, None);
        assert_eq!(said(&ChangeRecord::default(), &live), None);
    }

    #[test]
    fn a_document_on_trial_that_is_no_accepted_source_is_refused() {
        let accepted = |origins: &[&str]| json!({ "accepted": origins }).to_string();
        let (with, without) = (accepted(&["image", ORIGIN]), accepted(&["image"]));
        assert!(!is_refused(&ChangeRecord::default(), &without), "nothing is tried");
        assert!(!is_refused(&begun(true), &without), "it waits");
        let mut record = begun(false);
        assert!(!is_refused(&record, &with));
        for text in [without.as_str(), "", "{", "[]", "{\"accepted\":1}"] {
            assert!(is_refused(&record, text), "{text}");
        }
        record.failed("x");
        assert!(!is_refused(&record, &without), "it is taken back");
    }

    #[test]
    fn an_open_change_is_a_problem_of_the_node() {
        let mut record = begun(false);
        let text = |record: &ChangeRecord| {
            let file = shown(record).expect("a change is open");
            let problems: Value = serde_json::from_str(&file).expect("JSON");
            assert!(problems[0]["remedy"].as_str().is_some_and(|remedy| remedy.contains("orlopctl config")));
            let page = include_str!("../../../docs/runbooks/configuration.md");
            let heading = problems[0]["runbook"].as_str().map(|runbook| format!("## {runbook}"));
            assert!(heading.is_some_and(|heading| page.lines().any(|line| line == heading)));
            problems[0]["text"].as_str().expect("a text").to_owned()
        };
        let change = "change 1 of ops-1 (labels.a, time.servers) ";
        assert_eq!(text(&record), format!("{change}is tried and not confirmed"));
        record.failed("no room");
        assert_eq!(text(&record), format!("{change}is being taken back: no room"));
        record.reverted(now("a", 1));
        assert_eq!(shown(&record), None);
        assert_eq!(text(&begun(true)), format!("{change}waits for the next boot"));
    }

    #[test]
    fn the_driver_starts_with_the_system() {
        let steps = driver_steps();
        let links = |step: &&BootStep| matches!(step, BootStep::MakeLink { path, .. } if path.starts_with(LINK_DIRECTORY));
        assert_eq!((steps.len(), steps.iter().filter(links).count()), (2, 1));
    }
}
