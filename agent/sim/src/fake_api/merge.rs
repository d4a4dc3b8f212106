//! Strategic merge patch, as the API server applies it to the kinds of the fake.
//!
//! In: an object and a patch. Out: the patched object. Lists are replaced whole unless [`merge_key`] names the field by
//! which their elements are matched; the directives `$patch`, `$setElementOrder/…`, `$deleteFromPrimitiveList/…` and
//! `$retainKeys` are understood. Elements of a patch come before elements that only the server has, unless the server's
//! own order differs. Upstream: apimachinery/pkg/util/strategicpatch, the tags `patchMergeKey` of k8s.io/api.

use serde_json::{Map, Value};

/// How a list is merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListMerge {
    By(&'static str),
    Primitives,
}

/// The field that identifies elements of the list at `path` (names joined by dots, from the object's root).
#[must_use]
pub fn merge_key(path: &str) -> Option<&'static str> {
    match list_merge(path) {
        Some(ListMerge::By(key)) => Some(key),
        _ => None,
    }
}

fn list_merge(path: &str) -> Option<ListMerge> {
    Some(match path {
        "metadata.finalizers" => ListMerge::Primitives,
        "metadata.ownerReferences" => ListMerge::By("uid"),
        "status.conditions" | "status.addresses" => ListMerge::By("type"),
        "status.podIPs" | "status.hostIPs" | "spec.hostAliases" => ListMerge::By("ip"),
        "status.resourceClaimStatuses"
        | "spec.containers"
        | "spec.initContainers"
        | "spec.ephemeralContainers"
        | "spec.imagePullSecrets"
        | "spec.resourceClaims"
        | "spec.schedulingGates"
        | "spec.volumes" => ListMerge::By("name"),
        _ => return None,
    })
}

/// A malformed patch: 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// An element of a merged list has no value for the merge key.
    #[error("map: {path} does not contain declared merge key: {key}")]
    NoMergeKey {
        /// Path of the list.
        path: String,
        /// The missing field.
        key: &'static str,
    },
    /// A directive has an unknown value.
    #[error("invalid directive in {0}")]
    Directive(String),
    /// The patch is not an object.
    #[error("the patch is not a JSON object")]
    NotAnObject,
}

/// Applies `patch` to `object`.
///
/// # Errors
/// The patch is malformed.
pub fn apply(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
        return Err(PatchError::NotAnObject);
    };
    Ok(Value::Object(merge_map(object.clone(), patch, "")?))
}

fn below(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

fn merge_map(
    mut object: Map<String, Value>,
    patch: &Map<String, Value>,
    path: &str,
) -> Result<Map<String, Value>, PatchError> {
    match patch.get("$patch").map(Value::as_str) {
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => {
            let rest = patch.iter().filter(|(k, _)| *k != "$patch");
            return Ok(rest.map(|(k, v)| (k.clone(), v.clone())).collect());
        }
        Some(Some("delete")) => return Ok(Map::new()),
        Some(_) => return Err(PatchError::Directive(below(path, "$patch"))),
    }
    if let Some(retained) = patch.get("$retainKeys") {
        let retained =
            retained.as_array().ok_or_else(|| PatchError::Directive(below(path, "$retainKeys")))?;
        object.retain(|k, _| retained.iter().any(|r| r == k));
    }
    for (field, value) in patch {
        if let Some(list) = field.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(items)), Value::Array(gone)) = (object.get_mut(list), value) {
                items.retain(|i| !gone.contains(i));
            }
            continue;
        }
        if let Some(list) = field.strip_prefix("$setElementOrder/") {
            // If the patch has the list itself, the order is applied together with the list.
            if !patch.contains_key(list) {
                merge_field(&mut object, list, &Value::Array(Vec::new()), Some(value), path)?;
            }
            continue;
        }
        if field.starts_with('$') {
            continue;
        }
        let order = patch.get(&format!("$setElementOrder/{field}"));
        merge_field(&mut object, field, value, order, path)?;
    }
    Ok(object)
}

