//! Effects: requests of a pod worker to the runtime, the disk and other drivers, as values, and their
//! results.
//!
//! The names in an effect are functions of (pod UID, container, attempt), so the runtime recognises an effect
//! that is repeated after a lost reply. Every effect has a deadline; the zombie fence depends on it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_kubelet_api::logs::retention::RemovedLog;
use agent_types::credential::Credential;
use agent_types::failure::Class;
use agent_types::ids::{ContainerId, IdMapping, SandboxId};
use agent_types::objects;
use agent_types::resources::cgroups::pod::PodCgroup;
use agent_types::runtime::claims::{ClaimsOfPod, PodClaims};
use agent_types::runtime::config::{ContainerConfig, SandboxConfig};
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::runtime::placement::PreStartCall;
use agent_types::runtime::pod_files::{PodFile, PodFiles};
use agent_volumes::env_file::{EnvFile, EnvFiles};
use agent_volumes::{bound, sub_path};
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::{Deserialize, Serialize};

use crate::allocation::actuate::ActuateStep;
use crate::lifecycle_hooks::HookCall;

/// What an answer may be worth doing about: see [`Class`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct EffectError {
    /// What core decides by.
    pub class: Class,
    /// What people read; the whole chain is in the log.
    pub message: String,
}

/// Who wants an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageUser {
    /// The image as the pod spells it.
    pub written: String,
    /// The credentials of the pod's Secrets that fit it.
    pub credentials: Vec<Credential>,
    /// The pod's service account; may be empty.
    pub account: String,
}

/// Time that a preStop hook may continue next to the stop of its container: the least grace of a stop.
pub const HOOK_MORE: Duration = Duration::from_secs(2);

/// A device plugin has this time for `PreStartContainer`, as upstream.
pub const PRE_START_TIME: Duration = Duration::from_secs(30);
/// Time in which an executor notices that a call is late.
const PRE_START_MARGIN: Duration = Duration::from_secs(1);

/// A DRA driver has this time for one call, as upstream.
pub const CLAIM_CALL_TIME: Duration = Duration::from_secs(45);
/// Calls for which an effect on a pod's claims has time. Drivers are called one after the other, and the first failure ends the effect, so
/// only drivers that succeed slowly use up more than one call's time; the next effect finds their claims prepared.
const CLAIM_CALLS: u32 = 4;

