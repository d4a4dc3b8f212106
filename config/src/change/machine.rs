//! The machine of a change: events in, the next record out.

use super::record::{
    ChangeAuthor, ChangeOutcome, ChangeRecord, ChangeStage, ChangeTime, ClosedChange, Confirmation,
    DocumentText, HISTORY_MAX, KEY_BYTES_MAX, KEYS_MAX, OpenChange,
};

/// Why a change ends that was tried when the machine stopped.
const RESTARTED: &str = "the node started again before it was confirmed";
/// Why a change ends that nobody was asked to confirm.
const APPLIED: &str = "it was applied; no confirmation was asked for";

/// A change that is to be begun; its document has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewChange {
    /// The document; `None`: the node's own document is taken away.
    pub document: Option<DocumentText>,
    /// Who begins it.
    pub author: ChangeAuthor,
    /// Paths of the keys that it changes.
    pub keys: Vec<String>,
    /// How long it may be tried, milliseconds.
    pub window_ms: u64,
    /// How it becomes the confirmed one.
    pub confirmation: Confirmation,
    /// A confirmation has to come through this door; none: through any.
    pub confirm_door: Option<String>,
    /// It acts at the next boot.
    pub at_boot: bool,
}

/// Why an event is refused; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefusal {
    /// Another change has not ended.
    #[error("{who} has begun change {number}, which has not ended ({stage})")]
    Open {
        /// Who has begun it.
        who: String,
        /// Its number.
        number: u64,
        /// How far it is, for people.
        stage: String,
    },
    /// The node has this very document.
    #[error("the node has this document already")]
    Same,
    /// No change is open.
    #[error("no change is open")]
    NoChange,
    /// The open change has another number.
    #[error("change {open} is open, not {asked}")]
    OtherChange {
        /// The open one.
        open: u64,
        /// The one of the request.
        asked: u64,
    },
    /// It cannot be confirmed at this stage.
    #[error("change {number} is not tried: {stage}")]
    NotTried {
        /// Its number.
        number: u64,
        /// How far it is, for people.
        stage: String,
    },
    /// It is not applied yet.
    #[error("change {0} is not applied yet")]
    NotApplied(u64),
    /// The connection is older than the change: it says nothing about new ones.
    #[error("this connection is older than the change; confirm it by a new one")]
    OldConnection,
    /// The confirmation came by another door than the one on which the way to the node depends.
    #[error("change {number} was begun by {door} and may have closed that way; confirm it by {door}")]
    OtherDoor {
        /// Its number.
        number: u64,
        /// The door that counts.
        door: String,
    },
}

impl ChangeRecord {
    /// Begins a change; its number.
    ///
    /// # Errors
    /// Another one is open, or it changes nothing.
    pub fn begin(&mut self, change: NewChange, now: ChangeTime<'_>) -> Result<u64, ChangeRefusal> {
        if let Some(open) = &self.open {
            let (who, number, stage) = (open.author.who.clone(), open.number, open.stage.words(now));
            return Err(ChangeRefusal::Open { who, number, stage });
        }
        if self.confirmed == change.document {
            return Err(ChangeRefusal::Same);
        }
        let stage = match change.at_boot {
            true => ChangeStage::Waiting,
            false => ChangeStage::trying(change.window_ms, now),
        };
        self.last_number = self.last_number.saturating_add(1);
        let NewChange { document, author, mut keys, window_ms, confirmation, confirm_door, at_boot } = change;
        keys.truncate(KEYS_MAX);
        keys.iter_mut().for_each(shorten);
        self.open = Some(OpenChange {
            number: self.last_number,
            document,
            author,
            keys,
            window_ms,
            confirmation,
            confirm_door,
            at_boot,
            begun_s: now.wall_s,
            stage,
        });
        Ok(self.last_number)
    }

    /// A boot has begun; whether the record is another one now. A change that waits for it is tried; one that was tried before has
    /// ended.
    pub fn boot(&mut self, now: ChangeTime<'_>) -> bool {
        let Some(open) = &mut self.open else { return false };
        match &open.stage {
            ChangeStage::Waiting => open.stage = ChangeStage::trying(open.window_ms, now),
            ChangeStage::Trying { boot, .. } if boot == now.boot => return false,
            ChangeStage::Trying { .. } => self.close(ChangeOutcome::Reverted, RESTARTED, now),
            ChangeStage::Reverting { why } => {
                let why = why.clone();
                self.close(ChangeOutcome::Reverted, &why, now);
            }
        }
        true
    }

    /// The node runs with the document on trial.
    pub fn applied(&mut self, now: ChangeTime<'_>) {
        let Some(open) = &mut self.open else { return };
        let ChangeStage::Trying { applied_ms, .. } = &mut open.stage else { return };
        match open.confirmation {
            Confirmation::Asked => *applied_ms = Some(now.up_ms),
            Confirmation::Applied => self.close(ChangeOutcome::Confirmed, APPLIED, now),
        }
    }

    /// The document on trial could not be applied.
    pub fn failed(&mut self, why: &str) {
        if let Some(open) = &mut self.open
            && matches!(open.stage, ChangeStage::Trying { .. })
        {
            open.stage = ChangeStage::Reverting { why: why.to_owned() };
        }
    }

