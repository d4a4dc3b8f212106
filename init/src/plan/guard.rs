//! The guard of a trial boot: it ends the trial even if nothing else on the node works.
//!
//! In: the deadline of the trial, the seconds since the boot, the last word of the agent. Out: commit, return, or how long to
//! wait. Invariants: without a word of the agent the trial ends at its deadline; an agent that goes silent after it ends the trial
//! within [`SILENCE_S`]; no trial lasts longer than [`LONGEST_S`]; nothing but a word of the agent commits. Written words:
//! docs/internals/agent/updates.md.

use super::step::BootStep;
use orlop_config::slots::{BootRecord, SlotName, TRIAL_BOOT_FILE, TrialBoot};
use serde_json::Value;

/// An agent that has not said anything for so long, after the deadline, is taken for dead, seconds.
pub const SILENCE_S: u64 = 120;
/// Longest trial, seconds.
pub const LONGEST_S: u64 = 24 * 3600;
/// Longest wait between two looks, seconds.
pub const LOOK_S: u64 = 5;
/// Longest text of a word, bytes.
pub const WORD_BYTES_MAX: u64 = 4096;
/// The check that failed if the agent never gave a verdict.
pub const SILENT_AGENT: &str = "agent";

/// Starts the guard's unit with the node's target.
const LINK: &str = "/run/systemd/system/orlop.target.wants/orlop-trial.service";
const LINK_DIRECTORY: &str = "/run/systemd/system/orlop.target.wants";
/// The unit.
const UNIT: &str = "/usr/lib/systemd/system/orlop-trial.service";
/// Where the agent leaves its words.
pub const WORD_DIRECTORY: &str = "/run/orlop/trial";

/// What init does in a boot on trial: the guard starts with the system, whatever else does.
#[must_use]
pub fn steps(boot: &TrialBoot) -> Vec<BootStep> {
    let content = boot.render().into_bytes();
    vec![
        BootStep::MakeDir(WORD_DIRECTORY.into()),
        BootStep::WriteFile { path: TRIAL_BOOT_FILE.into(), mode: 0o644, content },
        BootStep::MakeDir(LINK_DIRECTORY.into()),
        BootStep::MakeLink { path: LINK.into(), target: UNIT.into() },
    ]
}

/// What the boot record says about the slot that began this boot on trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialStanding {
    /// It is on trial.
    OnTrial,
    /// It is good: nobody has to watch it, and nothing may end this boot.
    Committed,
    /// Its trial is over without a commit: the other slot has to boot.
    Over,
}

impl TrialStanding {
    /// Of this slot, by this record.
    #[must_use]
    pub fn of(record: &BootRecord, slot: SlotName) -> TrialStanding {
        if record.trial_of(slot).is_some() {
            TrialStanding::OnTrial
        } else if record.is_good(slot) {
            TrialStanding::Committed
        } else {
            TrialStanding::Over
        }
    }
}

/// A word of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardWord {
    /// When it was said, seconds since the boot.
    pub up_s: u64,
    /// What it says.
    pub verdict: GuardVerdict,
}

/// A verdict of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardVerdict {
    /// Not yet; also: the cluster is away.
    Wait,
    /// The version is good.
    Commit,
    /// Back to the old slot.
    Return {
        /// The check that failed, for the boot record.
        check: String,
        /// Why, for people.
        words: String,
    },
}

/// What the guard does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardStep {
    /// Look again after so many seconds.
    Wait(u64),
    /// Commit.
    Commit,
    /// Return.
    Return {
        /// The check that failed.
        check: String,
        /// Why, for people.
        words: String,
    },
}

/// Reads a word: `{"upS": 71, "verdict": "commit"}`, `wait`, or `return` with `check` and `words`. None if it is none: a text that
/// is not understood is no verdict.
#[must_use]
pub fn parse(text: &str) -> Option<GuardWord> {
    let word: Value = serde_json::from_str(text).ok()?;
    let field = |name: &str| word.get(name).and_then(Value::as_str).map(str::to_owned);
    let verdict = match field("verdict")?.as_str() {
        "wait" => GuardVerdict::Wait,
        "commit" => GuardVerdict::Commit,
        "return" => GuardVerdict::Return { check: field("check")?, words: field("words")? },
        _ => return None,
    };
    Some(GuardWord { up_s: word.get("upS")?.as_u64()?, verdict })
}

/// The guard of one trial boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialGuard {
    deadline_s: u64,
    heard_s: Option<u64>,
}

impl TrialGuard {
    /// The guard of a trial with this deadline, seconds from the boot.
    #[must_use]
    pub fn new(deadline_s: u64) -> TrialGuard {
        TrialGuard { deadline_s: deadline_s.min(LONGEST_S), heard_s: None }
    }

