//! Environment, command and arguments of a container (contract 7.7).
//!
//! In: container, pod, addresses, node. Out: variables in order, expanded words. Invariants: a variable sees
//! only those defined before it; a later definition of the same name wins and keeps the first one's place.
//! Sources that need the API (`configMapKeyRef`, `secretKeyRef`, `envFrom`) are refused by `unsupported`.

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use super::SpecError;
use super::context::NodeContext;
use super::downward;
use super::expansion::expand;
use crate::types::ContainerRef;

/// Variables in order of definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    vars: Vec<(String, String)>,
}

impl Environment {
    fn get(&self, name: &str) -> Option<&str> {
        self.vars.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    fn set(&mut self, name: &str, value: String) {
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

    /// The words of a command line, each expanded.
    #[must_use]
    pub fn expand_all(&self, words: Option<&Vec<String>>) -> Vec<String> {
        words.map(|words| words.iter().map(|w| self.expand(w)).collect()).unwrap_or_default()
    }

    /// All variables.
    #[must_use]
    pub fn into_vars(self) -> Vec<(String, String)> {
        self.vars
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
    /// The node.
    pub node: &'a NodeContext,
}

/// The container's environment.
///
/// # Errors
/// A value that cannot be resolved.
pub fn environment(container: &Container, sources: EnvSources<'_>) -> Result<Environment, SpecError> {
    if container.env_from.as_ref().is_some_and(|list| !list.is_empty()) {
        return Err(SpecError::container(format!(
            "container {}: envFrom needs the API server",
            container.name
        )));
    }
    let mut environment = Environment::default();
    for var in container.env.as_deref().unwrap_or(&[]) {
        let value = value_of(var, &environment, sources)?;
        environment.set(&var.name, value);
    }
    Ok(environment)
}

fn value_of(var: &EnvVar, so_far: &Environment, sources: EnvSources<'_>) -> Result<String, SpecError> {
    let EnvSources { pod, container, pod_ips, node } = sources;
    let Some(from) = &var.value_from else {
        return Ok(so_far.expand(var.value.as_deref().unwrap_or("")));
    };
    if let Some(field) = &from.field_ref {
        return downward::field(pod, &field.field_path, pod_ips, node);
    }
    if let Some(selector) = &from.resource_field_ref {
        return downward::resource_field(pod, container, selector, node);
    }
    let source = if from.config_map_key_ref.is_some() {
        "configMapKeyRef"
    } else if from.secret_key_ref.is_some() {
        "secretKeyRef"
    } else if from.file_key_ref.is_some() {
        "fileKeyRef"
    } else {
        return Err(SpecError::container(format!("variable {}: valueFrom names no source", var.name)));
    };
    Err(SpecError::container(format!("variable {}: {source} is not supported on this node", var.name)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vars(env: Value) -> Result<Vec<(String, String)>, SpecError> {
        let pod: Pod = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "env": env}]}}))
        .unwrap();
        let container = ContainerRef::Regular("c");
        let node = NodeContext::new("n");
        let sources = EnvSources { pod: &pod, container, pod_ips: &[], node: &node };
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
    fn what_needs_the_api_is_an_error() {
        let from = |source: Value| json!([{"name": "A", "valueFrom": source}]);
        for source in [
            json!({"configMapKeyRef": {"name": "m", "key": "k"}}),
            json!({"secretKeyRef": {"name": "m", "key": "k"}}),
            json!({"fileKeyRef": {"volumeName": "m", "key": "k", "path": "p"}}),
            json!({}),
        ] {
            let error = vars(from(source.clone())).unwrap_err();
            assert_eq!(error.reason, "CreateContainerConfigError", "{source}");
            assert!(error.message.contains("variable A"), "{error}");
        }
    }
}
