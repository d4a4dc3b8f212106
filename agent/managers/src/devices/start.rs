//! The device manager's part in the start of a container.
//!
//! In: a container that the agent is about to create. Out: calls to plugins before the start, and changes to the container's spec.
//! Invariant: a container with devices starts only while the plugins' resources are not removed, as upstream. Upstream: manager.go
//! (`GetDeviceRunContainerOptions`, `callPreStartContainerIfNeeded`).

use std::collections::BTreeSet;
use std::time::Duration;

use super::choice::stopped;
use super::manager::DeviceManager;
use super::plugin::Connection;
use super::run_options::{RunOptions, merged};
use crate::request::{ContainerRequest, ResourceName};

/// Time limit of a plugin for `PreStartContainer`.
pub const PRE_START_TIMEOUT: Duration = Duration::from_secs(30);

/// Reason for which a container is not created (`CreateContainerConfigError`); the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The resource is removed.
    #[error("endpoint not found in cache for a registered resource: {0}")]
    NoEndpoint(ResourceName),
    /// The plugin requires `PreStartContainer`, and the container has no devices.
    #[error(
        "no devices found allocated in local cache for pod {uid}, container {container}, resource {resource}"
    )]
    NoDevices {
        /// Pod.
        uid: String,
        /// Container.
        container: String,
        /// Resource.
        resource: ResourceName,
    },
    /// The plugin failed.
    #[error("device plugin PreStartContainer rpc failed with err: {0}")]
    PreStart(String),
}

/// A `PreStartContainer` request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreStartQuestion {
    /// The plugin to ask.
    pub connection: Connection,
    /// The resource.
    pub resource: ResourceName,
    /// `devices_ids`.
    pub ids: BTreeSet<String>,
}

/// Work before a container is created, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartWork {
    /// Calls to plugins, each within [`PRE_START_TIMEOUT`]; a failure is [`StartError::PreStart`].
    pub pre_start: Vec<PreStartQuestion>,
    /// True if the container lacks devices, because the plugin registered after the pod's admission. They are allocated after the calls
    /// ([`crate::placement::Managers::begin_at_start`]).
    pub allocate: bool,
}

impl DeviceManager {
    /// The work before a container of a pod is created. `is_active`: the pod is active.
    ///
    /// # Errors
    /// The container cannot be created now.
    pub fn start_work(
        &self,
        uid: &str,
        container: &ContainerRequest,
        is_active: bool,
    ) -> Result<StartWork, StartError> {
        let mut work = StartWork::default();
        let limits = container.devices.limits.iter().filter(|(_, limit)| **limit > 0);
        for (resource, _) in limits.filter(|(resource, _)| self.manages(resource)) {
            let endpoint = self.inventory.endpoint(resource);
            let endpoint = endpoint.ok_or_else(|| StartError::NoEndpoint(resource.clone()))?;
            let own = self.records.devices(uid, &container.name, resource);
            if endpoint.options.is_some_and(|options| options.pre_start_required) {
                let (uid, container) = (uid.to_owned(), container.name.clone());
                let missing = || StartError::NoDevices { uid, container, resource: resource.clone() };
                let ids = own.clone().ok_or_else(missing)?;
                let connection = endpoint.open().ok_or_else(|| StartError::PreStart(stopped(resource)))?;
                work.pre_start.push(PreStartQuestion { connection, resource: resource.clone(), ids });
            }
            work.allocate |= is_active && own.is_none() && !container.devices.claimed.contains(resource);
        }
        Ok(work)
    }

    /// The changes to the container's spec; `None` without devices.
    #[must_use]
    pub fn run_options(&self, uid: &str, container: &str) -> Option<RunOptions> {
        let records = self.records.container(uid, container)?;
        Some(merged(records.values().map(|record| &record.response.options)))
    }
}

#[cfg(test)]
mod tests;
