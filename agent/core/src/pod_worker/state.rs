//! The states of a pod worker; each state has only its legal data.
//!
//! ```text
//! Pending ──desired──► Syncing ──kill, deleted, ended──► Terminating ──all down──► Terminated ──gone──► Finished
//!    └──────────────────────kill, orphan─────────────────────▲
//! ```
//! No transition leads back. Upstream: the sync, terminating and terminated work of
//! pkg/kubelet/pod_workers.go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_types::backoff::Backoff;
use agent_types::ids::{ContainerId, IdMapping, SandboxId};
use agent_types::kill::KillReason;
use agent_types::objects::Objects;
use agent_types::restart::{BackOff, ImageBackOff};
use agent_types::runtime::image::{ImageInfo, PullPolicy};
use agent_types::time::{Mono, Wall};
use agent_volumes::env_file::EnvFiles;
use k8s_openapi::api::core::v1::Pod;

use crate::container_spec::inputs::ImageVolumes;
use crate::node_shutdown;
use crate::pod_actions::Start;
use crate::pod_worker::back_off::BackOffKeys;
use crate::pod_worker::effect::ImageUser;
use crate::status::{Verdict, WaitingReason};

#[derive(Clone, Debug)]
pub(super) enum PodWorkerState {
    /// The worker does not have the pod's specification yet.
    Pending,
    /// Brought to its desired state, and kept there.
    Syncing(Box<Syncing>),
    /// Nothing is started any more; containers are being stopped.
    Terminating(Terminating),
    /// All containers have ended; the worker removes or keeps the remains.
    Terminated(Terminated),
    /// Nothing is left.
    Finished,
}

#[derive(Clone, Debug)]
pub(super) struct Syncing {
    pub(super) pod: Arc<Pod>,
    /// This incarnation has begun to make the pod's directories.
    pub(super) begun: bool,
    /// This incarnation has made the pod's directories.
    pub(super) dirs_made: bool,
    /// What is known of the pod's RuntimeClass for the next sandbox.
    pub(super) runtime: RuntimeHandler,
    /// The pod's ids on the host, once known; only for a pod with its own user namespace.
    pub(super) users: Option<IdMapping>,
    /// The start chain of one container; containers start one at a time, in order.
    pub(super) chain: Option<Chain>,
    pub(super) back_off: BackOff,
    /// Keys of the pod in `back_off`.
    pub(super) back_off_keys: BackOffKeys,
    pub(super) images: ImageBackOff,
    pub(super) waiting: BTreeMap<String, WaitingReason>,
    /// Instances with a failed postStart hook.
    pub(super) hook_failed: BTreeSet<ContainerId>,
    /// Restarts that the back-off has counted: container name to attempt.
    pub(super) counted: BTreeMap<String, u32>,
    /// Ends that made all containers restart, until the containers run again: such an end counts as a crash.
    pub(super) reset_ends: BTreeMap<String, Wall>,
    /// Keys of events that are sent only once.
    pub(super) reported: BTreeSet<Occasion>,
}

impl Syncing {
    pub(super) fn new(pod: Arc<Pod>, crash_loop: Backoff) -> Syncing {
        Syncing {
            back_off_keys: BackOffKeys::of(&pod),
            pod,
            begun: false,
            dirs_made: false,
            runtime: RuntimeHandler::Unasked,
            users: None,
            chain: None,
            back_off: BackOff::new(crash_loop),
            images: ImageBackOff::default(),
            waiting: BTreeMap::new(),
            hook_failed: BTreeSet::new(),
            counted: BTreeMap::new(),
            reset_ends: BTreeMap::new(),
            reported: BTreeSet::new(),
        }
    }
}

/// An occasion for which one event is sent, however many passes see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Occasion {
    /// A container waits for its back-off after this instance ended.
    BackOff(ContainerId),
    /// This instance is stopped.
    Killing(ContainerId),
    /// A sandbox of this attempt takes the place of another one.
    SandboxChanged(u32),
    /// The resolver configuration of a sandbox of this attempt has this problem.
    DnsConfig(u32, String),
    /// The node's network is not ready for this reason.
    NetworkNotReady(String),
    /// These pull secrets cannot be used.
    PullSecrets(Vec<String>),
}

/// The runtime handler for the next sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RuntimeHandler {
    /// The class is to be looked up.
    Unasked,
    /// The resolved handler.
    Found(String),
    /// The class was looked up in vain.
    Missed,
}

