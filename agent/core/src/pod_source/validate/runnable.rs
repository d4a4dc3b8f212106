//! Requirements for a pod to run at all, from any source.
//!
//! In: a pod of the API, with any fields. Out: mistakes that no correct API server accepts and that this node
//! must not act on: names that become paths and keys, quantities that are not numbers, mounts without a
//! volume, unknown policies, absurd sizes. Invariant: narrower than the API server's own validation, so that
//! an accepted pod is never rejected here.

use std::collections::BTreeSet;

use agent_types::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};

use super::names::dns_label;
use crate::pod_source::field_error::{Errors, FieldError};

/// More than any pod that fits into the API server's storage (1.5 MiB).
pub(super) const POD_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A pod with another value could run, but the API server would refuse its status.
const RESTART_POLICIES: [&str; 3] = ["Always", "OnFailure", "Never"];

/// Mistakes that keep `pod` from being run.
#[must_use]
pub fn runnable(pod: &Pod) -> Vec<FieldError> {
    let mut errors = Errors::default();
    let Some(spec) = &pod.spec else {
        errors.required("spec", "");
        return errors.into_list();
    };
    size(pod, &mut errors);
    errors.one_of("spec.restartPolicy", spec.restart_policy.as_deref(), &RESTART_POLICIES);
    containers(spec, &mut errors);
    amounts("spec", spec.resources.as_ref(), &mut errors);
    errors.into_list()
}

fn size(pod: &Pod, errors: &mut Errors) {
    let bytes = serde_json::to_vec(&pod.spec).map_or(usize::MAX, |text| text.len());
    let annotations = pod.metadata.annotations.iter().flatten().map(|(k, v)| k.len() + v.len()).sum();
    let bytes = bytes.saturating_add(annotations);
    if bytes > POD_BYTES_MAX {
        errors.invalid("spec", format!("{bytes} bytes"), "must have at most 2097152 bytes");
    }
}

fn containers(spec: &PodSpec, errors: &mut Errors) {
    if spec.containers.is_empty() {
        errors.required("spec.containers", "");
    }
    let mut volumes = BTreeSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        name(&format!("spec.volumes[{index}].name"), &volume.name, &mut volumes, errors);
    }
    let mut names = BTreeSet::new();
    let init = spec.init_containers.iter().flatten().enumerate().map(|c| ("initContainers", c));
    let regular = spec.containers.iter().enumerate().map(|c| ("containers", c));
    for (list, (index, container)) in init.chain(regular) {
        let path = format!("spec.{list}[{index}]");
        name(&format!("{path}.name"), &container.name, &mut names, errors);
        one(&path, container, &volumes, errors);
    }
}

fn name<'s>(path: &str, text: &'s str, seen: &mut BTreeSet<&'s str>, errors: &mut Errors) {
    if let Some(detail) = dns_label(text) {
        errors.invalid(path, shortened(text), detail);
    } else if !seen.insert(text) {
        errors.invalid(path, text, "must be unique");
    }
}

fn one(path: &str, container: &Container, volumes: &BTreeSet<&str>, errors: &mut Errors) {
    let policy = container.restart_policy.as_deref();
    errors.one_of(format!("{path}.restartPolicy"), policy, &RESTART_POLICIES);
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        if !volumes.contains(mount.name.as_str()) {
            let detail = "must be the name of a volume";
            errors.invalid(format!("{path}.volumeMounts[{index}].name"), shortened(&mount.name), detail);
        }
    }
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        if !volumes.contains(device.name.as_str()) {
            let detail = "must be the name of a volume";
            errors.invalid(format!("{path}.volumeDevices[{index}].name"), shortened(&device.name), detail);
        }
    }
    amounts(path, container.resources.as_ref(), errors);
}

fn amounts(path: &str, resources: Option<&ResourceRequirements>, errors: &mut Errors) {
    for (key, quantity) in resources.iter().flat_map(|r| r.limits.iter().chain(&r.requests)).flatten() {
        if Quantity::parse(&quantity.0).is_err() {
            let detail = "must be a quantity";
            errors.invalid(format!("{path}.resources[{}]", shortened(key)), shortened(&quantity.0), detail);
        }
    }
}

/// Enough of a hostile text for a message.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn mistakes(spec: Value) -> Vec<String> {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        runnable(&pod).iter().map(|e| e.path.clone()).collect()
    }

    #[test]
    fn table() {
        let c = |extra: Value| {
            let mut container = json!({"name": "c", "image": "i"});
            container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            json!({"containers": [container], "volumes": [{"name": "v"}]})
        };
        let cases: [(Value, &[&str]); 11] = [
            (c(json!({})), &[]),
            (json!({"containers": []}), &["spec.containers"]),
            (c(json!({"name": "../x"})), &["spec.containers[0].name"]),
            (
                json!({"initContainers": [{"name": "a"}], "containers": [{"name": "a"}]}),
                &["spec.containers[0].name"],
            ),
            (
                json!({"containers": [{"name": "a"}], "volumes": [{"name": "../../etc"}]}),
                &["spec.volumes[0].name"],
            ),
            (
                c(
                    json!({"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "w", "mountPath": "/b"}]}),
                ),
                &["spec.containers[0].volumeMounts[1].name"],
            ),
            (c(json!({"resources": {"limits": {"cpu": "much"}}})), &["spec.containers[0].resources[cpu]"]),
            (
                json!({"resources": {"requests": {"cpu": "much"}}, "containers": [{"name": "a"}]}),
                &["spec.resources[cpu]"],
            ),
            (json!({"restartPolicy": "Perhaps", "containers": [{"name": "a"}]}), &["spec.restartPolicy"]),
            (c(json!({"restartPolicy": "Perhaps"})), &["spec.containers[0].restartPolicy"]),
            (c(json!({"args": ["x".repeat(POD_BYTES_MAX)]})), &["spec"]),
        ];
        for (spec, paths) in cases {
            assert_eq!(mistakes(spec), paths);
        }
        assert_eq!(runnable(&Pod::default()).len(), 1);
    }
}
