//! What operators order by annotations of the Node, and by a version in the node's configuration.
//!
//! In: annotations of the Node, the version of the configuration, the boot record, the slot that runs. Out: [`UpdateOrders`], and the
//! annotations that are no orders, each with the reason. Pure. Invariants: a value that is not understood orders nothing; an order
//! that was carried out orders nothing more, however long its annotation stays: a version that runs is not tried again, a node that
//! has left a version does not come back to it by itself, and a version that failed is `UpdatePlan::spent`.

use std::collections::BTreeMap;

use orlop_config::release::ReleaseVersion;
use orlop_config::slots::{BootRecord, SlotName, SlotState};

use super::UpdateOrders;
use super::report::{PAUSED, PERMIT, ROLLBACK, UPDATE_TO};

/// Longest value of an annotation that is read, characters.
const VALUE_MAX: usize = 128;
/// Longest part of a value that is repeated in a message, characters.
const SHOWN_MAX: usize = 40;

/// An annotation that is no order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongOrder {
    /// Its name.
    pub annotation: &'static str,
    /// The beginning of its value.
    pub value: String,
    /// Why it orders nothing, and what to do.
    pub why: String,
}

impl WrongOrder {
    fn new(annotation: &'static str, value: &str, why: impl Into<String>) -> WrongOrder {
        WrongOrder { annotation, value: value.chars().take(SHOWN_MAX).collect(), why: why.into() }
    }

    /// For an event.
    #[must_use]
    pub fn message(&self) -> String {
        let WrongOrder { annotation, value, why } = self;
        format!("annotation {annotation}={value:?} orders nothing: {why}")
    }
}

/// The orders, and what is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrdersSeen {
    /// For the machine.
    pub orders: UpdateOrders,
    /// For events.
    pub wrong: Vec<WrongOrder>,
}

/// The orders as they are now. `pin` is the version that a node which updates by itself is to run: it names the one before, where that
/// is in the other slot; a version that is not there is staged first, as any other.
#[must_use]
pub fn read_orders(
    annotations: Option<&BTreeMap<String, String>>,
    pin: Option<&str>,
    record: &BootRecord,
    booted: SlotName,
) -> OrdersSeen {
    let value = |name: &str| {
        let text = annotations?.get(name)?.trim();
        (!text.is_empty()).then(|| text.chars().take(VALUE_MAX).collect::<String>())
    };
    let mut wrong = Vec::new();
    let mut taken = |name: &'static str, judge: fn(&str) -> Result<(), String>| {
        let text = value(name)?;
        match judge(&text) {
            Ok(()) => Some(text),
            Err(why) => {
                wrong.push(WrongOrder::new(name, &text, why));
                None
            }
        }
    };
    let paused = taken(PAUSED, is_switch);
    let named = taken(UPDATE_TO, is_version);
    let permit = taken(PERMIT, is_update);
    let left = taken(ROLLBACK, is_version);
    let other = record.slot(booted.other());
    let is_before = other.state == SlotState::Good && pin == Some(other.version.as_str());
    let pinned = pin.filter(|_| is_before).map(str::to_owned);
    // A version that is named and then left: leaving it is the newer wish.
    let named = named.filter(|version| left.as_ref() != Some(version));
    let back = match (&left, &named) {
        (None, _) => None,
        (Some(left), Some(named)) => {
            let why = format!("{UPDATE_TO} names {named}, and counts; remove one of the two");
            wrong.push(WrongOrder::new(ROLLBACK, left, why));
            None
        }
        (Some(left), None) => match way_back(left, record, booted) {
            Ok(version) => version,
            Err(why) => {
                wrong.push(WrongOrder::new(ROLLBACK, left, why));
                None
            }
        },
    };
    let is_paused = paused.as_deref() == Some("true");
    let orders = UpdateOrders { is_paused, update_to: named.or(back).or(pinned), permit };
    OrdersSeen { orders, wrong }
}

fn is_switch(text: &str) -> Result<(), String> {
    match text {
        "true" | "false" => Ok(()),
        _ => Err("true stops updates, and false or no annotation lets them go on".to_owned()),
    }
}

fn is_version(text: &str) -> Result<(), String> {
    text.parse::<ReleaseVersion>().map(|_| ()).map_err(|error| error.to_string())
}

/// An identifier of an update is its version and a number of seconds.
fn is_update(text: &str) -> Result<(), String> {
    let parts = text.rsplit_once('-').filter(|(version, at)| {
        is_version(version).is_ok() && !at.is_empty() && at.bytes().all(|byte| byte.is_ascii_digit())
    });
    let why = "the event UpdateWaits of this node names the identifier of the update that asks";
    parts.map(|_| ()).ok_or_else(|| why.to_owned())
}

/// The version that a node runs which is to leave `left`: the one before, or, once it has left it, the one that it runs.
fn way_back(left: &str, record: &BootRecord, booted: SlotName) -> Result<Option<String>, String> {
    let (running, other) = (record.slot(booted), record.slot(booted.other()));
    if running.version != left {
        // Without this order it could take the version that it has left as a newer one.
        return Ok(Some(running.version.clone()).filter(|version| !version.is_empty()));
    }
    // The way back that was ordered already; a newer version whose trial was ordered is no way back.
    let is_ordered =
        other.state == SlotState::Trial && record.trial.as_ref().is_some_and(|trial| trial.was_good);
    let is_other = !other.version.is_empty() && other.version != left;
    if is_other && (other.state == SlotState::Good || is_ordered) {
        return Ok(Some(other.version.clone()));
    }
    let (slot, state, version) = (booted.other(), other.state.name(), &other.version);
    Err(format!(
        "slot {slot} has no good version to go back to: it is {state} with version {version:?}; name a version by {UPDATE_TO}"
    ))
}
