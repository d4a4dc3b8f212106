//! The pods that one source delivered last, and the changes against its new delivery.
//!
//! In: the complete set of a source's pods, or one pod that changed or was removed. Out: [`PodUpdate`]s in
//! the order REMOVE, ADD, UPDATE, DELETE, then an empty ADD if this was the first delivery and it had no
//! other update, then RECONCILE. One pod costs one look-up; the number of pods does not matter. Invariants: a
//! full name has one pod; pods are compared by spec, labels, their own annotations and deletion fields;
//! annotations that the node added stay. Upstream: pkg/kubelet/config/config.go, pkg/kubelet/config/mux.go.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::ids::PodKey;
use agent_types::pod::{self, CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE};
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::{PodOp, PodUpdate, Source};

/// Annotations that the node adds; they are no part of the desired pod.
const LOCAL_ANNOTATIONS: [&str; 3] = [CONFIG_SOURCE, CONFIG_SEEN, CONFIG_MIRROR];

/// A pod that was left out because another one has its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateName {
    /// The pod that was left out.
    pub pod: PodKey,
    /// Where it came from.
    pub source: Source,
}

/// The pods of one source, by UID.
#[derive(Clone, Debug)]
pub struct PodStorage {
    source: Source,
    pods: BTreeMap<String, Arc<Pod>>,
    /// Full name to UID.
    names: BTreeMap<String, String>,
    seen: bool,
}

/// Pods by kind of change.
#[derive(Default)]
struct Changes {
    add: Vec<Arc<Pod>>,
    update: Vec<Arc<Pod>>,
    delete: Vec<Arc<Pod>>,
    reconcile: Vec<Arc<Pod>>,
}

impl PodStorage {
    /// A source that delivered nothing yet.
    #[must_use]
    pub fn new(source: Source) -> PodStorage {
        PodStorage { source, pods: BTreeMap::new(), names: BTreeMap::new(), seen: false }
    }

    /// True after the first delivery.
    #[must_use]
    pub fn seen(&self) -> bool {
        self.seen
    }

    /// Replaces everything by `pods`; of two with one name or one UID the earlier stays. New ones come by
    /// age, the oldest first.
    pub fn set(&mut self, pods: Vec<Arc<Pod>>, now: Wall) -> (Vec<PodUpdate>, Vec<DuplicateName>) {
        let mut changes = Changes::default();
        let mut duplicates = Vec::new();
        let mut names = BTreeMap::new();
        let mut next: BTreeMap<String, Arc<Pod>> = BTreeMap::new();
        for incoming in pods {
            let uid = pod::uid(&incoming).to_owned();
            let full_name = pod::full_name(&incoming);
            if next.contains_key(&uid) || names.contains_key(&full_name) {
                duplicates.push(DuplicateName { pod: pod::key(&incoming), source: self.source });
                continue;
            }
            names.insert(full_name, uid.clone());
            let kept = match self.pods.get(&uid) {
                Some(old) => merge(old, &incoming, &mut changes),
                None => {
                    let pod = Arc::new(first_seen(&incoming, self.source, now));
                    changes.add.push(Arc::clone(&pod));
                    pod
                }
            };
            next.insert(uid, kept);
        }
        let gone = self.pods.iter().filter(|(uid, _)| !next.contains_key(*uid));
        let remove: Vec<Arc<Pod>> = gone.map(|(_, pod)| Arc::clone(pod)).collect();
        self.pods = next;
        self.names = names;
        // Of those that do not fit together the older ones stay (upstream: PodsByCreationTime).
        changes.add.sort_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|at| at.0));
        (self.updates(remove, changes), duplicates)
    }

    /// One pod was created or changed. A pod of its name with another UID is gone: a name has one owner.
    pub fn apply(&mut self, incoming: &Pod, now: Wall) -> Vec<PodUpdate> {
        let uid = pod::uid(incoming).to_owned();
        let before = self.names.insert(pod::full_name(incoming), uid.clone());
        let replaced = before.filter(|old| *old != uid).and_then(|old| self.pods.remove(&old));
        let mut changes = Changes::default();
        let kept = match self.pods.get(&uid) {
            Some(old) => {
                let name = pod::full_name(old);
                if name != pod::full_name(incoming) && self.names.get(&name) == Some(&uid) {
                    self.names.remove(&name);
                }
                merge(old, incoming, &mut changes)
            }
            None => {
                let pod = Arc::new(first_seen(incoming, self.source, now));
                changes.add.push(Arc::clone(&pod));
                pod
            }
        };
        self.pods.insert(uid, kept);
        self.updates(replaced.into_iter().collect(), changes)
    }

    /// The pod of this UID is gone.
    pub fn remove(&mut self, uid: &str) -> Vec<PodUpdate> {
        let Some(pod) = self.pods.remove(uid) else { return Vec::new() };
        let name = pod::full_name(&pod);
        if self.names.get(&name).is_some_and(|owner| owner == uid) {
            self.names.remove(&name);
        }
        self.updates(vec![pod], Changes::default())
    }

    /// The pods that are there, as they were delivered.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.values()
    }

    fn updates(&mut self, remove: Vec<Arc<Pod>>, changes: Changes) -> Vec<PodUpdate> {
        let Changes { add, update, delete, reconcile } = changes;
        let first = !std::mem::replace(&mut self.seen, true);
        let silent = add.is_empty() && update.is_empty() && delete.is_empty();
        let mut updates = Vec::new();
        let mut push = |op, pods: Vec<Arc<Pod>>| {
            if !pods.is_empty() {
                updates.push(PodUpdate { source: self.source, op, pods });
            }
        };
        push(PodOp::Remove, remove);
        push(PodOp::Add, add);
        push(PodOp::Update, update);
        push(PodOp::Delete, delete);
        if first && silent {
            updates.push(PodUpdate { source: self.source, op: PodOp::Add, pods: Vec::new() });
        }
        if !reconcile.is_empty() {
            updates.push(PodUpdate { source: self.source, op: PodOp::Reconcile, pods: reconcile });
        }
        updates
    }
}

