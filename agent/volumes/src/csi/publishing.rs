//! The way of a CSI driver's volume to a pod: the next step, given the answers so far.
//!
//! ```text
//! CSIDriver ─► wish ─► VolumeAttachment ─► driver, capabilities, Secret ─► turn ─► disk: another pod? another label?
//!   (not attached: end)                                                     ┌──────── NodeUnstageVolume ◄──┘
//!        a driver that stages: pod's record ─► Secret ─► node's record ─► NodeStageVolume
//!        ─► tokens ─► (pod's record) ─► NodePublishVolume ─► device kept ─► group ─► NodeExpandVolume ─► published
//! refused for good: the new records are removed again
//! ```
//! In: a [`CsiVolume`], answers. Out: the next [`PublishStep`]. Invariants: the pod's record is on disk before the driver is asked for
//! anything; the node's record is there before NodeStageVolume; a driver that stages publishes nothing that is not staged; a
//! record is removed only if it is new and the driver refused for good; everything of a volume that outlives its pods
//! is done in its turn. Nothing here outlives a kill: the next agent begins at the first step, and every step may be
//! repeated. Upstream: pkg/volume/csi/csi_attacher.go, csi_mounter.go, csi_block.go, operation_generator.go.

mod next;

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::objects::ObjectRef;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};

use super::failures::{CallFailed, Failure, StagedAs};
use super::request::{Capabilities, DriverToken, Publish, Stage};
use super::source::SecretRef;
use super::{CsiVolume, Persistent, Terms};
use crate::Resize;
use crate::attach::{Attached, VolumeOnDisk};

/// What is next; the answer to each is named in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublishStep {
    /// The CSIDriver object is read: [`PublishAnswer::Object`].
    Object,
    /// The volume table hears that the pod wants the volume, and whether nodes attach it: [`PublishAnswer::Attached`].
    Wish {
        /// It has to be attached.
        attach: bool,
    },
    /// The VolumeAttachment is read: [`PublishAnswer::Attachment`].
    Attachment,
    /// The node has no room for the volume: its driver is asked how much there is: [`PublishAnswer::Done`].
    AskLimits,
    /// Is the driver registered: [`PublishAnswer::Found`].
    Driver,
    /// The driver is asked for its capabilities: [`PublishAnswer::Capabilities`].
    Capabilities,
    /// A Secret is read: [`PublishAnswer::Secret`].
    Secret(SecretFor),
    /// The volume's turn is waited for: [`PublishAnswer::Facts`].
    Turn,
    /// What this agent knows of an inline volume: [`PublishAnswer::Facts`].
    Facts,
    /// The disk is read: [`PublishAnswer::Held`].
    ReadDisk,
    /// The volume table hears that the volume is staged, or may no longer be: [`PublishAnswer::Done`].
    Staged(bool),
    /// NodeUnstageVolume, for another label: [`PublishAnswer::Called`].
    Unstage,
    /// Remove the node's record: [`PublishAnswer::Node`].
    ForgetStage(StagedAs),
    /// The pod's record is written; the answer says whether it is new: [`PublishAnswer::Recorded`].
    Record,
    /// The node's record is written; the answer says whether it is new: [`PublishAnswer::Recorded`].
    RecordStage(StagedAs),
    /// NodeStageVolume: [`PublishAnswer::Called`].
    Stage(Box<Stage>),
    /// Remove the pod's record: [`PublishAnswer::Node`].
    Release,
    /// The tokens that the driver wants: [`PublishAnswer::Tokens`].
    Tokens,
    /// NodePublishVolume: [`PublishAnswer::Called`].
    Publish(Box<Publish>),
    /// The node keeps the block device for the pod: [`PublishAnswer::Node`].
    Keep,
    /// The files become the group's: [`PublishAnswer::Given`].
    Give(u32),
    /// What the volume holds becomes as large as the volume, if it is not: [`PublishAnswer::Grown`].
    Grow {
        /// The volume is staged.
        staged: bool,
        /// Containers have it.
        in_use: bool,
    },
    /// The volume table hears that the volume is published; the driver wants to be asked again and again, or not: [`PublishAnswer::Done`].
    Published {
        /// See above.
        again: bool,
    },
    /// No step is left.
    End(End),
}

/// How the way ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The pod has the volume.
    Published {
        /// A token in it is renewed after this time.
        renew_after: Option<Duration>,
        /// The way is to be gone again after a while: the driver wants it, or the volume may grow.
        again: bool,
        /// The result of a growth.
        resize: Option<Resize>,
        /// Its mount says what its files are labelled.
        labelled: bool,
    },
    /// It is not attached to the node.
    Unattached {
        /// The node has no room for it.
        full: bool,
    },
    /// It cannot be mounted as the pod wants it while others have it.
    Unprocessed {
        /// Why.
        why: String,
    },
    /// Its files are still being given to their group.
    Giving,
    /// The pod cannot have it now.
    Failed(Failure),
}

