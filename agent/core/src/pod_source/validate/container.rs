//! Containers: names, images, ports, variables, resources, mounts.
//!
//! In: `PodSpec`. Out: mistakes.

use std::collections::BTreeSet;

use agent_types::downward_api::is_env_field;
use agent_types::resources::requests::{CPU, EPHEMERAL_STORAGE, HUGEPAGES_PREFIX, MEMORY};
use agent_types::{Quantity, signal};
use k8s_openapi::api::core::v1::{
    Container, EnvVar, FileKeySelector, PodSpec, ResourceFieldSelector, ResourceRequirements,
};

use super::names::{dns_label, env_name, ip, local_path, no_backsteps, port_name, qualified_name};
use super::security;
use crate::pod_source::field_error::Errors;
use crate::pod_source::validate::parts::{Unique, amount};

const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";

/// What containers share while they are checked.
struct Pod<'s> {
    volumes: BTreeSet<&'s str>,
    empty_dirs: BTreeSet<&'s str>,
    names: Unique<String>,
    host_ports: Unique<(String, String, i32)>,
    host_network: bool,
    os: Option<&'s str>,
    own_users: bool,
}

pub(super) fn containers(spec: &PodSpec, errors: &mut Errors) {
    let mut pod = Pod {
        volumes: spec.volumes.iter().flatten().map(|v| v.name.as_str()).collect(),
        empty_dirs: spec
            .volumes
            .iter()
            .flatten()
            .filter(|v| v.empty_dir.is_some())
            .map(|v| v.name.as_str())
            .collect(),
        names: Unique::new(),
        host_ports: Unique::new(),
        host_network: spec.host_network == Some(true),
        os: spec.os.as_ref().map(|os| os.name.as_str()),
        own_users: spec.host_users == Some(false),
    };
    if spec.containers.is_empty() {
        errors.required("spec.containers", "");
    }
    for (index, container) in spec.containers.iter().enumerate() {
        check(&format!("spec.containers[{index}]"), container, &mut pod, errors);
        ports(&format!("spec.containers[{index}].ports"), container, &mut pod, errors);
    }
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        let path = format!("spec.initContainers[{index}]");
        check(&path, container, &mut pod, errors);
        if container.restart_policy.as_deref() == Some("Always") {
            ports(&format!("{path}.ports"), container, &mut pod, errors);
        } else {
            // They run before all others: their host ports conflict with no other container's.
            pod.host_ports_of_its_own(|pod| ports(&format!("{path}.ports"), container, pod, errors));
        }
    }
}

impl Pod<'_> {
    fn host_ports_of_its_own(&mut self, check: impl FnOnce(&mut Self)) {
        let shared = std::mem::replace(&mut self.host_ports, Unique::new());
        check(self);
        self.host_ports = shared;
    }
}

fn check(path: &str, container: &Container, pod: &mut Pod<'_>, errors: &mut Errors) {
    let at = |field: &str| format!("{path}.{field}");
    if container.name.is_empty() {
        errors.required(at("name"), "");
    } else if let Some(detail) = dns_label(&container.name) {
        errors.invalid(at("name"), &container.name, detail);
    } else if pod.names.seen(container.name.clone()) {
        errors.duplicate(at("name"), &container.name);
    }
    match container.image.as_deref().unwrap_or("") {
        "" => errors.required(at("image"), ""),
        image if image.trim() != image => {
            errors.invalid(at("image"), image, "must not have leading or trailing whitespace");
        }
        _ => {}
    }
    let pull = container.image_pull_policy.as_deref();
    errors.one_of(at("imagePullPolicy"), pull, &["Always", "IfNotPresent", "Never"]);
    let policy = container.termination_message_policy.as_deref();
    errors.one_of(at("terminationMessagePolicy"), policy, &["File", "FallbackToLogsOnError"]);
    let restart = container.restart_policy.as_deref();
    errors.one_of(at("restartPolicy"), restart, &["Always", "OnFailure", "Never"]);
    for (index, var) in container.env.iter().flatten().enumerate() {
        env(&at(&format!("env[{index}]")), var, pod, errors);
    }
    if let Some(requirements) = &container.resources {
        resources(&at("resources"), requirements, errors);
    }
    if pod.own_users && container.volume_devices.as_ref().is_some_and(|all| !all.is_empty()) {
        errors.forbidden(at("volumeDevices"), "when `hostUsers` is false");
    }
    stop_signal(&at("lifecycle.stopSignal"), container, pod.os, errors);
    mounts(path, container, pod, errors);
    devices(path, container, pod, errors);
    if let Some(context) = &container.security_context {
        security::container(&at("securityContext"), context, pod.own_users, errors);
    }
}

