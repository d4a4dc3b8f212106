//! A strategic merge patch between two statuses, and the form in which statuses are compared.
//!
//! In: the API's status, the status to write. Out: the patch, or nothing if there is no difference. Pure. Invariant: the
//! patch applied to the first status gives the second, and touches nothing that is equal in both. Lists are merged
//! by key where the API merges them (`patchMergeKey` of PodStatus) and replaced as a whole elsewhere.
//! Upstream: strategicpatch.CreateTwoWayMergePatch, normalizeStatus.

use agent_types::pod;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

/// Termination messages of all containers of a pod together, bytes.
const MESSAGES_BYTES_MAX: usize = 12 * 1024;

/// What must hold for a patch to be applied.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// `metadata.uid`.
    pub uid: &'a str,
    /// `metadata.resourceVersion` of the base, if the patch requires it.
    pub resource_version: Option<&'a str>,
}

/// The body of a PATCH of the status subresource; `None` if nothing differs.
#[must_use]
pub fn status_patch(before: &PodStatus, after: &PodStatus, guard: &Guard<'_>) -> Option<Value> {
    if before == after {
        return None;
    }
    let object = |status| match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let changes = changes(&object(before), &object(after));
    if changes.is_empty() {
        return None;
    }
    let mut metadata = json!({"uid": guard.uid});
    if let Some(version) = guard.resource_version {
        metadata["resourceVersion"] = Value::String(version.to_owned());
    }
    Some(json!({"metadata": metadata, "status": changes}))
}

/// By which key the API merges a list of PodStatus.
fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "conditions" => Some("type"),
        "podIPs" | "hostIPs" => Some("ip"),
        "resourceClaimStatuses" => Some("name"),
        _ => None,
    }
}

fn changes(before: &Map<String, Value>, after: &Map<String, Value>) -> Map<String, Value> {
    let mut out = Map::new();
    for (field, new) in after {
        match (before.get(field), new) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) => {
                out.insert(field.clone(), Value::Object(changes(old, new)));
            }
            (Some(Value::Array(old)), Value::Array(new)) if merge_key(field).is_some() => {
                merged_list(field, old, new, &mut out);
            }
            (None, Value::Array(new)) if merge_key(field).is_some() => merged_list(field, &[], new, &mut out),
            (_, new) => {
                out.insert(field.clone(), new.clone());
            }
        }
    }
    for (field, old) in before.iter().filter(|(field, _)| !after.contains_key(*field)) {
        match old {
            Value::Array(old) if merge_key(field).is_some() => merged_list(field, old, &[], &mut out),
            _ => {
                out.insert(field.clone(), Value::Null);
            }
        }
    }
    out
}

/// New or changed items, in order, then removed items; with the order of the whole list as a directive.
fn merged_list<'a>(field: &str, before: &'a [Value], after: &'a [Value], out: &mut Map<String, Value>) {
    let Some(key) = merge_key(field) else { return };
    let id = |item: &Value| item.get(key).cloned().unwrap_or(Value::Null);
    let same =
        |a: &Value, b: &Value| a.get(key).unwrap_or(&Value::Null) == b.get(key).unwrap_or(&Value::Null);
    // In most cases the item is at the same index.
    let find = |list: &'a [Value], at: usize, item: &Value| {
        let here = list.get(at).filter(|other| same(other, item));
        here.or_else(|| list.iter().find(|other| same(other, item)))
    };
    let mut items = Vec::new();
    for (at, new) in after.iter().enumerate() {
        match (find(before, at, new), new) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new_fields)) => {
                let mut item = changes(old, new_fields);
                item.insert(key.to_owned(), id(new));
                items.push(Value::Object(item));
            }
            (_, new) => items.push(new.clone()),
        }
    }
    for (at, old) in before.iter().enumerate() {
        if find(after, at, old).is_some() {
            continue;
        }
        items.push(json!({"$patch": "delete", key: id(old)}));
    }
    let order: Vec<Value> = after.iter().map(|new| json!({key: id(new)})).collect();
    let before_order: Vec<Value> = before.iter().map(|old| json!({key: id(old)})).collect();
    if items.is_empty() && order == before_order {
        return;
    }
    out.insert(format!("$setElementOrder/{field}"), Value::Array(order));
    if !items.is_empty() {
        out.insert(field.to_owned(), Value::Array(items));
    }
}

/// The status in the form that the API gives back: whole seconds, container statuses in order, messages cut.
#[must_use]
pub(super) fn normalized(spec_of: &Pod, mut status: PodStatus) -> PodStatus {
    let containers = pod::containers(spec_of).len()
        + pod::init_containers(spec_of).len()
        + pod::ephemeral_containers(spec_of).len();
    let message_bytes = MESSAGES_BYTES_MAX / containers.max(1);
    whole_seconds(&mut status.start_time);
    for condition in status.conditions.iter_mut().flatten() {
        whole_seconds(&mut condition.last_probe_time);
        whole_seconds(&mut condition.last_transition_time);
    }
    let lists = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    for list in lists {
        for container in list.iter_mut().flatten() {
            states(container, message_bytes);
        }
        list.take_if(|l| l.is_empty());
    }
    for list in
        [&mut status.container_statuses, &mut status.ephemeral_container_statuses].into_iter().flatten()
    {
        list.sort_by(|a, b| a.name.cmp(&b.name));
    }
    status
}

fn states(container: &mut ContainerStatus, message_bytes: usize) {
    // Both are structs in the API's type: the API returns an absent one as `{}`.
    let both: [&mut ContainerState; 2] =
        [container.state.get_or_insert_default(), container.last_state.get_or_insert_default()];
    for state in both {
        if let Some(running) = &mut state.running {
            whole_seconds(&mut running.started_at);
        }
        if let Some(terminated) = &mut state.terminated {
            whole_seconds(&mut terminated.started_at);
            whole_seconds(&mut terminated.finished_at);
            if let Some(message) = &mut terminated.message {
                cut(message, message_bytes);
            }
        }
    }
}

fn cut(text: &mut String, bytes_max: usize) {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

fn whole_seconds(time: &mut Option<Time>) {
    *time = time.take().map(|t| match jiff::Timestamp::from_second(t.0.as_second()) {
        Ok(whole) => Time(whole),
        Err(_) => t,
    });
}
