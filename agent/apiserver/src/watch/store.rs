//! The objects as they were delivered last.
//!
//! In: decoded objects. Out: shared pointers for the consumer. Invariants: holds the objects that the consumer got and
//! nothing else, so that an object that no longer decodes can stand as it was; holds it as text, which is a fifth of a
//! decoded pod: the consumer keeps what it needs of the object, and the text is read only when the server's new object
//! does not decode.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::decode::{Item, Key};

#[derive(Debug)]
pub(super) struct Store {
    known: BTreeMap<String, StoredObject>,
}

/// One object.
#[derive(Clone, Debug)]
struct StoredObject {
    uid: Option<String>,
    version: Option<String>,
    json: Box<str>,
}

impl StoredObject {
    /// `None` for an object that is no text, which the types of Kubernetes are not.
    fn of<T: Resource + Serialize>(object: &T) -> Option<StoredObject> {
        let (uid, version) = (object.meta().uid.clone(), object.meta().resource_version.clone());
        let json = serde_json::to_string(object).ok()?.into_boxed_str();
        Some(StoredObject { uid, version, json })
    }

    fn is<T: Resource>(&self, object: &T) -> bool {
        let meta = object.meta();
        self.version.is_some() && (&self.uid, &self.version) == (&meta.uid, &meta.resource_version)
    }

    fn object<T: DeserializeOwned>(&self) -> Option<Arc<T>> {
        serde_json::from_str(&self.json).ok().map(Arc::new)
    }
}

impl Store {
    pub(super) fn new() -> Store {
        Store { known: BTreeMap::new() }
    }

    pub(super) fn apply<T: Resource + Serialize>(&mut self, key: &Key, object: T) -> Arc<T> {
        let name = key.full_name();
        if let Some(kept) = self.kept(&name, &object) {
            self.known.insert(name, kept);
        }
        Arc::new(object)
    }

    /// The object as text; the text that is there, if it is the same object at the same version.
    fn kept<T: Resource + Serialize>(&mut self, name: &str, object: &T) -> Option<StoredObject> {
        self.known.remove(name).filter(|known| known.is(object)).or_else(|| StoredObject::of(object))
    }

    /// The object as it was last: the server's words if they decode, else ours.
    pub(super) fn delete<T: DeserializeOwned>(&mut self, key: &Key, object: Option<T>) -> Option<Arc<T>> {
        let known = self.known.remove(&key.full_name());
        object.map(Arc::new).or_else(|| known?.object())
    }

    /// Everything there is. What does not decode stands as it was; returns the list and who that was, and why.
    pub(super) fn replace<T: Resource + Serialize + DeserializeOwned>(
        &mut self,
        items: Vec<Item<T>>,
    ) -> (Vec<Arc<T>>, Vec<(String, String)>) {
        let (mut now, mut listed, mut bad) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        for item in items {
            match item {
                Item::Good(key, object) => {
                    let name = key.full_name();
                    if let Some(kept) = self.kept(&name, &object) {
                        now.insert(name.clone(), kept);
                    }
                    listed.insert(name, Arc::new(object));
                }
                Item::Bad(key, why) => {
                    let name = key.full_name();
                    if let Some((kept, object)) =
                        self.known.remove(&name).and_then(|k| Some((k.clone(), k.object()?)))
                    {
                        listed.insert(name.clone(), object);
                        now.insert(name.clone(), kept);
                    }
                    bad.push((name, why));
                }
                Item::Nameless(why) => bad.push((String::new(), why)),
            }
        }
        self.known = now;
        (listed.into_values().collect(), bad)
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
        assert_eq!(listed, [Arc::clone(&first)]);
        assert_eq!(bad, [("a".to_owned(), "why".to_owned())]);
        let (listed, _) = store.replace(vec![Item::Good(key(), pod("1"))]);
        assert_eq!(listed, [Arc::clone(&first)]);
        let (listed, _) = store.replace(vec![Item::Good(key(), pod("2"))]);
        assert_ne!(listed, [first]);
        assert_eq!(
            store.delete::<Pod>(&key(), None).unwrap().metadata.resource_version.as_deref(),
            Some("2")
        );
        assert_eq!(store.delete::<Pod>(&key(), None), None);
        assert!(store.replace::<Pod>(vec![Item::Bad(key(), String::new())]).0.is_empty());
    }
}
