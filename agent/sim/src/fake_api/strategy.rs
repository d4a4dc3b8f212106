//! Changes and refusals of the server when objects are created and updated.
//!
//! In: the object as sent and as stored. Out: the object as it will be stored, or 422. Upstream: the strategies of
//! pkg/registry, validation of a node's possible mistakes in pkg/apis/core/validation. Pod specs are not validated,
//! because the simulation uses malformed pods.

use std::net::IpAddr;

use agent_types::time::Wall;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::resource::{Key, Resource, keep, keep_meta, number, put, text, value_at};
use super::status::Status;

/// Whole seconds, UTC, as `metav1.Time` is written.
#[must_use]
pub(super) fn timestamp(at: Wall) -> String {
    let at = jiff::Timestamp::from_second(at.0.div_euclid(1_000_000_000)).unwrap_or_default();
    at.to_string()
}

/// Parses the text of [`timestamp`].
#[must_use]
pub(super) fn parse_timestamp(at: &str) -> Option<Wall> {
    let at: jiff::Timestamp = at.parse().ok()?;
    Some(Wall(at.as_second().checked_mul(1_000_000_000)?))
}

/// Prepares a new object.
pub(super) fn before_create(object: &mut Value, key: &Key) -> Result<(), Status> {
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "uid"] {
        put(object, "metadata", field, None);
    }
    match key.resource {
        Resource::Pods => {
            put(object, "metadata", "generation", Some(json!(1)));
            let mut status = json!({ "phase": "Pending" });
            // An object that does not decode as a pod is stored as it is: the API server of a test may be hostile.
            if let Ok(mut pod) = serde_json::from_value::<Pod>(object.clone()) {
                agent_core::pod_source::defaults::apply(&mut pod);
                status["qosClass"] = json!(agent_types::resources::qos_class(&pod).to_string());
                if let Ok(defaulted) = serde_json::to_value(&pod) {
                    keep(object, &defaulted, "spec");
                }
            }
            if let Some(object) = object.as_object_mut() {
                object.insert("status".to_owned(), status);
            }
        }
        Resource::Csrs => {
            if let Some(object) = object.as_object_mut() {
                object.remove("status");
            }
        }
        Resource::Nodes => addresses_are_distinct(key, object)?,
        Resource::ConfigMaps
        | Resource::Secrets
        | Resource::Events
        | Resource::Leases
        | Resource::RuntimeClasses => {}
    }
    Ok(())
}

/// Prepares an update; `status` is true for an update of the status subresource.
pub(super) fn before_update(key: &Key, old: &Value, new: &mut Value, status: bool) -> Result<(), Status> {
    for field in ["name", "namespace", "uid"] {
        let (was, is) =
            (value_at(old, &format!("/metadata/{field}")), value_at(new, &format!("/metadata/{field}")));
        if is.is_some() && is != was {
            let why = format!("metadata.{field}: Invalid value: field is immutable");
            return Err(Status::invalid(key, &why));
        }
    }
    for field in ["creationTimestamp", "uid", "generation"] {
        keep_meta(new, old, field);
    }
    // An update neither sets nor removes these.
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        keep_meta(new, old, field);
    }
    match (key.resource, status) {
        (Resource::Pods, true) => pod_status(key, old, new)?,
        (Resource::Nodes, true) => {
            keep(new, old, "spec");
            addresses_are_distinct(key, new)?;
        }
        (Resource::Pods | Resource::Nodes | Resource::Csrs, false) => {
            keep(new, old, "status");
            if key.resource == Resource::Pods && new.get("spec") != old.get("spec") {
                let generation = number(old, "/metadata/generation").unwrap_or(0) + 1;
                put(new, "metadata", "generation", Some(json!(generation)));
            }
        }
        (Resource::Csrs, true) => keep(new, old, "spec"),
        (
            Resource::ConfigMaps
            | Resource::Secrets
            | Resource::Events
            | Resource::Leases
            | Resource::RuntimeClasses,
            _,
        ) => {}
    }
    Ok(())
}

fn pod_status(key: &Key, old: &Value, new: &mut Value) -> Result<(), Status> {
    keep(new, old, "spec");
    keep_meta(new, old, "ownerReferences");
    let qos = text(old, "/status/qosClass").to_owned();
    match text(new, "/status/qosClass") {
        "" => put(new, "status", "qosClass", Some(json!(qos))),
        same if same == qos => {}
        _ => return Err(Status::invalid(key, "status.qosClass: Invalid value: field is immutable")),
    }
    observed_generations(old, new);
    singular_ip(new);
    addresses_are_valid(key, new, "podIPs")?;
    addresses_are_valid(key, new, "hostIPs")?;
    let first_host = text(new, "/status/hostIPs/0/ip");
    if !first_host.is_empty() && first_host != text(new, "/status/hostIP") {
        return Err(Status::invalid(key, "status.hostIPs[0].ip: Invalid value: must be equal to `hostIP`"));
    }
    for list in ["containerStatuses", "initContainerStatuses"] {
        no_resurrection(key, old, new, list)?;
    }
    Ok(())
}

