//! Orders of operators as tables.

use std::collections::BTreeMap;

use orlop_config::slots::{BootRecord, SlotName, SlotRecord, SlotState};

use crate::node_update::UpdateOrders;
use crate::node_update::orders::{OrdersSeen, WrongOrder, read_orders};
use crate::node_update::report::{PAUSED, PERMIT, ROLLBACK, UPDATE_TO};

/// A node that runs this version in slot A.
fn record(running: &str, state: SlotState, other: &str) -> BootRecord {
    let mut record = BootRecord::new(SlotName::A);
    record.a.version = running.to_owned();
    record.b = SlotRecord { state, version: other.to_owned(), ..SlotRecord::default() };
    record
}

fn read(annotations: &[(&str, &str)], pin: Option<&str>, record: &BootRecord) -> OrdersSeen {
    let all: BTreeMap<String, String> =
        annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    read_orders(Some(&all), pin, record, SlotName::A)
}

#[test]
fn annotations_are_orders() {
    let record = record("0.1.0", SlotState::Empty, "");
    assert_eq!(read_orders(None, None, &record, SlotName::A), OrdersSeen::default());
    let seen = read(&[(PAUSED, "true"), (UPDATE_TO, " 0.2.0 "), (PERMIT, "0.2.0-7")], None, &record);
    let want = UpdateOrders {
        is_paused: true,
        update_to: Some("0.2.0".to_owned()),
        permit: Some("0.2.0-7".to_owned()),
    };
    assert_eq!(seen, OrdersSeen { orders: want, wrong: Vec::new() });
    let nothing = [(PAUSED, "false"), (UPDATE_TO, ""), (PERMIT, " "), ("orlop.org/update-state", "Idle")];
    assert_eq!(read(&nothing, None, &record), OrdersSeen::default());
}

#[test]
fn a_wrong_value_orders_nothing_and_is_named() {
    let record = record("0.1.0", SlotState::Good, "0.0.9");
    let long = "9".repeat(4000);
    for (annotation, value) in [
        (PAUSED, "yes"),
        (PAUSED, "True"),
        (UPDATE_TO, "v0.2.0"),
        (UPDATE_TO, "latest"),
        (UPDATE_TO, long.as_str()),
        (PERMIT, "yes"),
        (PERMIT, "0.2.0"),
        (PERMIT, "0.2.0-"),
        (PERMIT, "0.2.0-x7"),
        (ROLLBACK, "true"),
    ] {
        let seen = read(&[(annotation, value)], None, &record);
        assert_eq!(seen.orders, UpdateOrders::default(), "{annotation}={value}");
        let [wrong] = seen.wrong.as_slice() else { panic!("{annotation}={value}: {:?}", seen.wrong) };
        assert_eq!(wrong.annotation, annotation);
        let message = wrong.message();
        let shown: String = value.chars().take(40).collect();
        assert!(message.contains(annotation) && message.contains(&shown), "{message}");
        assert!(message.chars().count() < 400, "{message}");
    }
    // One that is wrong takes nothing from another one.
    let seen = read(&[(PAUSED, "yes"), (UPDATE_TO, "0.2.0")], None, &record);
    assert_eq!((seen.orders.update_to.as_deref(), seen.wrong.len()), (Some("0.2.0"), 1));
}

#[test]
fn a_node_leaves_a_version_once_and_does_not_come_back() {
    let leave = [(ROLLBACK, "0.2.0")];
    let to = |record: &BootRecord| read(&leave, None, record).orders.update_to;
    assert_eq!(to(&record("0.2.0", SlotState::Good, "0.1.0")).as_deref(), Some("0.1.0"));
    // The way back is ordered: that is no other order.
    let mut ordered = record("0.2.0", SlotState::Good, "0.1.0");
    ordered.order_trial(SlotName::A, "0.1.0-7", 600).expect("it is good");
    assert_eq!((ordered.b.state, to(&ordered).as_deref()), (SlotState::Trial, Some("0.1.0")));
    // It has left it: the version that it runs is named, so no other one begins by itself.
    let done = read(&leave, None, &record("0.1.0", SlotState::Good, "0.2.0"));
    assert_eq!((done.orders.update_to.as_deref(), done.wrong.len()), (Some("0.1.0"), 0));
    let mut newer = record("0.2.0", SlotState::Staged, "0.3.0");
    newer.order_trial(SlotName::A, "0.3.0-7", 600).expect("it is staged");
    let states = [SlotState::Empty, SlotState::Writing, SlotState::Staged, SlotState::Refused];
    let bad = states.map(|state| record("0.2.0", state, "0.1.0"));
    let same = record("0.2.0", SlotState::Good, "0.2.0");
    for record in bad.iter().chain([&newer, &same]) {
        let seen = read(&leave, None, record);
        let words: Vec<String> = seen.wrong.iter().map(WrongOrder::message).collect();
        assert_eq!(seen.orders.update_to, None, "{record:?}");
        assert!(words.len() == 1 && words[0].contains("slot B has no good version"), "{words:?}");
    }
}

#[test]
fn a_version_that_is_named_and_left_is_left() {
    let running = record("0.2.0", SlotState::Good, "0.1.0");
    let seen = read(&[(UPDATE_TO, "0.2.0"), (ROLLBACK, "0.2.0")], None, &running);
    assert_eq!((seen.orders.update_to.as_deref(), seen.wrong.len()), (Some("0.1.0"), 0));
    let seen = read(&[(UPDATE_TO, "0.3.0"), (ROLLBACK, "0.2.0")], None, &running);
    assert_eq!(seen.orders.update_to.as_deref(), Some("0.3.0"));
    assert_eq!(seen.wrong.iter().map(|wrong| wrong.annotation).collect::<Vec<_>>(), [ROLLBACK]);
}

#[test]
fn a_pinned_version_leads_back_to_the_one_before() {
    let good = record("0.2.0", SlotState::Good, "0.1.0");
    let to = |pin: &str, record: &BootRecord| read(&[], Some(pin), record).orders.update_to;
    assert_eq!(to("0.1.0", &good).as_deref(), Some("0.1.0"));
    assert_eq!(to("0.2.0", &good), None);
    // One that has failed is no order: it would be tried without end.
    assert_eq!(to("0.1.0", &record("0.2.0", SlotState::Staged, "0.1.0")), None);
    let named = read(&[(UPDATE_TO, "0.3.0")], Some("0.1.0"), &good);
    assert_eq!(named.orders.update_to.as_deref(), Some("0.3.0"));
}
