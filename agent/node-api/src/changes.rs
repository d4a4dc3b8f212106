//! Changes between two snapshots of the same request. Pure.
//!
//! In: answers, one after the other. Out: events. Invariants: applied to what a reader has, the events give the newest answer; objects of a
//! kind that cannot be answered stay as they were, and the failure is said once; numbers that change all the time are no change (time,
//! uptime, the memory of a service), amounts count in hundredths of their whole.

use std::collections::{BTreeMap, BTreeSet};

use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{GetResponse, KindFailure, Object, WatchEvent};

/// Kind and name.
type ObjectKey = (String, String);

/// What a reader has.
#[derive(Clone, Debug, Default)]
pub struct ObjectChanges {
    /// Objects as they were sent last.
    known: BTreeMap<ObjectKey, Object>,
    /// Failures that were said, by kind.
    failed: BTreeMap<String, String>,
}

impl ObjectChanges {
    /// The events that lead to an answer.
    pub fn take(&mut self, answer: GetResponse) -> Vec<WatchEvent> {
        let mut events = Vec::new();
        let failing: BTreeSet<String> = answer.failures.iter().map(|failure| failure.kind.clone()).collect();
        self.failed.retain(|kind, _| failing.contains(kind));
        for failure in answer.failures {
            let said = self.failed.insert(failure.kind.clone(), failure.message.clone());
            if said.as_ref() != Some(&failure.message) {
                events.push(of_failure(failure));
            }
        }
        let mut present = BTreeSet::new();
        for object in answer.objects {
            let key = key_of(&object);
            let kind = match self.known.get(&key) {
                None => Some("ADDED"),
                Some(known) if steady(known) != steady(&object) => Some("MODIFIED"),
                Some(_) => None,
            };
            present.insert(key.clone());
            if let Some(kind) = kind {
                self.known.insert(key, object.clone());
                events.push(of_object(kind, object));
            }
        }
        let is_gone = |key: &&ObjectKey| !present.contains(*key) && !failing.contains(&key.0);
        let gone: Vec<ObjectKey> = self.known.keys().filter(is_gone).cloned().collect();
        events.extend(gone.iter().filter_map(|key| Some(of_object("DELETED", self.known.remove(key)?))));
        events
    }
}

