//! The boot record's content, a JSON object.
//!
//! In: the payload of a block. Out: typed fields, and back. Invariant: a field that this version does not know is kept as it
//! was, at each level: the older slot rewrites what the newer one wrote. A known field of another type makes the whole record
//! unreadable; the arbiter then goes by the ESP.

use super::reset::{self, ResetEnd, ResetRequest};
use super::ring::{self, RingPosition, RingWrite};
use serde_json::{Map, Value};
use std::fmt;

/// A reason, and the name of a check, are cut to so many characters: the record has to fit into a block.
pub const REASON_CHARS_MAX: usize = 160;

/// Why a record is not read or not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The payload is no JSON object.
    #[error("the boot record is no JSON object")]
    NoObject,
    /// A field has a value of another type or an unknown word.
    #[error("the boot record's field {0} has a value that this version does not know")]
    Field(&'static str),
    /// It does not fit into a block; its length, bytes.
    #[error("the boot record would have {0} bytes, a block holds {max}", max = ring::PAYLOAD_BYTES_MAX)]
    TooLong(usize),
    /// The ring's sequence numbers are used up.
    #[error("the boot record has the highest sequence number")]
    NoSequence,
}

/// One of the two slots of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotName {
    /// The first root partition.
    A,
    /// The second one.
    B,
}

impl SlotName {
    /// Both, in the disk's order.
    pub const ALL: [SlotName; 2] = [SlotName::A, SlotName::B];

    /// The other one.
    #[must_use]
    pub fn other(self) -> SlotName {
        match self {
            SlotName::A => SlotName::B,
            SlotName::B => SlotName::A,
        }
    }

    /// As in the record and in names of files: `a`, `b`.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            SlotName::A => "a",
            SlotName::B => "b",
        }
    }

    pub(super) fn parse(text: &str) -> Option<SlotName> {
        SlotName::ALL.into_iter().find(|slot| slot.letter() == text)
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlotName::A => "A",
            SlotName::B => "B",
        })
    }
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotState {
    /// Nothing.
    #[default]
    Empty,
    /// A half of a version: the updater is at work, or was when the power was cut.
    Writing,
    /// A whole version, read back, that was not booted yet, or whose trial ended without a verdict.
    Staged,
    /// A whole version that is to be tried, or that is being tried.
    Trial,
    /// A version that was good on this node.
    Good,
    /// A version that is not booted again.
    Refused,
}

impl SlotState {
    /// All of them.
    pub const ALL: [SlotState; 6] = [
        SlotState::Empty,
        SlotState::Writing,
        SlotState::Staged,
        SlotState::Trial,
        SlotState::Good,
        SlotState::Refused,
    ];

    /// As in the record.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SlotState::Empty => "empty",
            SlotState::Writing => "writing",
            SlotState::Staged => "staged",
            SlotState::Trial => "trial",
            SlotState::Good => "good",
            SlotState::Refused => "refused",
        }
    }
}

/// One slot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlotRecord {
    /// What it holds.
    pub state: SlotState,
    /// `IMAGE_VERSION` of its UKI; empty if unknown.
    pub version: String,
    /// Rollback index of its release.
    pub generation: u64,
    /// Generations below this one are given up by its commit; 0: none are.
    pub revokes: u64,
    /// Root hash, hex; empty if unknown.
    pub roothash: String,
    /// Length of its UKI, bytes; 0 if unknown.
    pub uki_bytes: u64,
    /// Boots on trial since it was staged.
    pub attempts: u32,
    /// Why it is refused, or how its last trial ended.
    pub reason: String,
    /// The check that its last trial failed and that the other slot has not examined yet; empty if there is none.
    pub failed_check: String,
    /// Fields of other versions.
    pub kept: Map<String, Value>,
}

/// A trial that was ordered.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotTrial {
    /// The slot on trial.
    pub slot: SlotName,
    /// The slot to which the node returns.
    pub from: SlotName,
    /// Identifier of the update.
    pub update: String,
    /// From the boot on, seconds.
    pub deadline_s: u32,
    /// init has run in the slot on trial.
    pub started: bool,
    /// The slot was good when the trial was ordered: the way back to the version before.
    pub was_good: bool,
    /// Fields of other versions.
    pub kept: Map<String, Value>,
}

