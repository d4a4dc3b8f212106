//! The narrow traits behind which the world lives. Production drivers are in agent-cri and agent-linux,
//! fakes in agent-sim; both pass the same contract suite (`agent_cri::testing::contract_suite`).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use agent_types::credential::Credential;
use agent_types::failure::DriverError;
use agent_types::ids::{ContainerId, PodKey, PodUid, SandboxId};
use agent_types::node_context::CgroupDriver;
use agent_types::resources::cgroups::{CgroupName, CgroupValues};
use agent_types::runtime::config::{ContainerConfig, LinuxResources, SandboxConfig};
use agent_types::runtime::containers::Containers;
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::observed::{ListedPod, ListedSandbox, SandboxObserved};
use agent_types::runtime::status::{RuntimeStatus, RuntimeVersion};

use crate::stats::RuntimeUsage;
use crate::stats::disk::Layer;
use crate::streaming::StreamOptions;

/// The result of giving a cgroup its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It had them.
    Unchanged,
    /// It was not there.
    Made,
    /// It had others.
    Changed,
}

/// The cgroups that the agent creates itself (cgroup v2), through one of the drivers. Applying values that
/// are already set changes nothing.
pub trait Cgroups: Send + Sync + 'static {
    /// Sets the values of a cgroup. A missing cgroup is created with its parents if `make` is true, otherwise
    /// it is an error of class `NotFound`.
    fn apply(
        &self,
        name: &CgroupName,
        values: &CgroupValues,
        make: bool,
    ) -> impl Future<Output = Result<Applied, DriverError>> + Send;
    /// Kills all processes in a cgroup and removes it with its children; false if it was gone.
    fn remove(&self, name: &CgroupName) -> impl Future<Output = Result<bool, DriverError>> + Send;
    /// Bytes of memory in use in a cgroup; `None` if it is gone.
    fn memory_in_use(
        &self,
        name: &CgroupName,
    ) -> impl Future<Output = Result<Option<u64>, DriverError>> + Send;
    /// Directory names of the child cgroups, in the driver's spelling; none if the cgroup is gone.
    fn children(&self, name: &CgroupName) -> impl Future<Output = Result<Vec<String>, DriverError>> + Send;
}

/// All of the runtime's objects of one pod, without a stamp; the caller adds `as_of`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodObservation {
    /// Newest attempt first.
    pub sandboxes: Vec<SandboxObserved>,
    /// By name, the newest first within a name.
    pub containers: Containers,
    /// Amounts that were last set for the pod itself, if recorded; a runtime never reports them.
    pub actuated: Option<agent_types::resources::amounts::Amounts>,
}

/// CRI RuntimeService, the part that pods need. Every call is bounded by the driver's request timeout
/// (twice it for `run_sandbox`, plus the grace for `stop_container`) and answers `DeadlineExceeded` after.
pub trait Runtime: Send + Sync + 'static {
    /// `Version`.
    fn version(&self) -> impl Future<Output = Result<RuntimeVersion, DriverError>> + Send;
    /// `Status`.
    fn status(&self) -> impl Future<Output = Result<RuntimeStatus, DriverError>> + Send;
    /// `RuntimeConfig`; `None` if the runtime does not report it.
    fn cgroup_driver(&self) -> impl Future<Output = Result<Option<CgroupDriver>, DriverError>> + Send;
    /// `ListPodSandbox` + `ListContainers`: every kubelet-made pod the runtime holds.
    fn list(&self) -> impl Future<Output = Result<Vec<ListedPod>, DriverError>> + Send;
    /// Filtered lists and a status for each object: one pod in full. An unknown pod gives an empty
    /// observation.
    fn inspect(
        &self,
        uid: &PodUid,
    ) -> impl Future<Output = Result<(Option<PodKey>, PodObservation), DriverError>> + Send;
    /// `RunPodSandbox`; an existing sandbox of the same uid and attempt is answered instead.
    fn run_sandbox(
        &self,
        config: &SandboxConfig,
    ) -> impl Future<Output = Result<SandboxId, DriverError>> + Send;
    /// `StopPodSandbox`; a missing sandbox is a success.
    fn stop_sandbox(&self, id: &SandboxId) -> impl Future<Output = Result<(), DriverError>> + Send;
    /// `RemovePodSandbox`; a missing sandbox is a success.
    fn remove_sandbox(&self, id: &SandboxId) -> impl Future<Output = Result<(), DriverError>> + Send;
    /// `CreateContainer`; an existing container of the same sandbox, name and attempt is answered instead.
    fn create_container(
        &self,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        sandbox_config: &SandboxConfig,
    ) -> impl Future<Output = Result<ContainerId, DriverError>> + Send;
    /// `StartContainer`.
    fn start_container(&self, id: &ContainerId) -> impl Future<Output = Result<(), DriverError>> + Send;
    /// `StopContainer` with whole seconds of grace; a missing container is a success.
    fn stop_container(
        &self,
        id: &ContainerId,
        grace_s: u32,
    ) -> impl Future<Output = Result<(), DriverError>> + Send;
    /// `RemoveContainer`; a missing container is a success.
    fn remove_container(&self, id: &ContainerId) -> impl Future<Output = Result<(), DriverError>> + Send;
}

/// The sandboxes, as far as they share shims.
pub trait Sandboxes: Send + Sync + 'static {
    /// `ListPodSandbox`: every kubelet-made sandbox with its group.
    fn sandboxes(&self) -> impl Future<Output = Result<Vec<ListedSandbox>, DriverError>> + Send;
}

