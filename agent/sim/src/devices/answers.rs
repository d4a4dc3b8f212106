//! Answers of plugins to `Allocate`: every part of a container's configuration names the devices.
//!
//! In: devices, the number of the question. Out: an answer, and the parts of it in a container's configuration. Invariant: the bytes in
//! the checkpoint decode to the same answer.

use std::collections::{BTreeMap, BTreeSet};

use agent_managers::devices::plugin::AllocateResponse;
use agent_managers::devices::run_options::{DeviceMount, DeviceNode, RunOptions};
use agent_types::runtime::config::ContainerConfig;

/// Key of the annotation with the number of the question, before the resource.
const ANSWER: &str = "sim/answer.";

/// The plugin's answer for these devices.
pub(super) fn answer(number: u64, resource: &str, ids: &BTreeSet<String>) -> AllocateResponse {
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let text = format!("{number} {resource} {}", ids.join(","));
    AllocateResponse { options: decode(text.as_bytes()).unwrap_or_default(), encoded: text.into_bytes() }
}

/// Decodes an answer; an answer may be empty.
pub(super) fn decode(bytes: &[u8]) -> Option<RunOptions> {
    let text = std::str::from_utf8(bytes).ok()?;
    if text.is_empty() {
        return Some(RunOptions::default());
    }
    let mut words = text.splitn(3, ' ');
    let (number, resource, ids) = (words.next()?, words.next()?, words.next()?);
    let each = || ids.split(',').filter(|id| !id.is_empty());
    let path = |id: &str| format!("/{resource}/{id}");
    let node = |id: &str| DeviceNode {
        container_path: path(id),
        host_path: format!("/dev{}", path(id)),
        permissions: "rw".to_owned(),
    };
    let mount = |id: &str| DeviceMount {
        container_path: format!("/run{}", path(id)),
        host_path: format!("/run{}", path(id)),
        read_only: true,
    };
    Some(RunOptions {
        envs: BTreeMap::from([(variable(resource), ids.to_owned())]),
        mounts: each().map(mount).collect(),
        devices: each().map(node).collect(),
        annotations: BTreeMap::from([(format!("{ANSWER}{resource}"), number.to_owned())]),
        cdi_devices: each().map(|id| format!("{resource}={id}")).collect(),
    })
}

fn variable(resource: &str) -> String {
    resource.replace(['.', '/'], "_").to_uppercase()
}

/// Numbers of the questions whose answers are in a container's configuration, by resource.
pub(super) fn of(config: &ContainerConfig) -> BTreeMap<String, u64> {
    let number = |(key, text): (&String, &String)| {
        Some((key.strip_prefix(ANSWER)?.to_owned(), text.parse::<u64>().ok()?))
    };
    config.annotations.iter().filter_map(number).collect()
}

/// A part of the answer that the container's configuration lacks.
pub(super) fn missing(config: &ContainerConfig, options: &RunOptions) -> Option<String> {
    let RunOptions { envs, mounts, devices, cdi_devices, .. } = options;
    let env = envs.iter().find(|(name, value)| !config.envs.iter().any(|(n, v)| n == *name && v == *value));
    let mount =
        mounts.iter().find(|m| !config.mounts.iter().any(|own| own.container_path == m.container_path));
    let node =
        devices.iter().find(|d| !config.devices.iter().any(|own| own.container_path == d.container_path));
    let name = cdi_devices.iter().find(|name| !config.cdi_devices.contains(name));
    let missing = [
        env.map(|(name, _)| format!("variable {name}")),
        mount.map(|mount| format!("mount {}", mount.container_path)),
        node.map(|node| format!("device node {}", node.container_path)),
        name.map(|name| format!("CDI device {name}")),
    ];
    missing.into_iter().flatten().next()
}

/// A broken agent removes the devices.
pub(super) fn strip(config: &mut ContainerConfig) {
    for resource in super::RESOURCES {
        config.envs.retain(|(name, _)| *name != variable(resource));
        config.annotations.remove(&format!("{ANSWER}{resource}"));
        let of_resource = format!("/{resource}/");
        config.mounts.retain(|mount| !mount.container_path.contains(&of_resource));
        config.devices.retain(|node| !node.container_path.contains(&of_resource));
        config.cdi_devices.retain(|name| !name.starts_with(resource));
    }
}
