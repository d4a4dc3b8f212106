//! Tests of the semaphore: two nodes that write at the same time, failures, and any text.

use std::collections::BTreeMap;

use crate::node_update::semaphore::{PermitDecision, PermitRequest, RebootMap, give_back, take};
use proptest::prelude::*;
use serde_json::{Value, json};

fn ask(node: &str) -> PermitRequest<'_> {
    PermitRequest { group: "g", node, uid: "u", update: "0.2.0-1", since: "2026-11-30T10:00:00Z" }
}

fn map(group: Option<&Value>) -> RebootMap {
    let data = group.map(|group| ("g".to_owned(), group.to_string())).into_iter().collect();
    RebootMap { resource_version: Some("7".into()), data }
}

fn written(decision: PermitDecision) -> RebootMap {
    match decision {
        PermitDecision::Write(map) => map,
        other => panic!("{other:?}"),
    }
}

fn group(map: &RebootMap) -> Value {
    serde_json::from_str(&map.data["g"]).expect("JSON")
}

#[test]
fn a_slot_is_taken_once_and_given_back() {
    let taken = written(take(&RebootMap::default(), &ask("a")));
    assert_eq!((taken.resource_version.clone(), group(&taken)["slots"].clone()), (None, json!(1)));
    assert_eq!(group(&taken)["holders"][0]["node"], "a");
    assert_eq!(take(&taken, &ask("a")), PermitDecision::Held);
    let waits = "waits for a reboot slot of group g, held by a since 2026-11-30T10:00:00Z";
    assert_eq!(take(&taken, &ask("b")), PermitDecision::Wait(waits.into()));
    // A stranger gives nothing back.
    assert_eq!(give_back(&taken, &ask("b"), None), PermitDecision::Held);
    let free = written(give_back(&taken, &ask("a"), None));
    assert_eq!((group(&free)["holders"].clone(), group(&free)["failures"].clone()), (json!([]), json!(0)));
    assert_eq!(give_back(&free, &ask("a"), Some("x")), PermitDecision::Held);
    assert!(matches!(take(&free, &ask("b")), PermitDecision::Write(_)));
}

#[test]
fn a_node_made_anew_takes_the_slot_of_its_name() {
    let taken = written(take(&map(None), &ask("a")));
    let anew = PermitRequest { uid: "v", ..ask("a") };
    let again = written(take(&taken, &anew));
    assert_eq!(group(&again)["holders"].as_array().map(Vec::len), Some(1));
    assert_eq!(take(&again, &anew), PermitDecision::Held);
}

#[test]
fn a_failure_halts_the_group_until_somebody_lets_it_go() {
    let start = map(Some(&json!({"slots": 2, "maxFailures": 2, "owner": "ops"})));
    let both = written(take(&written(take(&start, &ask("a"))), &ask("b")));
    let one = written(give_back(&both, &ask("a"), Some("static-pods: etcd")));
    assert_eq!((group(&one)["failures"].clone(), group(&one)["halted"].clone()), (json!(1), json!("")));
    let two = written(give_back(&one, &ask("b"), Some("link: down")));
    assert_eq!(group(&two)["halted"], "b: link: down");
    assert_eq!((group(&two)["owner"].clone(), two.resource_version.as_deref()), (json!("ops"), Some("7")));
    assert!(matches!(take(&two, &ask("c")), PermitDecision::Wait(why) if why.contains("halted: b: link")));
    // To let it go, an operator need not know of the count.
    let mut free = group(&two);
    free["halted"] = json!("");
    let third = written(take(&map(Some(&free)), &ask("c")));
    assert_eq!(group(&third)["failures"], json!(0));
    let third = written(give_back(&third, &ask("c"), Some("link: down")));
    assert_eq!((group(&third)["failures"].clone(), group(&third)["halted"].clone()), (json!(1), json!("")));
}

#[test]
fn what_is_not_understood_is_not_overwritten() {
    for text in ["", "[]", "{", r#"{"slots":-1}"#, r#"{"holders":[{}]}"#, r#"{"halted":1}"#] {
        let map = RebootMap { resource_version: None, data: BTreeMap::from([("g".into(), text.into())]) };
        assert!(matches!(take(&map, &ask("a")), PermitDecision::Wait(_)), "{text}");
        assert!(matches!(give_back(&map, &ask("a"), None), PermitDecision::Wait(_)), "{text}");
    }
    let many: Vec<Value> = (0..1001).map(|n| json!({"node": format!("n{n}")})).collect();
    let map = map(Some(&json!({"slots": 5000, "holders": many})));
    assert!(matches!(take(&map, &ask("a")), PermitDecision::Wait(_)));
}

/// A ConfigMap of an API server that refuses a write with an old version.
struct MapServer {
    version: u64,
    map: RebootMap,
}

impl MapServer {
    fn put(&mut self, map: &RebootMap) -> bool {
        let is_current = map.resource_version == self.map.resource_version;
        if is_current {
            self.version += 1;
            self.map = RebootMap { resource_version: Some(self.version.to_string()), ..map.clone() };
        }
        is_current
    }
}

proptest! {
    /// Nodes read and write in any order: no more of them hold a slot than there are.
    #[test]
    fn no_more_holders_than_slots(slots in 1_usize..3, steps in proptest::collection::vec((0_usize..4, 0_u8..4), 1..80)) {
        let mut server = MapServer { version: 0, map: RebootMap::default() };
        let nodes = ["a", "b", "c", "d"];
        let data = BTreeMap::from([("g".to_owned(), json!({"slots": slots}).to_string())]);
        let written = server.put(&RebootMap { resource_version: None, data });
        prop_assert!(written);
        let mut seen: BTreeMap<usize, RebootMap> = BTreeMap::new();
        let mut holds = [false; 4];
        for (node, step) in steps {
            match step {
                0 | 1 => { seen.insert(node, server.map.clone()); }
                2 if !holds[node] => {
                    let read = seen.get(&node).cloned().unwrap_or_default();
                    match take(&read, &ask(nodes[node])) {
                        PermitDecision::Write(map) if server.put(&map) => holds[node] = true,
                        _ => {}
                    }
                }
                3 if holds[node] => {
                    let read = server.map.clone();
                    let given = matches!(give_back(&read, &ask(nodes[node]), None), PermitDecision::Write(map) if server.put(&map));
                    prop_assert!(given);
                    holds[node] = false;
                }
                _ => {}
            }
            prop_assert!(holds.iter().filter(|held| **held).count() <= slots);
        }
    }

    #[test]
    fn any_text(text in "\\PC{0,80}") {
        let map = RebootMap { resource_version: None, data: BTreeMap::from([("g".into(), text)]) };
        let _ = take(&map, &ask("a"));
        let _ = give_back(&map, &ask("a"), Some("x"));
    }
}