fn merge_field(
    object: &mut Map<String, Value>,
    field: &str,
    value: &Value,
    order: Option<&Value>,
    path: &str,
) -> Result<(), PatchError> {
    let path = below(path, field);
    let merged = match (object.remove(field), value) {
        (_, Value::Null) => return Ok(()),
        (Some(Value::Object(old)), Value::Object(new)) => Value::Object(merge_map(old, new, &path)?),
        // A new object is stored without its directives.
        (_, Value::Object(new)) => Value::Object(merge_map(Map::new(), new, &path)?),
        (old, Value::Array(new)) => {
            let old = match old {
                Some(Value::Array(old)) => old,
                _ => Vec::new(),
            };
            let order = order.and_then(Value::as_array);
            match list_merge(&path) {
                Some(ListMerge::By(key)) => Value::Array(merge_list(old, new, order, key, &path)?),
                Some(ListMerge::Primitives) => Value::Array(merge_primitives(old, new)),
                None => Value::Array(new.clone()),
            }
        }
        (_, other) => other.clone(),
    };
    object.insert(field.to_owned(), merged);
    Ok(())
}

fn merge_primitives(mut old: Vec<Value>, new: &[Value]) -> Vec<Value> {
    for item in new {
        if !old.contains(item) {
            old.push(item.clone());
        }
    }
    old
}

fn merge_list(
    old: Vec<Value>,
    patch: &[Value],
    order: Option<&Vec<Value>>,
    key: &'static str,
    path: &str,
) -> Result<Vec<Value>, PatchError> {
    let directive = |item: &Value| item.get("$patch").and_then(Value::as_str).map(str::to_owned);
    if patch.iter().any(|item| directive(item).as_deref() == Some("replace")) {
        return Ok(patch.iter().filter(|item| directive(item).is_none()).cloned().collect());
    }
    let mut merged = old.clone();
    let mut patched = Vec::new();
    for item in patch {
        let id =
            item.get(key).cloned().ok_or_else(|| PatchError::NoMergeKey { path: path.to_owned(), key })?;
        match directive(item).as_deref() {
            Some("delete") => {
                merged.retain(|m| m.get(key) != Some(&id));
                continue;
            }
            None | Some("merge") => {}
            Some(_) => return Err(PatchError::Directive(path.to_owned())),
        }
        let new = item.as_object().ok_or_else(|| PatchError::Directive(path.to_owned()))?;
        // The patch applies to the first element with the key, as upstream: a second element with the same key cannot be patched.
        match merged.iter_mut().find(|m| m.get(key) == Some(&id)) {
            Some(Value::Object(found)) => *found = merge_map(std::mem::take(found), new, path)?,
            _ => merged.push(Value::Object(merge_map(Map::new(), new, path)?)),
        }
        patched.push(id);
    }
    let wanted: Vec<Value> = match order {
        Some(order) => order.iter().filter_map(|o| o.get(key).cloned()).collect(),
        None => patched,
    };
    Ok(in_order(merged, &wanted, &old, key))
}

/// Elements that `wanted` names get that order; the others keep their places where the server's order allows it.
fn in_order(merged: Vec<Value>, wanted: &[Value], old: &[Value], key: &str) -> Vec<Value> {
    let place = |item: &Value, list: &[Value]| item.get(key).and_then(|id| list.iter().position(|w| w == id));
    let (mut named, rest): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|m| place(m, wanted).is_some());
    named.sort_by_key(|m| place(m, wanted));
    let server: Vec<Value> = old.iter().filter_map(|o| o.get(key).cloned()).collect();
    let mut out = Vec::with_capacity(named.len() + rest.len());
    let (mut named, mut rest) = (named.into_iter().peekable(), rest.into_iter().peekable());
    loop {
        let first = match (rest.peek(), named.peek()) {
            (Some(r), Some(n)) => match (place(r, &server), place(n, &server)) {
                (Some(r), Some(n)) => r < n,
                _ => false,
            },
            (Some(_), None) => true,
            (None, _) => false,
        };
        match if first { rest.next() } else { named.next() } {
            Some(item) => out.push(item),
            None => return out,
        }
    }
}
