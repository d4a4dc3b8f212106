//! Environment, command and arguments of a container.
//!
//! In: container, pod, addresses, node. Out: variables in order, expanded words. Invariants: a variable sees
//! only the variables defined before it; a later definition of the same name wins and keeps the position of
//! the first. [`env_objects`] resolves values of Secrets and ConfigMaps; `envFrom` comes first, so `env`
//! wins. Upstream: `makeEnvironmentVariables` of pkg/kubelet/kubelet_pods.go.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use agent_types::node_context::NodeContext;
use agent_types::objects::Objects;
use agent_types::runtime::placement::ContainerDevices;
use agent_types::spec_error::SpecError;
use agent_types::{ContainerRef, downward_api};
use agent_volumes::env_file::EnvFiles;
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use super::expansion::expand;
use super::{env_files, env_objects, services};

/// Variables in order of definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    vars: Vec<(String, String)>,
    /// Of Services; the container's own win.
    services: BTreeMap<String, String>,
}

impl Environment {
    fn get(&self, name: &str) -> Option<&str> {
        let own = self.vars.iter().find(|(n, _)| n == name).map(|(_, value)| value);
        own.or_else(|| self.services.get(name)).map(String::as_str)
    }

    pub(crate) fn set(&mut self, name: &str, value: String) {
        match self.vars.iter_mut().find(|(n, _)| n == name) {
            Some(slot) => slot.1 = value,
            None => self.vars.push((name.to_owned(), value)),
        }
    }

    /// `text` with every known `$(VAR)` replaced.
    #[must_use]
    pub fn expand(&self, text: &str) -> String {
        expand(text, |name| self.get(name))
    }

    /// The same, where every variable must have a value.
    ///
    /// # Errors
    /// The names of those that have none, in order, each once.
    pub fn expand_known(&self, text: &str) -> Result<String, Vec<String>> {
        let missing = RefCell::new(BTreeSet::new());
        let expanded = expand(text, |name| {
            let value = self.get(name).filter(|value| !value.is_empty());
            if value.is_none() {
                missing.borrow_mut().insert(name.to_owned());
            }
            value
        });
        let missing = missing.into_inner();
        if missing.is_empty() { Ok(expanded) } else { Err(missing.into_iter().collect()) }
    }

    /// The words of a command line, each expanded.
    #[must_use]
    pub fn expand_all(&self, words: Option<&Vec<String>>) -> Vec<String> {
        words.map(|words| words.iter().map(|w| self.expand(w)).collect()).unwrap_or_default()
    }

    /// All variables: the container's own in order, then those of Services.
    #[must_use]
    pub fn into_vars(self) -> Vec<(String, String)> {
        let Environment { mut vars, services } = self;
        let own: BTreeSet<String> = vars.iter().map(|(name, _)| name.clone()).collect();
        vars.extend(services.into_iter().filter(|(name, _)| !own.contains(name)));
        vars
    }
}

/// Where a value may come from.
#[derive(Clone, Copy, Debug)]
pub struct EnvSources<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Which container is being configured.
    pub container: ContainerRef<'a>,
    /// The pod's addresses, the primary first.
    pub pod_ips: &'a [String],
    /// What is known of the objects that it refers to.
    pub objects: &'a Objects,
    /// The files that it refers to.
    pub files: &'a EnvFiles,
    /// Devices of the container, whose plugins set variables.
    pub devices: Option<&'a ContainerDevices>,
    /// The node.
    pub node: &'a NodeContext,
}

/// The container's environment.
///
/// # Errors
/// A value that cannot be resolved.
pub fn environment(container: &Container, sources: EnvSources<'_>) -> Result<Environment, SpecError> {
    let services = services::of_pod(sources.pod, sources.objects)?;
    let mut environment = Environment { vars: Vec::new(), services };
    for (name, value) in sources.devices.iter().flat_map(|devices| &devices.envs) {
        environment.set(name, value.clone());
    }
    for (name, value) in env_objects::env_from(sources.pod, container, sources.objects)? {
        environment.set(&name, value);
    }
    for var in container.env.as_deref().unwrap_or(&[]) {
        if let Some(value) = value_of(var, &environment, sources)? {
            environment.set(&var.name, value);
        }
    }
    Ok(environment)
}