/// The answer to a step.
#[derive(Clone)]
pub enum PublishAnswer {
    /// The step was done; it cannot fail.
    Done,
    /// The CSIDriver object, if there is one.
    Object(Result<Option<Box<CSIDriver>>, String>),
    /// As far as the Node says.
    Attached(Attached),
    /// The VolumeAttachment.
    Attachment(Result<Box<VolumeAttachment>, String>),
    /// The driver is registered.
    Found(bool),
    /// What the driver can do.
    Capabilities(Result<Capabilities, String>),
    /// What the Secret holds.
    Secret(Result<BTreeMap<String, String>, String>),
    /// What this agent knows.
    Facts(Facts),
    /// What the disk holds of the volume.
    Held(Result<VolumeOnDisk, Failure>),
    /// A record is on disk; true if it is new.
    Recorded(Result<bool, Failure>),
    /// The driver answered.
    Called(Result<(), CallFailed>),
    /// The node did its part, or could not.
    Node(Result<(), Failure>),
    /// The tokens.
    Tokens(Result<Tokens, String>),
    /// The files are the group's; false: not yet.
    Given(Result<bool, Failure>),
    /// The result of the growth; `None`: there was none.
    Grown(Result<Option<Resize>, String>),
}

/// What this incarnation of the agent knows of a volume and its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The volume was staged and not taken back.
    pub staged: bool,
    /// It was published at the target and not taken back.
    pub published: bool,
    /// Its files are, or were, on their way to their group: it is published.
    pub walked: bool,
}

/// Tokens for a driver.
#[derive(Clone, Default)]
pub struct Tokens {
    /// Those that the CSIDriver names.
    pub given: Vec<DriverToken>,
    /// The first of them is to be renewed after this time; `None` if the driver is asked once only.
    pub renew_after: Option<Duration>,
}

/// Which Secret is read, and where it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretFor {
    /// That of an inline volume.
    Inline(ObjectRef),
    /// `nodePublishSecretRef`.
    Publish(SecretRef),
    /// `nodeStageSecretRef`.
    Stage(SecretRef),
}

/// Where a volume is, or will be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Where the driver publishes it for the pod.
    pub target: String,
    /// Where the driver stages it, if it does.
    pub staging: String,
}

/// The step that is being taken. Steps that undo something carry the failure that they end with.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PublishPosition {
    Object,
    Wish,
    NoRoom,
    AskLimits,
    Attachment,
    Driver,
    Capabilities,
    Secret,
    Turn,
    Facts,
    ReadDisk,
    Unstaged,
    Unstage,
    ForgetStage,
    RecordFirst,
    StageSecret,
    RecordStage,
    Stage {
        /// The node's record is new.
        new: bool,
    },
    Staged,
    UndoStage(Failure),
    Release(Failure),
    Tokens,
    Record,
    Publish,
    Keep,
    Give(u32),
    Grow,
    Published,
    End(End),
}

/// The way of one volume to one pod.
#[derive(Clone)]
pub struct Publishing {
    csi: CsiVolume,
    pod: PodUid,
    paths: Paths,
    group: Option<u32>,
    /// The volume is published and nothing is left to ask its driver for, but whether it has grown.
    settled: bool,
    terms: Terms,
    attached: BTreeMap<String, String>,
    driver: Capabilities,
    /// For NodePublishVolume.
    secrets: BTreeMap<String, String>,
    /// For NodeStageVolume.
    stage_secrets: BTreeMap<String, String>,
    facts: Facts,
    /// The pod's record is on disk; true if it was not there before.
    recorded: Option<bool>,
    tokens: Tokens,
    resize: Option<Resize>,
    at: PublishPosition,
}

impl Publishing {
    /// The way of `csi` to `pod`; `group` is the pod's.
    #[must_use]
    pub fn new(csi: &CsiVolume, pod: &PodUid, paths: Paths, group: Option<u32>) -> Publishing {
        Publishing {
            csi: csi.clone(),
            pod: pod.clone(),
            paths,
            group,
            settled: false,
            terms: Terms::default(),
            attached: BTreeMap::new(),
            driver: Capabilities::default(),
            secrets: BTreeMap::new(),
            stage_secrets: BTreeMap::new(),
            facts: Facts::default(),
            recorded: None,
            tokens: Tokens::default(),
            resize: None,
            at: PublishPosition::Object,
        }
    }

    /// A published volume stays published, also if its driver cannot be reached now: the way looks only whether
    /// the volume has grown.
    #[must_use]
    pub fn settled(self) -> Publishing {
        Publishing { settled: true, at: PublishPosition::Driver, ..self }
    }

