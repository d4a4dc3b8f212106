//! Inputs of the node's status: facts as plain values, each from one source.
//!
//! In: [`NodeInput`]s. Out: [`Inputs`], the latest of each. Invariant: a missing input reads as "not known
//! yet", never as good news.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::pressures::Pressures;
use agent_types::resources::machine::{HostNetwork, MachineFacts};
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::status::{RuntimeStatus, RuntimeVersion};
use agent_types::time::Mono;

use crate::node_shutdown::LastEnd;
use crate::node_update::report::UpdateShown;

/// One image that the runtime has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeImage {
    /// `docker.io/library/busybox@sha256:…`.
    pub repo_digests: Vec<String>,
    /// `docker.io/library/busybox:1`.
    pub repo_tags: Vec<String>,
    /// Bytes.
    pub size_bytes: u64,
}

impl From<&ImageInfo> for NodeImage {
    fn from(image: &ImageInfo) -> NodeImage {
        NodeImage {
            repo_digests: image.repo_digests.clone(),
            repo_tags: image.repo_tags.clone(),
            size_bytes: image.size_bytes,
        }
    }
}

/// Resources of device plugins, by resource name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceResources {
    /// Devices there are.
    pub capacity: BTreeMap<String, i64>,
    /// Devices that are healthy.
    pub allocatable: BTreeMap<String, i64>,
    /// Resources whose plugin is gone for good: capacity 0, the key stays.
    pub removed: Vec<String>,
    /// True if plugins have registered on this node before, so that a Node's old amounts mean something.
    pub has_checkpoint: bool,
}

/// One source's news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeInput {
    /// The machine, or why it cannot be read.
    Machine(Result<MachineFacts, String>),
    /// Interfaces, default routes and the addresses of the node's name.
    Network(HostNetwork),
    /// The runtime answered `Version`.
    RuntimeVersion(RuntimeVersion),
    /// The runtime answered `Status`, or did not. Ask every 5 s, more often while the node is not ready.
    Runtime {
        /// Read before the question was sent.
        asked: Mono,
        /// The answer.
        result: Result<RuntimeStatus, String>,
    },
    /// PLEG's health, or why not.
    Pleg(Result<(), String>),
    /// Images of the runtime, in any order.
    Images(Vec<NodeImage>),
    /// Eviction's view.
    Pressures(Pressures),
    /// CSINode is there, or why not.
    Storage(Result<(), String>),
    /// `Err("node is shutting down")` while it does.
    Shutdown(Result<(), String>),
    /// How the last boot ended.
    LastEnd(LastEnd),
    /// Whether a stop of the machine would wait for the pods, or why not.
    ShutdownDelay(Result<(), String>),
    /// Fingerprint of the management API's key, which clients in the network pin.
    ApiKey(String),
    /// Where an update of the node is, and what has failed of it.
    Update(UpdateShown),
    /// Attachable volumes in use; `None` until the volume reconciler has looked at the disk.
    VolumesInUse(Option<Vec<String>>),
    /// Device plugins.
    Devices(DeviceResources),
    /// What the node cannot do but can live without; ends up as a warning in Ready's message.
    SoftRequirements(Option<String>),
}

/// The latest of each input.
#[derive(Clone, Debug)]
pub(super) struct Inputs {
    pub(super) machine: Option<Result<MachineFacts, String>>,
    pub(super) network: Option<HostNetwork>,
    pub(super) version: Option<RuntimeVersion>,
    pub(super) runtime: RuntimeView,
    pub(super) pleg: Result<(), String>,
    pub(super) images: Option<Arc<[NodeImage]>>,
    pub(super) pressures: Pressures,
    /// `None`: not checked yet.
    storage: Option<Result<(), String>>,
    pub(super) shutdown: Result<(), String>,
    pub(super) last_end: Option<LastEnd>,
    pub(super) shutdown_delay: Option<Result<(), String>>,
    pub(super) api_key: Option<String>,
    pub(super) update: Option<UpdateShown>,
    pub(super) volumes_in_use: Option<Vec<String>>,
    pub(super) devices: DeviceResources,
    pub(super) soft: Option<String>,
}