/// One thing for an executor to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// Make directories and files of a pod ([`PodFiles`]): the log
    /// directory with 0755, then `dirs` in order (an existing one keeps its mode), then `files`. Parents of
    /// `<root>/pods` are made as needed. Idempotent.
    CreatePodDirs {
        /// Absolute log directory of the pod.
        log_directory: String,
        /// Host paths to create, the pod directory first: (absolute path, mode regardless of the umask).
        dirs: Vec<(String, u32)>,
        /// Files to write below the pod directory, atomically.
        files: Vec<PodFile>,
        /// A container's log directory: the answer is [`EffectOk::Files`], with the newest attempt that left a log there.
        log_of: Option<String>,
    },
    /// Remove `<root>/pods/<uid>` and the pod's logs, mounts below the directory first; idempotent.
    RemovePodDirs {
        /// The pod starts again: the restart counts of its containers continue from their logs.
        keep_logs: bool,
    },
    /// Look up the volume that a claim of the pod is bound to. The answer is [`EffectOk::Claim`]: an unusable
    /// claim does not fail the effect.
    ResolveClaim {
        /// Claim to look up.
        claim: agent_volumes::claim::ClaimRef,
    },
    /// Set up one volume of the pod; reads the mount table and the disk first; idempotent. The answer is
    /// [`EffectOk::Volume`].
    SetUpVolume {
        /// The set-up to reach.
        volume: Box<agent_volumes::SetUp>,
    },
    /// What is known of objects that a container's environment refers to. The answer is [`EffectOk::Objects`].
    FetchObjects {
        /// Secrets and ConfigMaps to read.
        objects: BTreeSet<objects::ObjectRef>,
    },
    /// Read files of volumes that a container's environment refers to. The answer is [`EffectOk::EnvFiles`]:
    /// an unreadable file does not fail the effect.
    ReadEnvFiles {
        /// Files to read.
        files: BTreeSet<EnvFile>,
    },
    /// Give the pod a range of the host's ids for its own user namespace, or find its existing range. The
    /// range is durable before the answer, [`EffectOk::Users`]. Idempotent.
    MapUsers {
        /// The runtime's handler that must be able to do it; `None`: it has done it.
        handler: Option<String>,
    },
    /// Create the pod's cgroup with its values, or correct an existing one; idempotent.
    EnsureCgroup {
        /// Path and values.
        cgroup: Box<PodCgroup>,
        /// The pod's own `resources`, to be remembered ([`agent_types::runtime::observed::PodSnapshot::actuated`]); `None` if it has none, or
        /// if they are remembered already.
        actuates: Option<Box<ResourceRequirements>>,
    },
    /// Kill the remaining processes in the pod's cgroup and remove it, wherever it is; idempotent.
    RemoveCgroup,
    /// `PreStartContainer` of device plugins, one after the other; none after a failed one.
    PreStartDevices {
        /// Calls, each within [`PRE_START_TIME`].
        calls: Vec<PreStartCall>,
    },
    /// Allocate the devices that a container lacks. The shell passes it to the pod manager, which sends the pod's placement before its
    /// answer.
    AllocateDevices {
        /// Name of the container.
        container: String,
    },
    /// Prepare the claims of the pod with their drivers: `NodePrepareResources`. The answer is [`EffectOk::Claims`]. Idempotent.
    PrepareClaims {
        /// Claims of the pod.
        claims: Box<ClaimsOfPod>,
    },
    /// Find the devices of the pod's claims, prepare nothing. The answer is [`EffectOk::Claims`].
    FindClaims {
        /// Claims of the pod.
        claims: Box<ClaimsOfPod>,
    },
    /// Give back all claims of the pod: `NodeUnprepareResources`. Also for a pod that has none. Idempotent.
    UnprepareClaims,
    /// Mount parts of volumes for a container, and create missing parts of their paths; idempotent.
    MountSubPaths {
        /// Parts and their targets.
        parts: Vec<sub_path::SubPath>,
    },
    /// Unmount everything below `<root>/pods/<uid>` and remove the volumes' directories; idempotent.
    TearDownVolumes,
    /// `ImageStatus`. An image that the pod may not use without a pull counts as absent.
    InspectImage {
        /// Normalised reference.
        image: String,
        /// Who wants it.
        user: ImageUser,
    },
    /// `PullImage`; no deadline but cancellation.
    PullImage {
        /// Normalised reference.
        image: String,
        /// User of the image. Its credentials come first, in their order, then those of the node's files and
        /// of plugins.
        user: ImageUser,
    },
    /// `RunPodSandbox`; returns an existing sandbox of the same (uid, attempt).
    RunSandbox {
        /// What to run.
        config: Box<SandboxConfig>,
    },
    /// `StopPodSandbox`; idempotent.
    StopSandbox {
        /// Sandbox to stop.
        sandbox: SandboxId,
    },
    /// `RemovePodSandbox`; idempotent.
    RemoveSandbox {
        /// Sandbox to remove.
        sandbox: SandboxId,
    },
    /// `CreateContainer`; returns an existing container of the same (uid, name, attempt).
    CreateContainer {
        /// Sandbox of the container.
        sandbox: SandboxId,
        /// What to create.
        config: Box<ContainerConfig>,
        /// The sandbox's own configuration, which CRI wants again.
        sandbox_config: Box<SandboxConfig>,
        /// The container's `resources`: recorded before its creation (`ContainerObserved::actuated`).
        actuates: Box<ResourceRequirements>,
    },
    /// `StartContainer`.
    StartContainer {
        /// Container to start.
        container: ContainerId,
    },
    /// `StopContainer`: TERM, wait, KILL; idempotent.
    StopContainer {
        /// Container to stop.
        container: ContainerId,
        /// Whole seconds of grace; never below 2 except for RestartAllContainers (upstream: `minimumGracePeriodInSeconds`).
        grace_s: u32,
    },
    /// `RemoveContainer`, after its log files; idempotent.
    RemoveContainer {
        /// Container to remove.
        container: ContainerId,
        /// Logs to remove; `None`: none now (they may go with the pod's).
        log: Option<RemovedLog>,
    },
    /// Run a postStart or preStop hook; the answer is [`EffectOk::Hook`].
    RunHook {
        /// Container and action of the hook.
        call: Box<HookCall>,
        /// Whole seconds for which its container is not stopped because of it; `None` is no limit but cancellation. It may
        /// go on for as long as a stop is given at least ([`HOOK_MORE`]): it ends with its container.
        within_s: Option<u32>,
    },
    /// Change the resources of running containers: these steps in order, none after a failed one.
    Resize {
        /// Steps of the resize.
        steps: Vec<ActuateStep>,
    },
    /// Move running containers to these processors: `UpdateContainerResources` with `cpuset_cpus` alone, one call for each. An ended
    /// container does not fail the effect.
    SetCpus {
        /// Containers and their processors, in the kernel's list form.
        cpus: BTreeMap<ContainerId, String>,
    },
    /// Ask for a fresh [`PodSnapshot`] of this pod; the answer is [`EffectOk::Snapshot`].
    Inspect,
}