    /// Looks, `up_s` seconds after the boot. A word from the future is one of now.
    pub fn step(&mut self, up_s: u64, word: Option<GuardWord>) -> GuardStep {
        if let Some(word) = word {
            self.heard_s = self.heard_s.max(Some(word.up_s.min(up_s)));
            match word.verdict {
                GuardVerdict::Commit => return GuardStep::Commit,
                GuardVerdict::Return { check, words } => return GuardStep::Return { check, words },
                GuardVerdict::Wait => {}
            }
        }
        let patience = self.heard_s.map_or(0, |heard| heard.saturating_add(SILENCE_S));
        let end = self.deadline_s.max(patience).min(LONGEST_S);
        if up_s < end {
            return GuardStep::Wait((end - up_s).min(LOOK_S));
        }
        let words = match self.heard_s {
            _ if up_s >= LONGEST_S => format!("no verdict within {LONGEST_S} s"),
            None => format!("the agent gave no verdict within {} s", self.deadline_s),
            Some(heard) => format!("the agent is silent since {heard} s after the boot"),
        };
        GuardStep::Return { check: SILENT_AGENT.to_owned(), words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn word(up_s: u64, verdict: GuardVerdict) -> Option<GuardWord> {
        Some(GuardWord { up_s, verdict })
    }

    fn returns(step: &GuardStep, want: &str) -> bool {
        matches!(step, GuardStep::Return { check, words } if check == SILENT_AGENT && words.contains(want))
    }

    #[test]
    fn without_a_word_a_trial_ends_at_its_deadline() {
        let mut guard = TrialGuard::new(600);
        assert_eq!(guard.step(0, None), GuardStep::Wait(LOOK_S));
        assert_eq!(guard.step(598, None), GuardStep::Wait(2));
        assert!(returns(&guard.step(600, None), "no verdict within 600 s"));
        let mut guard = TrialGuard::new(u64::MAX);
        assert!(returns(&guard.step(LONGEST_S, None), "no verdict"));
    }

    #[test]
    fn an_agent_that_speaks_decides_and_one_that_goes_silent_does_not() {
        let mut guard = TrialGuard::new(600);
        assert_eq!(guard.step(590, word(590, GuardVerdict::Wait)), GuardStep::Wait(LOOK_S));
        assert_eq!(guard.step(709, None), GuardStep::Wait(1));
        assert!(returns(&guard.step(710, None), "silent since 590 s"));
        // A word that was said long ago, or that claims to be from the future.
        assert!(returns(&guard.step(720, word(590, GuardVerdict::Wait)), "silent"));
        assert_eq!(guard.step(720, word(9_000, GuardVerdict::Wait)), GuardStep::Wait(LOOK_S));
        assert!(returns(&guard.step(840, None), "silent since 720 s"));
        assert_eq!(guard.step(71, word(70, GuardVerdict::Commit)), GuardStep::Commit);
        let (check, words) = ("gateway".to_owned(), "it is silent".to_owned());
        let verdict = GuardVerdict::Return { check: check.clone(), words: words.clone() };
        assert_eq!(guard.step(600, word(600, verdict)), GuardStep::Return { check, words });
        assert!(returns(&guard.step(LONGEST_S, word(LONGEST_S, GuardVerdict::Wait)), "no verdict"));
    }

    #[test]
    fn a_slot_on_trial_is_committed_or_its_trial_is_over() {
        let mut record = BootRecord::new(SlotName::A);
        record.b.state = orlop_config::slots::SlotState::Staged;
        record.order_trial(SlotName::A, "u", 600).expect("staged");
        assert_eq!(TrialStanding::of(&record, SlotName::B), TrialStanding::OnTrial);
        assert_eq!(TrialStanding::of(&record, SlotName::A), TrialStanding::Committed);
        let mut back = record.clone();
        back.return_from_trial(SlotName::B, "gateway", "").expect("on trial");
        assert_eq!(TrialStanding::of(&back, SlotName::B), TrialStanding::Over);
        record.commit_trial(SlotName::B, None).expect("on trial");
        assert_eq!(TrialStanding::of(&record, SlotName::B), TrialStanding::Committed);
    }

    #[test]
    fn a_trial_boot_starts_the_guard() {
        let boot = TrialBoot {
            slot: SlotName::B,
            update: "u".into(),
            deadline_s: 600,
            record: "/dev/vda6".into(),
            esp: None,
        };
        let steps = steps(&boot);
        let written = steps.iter().find_map(|step| match step {
            BootStep::WriteFile { path, content, .. } if path == TRIAL_BOOT_FILE => Some(content.clone()),
            _ => None,
        });
        let text = String::from_utf8(written.expect("a file")).expect("text");
        assert_eq!(TrialBoot::parse(&text), Some(boot));
        let links = |step: &&BootStep| matches!(step, BootStep::MakeLink { path, .. } if path.starts_with(LINK_DIRECTORY));
        assert_eq!(steps.iter().filter(links).count(), 1);
    }

    #[test]
    fn words_are_read() {
        let commit = GuardWord { up_s: 71, verdict: GuardVerdict::Commit };
        assert_eq!(parse(r#"{"upS":71,"verdict":"commit","more":1}"#), Some(commit));
        let verdict = GuardVerdict::Return { check: "api/cluster".into(), words: "w".into() };
        let text = r#"{"upS":1,"verdict":"return","check":"api/cluster","words":"w"}"#;
        assert_eq!(parse(text), Some(GuardWord { up_s: 1, verdict }));
        for bad in [
            "",
            "{}",
            r#"{"verdict":"commit"}"#,
            r#"{"upS":1,"verdict":"return"}"#,
            r#"{"upS":-1,"verdict":"wait"}"#,
            "[]",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_no_commit(text in "\\PC{0,60}") {
            prop_assert!(parse(&text).is_none_or(|word| word.verdict != GuardVerdict::Commit));
        }

        #[test]
        fn every_trial_ends(deadline in any::<u64>(), looks in proptest::collection::vec((0_u64..90_000, any::<bool>()), 0..40)) {
            let mut guard = TrialGuard::new(deadline);
            let mut up = 0;
            for (more, speaks) in looks {
                up += more;
                let said = if speaks { word(up, GuardVerdict::Wait) } else { None };
                let step = guard.step(up, said);
                let returns = matches!(step, GuardStep::Return { .. });
                prop_assert!(up < LONGEST_S || returns);
            }
        }
    }
}