    /// The deadline of the document on trial is over.
    pub fn expire(&mut self, now: ChangeTime<'_>) {
        let Some(open) = &mut self.open else { return };
        if let ChangeStage::Trying { deadline_ms, .. } = open.stage
            && now.up_ms >= deadline_ms
        {
            let why = format!("it was not confirmed within {} s", open.window_ms / 1000);
            open.stage = ChangeStage::Reverting { why };
        }
    }

    /// The node runs with the confirmed document again.
    pub fn reverted(&mut self, now: ChangeTime<'_>) {
        if let Some(ChangeStage::Reverting { why }) = self.open.as_ref().map(|open| &open.stage) {
            let why = why.clone();
            self.close(ChangeOutcome::Reverted, &why, now);
        }
    }

    /// An administrator confirms the open change. `number` 0 means whichever is open; `connected_ms` is when the connection was
    /// opened, milliseconds since the boot.
    ///
    /// # Errors
    /// It is not tried, not applied, over, or this confirmation proves nothing.
    pub fn confirm(
        &mut self,
        number: u64,
        by: &ChangeAuthor,
        connected_ms: u64,
        now: ChangeTime<'_>,
    ) -> Result<u64, ChangeRefusal> {
        let open = self.asked(number)?;
        let number = open.number;
        let not_tried = || ChangeRefusal::NotTried { number, stage: open.stage.words(now) };
        let ChangeStage::Trying { boot, deadline_ms, applied_ms } = &open.stage else {
            return Err(not_tried());
        };
        if boot != now.boot || now.up_ms >= *deadline_ms {
            return Err(not_tried());
        }
        let applied_ms = applied_ms.ok_or(ChangeRefusal::NotApplied(number))?;
        if connected_ms < applied_ms {
            return Err(ChangeRefusal::OldConnection);
        }
        if let Some(door) = open.confirm_door.as_ref().filter(|door| **door != by.door) {
            return Err(ChangeRefusal::OtherDoor { number, door: door.clone() });
        }
        let why = format!("confirmed by {} through {}", by.who, by.door);
        self.close(ChangeOutcome::Confirmed, &why, now);
        Ok(number)
    }

    /// An administrator takes the open change back. One that waits for a boot has ended with that.
    ///
    /// # Errors
    /// There is none, or it is taken back already.
    pub fn revert(
        &mut self,
        number: u64,
        by: &ChangeAuthor,
        now: ChangeTime<'_>,
    ) -> Result<u64, ChangeRefusal> {
        let open = self.asked(number)?;
        let number = open.number;
        let why = format!("taken back by {} through {}", by.who, by.door);
        match &open.stage {
            ChangeStage::Waiting => self.close(ChangeOutcome::Reverted, &why, now),
            ChangeStage::Trying { .. } => self.failed(&why),
            ChangeStage::Reverting { .. } => {
                return Err(ChangeRefusal::NotTried { number, stage: open.stage.words(now) });
            }
        }
        Ok(number)
    }

    fn asked(&self, number: u64) -> Result<&OpenChange, ChangeRefusal> {
        let open = self.open.as_ref().ok_or(ChangeRefusal::NoChange)?;
        if number != 0 && number != open.number {
            return Err(ChangeRefusal::OtherChange { open: open.number, asked: number });
        }
        Ok(open)
    }

    /// Ends the open change.
    fn close(&mut self, outcome: ChangeOutcome, why: &str, now: ChangeTime<'_>) {
        let Some(open) = self.open.take() else { return };
        let OpenChange { number, document, author, keys, begun_s, .. } = open;
        if outcome == ChangeOutcome::Confirmed {
            self.confirmed = document;
        }
        let (why, ended_s) = (why.to_owned(), now.wall_s);
        self.history.push(ClosedChange { number, author, keys, begun_s, ended_s, outcome, why });
        let surplus = self.history.len().saturating_sub(HISTORY_MAX);
        self.history.drain(..surplus);
    }
}

/// A path that is too long to be kept loses its end.
fn shorten(key: &mut String) {
    if key.len() > KEY_BYTES_MAX {
        key.truncate(key.floor_char_boundary(KEY_BYTES_MAX));
        key.push_str("...");
    }
}

impl ChangeStage {
    fn trying(window_ms: u64, now: ChangeTime<'_>) -> ChangeStage {
        let deadline_ms = now.up_ms.saturating_add(window_ms);
        ChangeStage::Trying { boot: now.boot.to_owned(), deadline_ms, applied_ms: None }
    }

    /// For people.
    #[must_use]
    pub fn words(&self, now: ChangeTime<'_>) -> String {
        match self {
            ChangeStage::Waiting => "it waits for the next boot".to_owned(),
            ChangeStage::Trying { boot, .. } if boot != now.boot => "its boot is over".to_owned(),
            ChangeStage::Trying { deadline_ms, .. } => match deadline_ms.saturating_sub(now.up_ms) / 1000 {
                0 => "its time is over".to_owned(),
                left => format!("{left} s are left"),
            },
            ChangeStage::Reverting { why } => format!("it is being taken back: {why}"),
        }
    }
}
