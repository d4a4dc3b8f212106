//! The narrow traits behind which the world lives. Production drivers are in agent-cri and agent-linux,
//! fakes in agent-sim; both pass the same contract suite (`agent_cri::testing::contract_suite`).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::images::keyring::Credential;
use crate::resources::cgroups::{CgroupName, CgroupValues};
use crate::runtime::config::{ContainerConfig, LinuxResources, SandboxConfig};
use crate::runtime::containers::Containers;
use crate::runtime::effect::ImageInfo;
use crate::runtime::observed::{ListedPod, SandboxObserved};
use crate::runtime::{ContainerId, PodKey, PodUid, SandboxId};
use crate::stats::RuntimeUsage;
use crate::stats::disk::Layer;
use crate::streaming::StreamOptions;

/// What a failure allows: core decides by this, people read the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Try again, not sooner than this.
    Retryable {
        /// Milliseconds; 0 leaves it to the caller's back-off.
        after_ms: u64,
    },
    /// The object is not there: a success for removals.
    NotFound,
    /// The object is there already: adopt it.
    AlreadyExists,
    /// Somebody else changed it: look again, then decide.
    Conflict,
    /// The request can never succeed as it is.
    Invalid,
    /// The driver's peer is down, or says that it cannot work yet: nothing was applied.
    Unavailable,
    /// The connection broke while the answer was awaited: **may or may not have been applied**. What is still going on is over
    /// [`CANCELLED_CALL_MAX`] later: the peer is gone, or sees that its caller is.
    Interrupted,
    /// No answer in time: **may or may not have been applied**.
    DeadlineExceeded,
}

/// How long the runtime may go on with a call whose caller is gone: gRPC cancels what came over a connection with it. What
/// outlives even that is recognised by its name: sandbox and container names are functions of (UID, name, attempt), and the
/// runtime refuses a second one of the same name.
pub const CANCELLED_CALL_MAX: Duration = Duration::from_secs(5);

/// A driver's failure: which operation on which object, its class, and the cause.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {object}: {message}")]
pub struct DriverError {
    /// CRI verb or system call.
    pub operation: &'static str,
    /// Pod, container, path.
    pub object: String,
    /// What to do about it.
    pub class: Class,
    /// The peer's words.
    pub message: String,
}

/// `Version` of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// For example `containerd`.
    pub name: String,
    /// For example `2.1.4`.
    pub version: String,
    /// For example `v1`.
    pub api_version: String,
}

/// `Status` of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// Condition `RuntimeReady`; if it is false `RuntimeReady=false reason:… message:…`.
    pub runtime_ready: Result<(), String>,
    /// Condition `NetworkReady`; if it is false `NetworkReady=false reason:… message:…`.
    pub network_ready: Result<(), String>,
    /// Runtime handlers, as the runtime orders them; empty if it does not say.
    pub handlers: Vec<RuntimeHandler>,
    /// What the runtime can do; `None` if it does not say.
    pub features: Option<RuntimeFeatures>,
}

impl RuntimeStatus {
    /// A runtime that is ready and says nothing more.
    #[must_use]
    pub fn ready() -> RuntimeStatus {
        RuntimeStatus { runtime_ready: Ok(()), network_ready: Ok(()), handlers: Vec::new(), features: None }
    }
}

/// One runtime handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeHandler {
    /// Empty for the default handler.
    pub name: String,
    /// It makes read-only mounts read-only all the way down.
    pub recursive_read_only_mounts: bool,
    /// It runs pods in user namespaces.
    pub user_namespaces: bool,
}

/// Whether sandboxes with user namespaces can be run by `handler`, empty for the default one (KEP-127).
///
/// # Errors
/// Why not, in upstream's words.
pub fn user_namespaces(handlers: &[RuntimeHandler], handler: &str) -> Result<(), String> {
    let mut why = "can't set `spec.hostUsers: false`, runtime does not support user namespaces".to_owned();
    if !handler.is_empty() {
        why = format!(
            "can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not support user namespaces"
        );
    }
    match handlers.iter().find(|h| h.name == handler) {
        Some(found) if found.user_namespaces => Ok(()),
        // A runtime that says nothing of its handlers is an old one.
        None if !handlers.is_empty() => Err(format!("{why}: the handler {handler:?} is not known")),
        _ => Err(why),
    }
}

/// What the runtime as a whole can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    /// `supplementalGroupsPolicy` is honoured.
    pub supplemental_groups_policy: bool,
    /// User namespaces go together with the host's network.
    pub user_namespaces_host_network: bool,
}

/// `RuntimeConfig`: who writes cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CgroupDriver {
    /// Slices and scopes through systemd.
    Systemd,
    /// Directories.
    Cgroupfs,
}

/// What giving a cgroup its values came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It had them.
    Unchanged,
    /// It was not there.
    Made,
    /// It had others.
    Changed,
}

/// The cgroups that the agent makes itself (cgroup v2), by one of the drivers. Applying what is there already changes
/// nothing.
pub trait Cgroups: Send + Sync + 'static {
    /// Gives a cgroup its values. One that is not there is made if `make` says so, with those above it, else it is an
    /// error of class `NotFound`.
    fn apply(
        &self,
        name: &CgroupName,
        values: &CgroupValues,
        make: bool,
    ) -> impl Future<Output = Result<Applied, DriverError>> + Send;
    /// Ends whatever runs in a cgroup and removes it with those below it; false if it was gone.
    fn remove(&self, name: &CgroupName) -> impl Future<Output = Result<bool, DriverError>> + Send;
    /// Bytes of memory in use in a cgroup; `None` if it is gone.
    fn memory_in_use(
        &self,
        name: &CgroupName,
    ) -> impl Future<Output = Result<Option<u64>, DriverError>> + Send;
    /// Names of the directories of the cgroups in this one, as the driver spells them; none if it is gone.
    fn children(&self, name: &CgroupName) -> impl Future<Output = Result<Vec<String>, DriverError>> + Send;
}

