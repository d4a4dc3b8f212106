//! Permissions of a node: the node authorizer and the admission plug-in NodeRestriction.
//!
//! In: requester, object, verb. Out: nothing, or 403 (404 where admission looks the object up). Note: reading a pod
//! that does not exist is **403** for a node, because no relationship is found; patching its status and deleting it are
//! 404. Upstream: plugin/pkg/auth/authorizer/node, plugin/pkg/admission/noderestriction.

use agent_types::objects::{ObjectKind, ObjectRef};
use agent_volumes::references;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::Value;

use super::resource::{Key, Resource, Selector, text};
use super::status::Status;
use super::{FakeApi, Requester, Verb};

/// The authoriser.
pub(super) fn authorize(api: &FakeApi, who: &Requester, key: &Key, verb: &Verb) -> Result<(), Status> {
    let node = match who {
        Requester::Admin => return Ok(()),
        Requester::Bootstrapper if key.resource == Resource::Csrs && is_read_or_create(verb) => return Ok(()),
        Requester::Bootstrapper => return Err(Status::forbidden(key, "the user cannot use this resource")),
        Requester::Node(name) => name.as_str(),
    };
    let allowed = match (key.resource, verb) {
        (Resource::Nodes, Verb::Get) => key.name == node,
        (Resource::Nodes, Verb::Create(_) | Verb::Replace(_) | Verb::Patch(_) | Verb::PatchStatus(_)) => true,
        (Resource::Pods, Verb::Get) => {
            let bound = api.object(key).is_some_and(|p| text(p, "/spec/nodeName") == node);
            if !bound {
                return Err(Status::forbidden(key, &unrelated(node)));
            }
            true
        }
        (Resource::Pods, Verb::Create(_) | Verb::Delete(_) | Verb::PatchStatus(_)) => true,
        (Resource::Leases, verb) => {
            let own = key.name == node || matches!(verb, Verb::Create(_));
            key.namespace == "kube-node-lease" && own
        }
        (Resource::ConfigMaps | Resource::Secrets, Verb::Get) => is_used_by_pods_of(api, node, key),
        (Resource::Events, Verb::Create(_) | Verb::Replace(_) | Verb::Patch(_)) => true,
        (Resource::Csrs, verb) => is_read_or_create(verb),
        _ => false,
    };
    if allowed { Ok(()) } else { Err(Status::forbidden(key, &cannot(node, verb, key))) }
}

/// True if a pod that is bound to the node uses this object.
fn is_used_by_pods_of(api: &FakeApi, node: &str, key: &Key) -> bool {
    let pods = api.list(Resource::Pods, &Selector::node(node)).0;
    let pods = pods.iter().filter_map(|pod| Pod::deserialize(&**pod).ok());
    let kind = if key.resource == Resource::Secrets { ObjectKind::Secret } else { ObjectKind::ConfigMap };
    let wanted = ObjectRef { kind, namespace: key.namespace.clone(), name: key.name.clone() };
    pods.into_iter().any(|pod| references::of_pod(&pod).contains(&wanted))
}

fn is_read_or_create(verb: &Verb) -> bool {
    matches!(verb, Verb::Get | Verb::Create(_))
}

fn unrelated(node: &str) -> String {
    format!(
        "User \"system:node:{node}\" cannot get resource \"pods\": no relationship found between node '{node}' and this object"
    )
}

fn cannot(node: &str, verb: &Verb, key: &Key) -> String {
    format!("User \"system:node:{node}\" cannot {} resource \"{}\"", verb.name(), key.resource.plural())
}

/// Lists and watches.
pub(super) fn watch(
    api: &FakeApi,
    who: &Requester,
    resource: Resource,
    selector: &Selector,
) -> Result<(), Status> {
    let key = Key::new(resource, "", "");
    let node = match who {
        Requester::Admin => return Ok(()),
        Requester::Bootstrapper if resource == Resource::Csrs => return Ok(()),
        Requester::Bootstrapper => return Err(Status::forbidden(&key, "the user cannot list this resource")),
        Requester::Node(name) => name.as_str(),
    };
    let allowed = match resource {
        Resource::Pods => selector.node_name.as_deref() == Some(node),
        Resource::Nodes => selector.name.as_deref() == Some(node),
        Resource::Csrs | Resource::RuntimeClasses => true,
        Resource::ConfigMaps | Resource::Secrets => {
            let key = Key::new(
                resource,
                selector.namespace.as_deref().unwrap_or_default(),
                selector.name.as_deref().unwrap_or_default(),
            );
            is_used_by_pods_of(api, node, &key)
        }
        Resource::Events | Resource::Leases => false,
    };
    let why =
        "a node can list and watch only its own Node object and pods with a spec.nodeName field selector";
    if allowed { Ok(()) } else { Err(Status::forbidden(&key, why)) }
}

