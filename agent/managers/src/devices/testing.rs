//! Invented plugins and containers for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::allocation::{AllocateQuestion, AllocationStep};
use super::manager::DeviceManager;
use super::plugin::{AllocateResponse, Connection, HEALTHY, PluginDevice, PluginOptions};
use super::run_options::RunOptions;
use crate::node_mask::NodeMask;
use crate::request::{ContainerRequest, DeviceLimits, Kind, PodRequest};

/// The resource of most tests.
pub(super) const GPU: &str = "example.com/gpu";
/// A resource after [`GPU`] in the order.
pub(super) const NIC: &str = "example.com/nic";

/// Moments of a test.
pub(super) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A manager on a machine with four NUMA nodes.
pub(super) fn manager() -> DeviceManager {
    DeviceManager::start(NodeMask::of(0..4), None, seconds(0))
}

/// Ids as a set.
pub(super) fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(ToString::to_string).collect()
}

/// A healthy device.
pub(super) fn device(id: &str, nodes: &[i64]) -> PluginDevice {
    PluginDevice { id: id.to_owned(), health: HEALTHY.to_owned(), nodes: nodes.iter().copied().collect() }
}

/// Healthy devices without topology.
pub(super) fn devices(ids: &[&str]) -> Vec<PluginDevice> {
    ids.iter().map(|id| device(id, &[])).collect()
}

/// The device with another health.
pub(super) fn sick(device: PluginDevice, health: &str) -> PluginDevice {
    PluginDevice { health: health.to_owned(), ..device }
}

/// A plugin without options that sent a list.
pub(super) fn plug(manager: &mut DeviceManager, resource: &str, list: Vec<PluginDevice>) -> Connection {
    plug_with(manager, resource, PluginOptions::default(), list)
}

/// A plugin that sent a list.
pub(super) fn plug_with(
    manager: &mut DeviceManager,
    resource: &str,
    options: PluginOptions,
    list: Vec<PluginDevice>,
) -> Connection {
    let connection = manager.connect(resource, options);
    manager.list(connection, list);
    assert_eq!(manager.resource_of(connection).as_deref(), Some(resource), "the newest connection");
    connection
}

/// A container with limits.
pub(super) fn container(name: &str, kind: Kind, limits: &[(&str, u64)]) -> ContainerRequest {
    let limits = limits.iter().map(|(resource, limit)| ((*resource).to_owned(), *limit)).collect();
    ContainerRequest {
        name: name.to_owned(),
        kind,
        cpu_milli: 0,
        memory: BTreeMap::new(),
        devices: DeviceLimits { limits, claimed: BTreeSet::new() },
    }
}

/// An app container with limits.
pub(super) fn app(name: &str, limits: &[(&str, u64)]) -> ContainerRequest {
    container(name, Kind::App, limits)
}

/// A pod.
pub(super) fn pod(uid: &str, containers: Vec<ContainerRequest>) -> PodRequest {
    PodRequest { uid: uid.to_owned(), containers, ..PodRequest::default() }
}

/// The answer of a plugin that names the devices in an environment variable.
pub(super) fn response(question: &AllocateQuestion) -> AllocateResponse {
    let ids = question.ids.iter().cloned().collect::<Vec<String>>().join(",");
    let envs = BTreeMap::from([(question.resource.clone(), ids.clone())]);
    AllocateResponse { encoded: ids.into_bytes(), options: RunOptions { envs, ..RunOptions::default() } }
}

/// Takes all steps; plugins state no preference and allocate, and the checkpoint is written.
pub(super) fn run(manager: &mut DeviceManager, uid: &str, mut step: AllocationStep) -> Result<(), String> {
    loop {
        step = match step {
            AllocationStep::AskPreferred(_) => manager.preferred(uid, Ok(BTreeSet::new())),
            AllocationStep::AskAllocate(question) => manager.allocated(uid, Ok(Some(response(&question)))),
            AllocationStep::WriteCheckpoint => manager.written(uid, Ok(())),
            AllocationStep::Done => return Ok(()),
            AllocationStep::Refused(message) => return Err(message),
        }
    }
}

/// Allocates for a container without hint.
pub(super) fn serve(
    manager: &mut DeviceManager,
    uid: &str,
    container: &ContainerRequest,
) -> Result<(), String> {
    let step = manager.begin(uid, container, None, false);
    run(manager, uid, step)
}

/// Ids of [`GPU`] that the container has.
pub(super) fn gpus(manager: &DeviceManager, uid: &str, container: &str) -> Vec<String> {
    manager.records().devices(uid, container, GPU).unwrap_or_default().into_iter().collect()
}