/// The record.
#[derive(Clone, Debug, PartialEq)]
pub struct BootRecord {
    /// The slot that the node boots.
    pub desired: SlotName,
    /// Slot A.
    pub a: SlotRecord,
    /// Slot B.
    pub b: SlotRecord,
    /// A trial that was ordered and has no verdict.
    pub trial: Option<SlotTrial>,
    /// The slot that boots once, because the desired one was not ready several times.
    pub redirect: Option<SlotName>,
    /// The last boot was not ended in order (yet).
    pub boot_open: bool,
    /// Boots of the desired slot in a row whose local checks were never green.
    pub unready: u32,
    /// Boots that were redirected to the other slot since the last green one.
    pub redirects: u32,
    /// Resets in a row because the loader had started another slot than it should.
    pub disagreements: u32,
    /// Least generation of a release that is taken.
    pub floor: u64,
    /// A factory reset that was ordered and has not ended.
    pub reset: Option<ResetRequest>,
    /// The last one that ended.
    pub last_reset: Option<ResetEnd>,
    /// Identifiers of orders of resets that have ended; the one that was seen last is the last.
    pub past_resets: Vec<String>,
    /// Fields of other versions.
    pub kept: Map<String, Value>,
}

impl BootRecord {
    /// A record of a node that knows of one slot only: it is good, and desired.
    #[must_use]
    pub fn new(desired: SlotName) -> BootRecord {
        let mut record = BootRecord {
            desired,
            a: SlotRecord::default(),
            b: SlotRecord::default(),
            trial: None,
            redirect: None,
            boot_open: false,
            unready: 0,
            redirects: 0,
            disagreements: 0,
            floor: 0,
            reset: None,
            last_reset: None,
            past_resets: Vec::new(),
            kept: Map::new(),
        };
        record.slot_mut(desired).state = SlotState::Good;
        record
    }

    /// A slot.
    #[must_use]
    pub fn slot(&self, name: SlotName) -> &SlotRecord {
        match name {
            SlotName::A => &self.a,
            SlotName::B => &self.b,
        }
    }

    /// A slot, to be changed.
    pub fn slot_mut(&mut self, name: SlotName) -> &mut SlotRecord {
        match name {
            SlotName::A => &mut self.a,
            SlotName::B => &mut self.b,
        }
    }

    /// Is the slot good?
    #[must_use]
    pub fn is_good(&self, name: SlotName) -> bool {
        self.slot(name).state == SlotState::Good
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// [`RecordError::NoObject`], [`RecordError::Field`].
    pub fn parse(payload: &[u8]) -> Result<BootRecord, RecordError> {
        let text = str::from_utf8(payload).map_err(|_| RecordError::NoObject)?;
        let Ok(Value::Object(document)) = serde_json::from_str::<Value>(text) else {
            return Err(RecordError::NoObject);
        };
        let mut fields = Fields(document);
        Ok(BootRecord {
            desired: fields.slot("desired")?.ok_or(RecordError::Field("desired"))?,
            a: slot_record(fields.object("a")?)?,
            b: slot_record(fields.object("b")?)?,
            trial: fields.object("trial")?.map(slot_trial).transpose()?,
            redirect: fields.slot("redirect")?,
            boot_open: fields.flag("bootOpen")?,
            unready: fields.count("unready")?,
            redirects: fields.count("redirects")?,
            disagreements: fields.count("disagreements")?,
            floor: fields.number("floor")?,
            reset: ResetRequest::take(&mut fields.0),
            last_reset: ResetEnd::take(&mut fields.0),
            past_resets: reset::take_past(&mut fields.0),
            kept: fields.0,
        })
    }

    /// The payload.
    #[must_use]
    pub fn render(&self) -> Vec<u8> {
        let mut document = self.kept.clone();
        let mut set = |name: &str, value: Value| document.insert(name.to_owned(), value);
        set("desired", self.desired.letter().into());
        set("a", rendered_slot(&self.a));
        set("b", rendered_slot(&self.b));
        if let Some(trial) = &self.trial {
            set("trial", rendered_trial(trial));
        }
        if let Some(slot) = self.redirect {
            set("redirect", slot.letter().into());
        }
        set("bootOpen", self.boot_open.into());
        set("unready", self.unready.into());
        set("redirects", self.redirects.into());
        set("disagreements", self.disagreements.into());
        set("floor", self.floor.into());
        if let Some(request) = &self.reset {
            set(reset::FIELD, request.rendered());
        }
        if let Some(end) = &self.last_reset {
            set(reset::LAST, end.rendered());
        }
        if !self.past_resets.is_empty() {
            set(reset::PAST, self.past_resets.as_slice().into());
        }
        Value::Object(document).to_string().into_bytes()
    }

    /// The write of this record behind the one that counts.
    ///
    /// # Errors
    /// [`RecordError::TooLong`], [`RecordError::NoSequence`].
    pub fn write(&self, latest: Option<RingPosition>) -> Result<RingWrite, RecordError> {
        ring::next(latest, &self.render())
    }
}

/// The fields of an object; those that are read are taken out.
struct Fields(Map<String, Value>);

impl Fields {
    fn text(&mut self, name: &'static str) -> Result<String, RecordError> {
        match self.0.remove(name) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(RecordError::Field(name)),
        }
    }

