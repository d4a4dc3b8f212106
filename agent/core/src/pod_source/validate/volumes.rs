//! Volumes of a pod.
//!
//! In: `PodSpec.volumes`. Out: mistakes. A volume that this node cannot mount is not a mistake here:
//! `container_spec::unsupported` rejects it at admission.

use agent_types::Quantity;
use k8s_openapi::api::core::v1::{PodSpec, Volume};

use super::names::{dns_label, no_backsteps};
use crate::pod_source::field_error::Errors;
use crate::pod_source::validate::parts::Unique;

const HOST_PATH_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

pub(super) fn volumes(spec: &PodSpec, errors: &mut Errors) {
    let mut names = Unique::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = format!("spec.volumes[{index}]");
        let name = &volume.name;
        if name.is_empty() {
            errors.required(format!("{path}.name"), "");
        } else if let Some(detail) = dns_label(name) {
            errors.invalid(format!("{path}.name"), name, detail);
        }
        if !name.is_empty() && names.seen(name.clone()) {
            errors.duplicate(format!("{path}.name"), name);
        }
        match source_count(volume) {
            0 => errors.required(&path, "must specify a volume type"),
            1 => source(&path, volume, errors),
            _ => errors.forbidden(&path, "may not specify more than 1 volume type"),
        }
    }
}

/// How many sources are set: everything but the name.
fn source_count(volume: &Volume) -> usize {
    match serde_json::to_value(volume) {
        Ok(serde_json::Value::Object(map)) => map.keys().filter(|key| *key != "name").count(),
        _ => 0,
    }
}

fn source(path: &str, volume: &Volume, errors: &mut Errors) {
    if let Some(host_path) = &volume.host_path {
        let at = format!("{path}.hostPath.path");
        if host_path.path.is_empty() {
            errors.required(at, "");
        } else if let Some(detail) = no_backsteps(&host_path.path) {
            errors.invalid(at, &host_path.path, detail);
        } else if !host_path.path.starts_with('/') {
            errors.invalid(at, &host_path.path, "must be an absolute path");
        }
        errors.one_of(format!("{path}.hostPath.type"), host_path.type_.as_deref(), HOST_PATH_TYPES);
    }
    if let Some(image) = &volume.image {
        if image.reference.as_deref().unwrap_or_default().is_empty() {
            errors.required(format!("{path}.image.reference"), "");
        }
        let policies = &["Always", "IfNotPresent", "Never"];
        errors.one_of(format!("{path}.image.pullPolicy"), image.pull_policy.as_deref(), policies);
    }
    if let Some(empty_dir) = &volume.empty_dir {
        let at = format!("{path}.emptyDir.sizeLimit");
        match empty_dir.size_limit.as_ref().map(|q| (q, Quantity::parse(&q.0))) {
            Some((_, Err(error))) => errors.invalid(at, error, ""),
            Some((text, Ok(size))) if size.is_negative() => {
                errors.invalid(at, &text.0, "must not be negative")
            }
            _ => {}
        }
        let medium = empty_dir.medium.as_deref();
        let page_size = medium.and_then(|m| m.strip_prefix("HugePages-"));
        let huge = page_size.is_some_and(|size| Quantity::parse(size).is_ok());
        if !huge {
            errors.one_of(format!("{path}.emptyDir.medium"), medium, &["", "Memory", "HugePages"]);
        }
    }
}