fn file_key(path: &str, source: &FileKeySelector, pod: &Pod<'_>, errors: &mut Errors) {
    let at = |field: &str| format!("{path}.{field}");
    let FileKeySelector { key, path: file, volume_name: volume, .. } = source;
    match key.as_str() {
        "" => errors.required(at("key"), ""),
        key => {
            if let Some(detail) = env_name(key) {
                errors.invalid(at("key"), key, detail);
            }
        }
    }
    match volume.as_str() {
        "" => errors.required(at("volumeName"), ""),
        name if !pod.volumes.contains(name) => errors.not_found(at("volumeName"), name),
        name if !pod.empty_dirs.contains(name) => {
            errors.invalid(at("volumeName"), name, "referenced volume must be of type emptyDir");
        }
        _ => {}
    }
    match file.as_str() {
        "" => errors.required(at("path"), ""),
        file if file.split('/').any(|part| part == "..") => {
            errors.invalid(at("path"), file, "must not contain '..'");
        }
        _ => {}
    }
}

fn stop_signal(path: &str, container: &Container, os: Option<&str>, errors: &mut Errors) {
    let Some(name) = container.lifecycle.as_ref().and_then(|l| l.stop_signal.as_deref()) else { return };
    match os {
        None => errors.forbidden(path, "may not be set for containers with empty `spec.os.name`"),
        Some("windows") => errors.one_of(path, Some(name), &["SIGKILL", "SIGTERM"]),
        Some(_) => errors.one_of(path, Some(name), signal::NAMES),
    }
}

fn ports(path: &str, container: &Container, pod: &mut Pod<'_>, errors: &mut Errors) {
    let mut names = Unique::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let at = |field: &str| format!("{path}[{index}].{field}");
        if let Some(name) = port.name.as_deref().filter(|n| !n.is_empty()) {
            if let Some(detail) = port_name(name) {
                errors.invalid(at("name"), name, detail);
            } else if names.seen(name) {
                errors.duplicate(at("name"), name);
            }
        }
        match port.container_port {
            0 => errors.required(at("containerPort"), ""),
            number if !(1..=65535).contains(&number) => {
                errors.invalid(at("containerPort"), number, PORT_RANGE)
            }
            _ => {}
        }
        errors.one_of(at("protocol"), port.protocol.as_deref(), &["TCP", "UDP", "SCTP"]);
        let host_ip = port.host_ip.as_deref().unwrap_or("");
        if !host_ip.is_empty()
            && let Some(detail) = ip(host_ip)
        {
            errors.invalid(at("hostIP"), host_ip, detail);
        }
        let host_port = port.host_port.unwrap_or(0);
        if host_port == 0 {
            continue;
        }
        let protocol = port.protocol.clone().unwrap_or_default();
        if !(1..=65535).contains(&host_port) {
            errors.invalid(at("hostPort"), host_port, PORT_RANGE);
        } else if pod.host_network && host_port != port.container_port {
            errors.invalid(
                at("hostPort"),
                host_port,
                "must match `containerPort` when `hostNetwork` is true",
            );
        } else if pod.host_ports.seen((protocol, host_ip.to_owned(), host_port)) {
            errors.duplicate(at("hostPort"), host_port);
        }
    }
}