    fn number(&mut self, name: &'static str) -> Result<u64, RecordError> {
        let value = self.0.remove(name);
        value.map_or(Ok(0), |value| value.as_u64().ok_or(RecordError::Field(name)))
    }

    fn count(&mut self, name: &'static str) -> Result<u32, RecordError> {
        u32::try_from(self.number(name)?).map_err(|_| RecordError::Field(name))
    }

    fn flag(&mut self, name: &'static str) -> Result<bool, RecordError> {
        let value = self.0.remove(name);
        value.map_or(Ok(false), |value| value.as_bool().ok_or(RecordError::Field(name)))
    }

    fn object(&mut self, name: &'static str) -> Result<Option<Map<String, Value>>, RecordError> {
        match self.0.remove(name) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(_) => Err(RecordError::Field(name)),
        }
    }

    fn slot(&mut self, name: &'static str) -> Result<Option<SlotName>, RecordError> {
        if !self.0.contains_key(name) {
            return Ok(None);
        }
        SlotName::parse(&self.text(name)?).map(Some).ok_or(RecordError::Field(name))
    }
}

fn slot_record(object: Option<Map<String, Value>>) -> Result<SlotRecord, RecordError> {
    let Some(object) = object else { return Ok(SlotRecord::default()) };
    let mut fields = Fields(object);
    let word = fields.text("state")?;
    let state = SlotState::ALL.into_iter().find(|state| state.name() == word);
    Ok(SlotRecord {
        state: state.ok_or(RecordError::Field("state"))?,
        version: fields.text("version")?,
        generation: fields.number("generation")?,
        revokes: fields.number("revokes")?,
        roothash: fields.text("roothash")?,
        uki_bytes: fields.number("ukiBytes")?,
        attempts: fields.count("attempts")?,
        reason: fields.text("reason")?,
        failed_check: fields.text("failedCheck")?,
        kept: fields.0,
    })
}

fn slot_trial(object: Map<String, Value>) -> Result<SlotTrial, RecordError> {
    let mut fields = Fields(object);
    let mut slot = |name| fields.slot(name)?.ok_or(RecordError::Field(name));
    let (slot, from) = (slot("slot")?, slot("from")?);
    let (update, deadline_s) = (fields.text("update")?, fields.count("deadline")?);
    let (started, was_good) = (fields.flag("started")?, fields.flag("wasGood")?);
    Ok(SlotTrial { slot, from, update, deadline_s, started, was_good, kept: fields.0 })
}

fn rendered_slot(slot: &SlotRecord) -> Value {
    let mut object = slot.kept.clone();
    let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
    set("state", slot.state.name().into());
    set("version", slot.version.as_str().into());
    set("generation", slot.generation.into());
    set("revokes", slot.revokes.into());
    set("roothash", slot.roothash.as_str().into());
    set("ukiBytes", slot.uki_bytes.into());
    set("attempts", slot.attempts.into());
    let cut = |text: &str| text.chars().take(REASON_CHARS_MAX).collect::<String>();
    set("reason", cut(&slot.reason).into());
    set("failedCheck", cut(&slot.failed_check).into());
    Value::Object(object)
}

fn rendered_trial(trial: &SlotTrial) -> Value {
    let mut object = trial.kept.clone();
    let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
    set("slot", trial.slot.letter().into());
    set("from", trial.from.letter().into());
    set("update", trial.update.as_str().into());
    set("deadline", trial.deadline_s.into());
    set("started", trial.started.into());
    set("wasGood", trial.was_good.into());
    Value::Object(object)
}