/// The pod as it is kept, and the change it means.
fn merge(old: &Arc<Pod>, incoming: &Pod, changes: &mut Changes) -> Arc<Pod> {
    let differs = differs(old, incoming);
    if !differs && old.status == incoming.status {
        return Arc::clone(old);
    }
    let mut pod = slim(incoming);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    for key in LOCAL_ANNOTATIONS {
        if let Some(value) = pod::annotation(old, key) {
            annotations.insert(key.to_owned(), value.to_owned());
        }
    }
    let pod = Arc::new(pod);
    let list = if !differs {
        &mut changes.reconcile
    } else if pod.metadata.deletion_timestamp.is_some() {
        &mut changes.delete
    } else {
        &mut changes.update
    };
    list.push(Arc::clone(&pod));
    pod
}

fn differs(old: &Pod, new: &Pod) -> bool {
    let own = |pod: &Pod| {
        let mut annotations = pod::annotations(pod).clone();
        annotations.retain(|key, _| !LOCAL_ANNOTATIONS.contains(&key.as_str()));
        annotations
    };
    old.spec != new.spec
        || pod::labels(old) != pod::labels(new)
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || old.metadata.deletion_grace_period_seconds != new.metadata.deletion_grace_period_seconds
        || own(old) != own(new)
}

/// A copy without `managedFields`: the node does not use them, and they can be most of a pod.
fn slim(pod: &Pod) -> Pod {
    let mut meta = pod.metadata.clone();
    meta.managed_fields = None;
    Pod { metadata: meta, spec: pod.spec.clone(), status: pod.status.clone() }
}

