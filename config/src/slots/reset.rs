//! The order of a factory reset, and how far it is, in the boot record.
//!
//! In: the text of an order (kernel command line, SMBIOS, the unit `orlop-reset@…`), the record. Out: the record with the order, or
//! why not. init carries it out before the state partition is used (docs/reference/reset.md). Invariants: an order is carried out once, by
//! its identifier; a reset that has begun is replaced by no other; an order that this version does not understand stays in the record
//! and is not carried out.

use super::change::SlotChangeError;
use super::record::{BootRecord, REASON_CHARS_MAX};
use serde_json::{Map, Value, json};
use std::fmt;

/// Name of the field in the record.
pub(super) const FIELD: &str = "request";
/// The field of the last reset that ended.
pub(super) const LAST: &str = "lastReset";
/// The field of the orders that have ended.
pub(super) const PAST: &str = "pastResets";
/// So many of them are remembered. An order that stands somewhere is seen at each boot and so stays among them.
pub const RESETS_REMEMBERED: usize = 8;
const KIND: &str = "factory-reset";
/// Longest identifier of an order, bytes: a UUID has 36.
pub const RESET_ID_BYTES_MAX: usize = 64;

/// What a reset leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResetScope {
    /// The node's identity: machine id, certificates and keys, accepted configuration, documents of updates.
    Keep,
    /// Nothing: the next boot is a first boot.
    Forget,
}

impl ResetScope {
    /// As in an order and in the record.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ResetScope::Keep => "keep",
            ResetScope::Forget => "forget",
        }
    }

    fn parse(text: &str) -> Option<ResetScope> {
        [ResetScope::Keep, ResetScope::Forget].into_iter().find(|scope| scope.name() == text)
    }
}

/// An order: `keep:ID` or `forget:ID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetOrder {
    /// What is left.
    pub scope: ResetScope,
    /// Chosen by who orders it; the same one is carried out once.
    pub id: String,
}

impl ResetOrder {
    /// Reads an order.
    #[must_use]
    pub fn parse(text: &str) -> Option<ResetOrder> {
        let (scope, id) = text.trim().split_once(':')?;
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let fits = (1..=RESET_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(is_plain);
        Some(ResetOrder { scope: ResetScope::parse(scope)?, id: fits.then(|| id.to_owned())? })
    }
}

impl fmt::Display for ResetOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scope.name(), self.id)
    }
}

/// How far a reset is. Each stage is on the disk before the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResetStage {
    /// Nothing was done.
    Ordered,
    /// What is kept lies behind the boot record, read back.
    Carried,
    /// The old state partition is erased, and the table does not name it any more.
    Erased,
    /// What is kept is on the new state partition.
    Restored,
}

impl ResetStage {
    /// All, in their order.
    pub const ALL: [ResetStage; 4] =
        [ResetStage::Ordered, ResetStage::Carried, ResetStage::Erased, ResetStage::Restored];

    /// As in the record.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ResetStage::Ordered => "ordered",
            ResetStage::Carried => "carried",
            ResetStage::Erased => "erased",
            ResetStage::Restored => "restored",
        }
    }
}

/// A reset that was ordered and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetRequest {
    /// The order.
    pub order: ResetOrder,
    /// PARTUUID of the state partition that is given up; empty if there was none. Another one is never touched.
    pub partition: String,
    /// How far it is.
    pub stage: ResetStage,
}

impl ResetRequest {
    /// Takes the request out of a record's fields. One that is not understood stays there.
    pub(super) fn take(fields: &mut Map<String, Value>) -> Option<ResetRequest> {
        let request = fields.get(FIELD).and_then(read)?;
        fields.remove(FIELD);
        Some(request)
    }

    pub(super) fn rendered(&self) -> Value {
        json!({
            "kind": KIND,
            "scope": self.order.scope.name(),
            "id": self.order.id.as_str(),
            "partition": self.partition.as_str(),
            "stage": self.stage.name(),
        })
    }
}

/// Takes the orders that have ended out of a record's fields. Other values stay there.
pub(super) fn take_past(fields: &mut Map<String, Value>) -> Vec<String> {
    let texts = |past: &Vec<Value>| {
        past.iter().map(|id| id.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>()
    };
    let past: Option<Vec<String>> = fields.get(PAST).and_then(Value::as_array).and_then(texts);
    if past.is_some() {
        fields.remove(PAST);
    }
    past.unwrap_or_default()
}

fn read(value: &Value) -> Option<ResetRequest> {
    let text = |name: &str| value.get(name)?.as_str();
    let order = ResetOrder::parse(&format!("{}:{}", text("scope")?, text("id")?))?;
    let stage = ResetStage::ALL.into_iter().find(|stage| Some(stage.name()) == text("stage"))?;
    let partition = text("partition")?.to_owned();
    (text("kind") == Some(KIND)).then_some(ResetRequest { order, partition, stage })
}

/// The last reset that ended, on the running system: init leaves it there at each boot.
pub const RESET_END_FILE: &str = "/run/orlop/reset.json";

/// The last reset that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetEnd {
    /// Identifier of its order.
    pub id: String,
    /// Why it was not carried out as ordered; empty if it was.
    pub refused: String,
}