/// NodeRestriction on a new object.
pub(super) fn admit_create(api: &FakeApi, who: &Requester, key: &Key, object: &Value) -> Result<(), Status> {
    let Requester::Node(node) = who else { return Ok(()) };
    let no = |why: &str| Err(Status::forbidden(key, why));
    match key.resource {
        Resource::Nodes if key.name != *node => no("a node may create only its own Node object"),
        Resource::Nodes => labels_allowed(key, &Value::Null, object),
        Resource::Leases if key.name != *node => {
            no("can only access node lease with the same name as the requesting node")
        }
        Resource::Pods => mirror_pod_allowed(api, node, key, object),
        _ => Ok(()),
    }
}

fn mirror_pod_allowed(api: &FakeApi, node: &str, key: &Key, pod: &Value) -> Result<(), Status> {
    let no = |why: &str| Err(Status::forbidden(key, why));
    let mirror = pod.get("metadata").and_then(|m| m.get("annotations"));
    if mirror.and_then(|a| a.get("kubernetes.io/config.mirror")).is_none() {
        return no("a node can only create mirror pods (annotation kubernetes.io/config.mirror)");
    }
    if text(pod, "/spec/nodeName") != node {
        return no("a node can only create pods with spec.nodeName set to itself");
    }
    let owners = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let [owner] = owners.map_or(&[][..], Vec::as_slice) else {
        return no("a node can only create pods with a single owner reference set to itself");
    };
    let itself = text(owner, "/apiVersion") == "v1" && text(owner, "/kind") == "Node";
    if !itself || text(owner, "/name") != node {
        return no("a node can only create pods with an owner reference set to itself");
    }
    if owner.get("controller") != Some(&Value::Bool(true)) {
        return no("a node can only create pods with a controller owner reference set to itself");
    }
    if owner.get("blockOwnerDeletion") == Some(&Value::Bool(true)) {
        return no("a node must not set blockOwnerDeletion on an owner reference");
    }
    let node_key = Key::new(Resource::Nodes, "", node);
    let Some(existing) = api.object(&node_key) else { return Err(Status::not_found(&node_key)) };
    if text(existing, "/metadata/uid") != text(owner, "/uid") {
        return no("node UID mismatch in the owner reference");
    }
    Ok(())
}

/// NodeRestriction on a changed object.
pub(super) fn admit_update(who: &Requester, key: &Key, old: &Value, new: &Value) -> Result<(), Status> {
    let Requester::Node(node) = who else { return Ok(()) };
    let no = |why: &str| Err(Status::forbidden(key, why));
    let same = |pointer: &str| old.pointer(pointer) == new.pointer(pointer);
    match key.resource {
        Resource::Nodes if key.name != *node => no("a node is not allowed to modify another node"),
        Resource::Nodes if !same("/spec/taints") => no("a node is not allowed to modify taints"),
        Resource::Nodes if !same("/metadata/ownerReferences") => {
            no("a node is not allowed to modify ownerReferences")
        }
        Resource::Nodes => labels_allowed(key, old, new),
        Resource::Pods if text(old, "/spec/nodeName") != node => {
            no("a node can only update pod status for pods with spec.nodeName set to itself")
        }
        Resource::Pods if !same("/metadata/labels") => no("a node cannot update labels through pod status"),
        Resource::Pods if !same("/status/resourceClaimStatuses") => {
            no("a node cannot update resource claim statuses")
        }
        _ => Ok(()),
    }
}

/// NodeRestriction on a deletion.
pub(super) fn admit_delete(who: &Requester, key: &Key, old: &Value) -> Result<(), Status> {
    let Requester::Node(node) = who else { return Ok(()) };
    if key.resource == Resource::Pods && text(old, "/spec/nodeName") != node {
        let why = "a node can only delete pods with spec.nodeName set to itself";
        return Err(Status::forbidden(key, why));
    }
    Ok(())
}

const KUBELET_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
];

fn labels_allowed(key: &Key, old: &Value, new: &Value) -> Result<(), Status> {
    let labels =
        |v: &Value| v.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let (old, new) = (labels(old), labels(new));
    let changed = new
        .iter()
        .filter(|(k, v)| old.get(*k) != Some(v))
        .chain(old.iter().filter(|(k, _)| !new.contains_key(*k)));
    for (label, _) in changed {
        let space = label.split_once('/').map_or("", |(space, _)| space);
        let within = |suffix: &str| space == suffix || space.ends_with(&format!(".{suffix}"));
        let kubelets = KUBELET_LABELS.contains(&label.as_str())
            || within("kubelet.kubernetes.io")
            || within("node.kubernetes.io");
        if within("node-restriction.kubernetes.io")
            || ((within("kubernetes.io") || within("k8s.io")) && !kubelets)
        {
            return Err(Status::forbidden(key, &format!("is not allowed to modify labels: {label}")));
        }
    }
    Ok(())
}