fn env(path: &str, var: &EnvVar, pod: &Pod<'_>, errors: &mut Errors) {
    if var.name.is_empty() {
        errors.required(format!("{path}.name"), "");
    } else if let Some(detail) = env_name(&var.name) {
        errors.invalid(format!("{path}.name"), &var.name, detail);
    }
    let Some(from) = &var.value_from else { return };
    let path = format!("{path}.valueFrom");
    if var.value.as_deref().is_some_and(|v| !v.is_empty()) {
        errors.invalid(&path, "", "may not be specified when `value` is not empty");
    }
    let sources = [
        from.field_ref.is_some(),
        from.resource_field_ref.is_some(),
        from.config_map_key_ref.is_some(),
        from.secret_key_ref.is_some(),
        from.file_key_ref.is_some(),
    ];
    if sources.into_iter().filter(|set| *set).count() != 1 {
        errors.invalid(&path, "", "must specify exactly one source");
    }
    if let Some(field) = &from.field_ref {
        if field.field_path.is_empty() {
            errors.required(format!("{path}.fieldRef.fieldPath"), "");
        } else if !is_env_field(&field.field_path) {
            errors.invalid(
                format!("{path}.fieldRef.fieldPath"),
                &field.field_path,
                "a variable can name metadata.{name,namespace,uid}, metadata.labels['key'], \
                 metadata.annotations['key'], spec.{nodeName,serviceAccountName}, status.{hostIP,hostIPs,podIP,podIPs}",
            );
        }
        errors.one_of(format!("{path}.fieldRef.apiVersion"), field.api_version.as_deref(), &["v1"]);
    }
    if let Some(source) = &from.file_key_ref {
        file_key(&format!("{path}.fileKeyRef"), source, pod, errors);
    }
    if let Some(selector) = &from.resource_field_ref {
        resource_field(&format!("{path}.resourceFieldRef"), selector, errors);
    }
}

fn resource_field(path: &str, selector: &ResourceFieldSelector, errors: &mut Errors) {
    let (kind, resource) = selector.resource.split_once('.').unwrap_or(("", ""));
    let known =
        matches!(resource, CPU | MEMORY | EPHEMERAL_STORAGE) || resource.starts_with(HUGEPAGES_PREFIX);
    if selector.resource.is_empty() {
        errors.required(format!("{path}.resource"), "");
    } else if !known || !matches!(kind, "limits" | "requests") {
        let detail = "must be limits or requests of cpu, memory, ephemeral-storage or hugepages-<size>";
        errors.invalid(format!("{path}.resource"), &selector.resource, detail);
    }
    let Some(divisor) = &selector.divisor else { return };
    let path = format!("{path}.divisor");
    let allowed: &[&str] = if resource == CPU {
        &["0", "1m", "1"]
    } else {
        &["0", "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"]
    };
    match Quantity::parse(&divisor.0) {
        Err(error) => errors.invalid(path, error, ""),
        Ok(amount) if !allowed.iter().any(|a| Quantity::parse(a) == Ok(amount)) => {
            let detail = "must be one unit: 1m or 1 for cpu; 1, 1k to 1E or 1Ki to 1Ei for the others";
            errors.invalid(path, &divisor.0, detail);
        }
        Ok(_) => {}
    }
}

pub(super) fn resources(path: &str, requirements: &ResourceRequirements, errors: &mut Errors) {
    let lists = [("limits", &requirements.limits), ("requests", &requirements.requests)];
    for (kind, name, quantity) in
        lists.iter().flat_map(|(kind, list)| list.iter().flatten().map(move |(n, q)| (kind, n, q)))
    {
        let at = format!("{path}.{kind}[{name}]");
        let standard =
            matches!(name.as_str(), CPU | MEMORY | EPHEMERAL_STORAGE) || name.starts_with(HUGEPAGES_PREFIX);
        if qualified_name(name).is_some() || !(standard || name.contains('/')) {
            let detail = "must be cpu, memory, ephemeral-storage, hugepages-<size> or a name with a domain";
            errors.invalid(&at, name, detail);
        }
        amount(at, name, &quantity.0, errors);
    }
    for (name, request) in requirements.requests.iter().flatten() {
        let limit = requirements.limits.as_ref().and_then(|l| l.get(name)).map(|q| Quantity::parse(&q.0));
        let at = format!("{path}.requests[{name}]");
        let fixed = name.starts_with(HUGEPAGES_PREFIX) || name.contains('/');
        match (Quantity::parse(&request.0), limit) {
            (Ok(request_amount), Some(Ok(limit))) if request_amount > limit => {
                errors.invalid(at, &request.0, "must be less than or equal to the limit");
            }
            (Ok(request_amount), Some(Ok(limit))) if fixed && request_amount != limit => {
                errors.invalid(at, &request.0, "must be equal to the limit");
            }
            (Ok(_), None) if fixed => {
                errors.required(format!("{path}.limits[{name}]"), "must be set for this resource")
            }
            _ => {}
        }
    }
}