fn value_of(
    var: &EnvVar,
    so_far: &Environment,
    sources: EnvSources<'_>,
) -> Result<Option<String>, SpecError> {
    let EnvSources { pod, container, pod_ips, objects, files, node, .. } = sources;
    let Some(from) = &var.value_from else {
        return Ok(Some(so_far.expand(var.value.as_deref().unwrap_or(""))));
    };
    if let Some(field) = &from.field_ref {
        return downward_api::field(pod, &field.field_path, pod_ips, node).map(Some);
    }
    if let Some(selector) = &from.resource_field_ref {
        return downward_api::resource_field(pod, container, selector, node).map(Some);
    }
    if let Some(value) = env_objects::key_ref(pod, from, objects) {
        return value;
    }
    match &from.file_key_ref {
        Some(source) if node.features.env_files => env_files::value(pod, source, files, node),
        // With the gate off it names nothing, as upstream has it.
        Some(_) => Ok(Some(String::new())),
        None => Err(SpecError::container(format!("variable {}: valueFrom names no source", var.name))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use agent_types::objects::{Fetched, ObjectData, ObjectKind, ObjectRef};

    fn vars(env: Value) -> Result<Vec<(String, String)>, SpecError> {
        vars_from(json!([]), env)
    }

    fn vars_from(from: Value, env: Value) -> Result<Vec<(String, String)>, SpecError> {
        let pod: Pod = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"containers": [{"name": "c", "env": env, "envFrom": from}]}}))
        .unwrap();
        let object = |kind, name: &str| ObjectRef { kind, namespace: "ns".to_owned(), name: name.to_owned() };
        let found = |key: &str, value: &str| {
            let data =
                [(key.to_owned(), value.as_bytes().to_vec()), ("A".to_owned(), b"of an object".to_vec())];
            Fetched::Found(ObjectData {
                data: data.into(),
                binary: [("b".to_owned(), vec![0])].into(),
                ..ObjectData::default()
            })
        };
        let objects = Objects::from([
            (object(ObjectKind::ConfigMap, "m"), found("k", "config")),
            (object(ObjectKind::Secret, "s"), found("k.l", "secret")),
            (object(ObjectKind::ConfigMap, "gone"), Fetched::Missing),
            (object(ObjectKind::Secret, "gone"), Fetched::Missing),
            (object(ObjectKind::Secret, "unknown"), Fetched::Unknown("no answer".to_owned())),
        ]);
        let container = ContainerRef::Regular("c");
        let node = NodeContext::new("n");
        let files = EnvFiles::new();
        let sources = EnvSources {
            pod: &pod,
            container,
            pod_ips: &[],
            objects: &objects,
            files: &files,
            devices: None,
            node: &node,
        };
        Ok(environment(&container.find(&pod).unwrap(), sources)?.into_vars())
    }

    #[test]
    fn variables_see_what_was_defined_before_them() {
        let env = json!([
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)$(C)$$(A)"},
            {"name": "C", "value": "3"},
            {"name": "A", "value": "$(A)+"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "D", "value": "$(NAME)"},
            {"name": "E"},
        ]);
        let expected = [("A", "1+"), ("B", "1$(C)$(A)"), ("C", "3"), ("NAME", "p"), ("D", "p"), ("E", "")];
        let expected: Vec<_> = expected.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        assert_eq!(vars(env).unwrap(), expected);
    }

    #[test]
    fn values_of_objects() {
        let config = |name: &str, key: &str, optional: bool| json!({"configMapKeyRef": {"name": name, "key": key, "optional": optional}});
        let secret = |name: &str, key: &str, optional: bool| json!({"secretKeyRef": {"name": name, "key": key, "optional": optional}});
        let from = json!([{"configMapRef": {"name": "m"}}, {"prefix": "P_", "secretRef": {"name": "s"}},
            {"configMapRef": {"name": "gone", "optional": true}}]);
        let env = json!([
            {"name": "A", "value": "own"},
            {"name": "C", "valueFrom": config("m", "k", false)},
            {"name": "S", "valueFrom": secret("s", "k.l", false)},
            {"name": "NONE", "valueFrom": config("gone", "k", true)},
            {"name": "NONE", "valueFrom": secret("s", "none", true)},
            {"name": "X", "value": "$(S)-$(P_k.l)-$(NONE)"},
        ]);
        let expected = [
            ("A", "own"),
            ("k", "config"),
            ("P_A", "of an object"),
            ("P_k.l", "secret"),
            ("C", "config"),
            ("S", "secret"),
            ("X", "secret-secret-$(NONE)"),
        ];
        let expected: Vec<_> = expected.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        assert_eq!(vars_from(from, env).unwrap(), expected);
        for (source, words) in [
            (config("gone", "k", false), "configmap \"gone\" not found"),
            (secret("gone", "k", false), "secret \"gone\" not found"),
            (config("m", "none", false), "couldn't find key none in ConfigMap ns/m"),
            (secret("s", "none", false), "couldn't find key none in Secret ns/s"),
            (secret("unknown", "k", true), "no answer"),
        ] {
            let error = vars(json!([{"name": "A", "valueFrom": source}])).unwrap_err();
            assert_eq!((error.reason, error.message.as_str()), ("CreateContainerConfigError", words));
        }
        let error = vars_from(json!([{"secretRef": {"name": "gone"}}]), json!([])).unwrap_err();
        assert_eq!(error.message, "secret \"gone\" not found");
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        let from = |source: Value| json!([{"name": "A", "valueFrom": source}]);
        let file = json!({"fileKeyRef": {"volumeName": "m", "key": "k", "path": "p"}});
        for (source, words) in [(file, "cannot find the volume \"m\""), (json!({}), "variable A")] {
            let error = vars(from(source)).unwrap_err();
            assert_eq!(error.reason, "CreateContainerConfigError");
            assert!(error.message.contains(words), "{error}");
        }
    }
}