impl ResetEnd {
    /// Takes it out of a record's fields; one that is not understood stays there.
    pub(super) fn take(fields: &mut Map<String, Value>) -> Option<ResetEnd> {
        let end = ResetEnd::read(fields.get(LAST)?)?;
        fields.remove(LAST);
        Some(end)
    }

    fn read(value: &Value) -> Option<ResetEnd> {
        let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
        Some(ResetEnd { id: text("id")?, refused: text("refused")? })
    }

    /// Reads [`RESET_END_FILE`].
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<ResetEnd> {
        ResetEnd::read(&serde_json::from_slice(text).ok()?)
    }

    /// The text of [`RESET_END_FILE`].
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        self.rendered().to_string().into_bytes()
    }

    pub(super) fn rendered(&self) -> Value {
        let refused: String = self.refused.chars().take(REASON_CHARS_MAX).collect();
        json!({ "id": self.id.as_str(), "refused": refused })
    }
}

impl BootRecord {
    /// Orders a reset. The same order again changes nothing. One that has not begun is replaced by another, and is over: where it
    /// stands in SMBIOS or on a command line, no later boot takes it for a new one.
    ///
    /// # Errors
    /// An order with this identifier has ended, and is remembered anew; another reset has begun; or a trial has no verdict yet.
    pub fn order_reset(&mut self, order: ResetOrder, partition: &str) -> Result<(), SlotChangeError> {
        if self.reset.as_ref().is_some_and(|reset| reset.order == order) {
            return Ok(());
        }
        if self.past_resets.contains(&order.id) {
            self.remember_reset(order.id);
            return Err(SlotChangeError::ResetOver);
        }
        if self.reset.as_ref().is_some_and(|reset| reset.stage != ResetStage::Ordered) {
            return Err(SlotChangeError::ResetBegun);
        }
        if let Some(trial) = &self.trial {
            return Err(SlotChangeError::OtherTrial(trial.slot));
        }
        let (partition, stage) = (partition.to_owned(), ResetStage::Ordered);
        if let Some(replaced) = self.reset.replace(ResetRequest { order, partition, stage }) {
            self.remember_reset(replaced.order.id);
        }
        Ok(())
    }

    /// Ends the reset. `refused`: why it was not carried out as ordered; empty if it was.
    pub fn end_reset(&mut self, refused: &str) {
        if let Some(reset) = self.reset.take() {
            self.remember_reset(reset.order.id.clone());
            self.last_reset = Some(ResetEnd { id: reset.order.id, refused: refused.to_owned() });
        }
    }

