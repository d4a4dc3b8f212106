//! The calls of a flexVolume driver, in order, until a pod has its volume.
//!
//! ```text
//! getvolumename ─► who attaches? ─ the node: isattached? ─► attach ─► written down ─┐
//!                        └──────── the cluster: its device ──────────────────────────┴─► waitforattach ─► mounted for all?
//!                               mount ◄── mountdevice, or formatted and mounted by the node ◄── no ──┘
//! a driver without `attach` is asked for `mount` alone
//! ```
//! In: a [`Flex`], the driver's capabilities, the present state, answers. Out: the next [`MountingStep`]. Invariants:
//! a step that the driver does not know has upstream's default; no call is repeated in one round. Upstream:
//! pkg/volume/flexvolume (attacher.go, mounter.go), `GenerateMountVolumeFunc` of
//! pkg/volume/util/operationexecutor/operation_generator.go.

use std::collections::BTreeMap;

use super::Flex;
use super::answer::{Capabilities, DriverResponse, Refusal};
use super::call::Call;
use crate::{MOUNT_DEVICE, SET_UP, SetUpError, WAIT_FOR_ATTACH, claim, step_failed};

/// The step that attaches a volume to the node.
const ATTACH: &str = "AttachVolume.Attach";

/// Who attaches a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// The cluster: it did so as this device.
    Cluster(String),
    /// The node: it is written down that it did so as this device, if it is.
    Node(Option<String>),
}

