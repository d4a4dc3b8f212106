//! [`Amounts`] over CRI `UpdateContainerResources`, `UpdatePodSandboxResources` and `ContainerStats`.
//!
//! Invariants: a sandbox that the runtime cannot update is no failure: runtimes before containerd 2.2 do not know the call, and
//! that one says so without a code of its own.

use std::collections::BTreeMap;

use agent_kubelet_api::drivers::Amounts;
use agent_types::failure::DriverError;
use agent_types::ids::{ContainerId, SandboxId};
use agent_types::runtime::config::LinuxResources;
use orlop_proto::cri::v1;
use tonic::Code;

use crate::CriClient;
use crate::convert;
use crate::status_cache::StatusCache;

/// A container is being changed. However that ends, it may have been, and what is being asked for may show it as it was.
struct Change<'a> {
    known: &'a StatusCache,
    container: &'a ContainerId,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.known.changed(self.container);
    }
}

const NOT_IMPLEMENTED: &str = "not implemented";

impl Amounts for CriClient {
    async fn update_container(
        &self,
        container: &ContainerId,
        resources: &LinuxResources,
    ) -> Result<(), DriverError> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: container.to_string(),
            linux: Some(convert::linux::resources(resources)),
            ..v1::UpdateContainerResourcesRequest::default()
        };
        let call = self.ordinary("UpdateContainerResources", container.as_str());
        let _change = Change { known: &self.known, container };
        self.runtime(call, request, |mut c, r| async move { c.update_container_resources(r).await }).await?;
        Ok(())
    }

    async fn update_sandbox(
        &self,
        sandbox: &SandboxId,
        overhead: &LinuxResources,
        resources: &LinuxResources,
    ) -> Result<(), DriverError> {
        let request = v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox.to_string(),
            overhead: Some(convert::linux::resources(overhead)),
            resources: Some(convert::linux::resources(resources)),
        };
        let call = self.ordinary("UpdatePodSandboxResources", sandbox.as_str());
        let answer = self
            .runtime(call, request, |mut c, r| async move { c.update_pod_sandbox_resources(r).await })
            .await;
        match answer {
            Ok(_) => Ok(()),
            Err(error) if error.code == Code::Unimplemented => Ok(()),
            Err(error) if error.code == Code::Unknown && error.driver.message.contains(NOT_IMPLEMENTED) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn memory_in_use(
        &self,
        containers: &[ContainerId],
    ) -> Result<BTreeMap<ContainerId, u64>, DriverError> {
        let mut in_use = BTreeMap::new();
        for id in containers {
            let request = v1::ContainerStatsRequest { container_id: id.to_string() };
            let call = self.ordinary("ContainerStats", id.as_str());
            let answer =
                self.runtime(call, request, |mut c, r| async move { c.container_stats(r).await }).await?;
            let memory = answer.stats.and_then(|stats| stats.memory);
            if let Some(bytes) = memory.and_then(|memory| memory.usage_bytes) {
                in_use.insert(id.clone(), bytes.value);
            }
        }
        Ok(in_use)
    }
}
