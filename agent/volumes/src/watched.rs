//! Watches of objects: those that pods of this node get values from, and no others (SECRET-SCOPE).
//!
//! In: the desired pods of the node, events of watches. Out: watches to begin and to end, pods whose values
//! changed. Invariants: one watch for an object, also if it has several pods; none for an immutable object,
//! once it is known; an object without a pod is forgotten, except the Services of a few namespaces: every
//! pod needs those, and a namespace whose pods come one at a time would list them for each. Upstream:
//! pkg/kubelet/util/manager/watch_based_manager.go.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use agent_types::ids::PodUid;
use agent_types::objects::{Fetched, ObjectData, ObjectKind, ObjectRef};

/// So many Services' watches outlive their last pod.
const UNUSED_MAX: usize = 8;

/// What a watch says about its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectNews {
    /// It is there, like this.
    Found {
        /// What it holds.
        data: ObjectData,
        /// It will never change.
        immutable: bool,
    },
    /// There is none.
    Missing,
    /// The API server cannot be reached; what was known stands.
    Lost(String),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchAction {
    /// Begin to watch.
    Begin(ObjectRef),
    /// End it.
    End(ObjectRef),
    /// The values of these pods changed.
    Changed(BTreeSet<PodUid>),
}

#[derive(Clone, Debug, Default)]
struct Watched {
    pods: BTreeSet<PodUid>,
    known: Option<Fetched>,
    /// A request waited for it in vain.
    missed: bool,
}

/// True for kinds that are watched independently of the strategy for Secrets and ConfigMaps.
#[must_use]
pub fn is_always_watched(kind: ObjectKind) -> bool {
    match kind {
        ObjectKind::Services | ObjectKind::RuntimeClass | ObjectKind::TrustBundles => true,
        ObjectKind::Secret | ObjectKind::ConfigMap => false,
    }
}

/// The objects that pods of this node use.
#[derive(Clone, Debug, Default)]
pub struct WatchedObjects {
    objects: BTreeMap<ObjectRef, Watched>,
    pods: BTreeMap<PodUid, BTreeSet<ObjectRef>>,
    /// Services that no pod uses; the longest unused first.
    unused: VecDeque<ObjectRef>,
}

impl WatchedObjects {
    /// A pod uses these objects now; none if it is gone.
    pub fn pod(&mut self, uid: &PodUid, objects: BTreeSet<ObjectRef>) -> Vec<WatchAction> {
        let mut actions = Vec::new();
        let before = self.pods.remove(uid).unwrap_or_default();
        for object in objects.difference(&before) {
            let watched = self.objects.entry(object.clone()).or_insert_with(|| {
                actions.push(WatchAction::Begin(object.clone()));
                Watched::default()
            });
            watched.pods.insert(uid.clone());
            self.unused.retain(|unused| unused != object);
        }
        for object in before.difference(&objects) {
            let Some(watched) = self.objects.get_mut(object) else { continue };
            watched.pods.remove(uid);
            if watched.pods.is_empty() {
                actions.extend(self.unused(object).map(WatchAction::End));
            }
        }
        if !objects.is_empty() {
            self.pods.insert(uid.clone(), objects);
        }
        actions
    }

    /// No pod uses it any more: which watch ends for it, if any.
    fn unused(&mut self, object: &ObjectRef) -> Option<ObjectRef> {
        let ended = if object.kind == ObjectKind::Services {
            self.unused.push_back(object.clone());
            (self.unused.len() > UNUSED_MAX).then(|| self.unused.pop_front())??
        } else {
            object.clone()
        };
        self.objects.remove(&ended);
        Some(ended)
    }

    /// A watch said something.
    pub fn heard(&mut self, object: &ObjectRef, news: ObjectNews) -> Vec<WatchAction> {
        let Some(watched) = self.objects.get_mut(object) else { return Vec::new() };
        let (now, immutable) = match news {
            ObjectNews::Lost(_) => return Vec::new(),
            ObjectNews::Missing => (Fetched::Missing, false),
            ObjectNews::Found { data, immutable } => (Fetched::Found(data), immutable),
        };
        let mut actions = Vec::new();
        // A change of a Service reaches only new containers.
        let told = object.kind != ObjectKind::Services;
        let differs = watched.known.as_ref().map_or(watched.missed, |known| told && *known != now);
        if differs {
            actions.push(WatchAction::Changed(watched.pods.clone()));
        }
        watched.known = Some(now);
        if immutable {
            actions.push(WatchAction::End(object.clone()));
        }
        actions
    }

    /// What is known; `None` until its watch has said something.
    #[must_use]
    pub fn known(&self, object: &ObjectRef) -> Option<Fetched> {
        self.objects.get(object)?.known.clone()
    }

    /// A request gave up waiting: the object's pods get an event when it is known.
    pub fn missed(&mut self, object: &ObjectRef) {
        if let Some(watched) = self.objects.get_mut(object) {
            watched.missed = true;
        }
    }