/// What is known about the runtime.
#[derive(Clone, Debug)]
pub(super) struct RuntimeView {
    /// True once the runtime was asked.
    pub(super) asked: bool,
    /// It was last seen ready then.
    pub(super) ready_at: Option<Mono>,
    pub(super) runtime_error: Option<String>,
    pub(super) network_error: Option<String>,
    /// The last status of a ready runtime.
    pub(super) status: Option<RuntimeStatus>,
}

impl Default for Inputs {
    fn default() -> Self {
        Inputs {
            machine: None,
            network: None,
            version: None,
            runtime: RuntimeView {
                asked: false,
                ready_at: None,
                runtime_error: None,
                network_error: Some("network state unknown".to_owned()),
                status: None,
            },
            pleg: Err("pleg has yet to be successful".to_owned()),
            images: None,
            pressures: Pressures::default(),
            storage: None,
            shutdown: Ok(()),
            last_end: None,
            shutdown_delay: None,
            api_key: None,
            update: None,
            volumes_in_use: None,
            devices: DeviceResources::default(),
            soft: None,
        }
    }
}

impl Inputs {
    /// Enough is known to make a Node that is worth registering.
    pub(super) fn are_complete(&self) -> bool {
        self.machine.is_some() && self.network.is_some() && self.runtime.asked && self.pleg.is_ok()
    }

    /// The shell has looked whether there is a CSINode.
    pub(super) fn is_storage_known(&self) -> bool {
        self.storage.is_some()
    }

    /// Error of volumes. As upstream, the node is not ready with it: the scheduler must know the node's
    /// drivers first.
    pub(super) fn storage_error(&self) -> Option<&str> {
        match &self.storage {
            Some(Ok(())) => None,
            Some(Err(why)) => Some(why),
            None => Some("CSINode is not yet initialized"),
        }
    }

    pub(super) fn machine(&self) -> Result<&MachineFacts, &str> {
        match &self.machine {
            Some(Ok(facts)) => Ok(facts),
            Some(Err(error)) => Err(error),
            None => Err("the machine has not been read yet"),
        }
    }

    pub(super) fn take(&mut self, input: NodeInput) {
        match input {
            NodeInput::Machine(machine) => self.machine = Some(machine),
            NodeInput::Network(network) => self.network = Some(network),
            NodeInput::RuntimeVersion(version) => self.version = Some(version),
            NodeInput::Runtime { asked, result } => self.runtime.take(asked, result),
            NodeInput::Pleg(health) => self.pleg = health,
            NodeInput::Images(mut images) => {
                images.sort_by(|a, b| {
                    b.size_bytes.cmp(&a.size_bytes).then_with(|| a.repo_tags.cmp(&b.repo_tags))
                });
                self.images = Some(images.into());
            }
            NodeInput::Pressures(pressures) => self.pressures = pressures,
            NodeInput::Storage(storage) => self.storage = Some(storage),
            NodeInput::Shutdown(shutdown) => self.shutdown = shutdown,
            NodeInput::LastEnd(end) => self.last_end = Some(end),
            NodeInput::ShutdownDelay(delay) => self.shutdown_delay = Some(delay),
            NodeInput::ApiKey(fingerprint) => self.api_key = Some(fingerprint),
            NodeInput::Update(shown) => self.update = Some(shown),
            NodeInput::VolumesInUse(volumes) => self.volumes_in_use = volumes,
            NodeInput::Devices(devices) => self.devices = devices,
            NodeInput::SoftRequirements(soft) => self.soft = soft,
        }
    }
}

impl RuntimeView {
    /// A runtime that does not answer changes nothing: after a while it counts as down.
    fn take(&mut self, at: Mono, result: Result<RuntimeStatus, String>) {
        self.asked = true;
        let Ok(status) = result else { return };
        self.network_error =
            status.network_ready.as_ref().err().map(|e| format!("container runtime network not ready: {e}"));
        self.runtime_error =
            status.runtime_ready.as_ref().err().map(|e| format!("container runtime not ready: {e}"));
        if self.runtime_error.is_none() {
            self.ready_at = Some(at);
            self.status = Some(status);
        }
    }
}
