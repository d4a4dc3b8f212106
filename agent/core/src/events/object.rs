//! One fact as an Event object.
//!
//! In: a fact, the node, the time. Out: the object with upstream's form of name. Pure. Upstream: `makeEvent`
//! of client-go/tools/record/event.go, `GenerateContainerRef` of pkg/kubelet/container/ref.go.

use agent_types::event::EventKind;
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Fact, InvolvedObject, MESSAGE_BYTES_MAX};
use crate::pod_source::identity::digest;
use crate::status::api_time;

/// Reporting component.
const COMPONENT: &str = "kubelet";
/// Longest name of an object.
const NAME_MAX: usize = 253;

pub(super) fn event(fact: Fact, node_name: &str, now: Wall, name_ns: i64) -> Event {
    let text = |t: &str| Some(t.to_owned());
    let object = match fact.about {
        InvolvedObject::Pod { key, field_path, resource_version } => ObjectReference {
            api_version: text("v1"),
            kind: text("Pod"),
            namespace: text(&key.namespace),
            name: text(&key.name),
            uid: text(key.uid.as_str()),
            field_path,
            resource_version,
        },
        InvolvedObject::Claim { namespace, claim } => ObjectReference {
            api_version: text("v1"),
            kind: text("PersistentVolumeClaim"),
            namespace: text(&namespace),
            name: Some(claim.name),
            uid: Some(claim.uid),
            ..ObjectReference::default()
        },
        // The Node's own UID is not used: people look for events under the node's name.
        InvolvedObject::Node => ObjectReference {
            kind: text("Node"),
            name: text(node_name),
            uid: text(node_name),
            ..ObjectReference::default()
        },
    };
    let namespace =
        object.namespace.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned());
    let name = event_name(object.name.as_deref().unwrap_or(""), name_ns);
    let time = api_time(now);
    let mut message = fact.message;
    let mut end = MESSAGE_BYTES_MAX.min(message.len());
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.truncate(end);
    let kind = match fact.kind {
        EventKind::Normal => "Normal",
        EventKind::Warning => "Warning",
    };
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace),
            annotations: Some(fact.annotations).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        },
        involved_object: object,
        reason: Some(fact.reason),
        message: Some(message),
        source: Some(EventSource { component: text(COMPONENT), host: text(node_name) }),
        first_timestamp: time.clone(),
        last_timestamp: time,
        count: Some(1),
        type_: text(kind),
        reporting_component: text(COMPONENT),
        reporting_instance: text(node_name),
        ..Event::default()
    }
}

/// `<object>.<nanoseconds in hex>`; an object's name that leaves no room for that is replaced by its digest.
pub(super) fn event_name(object: &str, ns: i64) -> String {
    let name = format!("{object}.{ns:x}");
    if name.len() <= NAME_MAX && !object.is_empty() {
        return name;
    }
    format!("{:032x}.{ns:x}", digest(object.as_bytes()))
}