impl From<PodFiles> for Effect {
    fn from(made: PodFiles) -> Effect {
        let PodFiles { log_directory, dirs, files, log_of } = made;
        Effect::CreatePodDirs { log_directory, dirs, files, log_of }
    }
}

impl Effect {
    /// True for calls over the runtime's connection that change something there, which an earlier incarnation may still
    /// have in progress after its end.
    #[must_use]
    pub fn changes_runtime(&self) -> bool {
        match self {
            Effect::RunSandbox { .. }
            | Effect::StopSandbox { .. }
            | Effect::RemoveSandbox { .. }
            | Effect::CreateContainer { .. }
            | Effect::StartContainer { .. }
            | Effect::StopContainer { .. }
            | Effect::RemoveContainer { .. }
            | Effect::SetCpus { .. }
            | Effect::Resize { .. } => true,
            Effect::CreatePodDirs { .. }
            | Effect::RemovePodDirs { .. }
            | Effect::ResolveClaim { .. }
            | Effect::SetUpVolume { .. }
            | Effect::TearDownVolumes
            | Effect::MountSubPaths { .. }
            | Effect::PreStartDevices { .. }
            | Effect::AllocateDevices { .. }
            | Effect::PrepareClaims { .. }
            | Effect::FindClaims { .. }
            | Effect::UnprepareClaims
            | Effect::FetchObjects { .. }
            | Effect::MapUsers { .. }
            | Effect::EnsureCgroup { .. }
            | Effect::RemoveCgroup
            | Effect::ReadEnvFiles { .. }
            | Effect::InspectImage { .. }
            | Effect::PullImage { .. }
            | Effect::RunHook { .. }
            | Effect::Inspect => false,
        }
    }

    /// The executor's deadline; after it the executor answers `DeadlineExceeded`. The deadlines are upstream's
    /// (cri-client/pkg/remote_runtime.go). `None`: only cancellation ends the effect.
    #[must_use]
    pub fn timeout(&self, request_timeout: Duration) -> Option<Duration> {
        match self {
            // The pod manager answers: each question to a plugin has its own time.
            Effect::PullImage { .. } | Effect::AllocateDevices { .. } => None,
            Effect::RunHook { within_s, .. } => {
                within_s.map(|s| Duration::from_secs(u64::from(s)).saturating_add(HOOK_MORE))
            }
            Effect::PreStartDevices { calls } => {
                let calls = u32::try_from(calls.len()).unwrap_or(u32::MAX);
                Some(PRE_START_TIME.saturating_mul(calls).saturating_add(PRE_START_MARGIN))
            }
            Effect::PrepareClaims { .. } | Effect::UnprepareClaims => {
                Some(request_timeout + CLAIM_CALL_TIME * CLAIM_CALLS)
            }
            Effect::RunSandbox { .. } => Some(request_timeout * 2),
            Effect::StopContainer { grace_s, .. } => {
                Some(request_timeout + Duration::from_secs(u64::from(*grace_s)))
            }
            // The driver has its own two minutes for each of two steps.
            Effect::SetUpVolume { volume } if matches!(volume.work, agent_volumes::Work::Csi(_)) => {
                Some(request_timeout + Duration::from_secs(240))
            }
            Effect::SetUpVolume { volume } if matches!(volume.work, agent_volumes::Work::Nfs(_)) => {
                Some(request_timeout + agent_volumes::NFS_TIME)
            }
            Effect::SetUpVolume { volume }
                if matches!(
                    volume.work,
                    agent_volumes::Work::Bind(_) | agent_volumes::Work::NetworkDisk(_)
                ) =>
            {
                Some(request_timeout + agent_volumes::DISK_TIME)
            }
            Effect::SetUpVolume { volume } if matches!(volume.work, agent_volumes::Work::Flex(_)) => {
                Some(request_timeout + agent_volumes::FLEX_TIME)
            }
            // A server that is away is waited for before its mount is forced.
            Effect::TearDownVolumes | Effect::RemovePodDirs { .. } => {
                Some(request_timeout + agent_volumes::NFS_TIME)
            }
            _ => Some(request_timeout),
        }
    }

