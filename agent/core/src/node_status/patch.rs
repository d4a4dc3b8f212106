//! The strategic merge patch from one Node to another: only differences of metadata and status.
//!
//! In: the Node of the API server, the new Node. Out: a patch, or nothing. Invariants: the patch of the old
//! Node gives the new one; the patch never contains the spec. Conditions merge by `type`. The API declares
//! that addresses merge by `type` too, which cannot express two of one type: a changed list is sent whole
//! with a replace directive, as upstream does. The patch contains the UID, so that it does not apply to a
//! replaced Node. Upstream: component-helpers/node/util/status.go.

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use serde_json::{Map, Value, json};

/// True if `new` differs from `old` in more than heartbeats.
pub(super) fn differs(old: &Node, new: &Node) -> bool {
    old.metadata != new.metadata || without_heartbeats(old) != without_heartbeats(new)
}

fn without_heartbeats(node: &Node) -> NodeStatus {
    let mut status = node.status.clone().unwrap_or_default();
    let conditions = status.conditions.get_or_insert_default();
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    for condition in conditions {
        condition.last_heartbeat_time = None;
    }
    // Absent and empty are equal.
    status.addresses.get_or_insert_default();
    status.capacity.get_or_insert_default();
    status.allocatable.get_or_insert_default();
    status
}

/// The patch from `old` to `new`; `None` if nothing differs.
pub(super) fn node_status(old: &Node, new: &Node) -> Option<Value> {
    let value = |part: Result<Value, serde_json::Error>| part.unwrap_or_default();
    let mut patch = Map::new();
    let (old_meta, new_meta) =
        (value(serde_json::to_value(&old.metadata)), value(serde_json::to_value(&new.metadata)));
    if let Some(metadata) = changed(&old_meta, &new_meta, false) {
        patch.insert("metadata".to_owned(), metadata);
    }
    let (old_status, new_status) =
        (value(serde_json::to_value(&old.status)), value(serde_json::to_value(&new.status)));
    if let Some(status) = changed(&or_empty(old_status), &or_empty(new_status), true) {
        patch.insert("status".to_owned(), status);
    }
    if patch.is_empty() {
        return None;
    }
    if let Some(uid) = &old.metadata.uid {
        let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
        metadata["uid"] = json!(uid);
    }
    Some(Value::Object(patch))
}

fn or_empty(value: Value) -> Value {
    if value.is_null() { json!({}) } else { value }
}

/// The merge patch from `old` to `new`; `None` without a difference. `is_status` is true for the status
/// itself, whose lists have their own rules.
fn changed(old: &Value, new: &Value, is_status: bool) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut patch = Map::new();
    for (key, value) in new {
        let part = match (old.get(key), key.as_str()) {
            (Some(was), "conditions") if is_status => conditions(was, value, &mut patch),
            (Some(was), "addresses") if is_status && was != value => Some(replaced(value)),
            (Some(was), _) => changed(was, value, false),
            (None, _) => Some(value.clone()),
        };
        if let Some(part) = part {
            patch.insert(key.clone(), part);
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The whole list instead of the one that is there.
fn replaced(list: &Value) -> Value {
    let mut items = list.as_array().cloned().unwrap_or_default();
    items.push(json!({"$patch": "replace"}));
    Value::Array(items)
}

/// Entries that differ, with their `type`; the order of all goes into `patch`.
fn conditions(old: &Value, new: &Value, patch: &mut Map<String, Value>) -> Option<Value> {
    let (old, new) = (old.as_array()?, new.as_array()?);
    let kind = |condition: &Value| condition["type"].clone();
    let mut entries = Vec::new();
    for condition in new {
        let was = old.iter().find(|c| kind(c) == kind(condition));
        let Some(mut entry) = was.map_or(Some(condition.clone()), |was| changed(was, condition, false))
        else {
            continue;
        };
        entry["type"] = kind(condition);
        entries.push(entry);
    }
    for gone in old.iter().filter(|was| !new.iter().any(|c| kind(c) == kind(was))) {
        entries.push(json!({"$patch": "delete", "type": kind(gone)}));
    }
    if entries.is_empty() {
        return None;
    }
    let order: Vec<Value> = new.iter().map(|c| json!({"type": kind(c)})).collect();
    patch.insert("$setElementOrder/conditions".to_owned(), Value::Array(order));
    Some(Value::Array(entries))
}