/// The start of one container: image, create, start, postStart hook.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) start: Start,
    pub(super) sandbox: SandboxId,
    pub(super) sandbox_attempt: u32,
    /// The container's image.
    pub(super) own: RequiredImage,
    /// It is there.
    pub(super) found: Option<ImageInfo>,
    /// Images that the container mounts, in the order of its mounts.
    pub(super) mounted: Vec<RequiredImage>,
    /// The images that are present, by the names of their volumes.
    pub(super) images: ImageVolumes,
    /// What is known of the objects that the container's environment refers to.
    pub(super) objects: Objects,
    /// The files that it refers to.
    pub(super) files: EnvFiles,
    /// The instance, after its start was requested.
    pub(super) instance: Option<ContainerId>,
    /// Its postStart hook is running.
    pub(super) hooked: bool,
}

/// An image that a container cannot be made without.
#[derive(Clone, Debug)]
pub(super) struct RequiredImage {
    /// The volume for which the image is mounted; `None`: the container runs the image.
    pub(super) volume: Option<String>,
    /// Normalised when the chain began: for the runtime. Messages and the back-off have the written form.
    pub(super) image: String,
    pub(super) policy: PullPolicy,
    /// The pod as it wanted the image then.
    pub(super) user: ImageUser,
}

impl RequiredImage {
    /// The image as the pod spells it.
    pub(super) fn written(&self) -> &str {
        &self.user.written
    }
}

impl Chain {
    /// The image that is to be found next: those that are mounted come first.
    pub(super) fn wanted(&self) -> &RequiredImage {
        let missing =
            |w: &&RequiredImage| w.volume.as_ref().is_some_and(|name| !self.images.contains_key(name));
        self.mounted.iter().find(missing).unwrap_or(&self.own)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Terminating {
    /// Unknown for orphans.
    pub(super) pod: Option<Arc<Pod>>,
    pub(super) reason: KillReason,
    pub(super) grace_s: u32,
    pub(super) since: Mono,
    /// This worker had begun to make the pod.
    pub(super) begun: bool,
    /// Everything is to go, not only to stop.
    pub(super) remove: bool,
    pub(super) desired_again: bool,
    pub(super) record: Record,
    /// Grace and removal as last written, or refused by the disk.
    pub(super) recorded: Option<(u32, bool)>,
    /// Whether the record on disk says that everything is to go; `None`: there is no record.
    pub(super) on_disk: Option<bool>,
    /// Containers with a sent `Killing` event.
    pub(super) reported: BTreeSet<ContainerId>,
    /// What containers were waiting for when termination began.
    pub(super) waiting: BTreeMap<String, WaitingReason>,
}

impl Terminating {
    /// True if the last written record is current.
    pub(super) fn is_recorded(&self) -> bool {
        self.recorded == Some((self.grace_s, self.remove))
    }
}

/// The terminating record: written before the first stop depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Needed,
    Writing,
    Written,
}

#[derive(Clone, Debug)]
pub(super) struct Terminated {
    pub(super) pod: Option<Arc<Pod>>,
    pub(super) reason: KillReason,
    pub(super) cleanup: Cleanup,
    pub(super) desired_again: bool,
    pub(super) waiting: BTreeMap<String, WaitingReason>,
    pub(super) removal: Removal,
}

/// The record of a removal: written before the removal of a pod that was to be kept at its end.
#[derive(Clone, Debug)]
pub(super) struct Removal {
    pub(super) record: Record,
    /// How often the record could not be written.
    pub(super) failures: u32,
    /// The disk may have a record of the pod's end, which does not say that the pod is to go.
    pub(super) kept: bool,
    /// Since when the pod is taken down, and with which grace.
    pub(super) since: Mono,
    pub(super) grace_s: u32,
}

/// What is left of a terminated pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cleanup {
    /// Dead containers and directories stay until the pod is removed from its source.
    Kept,
    /// The disk is full: dead containers, their logs and sandboxes are being removed or are gone, directories stay.
    Stripping,
    /// Containers and sandboxes are being removed, then the directories.
    Removing,
}

/// The decided phase and message that a reason stands for.
pub(super) fn verdict(reason: &KillReason) -> Option<Verdict> {
    let text = |reason: &str, message: &str| {
        Some(Verdict { reason: reason.to_owned(), message: message.to_owned(), disruption: None })
    };
    match reason {
        KillReason::Failed { reason, message, disruption } => {
            Some(Verdict { reason: reason.clone(), message: message.clone(), disruption: disruption.clone() })
        }
        KillReason::DeadlineExceeded => {
            text("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        }
        KillReason::Shutdown { .. } => Some(Verdict {
            reason: node_shutdown::POD_REASON.to_owned(),
            message: node_shutdown::POD_MESSAGE.to_owned(),
            disruption: Some(node_shutdown::POD_MESSAGE.to_owned()),
        }),
        KillReason::Removed | KillReason::Deleted | KillReason::Orphan | KillReason::Ended => None,
    }
}