    fn remember_reset(&mut self, id: String) {
        self.past_resets.retain(|past| *past != id);
        self.past_resets.push(id);
        let too_many = self.past_resets.len().saturating_sub(RESETS_REMEMBERED);
        self.past_resets.drain(..too_many);
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::SlotName;
    use super::*;
    use proptest::prelude::*;

    fn order(text: &str) -> ResetOrder {
        ResetOrder::parse(text).expect("an order")
    }

    #[test]
    fn orders_are_read_and_shown() {
        for text in ["keep:1", "forget:0b8e6e0a-3c7e-4b8e-9a53-0d9a1b2c3d4e", "forget:2026.11.30_x"] {
            assert_eq!(order(text).to_string(), text);
        }
        assert_eq!(order("forget:1\n"), ResetOrder { scope: ResetScope::Forget, id: "1".into() });
        let long = format!("keep:{}", "x".repeat(RESET_ID_BYTES_MAX + 1));
        for bad in ["", "keep", "keep:", ":1", "all:1", "Keep:1", "keep:a b", "keep:ä", "keep:a/b", &long] {
            assert_eq!(ResetOrder::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn an_order_is_taken_once() {
        let mut record = BootRecord::new(SlotName::A);
        record.order_reset(order("keep:1"), "p").expect("taken");
        let first = record.clone();
        assert_eq!(record.order_reset(order("keep:1"), "q"), Ok(()));
        assert_eq!(record, first);
        // A person may think again, until it has begun.
        record.order_reset(order("forget:2"), "p").expect("replaced");
        for stage in &ResetStage::ALL[1..] {
            if let Some(reset) = &mut record.reset {
                reset.stage = *stage;
            }
            assert_eq!(record.order_reset(order("keep:3"), "p"), Err(SlotChangeError::ResetBegun));
            assert_eq!(record.order_reset(order("forget:2"), "p"), Ok(()));
        }
        record.end_reset("");
        assert_eq!(record.last_reset, Some(ResetEnd { id: "2".into(), refused: String::new() }));
        assert_eq!(record.order_reset(order("forget:2"), "p"), Err(SlotChangeError::ResetOver));
        let last = record.last_reset.clone().expect("an end");
        assert_eq!(ResetEnd::parse(&last.text()), Some(last));
        assert_eq!(ResetEnd::parse(b"{}"), None);
        record.order_reset(order("forget:4"), "p").expect("another one");
        assert_eq!(BootRecord::parse(&record.render()), Ok(record));
    }

    #[test]
    fn an_order_that_stands_is_carried_out_once_whatever_is_ordered_besides() {
        let mut record = BootRecord::new(SlotName::A);
        record.order_reset(order("forget:standing"), "p").expect("taken");
        record.end_reset("");
        for n in 0..3 * RESETS_REMEMBERED {
            record.order_reset(order(&format!("keep:{n}")), "p").expect("another one");
            record.end_reset("");
            // The next boot sees the standing one again.
            let again = record.order_reset(order("forget:standing"), "p");
            assert_eq!(again, Err(SlotChangeError::ResetOver), "{n}");
            assert_eq!(record.past_resets.last().map(String::as_str), Some("standing"));
            assert!(record.past_resets.len() <= RESETS_REMEMBERED);
        }
        assert_eq!(record.order_reset(order("keep:23"), "p"), Err(SlotChangeError::ResetOver));
        assert_eq!(BootRecord::parse(&record.render()), Ok(record.clone()));
        // With the longest identifiers the record still fits into its block.
        for n in 0..RESETS_REMEMBERED {
            record.order_reset(order(&format!("keep:{n:0>64}")), &"f".repeat(36)).expect("taken");
            record.end_reset(&"x".repeat(REASON_CHARS_MAX));
        }
        assert!(record.write(None).is_ok());
    }

    #[test]
    fn of_two_orders_that_stand_the_later_one_is_carried_out_and_no_boot_takes_the_other_one() {
        let mut record = BootRecord::new(SlotName::A);
        let standing = ["keep:1", "forget:2"];
        for text in standing {
            record.order_reset(order(text), "p").expect("taken");
        }
        assert_eq!(record.reset.as_ref().map(|reset| reset.order.clone()), Some(order("forget:2")));
        record.end_reset("");
        for _ in 0..2 {
            for text in standing {
                assert_eq!(record.order_reset(order(text), "q"), Err(SlotChangeError::ResetOver), "{text}");
            }
        }
        // The same identifier with another scope is another order, and still not a second reset.
        assert_eq!(record.order_reset(order("keep:2"), "q"), Err(SlotChangeError::ResetOver));
        assert_eq!(record.reset, None);
    }

    #[test]
    fn no_reset_beside_a_trial() {
        let mut record = BootRecord::new(SlotName::A);
        record.b.state = super::super::record::SlotState::Staged;
        record.order_trial(SlotName::A, "u", 600).expect("staged");
        let refused = record.order_reset(order("keep:1"), "p");
        assert_eq!(refused, Err(SlotChangeError::OtherTrial(SlotName::B)));
        record.withdraw_trial(SlotName::A);
        record.order_reset(order("keep:1"), "p").expect("no trial");
        assert_eq!(record.order_trial(SlotName::A, "u", 600), Err(SlotChangeError::ResetBegun));
    }

    #[test]
    fn what_is_not_understood_is_kept_and_not_carried_out() {
        let good = json!({"kind": KIND, "scope": "keep", "id": "1", "partition": "p", "stage": "erased"});
        let parsed = |request: &Value| {
            let document = json!({"desired": "a", "request": request, "lastReset": 7});
            let record = BootRecord::parse(document.to_string().as_bytes()).expect("readable");
            let again: Value = serde_json::from_slice(&record.render()).expect("JSON");
            assert_eq!((&again["request"], &again["lastReset"]), (request, &json!(7)));
            record.reset
        };
        assert!(parsed(&good).is_some());
        for (field, value) in [
            ("kind", json!("wipe-disk")),
            ("scope", json!("all")),
            ("id", json!("a b")),
            ("stage", json!("half")),
            ("partition", json!(1)),
            ("stage", Value::Null),
        ] {
            let mut other = good.clone();
            other[field] = value;
            assert_eq!(parsed(&other), None, "{field}");
        }
        assert_eq!(parsed(&json!([])), None);
    }

    proptest! {
        #[test]
        fn any_order(text in ".{0,90}") {
            if let Some(order) = ResetOrder::parse(&text) {
                prop_assert_eq!(ResetOrder::parse(&order.to_string()), Some(order));
            }
        }
    }
}
