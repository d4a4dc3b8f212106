//! Kinds of objects that the fake serves, and the key of an object.

use std::fmt;

use serde_json::Value;

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// `v1` pods.
    Pods,
    /// `v1` nodes.
    Nodes,
    /// `v1` config maps.
    ConfigMaps,
    /// `v1` secrets.
    Secrets,
    /// `v1` events.
    Events,
    /// `coordination.k8s.io/v1` leases.
    Leases,
    /// `certificates.k8s.io/v1` certificate signing requests.
    Csrs,
    /// `node.k8s.io/v1` runtime classes.
    RuntimeClasses,
}

impl Resource {
    /// All kinds.
    pub const ALL: [Resource; 8] = [
        Resource::Pods,
        Resource::Nodes,
        Resource::ConfigMaps,
        Resource::Secrets,
        Resource::Events,
        Resource::Leases,
        Resource::Csrs,
        Resource::RuntimeClasses,
    ];

    /// The plural of URLs and messages, for example `pods`.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Resource::Pods => "pods",
            Resource::Nodes => "nodes",
            Resource::ConfigMaps => "configmaps",
            Resource::Secrets => "secrets",
            Resource::Events => "events",
            Resource::Leases => "leases",
            Resource::Csrs => "certificatesigningrequests",
            Resource::RuntimeClasses => "runtimeclasses",
        }
    }

    /// API group, empty for the core group.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Resource::Pods
            | Resource::Nodes
            | Resource::ConfigMaps
            | Resource::Secrets
            | Resource::Events => "",
            Resource::Leases => "coordination.k8s.io",
            Resource::Csrs => "certificates.k8s.io",
            Resource::RuntimeClasses => "node.k8s.io",
        }
    }

    /// `apiVersion` of its objects.
    #[must_use]
    pub fn api_version(self) -> String {
        match self.group() {
            "" => "v1".to_owned(),
            group => format!("{group}/v1"),
        }
    }

    /// `kind` of its objects.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Resource::Pods => "Pod",
            Resource::Nodes => "Node",
            Resource::ConfigMaps => "ConfigMap",
            Resource::Secrets => "Secret",
            Resource::Events => "Event",
            Resource::Leases => "Lease",
            Resource::Csrs => "CertificateSigningRequest",
            Resource::RuntimeClasses => "RuntimeClass",
        }
    }

    /// True if its objects live in namespaces.
    #[must_use]
    pub fn is_namespaced(self) -> bool {
        !matches!(self, Resource::Nodes | Resource::Csrs | Resource::RuntimeClasses)
    }

    /// `leases.coordination.k8s.io`, as the server's messages name it.
    #[must_use]
    pub fn qualified(self) -> String {
        match self.group() {
            "" => self.plural().to_owned(),
            group => format!("{}.{group}", self.plural()),
        }
    }
}

/// Names one object; namespace is empty for cluster-scoped kinds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind.
    pub resource: Resource,
    /// Its namespace.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl Key {
    /// The key of an object of this kind.
    #[must_use]
    pub fn new(resource: Resource, namespace: &str, name: &str) -> Key {
        let namespace = if resource.is_namespaced() { namespace } else { "" };
        Key { resource, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.resource.plural(), self.namespace, self.name)
    }
}

/// Selection of objects for a list or a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// `fieldSelector=spec.nodeName=…`.
    pub node_name: Option<String>,
    /// `fieldSelector=metadata.name=…`.
    pub name: Option<String>,
}

impl Selector {
    /// The pods of a node.
    #[must_use]
    pub fn node(name: &str) -> Selector {
        Selector { node_name: Some(name.to_owned()), ..Selector::default() }
    }

    /// One object by its name.
    #[must_use]
    pub fn name(name: &str) -> Selector {
        Selector { name: Some(name.to_owned()), ..Selector::default() }
    }

    /// True if the object is selected.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        let is = |want: &Option<String>, path| want.as_deref().is_none_or(|w| text(object, path) == w);
        is(&self.namespace, "/metadata/namespace")
            && is(&self.node_name, "/spec/nodeName")
            && is(&self.name, "/metadata/name")
    }
}

/// The value at a JSON pointer without escapes. serde_json copies each part of a pointer twice for escapes, and the server selects
/// objects by pointers all the time.
#[must_use]
pub fn value_at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    let Some(parts) = pointer.strip_prefix('/') else {
        return Some(object).filter(|_| pointer.is_empty());
    };
    parts.split('/').try_fold(object, |value, part| match value {
        Value::Object(map) => map.get(part),
        Value::Array(list) => part.parse::<usize>().ok().and_then(|index| list.get(index)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })
}

/// The text at a JSON pointer; empty if there is none.
#[must_use]
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    value_at(object, pointer).and_then(Value::as_str).unwrap_or("")
}

/// The integer at a JSON pointer.
#[must_use]
pub fn number(object: &Value, pointer: &str) -> Option<i64> {
    value_at(object, pointer).and_then(Value::as_i64)
}

/// Sets `object.field.name`, or removes it for `None`; creates `field` if needed.
pub(crate) fn put(object: &mut Value, field: &str, name: &str, value: Option<Value>) {
    let Some(object) = object.as_object_mut() else { return };
    let inner = object.entry(field).or_insert_with(|| Value::Object(serde_json::Map::new()));
    let Some(inner) = inner.as_object_mut() else { return };
    match value {
        Some(value) => inner.insert(name.to_owned(), value),
        None => inner.remove(name),
    };
}

/// Copies a whole top-level field from `from`, or removes it if `from` lacks it.
pub(crate) fn keep(object: &mut Value, from: &Value, field: &str) {
    let Some(object) = object.as_object_mut() else { return };
    match from.get(field) {
        Some(value) => object.insert(field.to_owned(), value.clone()),
        None => object.remove(field),
    };
}

/// Copies `metadata.<name>` from `from`, or removes it if `from` lacks it.
pub(crate) fn keep_meta(object: &mut Value, from: &Value, name: &str) {
    let value = from.get("metadata").and_then(|m| m.get(name)).cloned();
    put(object, "metadata", name, value);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pointers_lead_where_those_of_the_json_crate_lead() {
        let object = json!({"a": {"b": [1, {"c": "d"}], "": 2}, "e": "f"});
        for pointer in ["", "/", "/a", "/a/b", "/a/b/1/c", "/a/b/2", "/a/b/x", "/a/", "/e", "/e/f", "/g", "a"]
        {
            assert_eq!(value_at(&object, pointer), object.pointer(pointer), "{pointer}");
        }
        assert_eq!((text(&object, "/a/b/1/c"), number(&object, "/a/b/0")), ("d", Some(1)));
    }
}