/// Everything that one pod has in the runtime, unstamped; the caller adds `as_of`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodObservation {
    /// Newest attempt first.
    pub sandboxes: Vec<SandboxObserved>,
    /// By name, the newest first within a name.
    pub containers: Containers,
    /// What the pod itself was last given, if anybody remembers; no runtime does.
    pub actuated: Option<crate::allocation::Amounts>,
}

/// CRI RuntimeService, the part that pods need. Every call is bounded by the driver's request timeout
/// (twice it for `run_sandbox`, plus the grace for `stop_container`) and answers `DeadlineExceeded` after.
pub trait Runtime: Send + Sync + 'static {
    /// `Version`.
    fn version(&self) -> impl Future<Output = Result<RuntimeVersion, DriverError>> + Send;
    /// `Status`.
    fn status(&self) -> impl Future<Output = Result<RuntimeStatus, DriverError>> + Send;
    /// `RuntimeConfig`; `None` if the runtime does not say.
    fn cgroup_driver(&self) -> impl Future<Output = Result<Option<CgroupDriver>, DriverError>> + Send;
    /// `ListPodSandbox` + `ListContainers`: every kubelet-made pod the runtime holds.
    fn list(&self) -> impl Future<Output = Result<Vec<ListedPod>, DriverError>> + Send;
    /// Filtered lists + a status for each: one pod in full. An unknown pod is an empty observation.
    fn inspect(
        &self,
        uid: &PodUid,
    ) -> impl Future<Output = Result<(Option<PodKey>, PodObservation), DriverError>> + Send;
    /// `RunPodSandbox`; an existing sandbox of the same uid and attempt is answered instead.
    fn run_sandbox(
        &self,
        config: &SandboxConfig,
    ) -> impl Future<Output = Result<SandboxId, DriverError>> + Send;
    /// `StopPodSandbox`; stopping what is gone is a success.
    fn stop_sandbox(&self, id: &SandboxId) -> impl Future<Output = Result<(), DriverError>> + Send;
    /// `RemovePodSandbox`; removing what is gone is a success.
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
    /// `StopContainer` with whole seconds of grace; stopping what is gone is a success.
    fn stop_container(
        &self,
        id: &ContainerId,
        grace_s: u32,
    ) -> impl Future<Output = Result<(), DriverError>> + Send;
    /// `RemoveContainer`; removing what is gone is a success.
    fn remove_container(&self, id: &ContainerId) -> impl Future<Output = Result<(), DriverError>> + Send;
}

/// What containers that run have, and are given.
pub trait Amounts: Send + Sync + 'static {
    /// `UpdateContainerResources`.
    fn update_container(
        &self,
        container: &ContainerId,
        resources: &LinuxResources,
    ) -> impl Future<Output = Result<(), DriverError>> + Send;
    /// `UpdatePodSandboxResources`; a runtime that does not know it answers that it is done.
    fn update_sandbox(
        &self,
        sandbox: &SandboxId,
        overhead: &LinuxResources,
        resources: &LinuxResources,
    ) -> impl Future<Output = Result<(), DriverError>> + Send;
    /// `ContainerStats`: bytes of memory in use by each; one that the runtime does not say it of is left out.
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

/// CRI ImageService.
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
    /// `RemoveImage`; removing what is gone is a success.
    fn remove_image(&self, image: &str) -> impl Future<Output = Result<(), DriverError>> + Send;
}

/// Which images containers have.
pub trait ImagesInUse: Send + Sync + 'static {
    /// `ListContainers`: what every container, running or not, and whoever made it, says of its image: id, reference, name.
    fn images_in_use(&self) -> impl Future<Output = Result<BTreeSet<String>, DriverError>> + Send;
}

/// Streams into containers and pods: the runtime answers with a URL of its own streaming server, good for one stream.
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
    /// `ReopenContainerLog`: from now on the container's log is the file that has its path, made anew if there is none.
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

/// What the runtime says that its containers and images use.
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
    /// Images.
    pub images: Option<String>,
    /// Writable layers.
    pub containers: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_namespaces_are_the_handlers() {
        let of = |name: &str, user_namespaces| RuntimeHandler {
            name: name.to_owned(),
            recursive_read_only_mounts: false,
            user_namespaces,
        };
        let handlers = [of("", true), of("crun", true), of("kata", false)];
        assert_eq!(user_namespaces(&handlers, ""), Ok(()));
        assert_eq!(user_namespaces(&handlers, "crun"), Ok(()));
        for (handlers, handler, words) in [
            (&handlers[..], "kata", "RuntimeClass handler \"kata\" does not support user namespaces"),
            (&handlers[..], "other", "does not support user namespaces: the handler \"other\" is not known"),
            (&[][..], "", "runtime does not support user namespaces"),
            (&[of("", false)][..], "", "runtime does not support user namespaces"),
        ] {
            let said = user_namespaces(handlers, handler).unwrap_err();
            assert!(
                said.starts_with("can't set `spec.hostUsers: false`, ") && said.ends_with(words),
                "{said}"
            );
        }
    }
}