/// All that is there was sent.
#[must_use]
pub fn bookmark() -> WatchEvent {
    WatchEvent { r#type: "BOOKMARK".to_owned(), ..WatchEvent::default() }
}

fn of_object(kind: &str, object: Object) -> WatchEvent {
    WatchEvent { r#type: kind.to_owned(), object: Some(object), failure: None }
}

fn of_failure(failure: KindFailure) -> WatchEvent {
    WatchEvent { r#type: "FAILED".to_owned(), object: None, failure: Some(failure) }
}

fn key_of(object: &Object) -> ObjectKey {
    let name = object.metadata.as_ref().map(|meta| meta.name.clone()).unwrap_or_default();
    (object.kind.clone(), name)
}

/// The object without what changes all the time.
fn steady(object: &Object) -> Object {
    let mut object = object.clone();
    if let Some(meta) = &mut object.metadata {
        meta.observed_at.clear();
    }
    match &mut object.status {
        Some(Status::Node(node)) => node.uptime_seconds = 0,
        Some(Status::Time(time)) => time.now.clear(),
        Some(Status::Service(service)) => service.memory_bytes = None,
        Some(Status::Process(process)) => {
            (process.cpu_ms, process.memory_bytes) = (0, 0);
            // It runs and waits by turns.
            if process.state == "R" {
                process.state = "S".to_owned();
            }
        }
        Some(Status::Mount(mount)) => {
            mount.available_bytes = hundredths(mount.available_bytes, mount.size_bytes);
        }
        Some(Status::Memory(memory)) => {
            memory.available_bytes = hundredths(memory.available_bytes, memory.total_bytes);
            memory.swap_free_bytes = hundredths(memory.swap_free_bytes, memory.swap_total_bytes);
            memory.pressure_some_60s = memory.pressure_some_60s.map(f64::round);
        }
        _ => {}
    }
    object
}

fn hundredths(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * 100 / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::v1alpha1::{MemoryStatus, Meta, ProcessStatus, ServiceStatus};
    use proptest::prelude::*;

    use super::*;

    fn service(name: &str, active: &str, memory: u64) -> Object {
        let status = ServiceStatus {
            active: active.to_owned(),
            memory_bytes: Some(memory),
            ..ServiceStatus::default()
        };
        object("services", name, Status::Service(status))
    }

    fn object(kind: &str, name: &str, status: Status) -> Object {
        let metadata = Some(Meta { name: name.to_owned(), ..Meta::default() });
        Object { kind: kind.to_owned(), metadata, status: Some(status), ..Object::default() }
    }

    fn failure(kind: &str, message: &str) -> KindFailure {
        KindFailure { kind: kind.to_owned(), message: message.to_owned(), error: None }
    }

    fn answer(objects: Vec<Object>, failures: Vec<KindFailure>) -> GetResponse {
        GetResponse { objects, failures }
    }

    /// Type, and name or kind.
    fn words(events: &[WatchEvent]) -> Vec<(String, String)> {
        let about = |event: &WatchEvent| match (&event.object, &event.failure) {
            (Some(object), _) => key_of(object).1,
            (None, Some(failure)) => failure.kind.clone(),
            (None, None) => String::new(),
        };
        events.iter().map(|event| (event.r#type.clone(), about(event))).collect()
    }

    fn said(words: &[(&str, &str)]) -> Vec<(String, String)> {
        words.iter().map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned())).collect()
    }

    #[test]
    fn objects_come_change_and_go() {
        let mut changes = ObjectChanges::default();
        let first = vec![service("a", "active", 1), service("b", "active", 1)];
        assert_eq!(words(&changes.take(answer(first, Vec::new()))), said(&[("ADDED", "a"), ("ADDED", "b")]));
        let second = vec![service("a", "active", 9), service("c", "active", 1)];
        assert_eq!(
            words(&changes.take(answer(second, Vec::new()))),
            said(&[("ADDED", "c"), ("DELETED", "b")])
        );
        let third = vec![service("a", "failed", 9), service("c", "active", 1)];
        assert_eq!(words(&changes.take(answer(third, Vec::new()))), said(&[("MODIFIED", "a")]));
    }

    #[test]
    fn a_kind_that_cannot_be_answered_keeps_its_objects_and_fails_once() {
        let mut changes = ObjectChanges::default();
        changes.take(answer(vec![service("a", "active", 1)], Vec::new()));
        let fails = |message: &str| answer(Vec::new(), vec![failure("services", message)]);
        assert_eq!(words(&changes.take(fails("silent"))), said(&[("FAILED", "services")]));
        assert_eq!(changes.take(fails("silent")), []);
        assert_eq!(words(&changes.take(fails("down"))), said(&[("FAILED", "services")]));
        assert_eq!(changes.take(answer(vec![service("a", "active", 1)], Vec::new())), []);
        assert_eq!(words(&changes.take(fails("down"))), said(&[("FAILED", "services")]));
    }

    #[test]
    fn amounts_count_in_hundredths() {
        let memory = |available_bytes| {
            let status = MemoryStatus { total_bytes: 1000, available_bytes, ..MemoryStatus::default() };
            answer(vec![object("memory", "memory", Status::Memory(status))], Vec::new())
        };
        let mut changes = ObjectChanges::default();
        let events: Vec<usize> = [500, 509, 510, 515, 300].map(|n| changes.take(memory(n)).len()).to_vec();
        assert_eq!(events, [1, 0, 1, 0, 1]);
    }

    #[test]
    fn a_process_that_works_has_not_changed() {
        let process = |state: &str, cpu_ms| {
            let status = ProcessStatus { state: state.to_owned(), cpu_ms, ..ProcessStatus::default() };
            answer(vec![object("processes", "7", Status::Process(status))], Vec::new())
        };
        let mut changes = ObjectChanges::default();
        let looks = [process("S", 10), process("R", 20), process("Z", 20)];
        let events: Vec<usize> = looks.map(|look| changes.take(look).len()).to_vec();
        assert_eq!(events, [1, 0, 1]);
    }

    proptest! {
        #[test]
        fn a_reader_that_applies_the_events_has_the_newest_answer(
            answers in proptest::collection::vec(proptest::collection::btree_map("[a-d]", "[xy]", 0..4), 1..8),
        ) {
            let mut changes = ObjectChanges::default();
            let mut reader: BTreeMap<String, Object> = BTreeMap::new();
            for states in answers {
                let objects: Vec<Object> =
                    states.iter().map(|(name, state)| service(name, state, 1)).collect();
                for event in changes.take(answer(objects.clone(), Vec::new())) {
                    let object = event.object.unwrap();
                    match event.r#type.as_str() {
                        "DELETED" => drop(reader.remove(&key_of(&object).1)),
                        _ => drop(reader.insert(key_of(&object).1, object)),
                    }
                }
                prop_assert_eq!(reader.values().cloned().collect::<Vec<_>>(), objects);
            }
        }
    }
}
