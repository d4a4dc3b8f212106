//! What the server writes on a watch or in a list, as values.
//!
//! In: bytes. Out: [`Frame`]s, list items. Invariants: an object that does not decode is distinguished from a
//! stream that makes no sense; decoding never panics; `managedFields` are dropped.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Resource;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::client::forget_managed_fields;
use crate::error::cut;
use crate::json;

/// Marks the bookmark after the last object of a streamed list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// One line of a watch.
#[derive(Debug)]
pub(super) enum Frame<T> {
    /// ADDED or MODIFIED.
    Applied(Key, T),
    /// DELETED.
    Deleted(Key, Option<T>),
    /// An object that does not decode, and why. `deleted`: the event was DELETED.
    Undecodable(Key, String),
    /// BOOKMARK.
    Bookmark {
        /// The version up to which the stream has delivered.
        version: String,
        /// The streamed list is complete.
        listed: bool,
    },
    /// ERROR.
    Refused(Box<Status>),
    /// No event at all.
    Nonsense(String),
}

/// What every object has, decoded even where the rest is not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Key {
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) resource_version: Option<String>,
}

impl Key {
    /// `namespace/name`, the key of the store.
    pub(super) fn full_name(&self) -> String {
        let name = self.name.as_deref().unwrap_or_default();
        match self.namespace.as_deref() {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        }
    }
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct OnlyKey {
    metadata: Key,
}

#[derive(Deserialize)]
struct Mark {
    metadata: MarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MarkMeta {
    resource_version: String,
    #[serde(default)]
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

/// Reads one line.
pub(super) fn frame<T: DeserializeOwned + Resource>(line: &[u8]) -> Frame<T> {
    let wire: Wire<'_> = match json::read(line) {
        Ok(wire) => wire,
        Err(error) => return Frame::Nonsense(error),
    };
    let text = wire.object.get();
    match wire.kind.as_str() {
        "ADDED" | "MODIFIED" => match item(text) {
            Item::Good(key, object) => Frame::Applied(key, object),
            Item::Bad(key, why) => Frame::Undecodable(key, why),
            Item::Nameless(why) => Frame::Nonsense(why),
        },
        "DELETED" => match item(text) {
            Item::Good(key, object) => Frame::Deleted(key, Some(object)),
            Item::Bad(key, _) => Frame::Deleted(key, None),
            Item::Nameless(why) => Frame::Nonsense(why),
        },
        "BOOKMARK" => match serde_json::from_str::<Mark>(text) {
            Ok(mark) => Frame::Bookmark {
                version: mark.metadata.resource_version,
                listed: mark
                    .metadata
                    .annotations
                    .is_some_and(|a| a.get(INITIAL_EVENTS_END).is_some_and(|v| v == "true")),
            },
            Err(error) => Frame::Nonsense(error.to_string()),
        },
        "ERROR" => match serde_json::from_str::<Box<Status>>(text) {
            Ok(status) => Frame::Refused(status),
            Err(error) => Frame::Nonsense(error.to_string()),
        },
        other => Frame::Nonsense(format!("event of type {:?}", cut(other))),
    }
}

/// One object of a list.
#[derive(Debug)]
pub(super) enum Item<T> {
    /// Whole.
    Good(Key, T),
    /// Named, and not of the shape it should have.
    Bad(Key, String),
    /// Not even named.
    Nameless(String),
}

fn item<T: DeserializeOwned + Resource>(text: &str) -> Item<T> {
    let key = match serde_json::from_str::<OnlyKey>(text) {
        Ok(only) if only.metadata.name.as_deref().is_some_and(|n| !n.is_empty()) => only.metadata,
        Ok(_) => return Item::Nameless("an object without a name".to_owned()),
        Err(error) => return Item::Nameless(format!("an object without metadata: {error}")),
    };
    match serde_json::from_str::<T>(text) {
        Ok(mut object) => {
            forget_managed_fields(object.meta_mut());
            Item::Good(key, object)
        }
        Err(error) => Item::Bad(key, cut(&error.to_string())),
    }
}

#[derive(Deserialize)]
struct WireList<'a> {
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
}

/// Reads a list: its version and its objects, one by one.
pub(super) fn list<T: DeserializeOwned + Resource>(body: &[u8]) -> Result<(String, Vec<Item<T>>), String> {
    let wire: WireList<'_> = json::read(body).map_err(|e| cut(&e))?;
    let items = wire.items.unwrap_or_default().into_iter().map(|i| item(i.get())).collect();
    Ok((wire.metadata.resource_version, items))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_bad_object_does_not_hide_the_others() {
        let body = br#"{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[
            {"metadata":{"name":"a","namespace":"d","managedFields":[{"manager":"x"}]}},
            {"metadata":{"name":"b","namespace":"d"},"spec":{"containers":"none"}},
            {"metadata":{}}, 3,
            {"metadata":{"name":"c"}}]}"#;
        let (version, items) = list::<Pod>(body).unwrap();
        assert_eq!(version, "7");
        let said: Vec<String> = items
            .iter()
            .map(|i| match i {
                Item::Good(k, pod) => {
                    assert!(pod.metadata.managed_fields.is_none());
                    format!("good {}", k.full_name())
                }
                Item::Bad(k, _) => format!("bad {}", k.full_name()),
                Item::Nameless(_) => "nameless".to_owned(),
            })
            .collect();
        assert_eq!(said, ["good d/a", "bad d/b", "nameless", "nameless", "good c"]);
    }

    #[test]
    fn frames_of_every_kind() {
        let said = |line: &str| match frame::<Pod>(line.as_bytes()) {
            Frame::Applied(k, _) => format!("applied {}", k.full_name()),
            Frame::Deleted(k, o) => format!("deleted {} {}", k.full_name(), o.is_some()),
            Frame::Undecodable(k, _) => format!("undecodable {}", k.full_name()),
            Frame::Bookmark { version, listed } => format!("bookmark {version} {listed}"),
            Frame::Refused(s) => format!("refused {:?}", s.code),
            Frame::Nonsense(_) => "nonsense".to_owned(),
        };
        for (line, expected) in [
            (r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#, "applied a"),
            (r#"{"type":"MODIFIED","object":{"metadata":{"name":"a"},"spec":1}}"#, "undecodable a"),
            (r#"{"type":"DELETED","object":{"metadata":{"name":"a"},"spec":1}}"#, "deleted a false"),
            (r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#, "bookmark 9 false"),
            (
                r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
                "bookmark 9 true",
            ),
            (r#"{"type":"ERROR","object":{"kind":"Status","code":410}}"#, "refused Some(410)"),
            (r#"{"type":"ADDED"}"#, "nonsense"),
            (r#"{"type":"OTHER","object":{}}"#, "nonsense"),
            (r#"{"type":"BOOKMARK","object":{}}"#, "nonsense"),
            ("garbage", "nonsense"),
        ] {
            assert_eq!(said(line), expected, "{line}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(said(&format!(r#"{{"type":"ADDED","object":{deep}"#)), "nonsense");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = frame::<Pod>(&bytes);
            let _ = list::<Pod>(&bytes);
        }
    }
}