    /// Pods that use something.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef { kind: ObjectKind::Secret, namespace: "ns".to_owned(), name: name.to_owned() }
    }

    fn found(value: &str, immutable: bool) -> ObjectNews {
        let data = BTreeMap::from([("k".to_owned(), value.as_bytes().to_vec())]);
        ObjectNews::Found { data: ObjectData { data, ..ObjectData::default() }, immutable }
    }

    fn set(names: &[&str]) -> BTreeSet<ObjectRef> {
        names.iter().map(|n| object(n)).collect()
    }

    fn uids(names: &[&str]) -> BTreeSet<PodUid> {
        names.iter().map(|n| PodUid::from(*n)).collect()
    }

    #[test]
    fn one_watch_for_an_object_while_a_pod_uses_it() {
        let mut all = WatchedObjects::default();
        let (p, q) = (PodUid::from("p"), PodUid::from("q"));
        let begin = |name| WatchAction::Begin(object(name));
        assert_eq!(all.pod(&p, set(&["a", "b"])), [begin("a"), begin("b")]);
        assert_eq!(all.pod(&q, set(&["b"])), []);
        assert_eq!(all.pod(&q, set(&["b"])), []);
        assert_eq!(all.pod(&p, set(&["b"])), [WatchAction::End(object("a"))]);
        assert_eq!(all.pod(&p, set(&[])), []);
        assert_eq!(all.pods().collect::<Vec<_>>(), [&q]);
        assert_eq!(all.heard(&object("b"), found("1", false)), []);
        assert_eq!(all.pod(&q, set(&[])), [WatchAction::End(object("b"))]);
        assert_eq!(all.known(&object("b")), None, "nothing is kept");
        assert_eq!(all.heard(&object("b"), found("2", false)), [], "a late word of an ended watch");
    }

    #[test]
    fn pods_hear_of_changes() {
        let mut all = WatchedObjects::default();
        for uid in ["p", "q"] {
            all.pod(&PodUid::from(uid), set(&["a"]));
        }
        assert_eq!(all.known(&object("a")), None);
        assert_eq!(all.heard(&object("a"), ObjectNews::Lost("down".to_owned())), []);
        assert_eq!(all.known(&object("a")), None);
        assert_eq!(all.heard(&object("a"), ObjectNews::Missing), []);
        assert_eq!(all.known(&object("a")), Some(Fetched::Missing));
        let changed = [WatchAction::Changed(uids(&["p", "q"]))];
        assert_eq!(all.heard(&object("a"), found("1", false)), changed);
        assert_eq!(all.heard(&object("a"), found("1", false)), []);
        assert_eq!(all.heard(&object("a"), ObjectNews::Lost("down".to_owned())), []);
        assert!(matches!(all.known(&object("a")), Some(Fetched::Found(_))));
        let end = WatchAction::End(object("a"));
        assert_eq!(all.heard(&object("a"), found("2", true)), [changed[0].clone(), end]);
        assert!(matches!(all.known(&object("a")), Some(Fetched::Found(_))), "it is known for good");
    }

    #[test]
    fn of_services_nobody_hears_who_did_not_wait() {
        let mut all = WatchedObjects::default();
        let services = ObjectRef { kind: ObjectKind::Services, ..object("") };
        all.pod(&PodUid::from("p"), BTreeSet::from([services.clone()]));
        all.missed(&services);
        assert_eq!(all.heard(&services, found("1", false)), [WatchAction::Changed(uids(&["p"]))]);
        assert_eq!(all.heard(&services, found("2", false)), []);
        assert!(matches!(all.known(&services), Some(Fetched::Found(d)) if d.data["k"] == b"2"));
    }

    #[test]
    fn services_outlive_their_pods_for_a_while() {
        let mut all = WatchedObjects::default();
        let of = |namespace: usize| ObjectRef {
            kind: ObjectKind::Services,
            namespace: format!("ns{namespace}"),
            name: String::new(),
        };
        let p = PodUid::from("p");
        for namespace in 0..=UNUSED_MAX {
            assert_eq!(all.pod(&p, BTreeSet::from([of(namespace)])), [WatchAction::Begin(of(namespace))]);
        }
        all.heard(&of(1), found("1", false));
        assert_eq!(all.pod(&p, BTreeSet::from([of(1)])), [], "it is watched still");
        assert!(matches!(all.known(&of(1)), Some(Fetched::Found(_))));
        // 0 and 2 to 8 are unused now; one more is one too many.
        assert_eq!(all.pod(&p, BTreeSet::from([of(2)])), [], "so is this");
        let next = of(UNUSED_MAX + 1);
        assert_eq!(
            all.pod(&p, BTreeSet::from([next.clone()])),
            [WatchAction::Begin(next), WatchAction::End(of(0))]
        );
        assert_eq!(all.known(&of(0)), None);
    }

    #[test]
    fn who_waited_in_vain_hears_of_the_first_word() {
        let mut all = WatchedObjects::default();
        all.pod(&PodUid::from("p"), set(&["a"]));
        all.missed(&object("a"));
        assert_eq!(all.heard(&object("a"), found("1", false)), [WatchAction::Changed(uids(&["p"]))]);
    }
}