/// What containers that run have, and are given.
pub trait Amounts: Send + Sync + 'static {
    /// `UpdateContainerResources`.
    fn update_container(
        &self,
        container: &ContainerId,
        resources: &LinuxResources,
    ) -> impl Future<Output = Result<(), DriverError>> + Send;
    /// `UpdatePodSandboxResources`; success for a runtime without this call.
    fn update_sandbox(
        &self,
        sandbox: &SandboxId,
        overhead: &LinuxResources,
        resources: &LinuxResources,
    ) -> impl Future<Output = Result<(), DriverError>> + Send;
    /// `ContainerStats`: bytes of memory in use by each container; containers without the value are left out.
    fn memory_in_use(
        &self,
        containers: &[ContainerId],
    ) -> impl Future<Output = Result<BTreeMap<ContainerId, u64>, DriverError>> + Send;
}

/// What the runtime must know about the node's network.
pub trait PodNetwork: Send + Sync + 'static {
    /// `UpdateRuntimeConfig` with the Node's `podCIDRs`. Runtimes that write no CNI configuration ignore it.
    fn update_pod_cidr(&self, cidrs: &[String]) -> impl Future<Output = Result<(), DriverError>> + Send;
}

/// The CRI's ImageService.
pub trait ImageService: Send + Sync + 'static {
    /// `ImageStatus`; `None` if absent.
    fn image_status(
        &self,
        image: &str,
    ) -> impl Future<Output = Result<Option<ImageInfo>, DriverError>> + Send;
    /// `PullImage`; without a credential anonymously. No deadline: drop the future to cancel.
    fn pull(
        &self,
        image: &str,
        credential: Option<&Credential>,
    ) -> impl Future<Output = Result<ImageInfo, DriverError>> + Send;
    /// `ListImages`.
    fn list_images(&self) -> impl Future<Output = Result<Vec<ImageInfo>, DriverError>> + Send;
    /// `RemoveImage`; a missing image is a success.
    fn remove_image(&self, image: &str) -> impl Future<Output = Result<(), DriverError>> + Send;
}

/// Images that containers use.
pub trait ImagesInUse: Send + Sync + 'static {
    /// `ListContainers`: ids, references and names of the images of all containers, running or not, from any
    /// client of the runtime.
    fn images_in_use(&self) -> impl Future<Output = Result<BTreeSet<String>, DriverError>> + Send;
}

/// Streams into containers and pods: the runtime returns a URL of its own streaming server, valid for one
/// stream.
pub trait Streaming: Send + Sync + 'static {
    /// `Exec`.
    fn exec_url(
        &self,
        container: &ContainerId,
        options: &StreamOptions,
    ) -> impl Future<Output = Result<String, DriverError>> + Send;
    /// `Attach`.
    fn attach_url(
        &self,
        container: &ContainerId,
        options: &StreamOptions,
    ) -> impl Future<Output = Result<String, DriverError>> + Send;
    /// `PortForward`; without ports the stream itself names them.
    fn port_forward_url(
        &self,
        sandbox: &SandboxId,
        ports: &[u16],
    ) -> impl Future<Output = Result<String, DriverError>> + Send;
}

/// Command execution inside a container (hooks and probes).
pub trait Exec: Send + Sync + 'static {
    /// `ExecSync`: exit code and the first bytes of both outputs.
    fn exec_sync(
        &self,
        container: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> impl Future<Output = Result<ExecOutput, DriverError>> + Send;
}

/// Logs of containers, which the runtime writes.
pub trait ContainerLogs: Send + Sync + 'static {
    /// `ReopenContainerLog`: from now on the container's log is the file at its path, created if it is
    /// missing.
    fn reopen_log(&self, container: &ContainerId) -> impl Future<Output = Result<(), DriverError>> + Send;
}

/// Checkpoints of containers.
pub trait Checkpoints: Send + Sync + 'static {
    /// `CheckpointContainer`: writes it to `location`, a path of the node. `timeout_s` bounds the runtime's work; 0 leaves
    /// it to the runtime.
    fn checkpoint(
        &self,
        container: &ContainerId,
        location: &str,
        timeout_s: i64,
    ) -> impl Future<Output = Result<(), DriverError>> + Send;
}

/// What `ExecSync` answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Exit code of the command.
    pub exit_code: i32,
    /// Standard output, as the runtime truncated it.
    pub stdout: Vec<u8>,
    /// Standard error, as the runtime truncated it.
    pub stderr: Vec<u8>,
}

/// Usage of containers and images, from the runtime.
pub trait Statistics: Send + Sync + 'static {
    /// `ListContainerStats`: every container that runs, others' too.
    fn container_stats(&self) -> impl Future<Output = Result<Vec<RuntimeUsage>, DriverError>> + Send;
    /// `ImageFsInfo`: the first file system of images; `None` if it names none.
    fn image_filesystem(&self) -> impl Future<Output = Result<Option<Layer>, DriverError>> + Send;
    /// `ImageFsInfo`: where images and writable layers are.
    fn storage_places(&self) -> impl Future<Output = Result<StoragePlaces, DriverError>> + Send;
}

/// Directories of the runtime; `None` if it names none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoragePlaces {
    /// File system of the images.
    pub images: Option<String>,
    /// File system of the writable layers.
    pub containers: Option<String>,
}
