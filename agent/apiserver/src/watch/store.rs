//! The objects as they were delivered last.
//!
//! In: decoded objects. Out: shared pointers, the same for an object that has not changed. Invariant: holds what the
//! consumer was told and nothing else, so that an object that no longer decodes can stand as it was.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Resource;

use super::decode::{Item, Key};

#[derive(Debug)]
pub(super) struct Store<T> {
    known: BTreeMap<String, Arc<T>>,
}

impl<T: Resource> Store<T> {
    pub(super) fn new() -> Store<T> {
        Store { known: BTreeMap::new() }
    }

    pub(super) fn apply(&mut self, key: &Key, object: T) -> Arc<T> {
        let object = self.shared(key, object);
        self.known.insert(key.full_name(), Arc::clone(&object));
        object
    }

    /// The pointer that the consumer has already, if it is the same object at the same version.
    fn shared(&self, key: &Key, object: T) -> Arc<T> {
        let known = self.known.get(&key.full_name()).filter(|known| {
            let (old, new) = (known.meta(), object.meta());
            new.resource_version.is_some()
                && (&old.uid, &old.resource_version) == (&new.uid, &new.resource_version)
        });
        known.cloned().unwrap_or_else(|| Arc::new(object))
    }

    /// The object as it was last: the server's words if they decode, else ours.
    pub(super) fn delete(&mut self, key: &Key, object: Option<T>) -> Option<Arc<T>> {
        let known = self.known.remove(&key.full_name());
        object.map(Arc::new).or(known)
    }

    /// Everything there is. What does not decode stands as it was; returns the list and who that was, and why.
    pub(super) fn replace(&mut self, items: Vec<Item<T>>) -> (Vec<Arc<T>>, Vec<(String, String)>) {
        let (mut now, mut bad) = (BTreeMap::new(), Vec::new());
        for item in items {
            match item {
                Item::Good(key, object) => {
                    now.insert(key.full_name(), self.shared(&key, object));
                }
                Item::Bad(key, why) => {
                    let name = key.full_name();
                    if let Some(known) = self.known.get(&name) {
                        now.insert(name.clone(), Arc::clone(known));
                    }
                    bad.push((name, why));
                }
                Item::Nameless(why) => bad.push((String::new(), why)),
            }
        }
        self.known = now;
        (self.known.values().cloned().collect(), bad)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn pod(version: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("a".to_owned());
        pod.metadata.resource_version = Some(version.to_owned());
        pod
    }

    fn key() -> Key {
        Key { name: Some("a".to_owned()), ..Key::default() }
    }

    #[test]
    fn what_does_not_decode_stands_as_it_was() {
        let mut store = Store::new();
        let first = store.apply(&key(), pod("1"));
        let (listed, bad) = store.replace(vec![Item::Bad(key(), "why".to_owned())]);
        assert!(Arc::ptr_eq(&listed[0], &first));
        assert_eq!(bad, [("a".to_owned(), "why".to_owned())]);
        let (listed, _) = store.replace(vec![Item::Good(key(), pod("1"))]);
        assert!(Arc::ptr_eq(&listed[0], &first), "unchanged: the same pointer");
        let (listed, _) = store.replace(vec![Item::Good(key(), pod("2"))]);
        assert!(!Arc::ptr_eq(&listed[0], &first));
        assert_eq!(store.delete(&key(), None).unwrap().metadata.resource_version.as_deref(), Some("2"));
        assert_eq!(store.delete(&key(), None), None);
        assert!(store.replace(vec![Item::Bad(key(), String::new())]).0.is_empty());
    }
}