/// Keeps the old `observedGeneration` where a writer omits it.
fn observed_generations(old: &Value, new: &mut Value) {
    if number(new, "/status/observedGeneration").unwrap_or(0) == 0 {
        let before = value_at(old, "/status/observedGeneration").cloned();
        put(new, "status", "observedGeneration", before);
    }
    let before = conditions(old).to_vec();
    let Some(Value::Array(now)) = new.pointer_mut("/status/conditions") else { return };
    for condition in now {
        let was = before.iter().find(|b| b.get("type") == condition.get("type"));
        let Some(was) = was.and_then(|w| w.get("observedGeneration")).cloned() else { continue };
        if let Some(c) = condition.as_object_mut()
            && c.get("observedGeneration").and_then(Value::as_i64).unwrap_or(0) == 0
        {
            c.insert("observedGeneration".to_owned(), was);
        }
    }
}

fn conditions(object: &Value) -> &[Value] {
    value_at(object, "/status/conditions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Makes `podIP` and `podIPs[0]` equal: `podIP` wins if they differ.
fn singular_ip(new: &mut Value) {
    let (one, first) = (text(new, "/status/podIP").to_owned(), text(new, "/status/podIPs/0/ip").to_owned());
    if !one.is_empty() && one != first {
        put(new, "status", "podIPs", Some(json!([{ "ip": one }])));
    } else if one.is_empty() && !first.is_empty() {
        put(new, "status", "podIP", Some(json!(first)));
    }
}

/// Checks that a list has at most one address of each family, and only valid addresses.
fn addresses_are_valid(key: &Key, new: &Value, field: &str) -> Result<(), Status> {
    let list = new.pointer(&format!("/status/{field}")).and_then(Value::as_array);
    let mut families = [0; 2];
    for item in list.into_iter().flatten() {
        let Ok(ip) = text(item, "/ip").parse::<IpAddr>() else {
            return Err(Status::invalid(
                key,
                &format!("status.{field}: Invalid value: must be a valid IP address"),
            ));
        };
        families[usize::from(ip.is_ipv6())] += 1;
    }
    if families.iter().any(|n| *n > 1) {
        let why =
            format!("status.{field}: Invalid value: may specify no more than one IP for each IP family");
        return Err(Status::invalid(key, &why));
    }
    Ok(())
}

fn addresses_are_distinct(key: &Key, node: &Value) -> Result<(), Status> {
    let list = node.pointer("/status/addresses").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (n, address) in list.iter().enumerate() {
        if list[..n].contains(address) {
            return Err(Status::invalid(key, &format!("status.addresses[{n}]: Duplicate value: {address}")));
        }
    }
    Ok(())
}

/// True if this text stands anywhere in the value.
fn has_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(found) => found == text,
        Value::Array(list) => list.iter().any(|item| has_text(item, text)),
        Value::Object(map) => map.values().any(|item| has_text(item, text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Rejects an update in which a container that has ended for good runs again.
fn no_resurrection(key: &Key, old: &Value, new: &Value, list: &str) -> Result<(), Status> {
    let pointer = format!("/status/{list}");
    let statuses = |v| value_at(v, &pointer).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let specs = if list == "containerStatuses" { "/spec/containers" } else { "/spec/initContainers" };
    let policy = text(old, "/spec/restartPolicy");
    let now: &[Value] = statuses(new);
    for (n, was) in statuses(old).iter().enumerate() {
        let Some(code) = number(was, "/state/terminated/exitCode") else { continue };
        let Some(is) = now.iter().find(|s| s.get("name") == was.get("name")) else { continue };
        if value_at(is, "/state/terminated").is_some() {
            continue;
        }
        let spec = value_at(old, specs).and_then(Value::as_array);
        let own = spec.and_then(|s| s.iter().find(|c| c.get("name") == was.get("name")));
        let policy = own.map(|c| text(c, "/restartPolicy")).filter(|p| !p.is_empty()).unwrap_or(policy);
        let may_restart = policy == "Always" || (policy == "OnFailure" && code != 0);
        // A rule RestartAllContainers may restart any container.
        if !may_restart && !has_text(value_at(old, "/spec").unwrap_or(&Value::Null), "RestartAllContainers") {
            let why = format!(
                "status.{list}[{n}].state: Forbidden: may not be transitioned to non-terminated state"
            );
            return Err(Status::invalid(key, &why));
        }
    }
    Ok(())
}