/// What is here already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExistingMounts {
    /// It is mounted for all pods.
    pub global: bool,
    /// It is mounted for the pod.
    pub pod: bool,
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountingStep {
    /// The driver is asked; the answer goes to [`Mounting::answered`].
    Call(Call),
    /// It is written down that the node attached it as this device; see [`Mounting::done`].
    WriteDown(String),
    /// This device is formatted if it is blank, and mounted for all pods; see [`Mounting::done`].
    MountDevice(String),
    /// What is mounted for all pods is mounted for this one, too; see [`Mounting::done`].
    Bind,
    /// The pod has it.
    Done,
    /// The pod cannot have it now, and why.
    Failed(SetUpError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MountingPosition {
    Name,
    IsAttached,
    Attach,
    Written,
    Wait,
    Device,
    OwnDevice,
    Mount,
    Bind,
    Done,
}

/// The way to a pod's volume.
pub struct Mounting<'f> {
    flex: &'f Flex,
    here: ExistingMounts,
    attachment: Attachment,
    mount: Call,
    at: MountingPosition,
    device: String,
    failure: Option<SetUpError>,
}

impl<'f> Mounting<'f> {
    /// The way to `flex`, at `path`; `group` and `secret` are what the driver hears of them.
    #[must_use]
    pub fn new(
        flex: &'f Flex,
        (capabilities, attachment, here): (Capabilities, Attachment, ExistingMounts),
        path: &str,
        (group, secret): (Option<u32>, &BTreeMap<String, Vec<u8>>),
    ) -> Mounting<'f> {
        let mut own = Mounting {
            flex,
            here,
            attachment,
            mount: flex.mount(path, group, secret),
            at: MountingPosition::Name,
            device: String::new(),
            failure: None,
        };
        if !capabilities.attach {
            own.go_mount();
        }
        own
    }

    /// What is next.
    #[must_use]
    pub fn step(&self) -> MountingStep {
        if let Some(why) = &self.failure {
            return MountingStep::Failed(why.clone());
        }
        match self.at {
            MountingPosition::Name => MountingStep::Call(self.flex.get_volume_name()),
            MountingPosition::IsAttached => MountingStep::Call(self.flex.is_attached()),
            MountingPosition::Attach => MountingStep::Call(self.flex.attach()),
            MountingPosition::Written => MountingStep::WriteDown(self.device.clone()),
            MountingPosition::Wait => MountingStep::Call(self.flex.wait_for_attach(&self.device)),
            MountingPosition::Device => MountingStep::Call(self.flex.mount_device(&self.device)),
            MountingPosition::OwnDevice => MountingStep::MountDevice(self.device.clone()),
            MountingPosition::Mount => MountingStep::Call(self.mount.clone()),
            MountingPosition::Bind => MountingStep::Bind,
            MountingPosition::Done => MountingStep::Done,
        }
    }

    fn go_mount(&mut self) {
        // As upstream: a volume that is mounted there, by any process, is not mounted a second time.
        self.at = if self.here.pod { MountingPosition::Done } else { MountingPosition::Mount };
    }

    fn fail(&mut self, why: &str) {
        let volume = &self.flex.volume;
        let failed = |step: &str| SetUpError::Failed(step_failed(step, volume, why));
        self.failure = Some(match self.at {
            MountingPosition::Name => {
                SetUpError::Unprocessed(claim::no_name(volume, self.flex.driver.name(), why))
            }
            MountingPosition::IsAttached | MountingPosition::Attach | MountingPosition::Written => {
                failed(ATTACH)
            }
            MountingPosition::Wait => failed(WAIT_FOR_ATTACH),
            MountingPosition::Device | MountingPosition::OwnDevice => failed(MOUNT_DEVICE),
            MountingPosition::Mount | MountingPosition::Bind | MountingPosition::Done => failed(SET_UP),
        });
    }

    /// The driver answered.
    pub fn answered(&mut self, answer: Result<DriverResponse, Refusal>) {
        use Refusal::NotSupported;
        match (self.at, answer) {
            (MountingPosition::Name, Ok(_) | Err(NotSupported)) => match &self.attachment {
                Attachment::Cluster(device) => {
                    (self.device, self.at) = (device.clone(), MountingPosition::Wait)
                }
                Attachment::Node(None) => self.at = MountingPosition::Attach,
                Attachment::Node(Some(device)) => {
                    (self.device, self.at) = (device.clone(), MountingPosition::IsAttached);
                }
            },
            (MountingPosition::IsAttached, Ok(DriverResponse { attached: true, .. })) => {
                self.at = MountingPosition::Wait
            }
            // Attaching what is attached is the driver's to find out.
            (MountingPosition::IsAttached, _) => self.at = MountingPosition::Attach,
            (MountingPosition::Attach, Ok(answer)) => {
                (self.device, self.at) = (answer.device, MountingPosition::Written)
            }
            (MountingPosition::Attach, Err(NotSupported)) => {
                (self.device, self.at) = (String::new(), MountingPosition::Written)
            }
            (MountingPosition::Wait, Ok(answer)) => {
                self.device = answer.device;
                self.waited();
            }
            (MountingPosition::Wait, Err(NotSupported)) => self.waited(),
            (MountingPosition::Device, Ok(_)) => self.go_mount(),
            // A driver that attaches nothing has no device.
            (MountingPosition::Device, Err(NotSupported)) if self.device.is_empty() => self.go_mount(),
            (MountingPosition::Device, Err(NotSupported)) => self.at = MountingPosition::OwnDevice,
            (MountingPosition::Mount, Ok(_)) => self.at = MountingPosition::Done,
            (MountingPosition::Mount, Err(NotSupported)) => self.at = MountingPosition::Bind,
            (_, Err(refusal)) => self.fail(&refusal.to_string()),
            (_, Ok(_)) => {}
        }
    }

    fn waited(&mut self) {
        if self.here.global { self.go_mount() } else { self.at = MountingPosition::Device }
    }

    /// The node did its part, or could not.
    pub fn done(&mut self, done: Result<(), String>) {
        match (self.at, done) {
            (_, Err(why)) => self.fail(&why),
            (MountingPosition::Written, Ok(())) => self.at = MountingPosition::Wait,
            (MountingPosition::OwnDevice, Ok(())) => self.go_mount(),
            (MountingPosition::Bind, Ok(())) => self.at = MountingPosition::Done,
            (_, Ok(())) => {}
        }
    }
}