fn first_seen(pod: &Pod, source: Source, now: Wall) -> Pod {
    let mut pod = slim(pod);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    let seen = Timestamp::from_nanosecond(i128::from(now.0)).map(|t| t.to_string()).unwrap_or_default();
    annotations.insert(CONFIG_SEEN.to_owned(), seen);
    annotations.insert(CONFIG_SOURCE.to_owned(), source.as_str().to_owned());
    pod
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Wall = Wall(1_700_000_000_123_456_789);

    fn pod(uid: &str, name: &str, image: &str) -> Pod {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"uid": uid, "name": name, "namespace": "ns", "annotations": {"own": "1"}},
            "spec": {"containers": [{"name": "c", "image": image}]}, "status": {"phase": "Pending"}}))
        .unwrap()
    }

    fn set(storage: &mut PodStorage, pods: &[Pod]) -> Vec<(PodOp, Vec<String>)> {
        let pods = pods.iter().cloned().map(Arc::new).collect();
        let (updates, _) = storage.set(pods, NOW);
        updates.iter().map(|u| (u.op, u.pods.iter().map(|p| pod::uid(p).to_owned()).collect())).collect()
    }

    fn uids(list: &[&str]) -> Vec<String> {
        list.iter().map(|u| (*u).to_owned()).collect()
    }

    #[test]
    fn changes_come_in_order() {
        let mut storage = PodStorage::new(Source::File);
        assert!(!storage.seen());
        let first = [
            pod("1", "a", "i"),
            pod("2", "b", "i"),
            pod("3", "c", "i"),
            pod("4", "d", "i"),
            pod("5", "e", "i"),
        ];
        assert_eq!(set(&mut storage, &first), [(PodOp::Add, uids(&["1", "2", "3", "4", "5"]))]);
        assert!(storage.seen());
        assert_eq!(set(&mut storage, &first), []);

        let mut deleted = pod("3", "c", "i");
        deleted.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        let mut running = pod("4", "d", "i");
        running.status.as_mut().unwrap().phase = Some("Running".to_owned());
        let second = [pod("6", "f", "i"), pod("2", "b", "j"), deleted, running, pod("5", "e", "i")];
        let expected = [
            (PodOp::Remove, uids(&["1"])),
            (PodOp::Add, uids(&["6"])),
            (PodOp::Update, uids(&["2"])),
            (PodOp::Delete, uids(&["3"])),
            (PodOp::Reconcile, uids(&["4"])),
        ];
        assert_eq!(set(&mut storage, &second), expected);
        assert_eq!(set(&mut storage, &[]).len(), 1);
    }

    #[test]
    fn an_empty_first_delivery_still_says_that_the_source_was_read() {
        let mut storage = PodStorage::new(Source::File);
        assert_eq!(set(&mut storage, &[]), [(PodOp::Add, vec![])]);
        assert_eq!(set(&mut storage, &[]), []);
    }

    #[test]
    fn the_later_of_two_with_one_name_is_left_out_and_named() {
        let mut storage = PodStorage::new(Source::File);
        let pods =
            vec![Arc::new(pod("1", "a", "i")), Arc::new(pod("2", "a", "i")), Arc::new(pod("1", "b", "i"))];
        let (updates, duplicates) = storage.set(pods, NOW);
        assert_eq!(updates[0].pods.len(), 1);
        let expected = [("a_ns", "2"), ("b_ns", "1")];
        let expected: Vec<_> = expected
            .iter()
            .map(|(n, u)| {
                let (name, namespace) = n.split_once('_').unwrap();
                let pod = PodKey { namespace: namespace.into(), name: name.into(), uid: (*u).into() };
                DuplicateName { pod, source: Source::File }
            })
            .collect();
        assert_eq!(duplicates, expected);
    }

    #[test]
    fn annotations_of_the_node_stay_and_do_not_count_as_changes() {
        let mut storage = PodStorage::new(Source::File);
        let (updates, _) = storage.set(vec![Arc::new(pod("1", "a", "i"))], NOW);
        let first = &updates[0].pods[0];
        assert_eq!(pod::annotation(first, CONFIG_SEEN), Some("2023-11-14T22:13:20.123456789Z"));
        assert_eq!(pod::annotation(first, CONFIG_SOURCE), Some("file"));

        let mut changed = pod("1", "a", "i");
        changed.metadata.annotations.as_mut().unwrap().insert("own".into(), "2".into());
        let (updates, _) = storage.set(vec![Arc::new(changed)], Wall(0));
        let second = &updates[0].pods[0];
        assert_eq!(updates[0].op, PodOp::Update);
        assert_eq!(pod::annotation(second, "own"), Some("2"));
        assert_eq!(pod::annotation(second, CONFIG_SEEN), Some("2023-11-14T22:13:20.123456789Z"));
    }
}
