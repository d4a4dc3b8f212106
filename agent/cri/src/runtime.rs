//! [`Runtime`] over CRI RuntimeService: one call each, with the deadlines of upstream's
//! cri-client/pkg/remote_runtime.go.
//!
//! Stop and remove of a missing object succeed. Create of an existing object returns that object
//! (`existing`).

use std::time::Duration;

use agent_kubelet_api::drivers::{PodObservation, Runtime};
use agent_types::failure::{Class, DriverError};
use agent_types::ids::{ContainerId, PodKey, PodUid, SandboxId};
use agent_types::node_context::CgroupDriver;
use agent_types::runtime::config::{ContainerConfig, SandboxConfig};
use agent_types::runtime::observed::ListedPod;
use agent_types::runtime::status::{RuntimeStatus, RuntimeVersion};
use orlop_proto::cri::v1;
use tonic::Code;

use crate::CriClient;
use crate::client::{Call, KUBELET_API_VERSION};
use crate::convert;
use crate::error::CallError;

impl Runtime for CriClient {
    async fn version(&self) -> Result<RuntimeVersion, DriverError> {
        let request = v1::VersionRequest { version: KUBELET_API_VERSION.to_owned() };
        let call = self.ordinary("Version", "container runtime");
        let answer = self.runtime(call, request, |mut c, r| async move { c.version(r).await }).await?;
        Ok(convert::observed::version(answer))
    }

    async fn status(&self) -> Result<RuntimeStatus, DriverError> {
        let request = v1::StatusRequest { verbose: false };
        let call = self.ordinary("Status", "container runtime");
        let answer = self.runtime(call, request, |mut c, r| async move { c.status(r).await }).await?;
        Ok(convert::observed::status(answer))
    }

    async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, DriverError> {
        let object = "container runtime";
        let call = self.ordinary("RuntimeConfig", object);
        let request = v1::RuntimeConfigRequest {};
        match self.runtime(call, request, |mut c, r| async move { c.runtime_config(r).await }).await {
            Ok(answer) => convert::observed::cgroup_driver(&answer).map_err(|message| {
                CallError::unusable("RuntimeConfig", object, Class::Invalid, message).into()
            }),
            Err(error) if error.code == Code::Unimplemented => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn list(&self) -> Result<Vec<ListedPod>, DriverError> {
        self.list_pods().await
    }

    async fn inspect(&self, uid: &PodUid) -> Result<(Option<PodKey>, PodObservation), DriverError> {
        self.inspect_pod(uid).await
    }

    async fn run_sandbox(&self, config: &SandboxConfig) -> Result<SandboxId, DriverError> {
        let object = config.pod.to_string();
        let request = v1::RunPodSandboxRequest {
            config: Some(convert::sandbox::config(config)),
            runtime_handler: config.runtime_handler.clone(),
        };
        let deadline = Some(self.request_timeout().saturating_mul(2));
        let call = Call { operation: "RunPodSandbox", object: &object, deadline };
        match self.runtime(call, request, |mut c, r| async move { c.run_pod_sandbox(r).await }).await {
            Ok(answer) => Ok(answer.pod_sandbox_id.into()),
            Err(error) if error.name_is_taken() => self.existing_sandbox(config, error).await,
            Err(error) => Err(error.into()),
        }
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), DriverError> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_string() };
        let call = self.ordinary("StopPodSandbox", id.as_str());
        gone_is_done(self.runtime(call, request, |mut c, r| async move { c.stop_pod_sandbox(r).await }).await)
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), DriverError> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_string() };
        let call = self.ordinary("RemovePodSandbox", id.as_str());
        gone_is_done(
            self.runtime(call, request, |mut c, r| async move { c.remove_pod_sandbox(r).await }).await,
        )
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> Result<ContainerId, DriverError> {
        let object = format!("{} in {}", config.name, sandbox_config.pod);
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(convert::container::config(config)),
            sandbox_config: Some(convert::sandbox::config(sandbox_config)),
        };
        let call = self.ordinary("CreateContainer", &object);
        match self.runtime(call, request, |mut c, r| async move { c.create_container(r).await }).await {
            Ok(answer) => Ok(answer.container_id.into()),
            Err(error) if error.name_is_taken() => {
                self.existing_container(sandbox, config, &sandbox_config.pod, error).await
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), DriverError> {
        let request = v1::StartContainerRequest { container_id: id.to_string() };
        let call = self.ordinary("StartContainer", id.as_str());
        self.runtime(call, request, |mut c, r| async move { c.start_container(r).await }).await?;
        Ok(())
    }

    async fn stop_container(&self, id: &ContainerId, grace_s: u32) -> Result<(), DriverError> {
        let request = v1::StopContainerRequest { container_id: id.to_string(), timeout: grace_s.into() };
        let deadline = self.request_timeout().saturating_add(Duration::from_secs(grace_s.into()));
        let call = Call { operation: "StopContainer", object: id.as_str(), deadline: Some(deadline) };
        gone_is_done(self.runtime(call, request, |mut c, r| async move { c.stop_container(r).await }).await)
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), DriverError> {
        let request = v1::RemoveContainerRequest { container_id: id.to_string() };
        let call = self.ordinary("RemoveContainer", id.as_str());
        gone_is_done(self.runtime(call, request, |mut c, r| async move { c.remove_container(r).await }).await)
    }
}

fn gone_is_done<A>(outcome: Result<A, CallError>) -> Result<(), DriverError> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) if error.code == Code::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}