    /// The volume, as the driver can have it.
    #[must_use]
    pub fn volume(&self) -> &CsiVolume {
        &self.csi
    }

    /// What the CSIDriver object says.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What the driver can do.
    #[must_use]
    pub fn driver(&self) -> Capabilities {
        self.driver
    }

    /// What is next.
    #[must_use]
    pub fn step(&self) -> PublishStep {
        match &self.at {
            PublishPosition::Object => PublishStep::Object,
            PublishPosition::Wish => PublishStep::Wish { attach: self.terms.attach },
            PublishPosition::NoRoom | PublishPosition::Attachment => PublishStep::Attachment,
            PublishPosition::AskLimits => PublishStep::AskLimits,
            PublishPosition::Driver => PublishStep::Driver,
            PublishPosition::Capabilities => PublishStep::Capabilities,
            PublishPosition::Secret => self.secret().map_or(PublishStep::Facts, PublishStep::Secret),
            PublishPosition::StageSecret => {
                self.stage_secret().map_or(PublishStep::Facts, PublishStep::Secret)
            }
            PublishPosition::Turn => PublishStep::Turn,
            PublishPosition::Facts => PublishStep::Facts,
            PublishPosition::ReadDisk => PublishStep::ReadDisk,
            PublishPosition::Unstaged => PublishStep::Staged(false),
            PublishPosition::Unstage => PublishStep::Unstage,
            PublishPosition::ForgetStage => PublishStep::ForgetStage(StagedAs::Files),
            PublishPosition::UndoStage(_) => PublishStep::ForgetStage(self.staged_as()),
            PublishPosition::RecordFirst | PublishPosition::Record => PublishStep::Record,
            PublishPosition::RecordStage => PublishStep::RecordStage(self.staged_as()),
            PublishPosition::Stage { .. } => PublishStep::Stage(Box::new(self.stage())),
            PublishPosition::Staged => PublishStep::Staged(true),
            PublishPosition::Release(_) => PublishStep::Release,
            PublishPosition::Tokens => PublishStep::Tokens,
            PublishPosition::Publish => PublishStep::Publish(Box::new(self.publish())),
            PublishPosition::Keep => PublishStep::Keep,
            PublishPosition::Give(group) => PublishStep::Give(*group),
            PublishPosition::Grow => PublishStep::Grow { staged: self.stages(), in_use: self.in_use() },
            PublishPosition::Published => PublishStep::Published { again: self.terms.again },
            PublishPosition::End(end) => PublishStep::End(end.clone()),
        }
    }

    /// The step was taken.
    pub fn answered(&mut self, answer: PublishAnswer) {
        let at = std::mem::replace(&mut self.at, PublishPosition::End(End::Failed(Failure::mixed_up())));
        self.at = self.next(at, answer).unwrap_or_else(|why| PublishPosition::End(End::Failed(why)));
    }

    fn in_use(&self) -> bool {
        self.settled || self.facts.published
    }

    fn staged_as(&self) -> StagedAs {
        match self.csi.block {
            Some(_) => StagedAs::Device(self.csi.volume.clone()),
            None => StagedAs::Files,
        }
    }

    fn secret(&self) -> Option<SecretFor> {
        match &self.csi.persistent {
            None => self.csi.secret.clone().map(SecretFor::Inline),
            Some(persistent) => persistent.publish_secret.clone().map(SecretFor::Publish),
        }
    }

    fn stage_secret(&self) -> Option<SecretFor> {
        self.csi.persistent.as_ref()?.stage_secret.clone().map(SecretFor::Stage)
    }

    /// A driver that stages has volumes that outlive their pods staged.
    fn stages(&self) -> bool {
        self.driver.stages && self.csi.persistent.is_some()
    }

    fn stage(&self) -> Stage {
        let (attached, secrets) = (self.attached.clone(), self.stage_secrets.clone());
        self.csi.stage(&self.paths.staging, (self.driver, self.group), attached, secrets)
    }

    fn publish(&self) -> Publish {
        let (tokens, secrets) = (&self.tokens.given, self.secrets.clone());
        let of = (self.driver, self.group);
        let mut request = self.csi.publish(&self.paths.target, &self.terms, tokens, secrets, of);
        request.staging = self.stages().then(|| self.paths.staging.clone());
        request.attached.clone_from(&self.attached);
        request
    }

    /// The volume is a claim's, and the driver can make it larger.
    #[must_use]
    pub fn expandable(&self) -> Option<&Persistent> {
        self.csi.persistent.as_ref().filter(|p| self.driver.expands && !p.claim.is_empty())
    }

    /// The same, and it is written to: it may grow.
    #[must_use]
    pub fn growing(&self) -> Option<&Persistent> {
        self.expandable().filter(|_| !self.csi.read_only)
    }
}

#[cfg(test)]
mod tests;