fn devices(path: &str, container: &Container, pod: &Pod<'_>, errors: &mut Errors) {
    let (mut paths, mut names) = (Unique::new(), Unique::new());
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        let at = |field: &str| format!("{path}.volumeDevices[{index}].{field}");
        let mut mounts = container.volume_mounts.iter().flatten();
        match device.name.as_str() {
            "" => errors.required(at("name"), ""),
            name if names.seen(name) => errors.invalid(at("name"), name, "must be unique"),
            name if !pod.volumes.contains(name) => errors.not_found(at("name"), name),
            name if mounts.any(|m| m.name == name) => {
                errors.invalid(at("name"), name, "must not already exist in volumeMounts");
            }
            _ => {}
        }
        let mut mounts = container.volume_mounts.iter().flatten();
        match device.device_path.as_str() {
            "" => errors.required(at("devicePath"), ""),
            target if paths.seen(target) => errors.invalid(at("devicePath"), target, "must be unique"),
            target if mounts.any(|m| m.mount_path == target) => {
                errors.invalid(at("devicePath"), target, "must not already exist as a path in volumeMounts");
            }
            target => {
                if let Some(detail) = no_backsteps(target) {
                    errors.invalid(at("devicePath"), target, detail);
                }
            }
        }
    }
}

fn mounts(path: &str, container: &Container, pod: &Pod<'_>, errors: &mut Errors) {
    let mut paths = Unique::new();
    let privileged = container.security_context.as_ref().and_then(|c| c.privileged) == Some(true);
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let at = |field: &str| format!("{path}.volumeMounts[{index}].{field}");
        if mount.name.is_empty() {
            errors.required(at("name"), "");
        } else if !pod.volumes.contains(mount.name.as_str()) {
            errors.not_found(at("name"), &mount.name);
        }
        match mount.mount_path.as_str() {
            "" => errors.required(at("mountPath"), ""),
            target if target.contains(':') => errors.invalid(at("mountPath"), target, "must not contain ':'"),
            target if paths.seen(target) => errors.invalid(at("mountPath"), target, "must be unique"),
            _ => {}
        }
        let modes = &["None", "HostToContainer", "Bidirectional"];
        errors.one_of(at("mountPropagation"), mount.mount_propagation.as_deref(), modes);
        if mount.mount_propagation.as_deref() == Some("Bidirectional") && !privileged {
            errors.forbidden(
                at("mountPropagation"),
                "Bidirectional mount propagation is available only to privileged containers",
            );
        }
        let modes = &["Disabled", "IfPossible", "Enabled"];
        let recursive = mount.recursive_read_only.as_deref();
        errors.one_of(at("recursiveReadOnly"), recursive, modes);
        if matches!(recursive, Some("IfPossible" | "Enabled")) {
            if mount.read_only != Some(true) {
                errors.forbidden(at("recursiveReadOnly"), "may only be specified when readOnly is true");
            }
            if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") {
                let why = "may only be specified when mountPropagation is None or not specified";
                errors.forbidden(at("recursiveReadOnly"), why);
            }
        }
        if let Some(sub_path) = mount.sub_path.as_deref()
            && let Some(detail) = local_path(sub_path)
        {
            errors.invalid(at("subPath"), sub_path, detail);
        }
    }
}
