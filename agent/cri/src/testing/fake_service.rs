//! The generated server traits over the fake's state; what is not here answers `Unimplemented`.

use std::sync::Arc;

use futures_util::stream;
use orlop_proto::cri::v1;
use orlop_proto::cri::v1::image_service_server::ImageService;
use orlop_proto::cri::v1::runtime_service_server::RuntimeService;
use tokio::sync::broadcast::error::RecvError;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::fake_server::ServerState;
use super::fake_state::FakeState;

#[derive(Clone, Debug)]
pub(super) struct Service {
    shared: Arc<ServerState>,
}

impl Service {
    pub(super) fn new(shared: Arc<ServerState>) -> Service {
        Service { shared }
    }
}

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, request: Request<v1::VersionRequest>) -> RpcResult<v1::VersionResponse> {
        let version = self.shared.version();
        let answer = v1::VersionResponse {
            version,
            runtime_name: "fake".to_owned(),
            runtime_version: "1".to_owned(),
            runtime_api_version: "v1".to_owned(),
        };
        self.shared.serve("Version", request, |_, _| Ok(answer)).await
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> RpcResult<v1::StatusResponse> {
        let condition =
            |name: &str| v1::RuntimeCondition { r#type: name.to_owned(), status: true, ..Default::default() };
        let conditions = ["RuntimeReady", "NetworkReady"].map(condition).into();
        let status = Some(v1::RuntimeStatus { conditions });
        self.shared
            .serve("Status", request, |_, _| Ok(v1::StatusResponse { status, ..Default::default() }))
            .await
    }

    async fn runtime_config(
        &self,
        request: Request<v1::RuntimeConfigRequest>,
    ) -> RpcResult<v1::RuntimeConfigResponse> {
        let linux = Some(v1::LinuxRuntimeConfiguration { cgroup_driver: v1::CgroupDriver::Cgroupfs.into() });
        self.shared.serve("RuntimeConfig", request, |_, _| Ok(v1::RuntimeConfigResponse { linux })).await
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> RpcResult<v1::UpdateRuntimeConfigResponse> {
        let apply = |_: &mut FakeState, request: v1::UpdateRuntimeConfigRequest| {
            let network = request.runtime_config.and_then(|c| c.network_config);
            if network.is_some_and(|n| n.pod_cidr == "10.1.0.0/24,fd00::/64") {
                return Ok(v1::UpdateRuntimeConfigResponse {});
            }
            Err(Status::invalid_argument("not the CIDRs of the test"))
        };
        self.shared.serve("UpdateRuntimeConfig", request, apply).await
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> RpcResult<v1::RunPodSandboxResponse> {
        let apply = |state: &mut FakeState, q| {
            state.run_sandbox(q).map(|pod_sandbox_id| v1::RunPodSandboxResponse { pod_sandbox_id })
        };
        self.shared.serve("RunPodSandbox", request, apply).await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> RpcResult<v1::StopPodSandboxResponse> {
        let apply = |state: &mut FakeState, q: v1::StopPodSandboxRequest| {
            state.stop_sandbox(&q.pod_sandbox_id);
            Ok(v1::StopPodSandboxResponse {})
        };
        self.shared.serve("StopPodSandbox", request, apply).await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> RpcResult<v1::RemovePodSandboxResponse> {
        let apply = |state: &mut FakeState, q: v1::RemovePodSandboxRequest| {
            state.remove_sandbox(&q.pod_sandbox_id);
            Ok(v1::RemovePodSandboxResponse {})
        };
        self.shared.serve("RemovePodSandbox", request, apply).await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> RpcResult<v1::PodSandboxStatusResponse> {
        let apply = |state: &mut FakeState, q: v1::PodSandboxStatusRequest| {
            let status = Some(state.sandbox_status(&q.pod_sandbox_id)?);
            Ok(v1::PodSandboxStatusResponse { status, ..Default::default() })
        };
        self.shared.serve("PodSandboxStatus", request, apply).await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> RpcResult<v1::ListPodSandboxResponse> {
        let apply = |state: &mut FakeState, q: v1::ListPodSandboxRequest| {
            let items = state.list_sandboxes(&q.filter.unwrap_or_default());
            Ok(v1::ListPodSandboxResponse { items })
        };
        self.shared.serve("ListPodSandbox", request, apply).await
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> RpcResult<v1::CreateContainerResponse> {
        let apply = |state: &mut FakeState, q| {
            state.create_container(q).map(|container_id| v1::CreateContainerResponse { container_id })
        };
        self.shared.serve("CreateContainer", request, apply).await
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> RpcResult<v1::StartContainerResponse> {
        let apply = |state: &mut FakeState, q: v1::StartContainerRequest| {
            state.start_container(&q.container_id).map(|()| v1::StartContainerResponse {})
        };
        self.shared.serve("StartContainer", request, apply).await
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> RpcResult<v1::StopContainerResponse> {
        let apply = |state: &mut FakeState, q: v1::StopContainerRequest| {
            state.stop_container(&q.container_id);
            Ok(v1::StopContainerResponse {})
        };
        self.shared.serve("StopContainer", request, apply).await
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> RpcResult<v1::RemoveContainerResponse> {
        let apply = |state: &mut FakeState, q: v1::RemoveContainerRequest| {
            state.remove_container(&q.container_id);
            Ok(v1::RemoveContainerResponse {})
        };
        self.shared.serve("RemoveContainer", request, apply).await
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> RpcResult<v1::ListContainersResponse> {
        let apply = |state: &mut FakeState, q: v1::ListContainersRequest| {
            let containers = state.list_containers(&q.filter.unwrap_or_default());
            Ok(v1::ListContainersResponse { containers })
        };
        self.shared.serve("ListContainers", request, apply).await
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> RpcResult<v1::ContainerStatusResponse> {
        let apply = |state: &mut FakeState, q: v1::ContainerStatusRequest| {
            let status = Some(state.container_status(&q.container_id)?);
            Ok(v1::ContainerStatusResponse { status, ..Default::default() })
        };
        self.shared.serve("ContainerStatus", request, apply).await
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> RpcResult<v1::ExecSyncResponse> {
        self.shared.serve("ExecSync", request, |state, _| Ok(state.exec.clone())).await
    }

    async fn get_container_events(
        &self,
        request: Request<v1::GetEventsRequest>,
    ) -> RpcResult<BoxStream<v1::ContainerEventResponse>> {
        let receiver = self.shared.events.subscribe();
        self.shared.serve("GetContainerEvents", request, |_, _| Ok(())).await?;
        let events = stream::unfold(Some(receiver), |receiver| async move {
            let mut receiver = receiver?;
            match receiver.recv().await {
                Ok(Ok(event)) => Some((Ok(event), Some(receiver))),
                Ok(Err(code)) => Some((Err(Status::new(code, "stream ended by the test")), None)),
                Err(RecvError::Closed | RecvError::Lagged(_)) => None,
            }
        });
        Ok(Response::new(Box::pin(events)))
    }
}

#[tonic::async_trait]
impl ImageService for Service {
    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> RpcResult<v1::ImageStatusResponse> {
        let apply = |state: &mut FakeState, q: v1::ImageStatusRequest| {
            let image = state.image_status(&q.image.unwrap_or_default().image).cloned();
            Ok(v1::ImageStatusResponse { image, ..Default::default() })
        };
        self.shared.serve("ImageStatus", request, apply).await
    }

    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> RpcResult<v1::ListImagesResponse> {
        let apply = |state: &mut FakeState, _| {
            Ok(v1::ListImagesResponse { images: state.images.values().cloned().collect() })
        };
        self.shared.serve("ListImages", request, apply).await
    }

    async fn pull_image(&self, request: Request<v1::PullImageRequest>) -> RpcResult<v1::PullImageResponse> {
        let apply = |state: &mut FakeState, q: v1::PullImageRequest| {
            state
                .pull(&q.image.unwrap_or_default().image)
                .map(|image_ref| v1::PullImageResponse { image_ref })
        };
        self.shared.serve("PullImage", request, apply).await
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> RpcResult<v1::RemoveImageResponse> {
        let apply = |state: &mut FakeState, q: v1::RemoveImageRequest| {
            state.remove_image(&q.image.unwrap_or_default().image);
            Ok(v1::RemoveImageResponse {})
        };
        self.shared.serve("RemoveImage", request, apply).await
    }
}