    /// Fixed name for logs and traces.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Effect::CreatePodDirs { .. } => "create_pod_dirs",
            Effect::RemovePodDirs { .. } => "remove_pod_dirs",
            Effect::ResolveClaim { .. } => "resolve_claim",
            Effect::SetUpVolume { .. } => "set_up_volume",
            Effect::FetchObjects { .. } => "fetch_objects",
            Effect::ReadEnvFiles { .. } => "read_env_files",
            Effect::MapUsers { .. } => "map_users",
            Effect::EnsureCgroup { .. } => "ensure_cgroup",
            Effect::RemoveCgroup => "remove_cgroup",
            Effect::MountSubPaths { .. } => "mount_sub_paths",
            Effect::PreStartDevices { .. } => "pre_start_devices",
            Effect::AllocateDevices { .. } => "allocate_devices",
            Effect::PrepareClaims { .. } => "prepare_claims",
            Effect::FindClaims { .. } => "find_claims",
            Effect::UnprepareClaims => "unprepare_claims",
            Effect::TearDownVolumes => "tear_down_volumes",
            Effect::InspectImage { .. } => "inspect_image",
            Effect::PullImage { .. } => "pull_image",
            Effect::RunSandbox { .. } => "run_sandbox",
            Effect::StopSandbox { .. } => "stop_sandbox",
            Effect::RemoveSandbox { .. } => "remove_sandbox",
            Effect::CreateContainer { .. } => "create_container",
            Effect::StartContainer { .. } => "start_container",
            Effect::StopContainer { .. } => "stop_container",
            Effect::RemoveContainer { .. } => "remove_container",
            Effect::RunHook { .. } => "run_hook",
            Effect::Resize { .. } => "resize",
            Effect::SetCpus { .. } => "set_cpus",
            Effect::Inspect => "inspect",
        }
    }
}

/// A volume that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounted {
    /// Time until the written files expire; `None`: they stay good until their sources change.
    pub renew_after: Option<Duration>,
    /// Warning about the mount (`AlreadyMountedVolume`).
    #[serde(default)]
    pub warning: Option<String>,
    /// What it holds was to become larger.
    #[serde(default)]
    pub resize: Option<agent_volumes::Resize>,
    /// The runtime does not relabel the volume: its mount option sets the SELinux label, or its driver does
    /// not support labels.
    #[serde(default)]
    pub labelled: bool,
}

/// What a successful effect answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EffectOk {
    /// Success without a value.
    Done,
    /// Id of the sandbox, for [`Effect::RunSandbox`].
    Sandbox(SandboxId),
    /// Id of the container, for [`Effect::CreateContainer`].
    Container(ContainerId),
    /// For [`Effect::InspectImage`]; `None` is absent.
    Image(Option<ImageInfo>),
    /// For [`Effect::PullImage`].
    Pulled {
        /// The image.
        image: ImageInfo,
        /// Duration of the pull itself, without the wait for its turn among the node's pulls.
        took: Duration,
    },
    /// CreatePodDirs of a container.
    Files {
        /// Highest attempt with a log file (`<attempt>.log`, rotated or not).
        newest_log: Option<u32>,
    },
    /// The mounted volume, for [`Effect::SetUpVolume`].
    Volume(Mounted),
    /// For [`Effect::SetUpVolume`]: the volume is not attached to the node yet; nothing was done.
    Unattached {
        /// Nor will it be: its driver has no room for another volume on this node.
        full: bool,
    },
    /// For [`Effect::SetUpVolume`]: the change of the files' group to the pod's `fsGroup` is still running.
    /// This is no failure; a repeated effect waits for its end.
    Giving {
        /// Host path of the volume.
        path: String,
        /// How many entries were seen so far.
        entries: u64,
        /// For how long it has been going on.
        took: Duration,
    },
    /// The bound volume, for [`Effect::ResolveClaim`].
    Claim(Result<Box<bound::Bound>, agent_volumes::claim::ClaimError>),
    /// Contents of the objects, for [`Effect::FetchObjects`].
    Objects(objects::Objects),
    /// For [`Effect::SetUpVolume`]: no known plugin handles the volume yet.
    Unprocessed {
        /// Why, in upstream's words.
        why: String,
    },
    /// Contents of the files, for [`Effect::ReadEnvFiles`].
    EnvFiles(EnvFiles),
    /// Devices for the containers, for [`Effect::PrepareClaims`] and [`Effect::FindClaims`].
    Claims(Box<PodClaims>),
    /// Range of ids, for [`Effect::MapUsers`].
    Users(IdMapping),
    /// Result of [`Effect::RunHook`].
    Hook {
        /// Server of an https hook that answered in plain HTTP, so that the request was repeated over HTTP.
        fell_back: Option<String>,
    },
    /// Snapshot of the pod, for [`Effect::Inspect`].
    Snapshot(Box<PodSnapshot>),
}

/// Answer to an effect; a living incarnation gets exactly one for each effect.
pub type EffectResult = Result<EffectOk, EffectError>;
