//! Device plugins: the registration socket, one client for each registered plugin, the checkpoint. docs/agent/devices.md.
//!
//! ```text
//! plugin ──Register──► server ──► client (options, ListAndWatch) ──DeviceEvent──► pod manager
//!                                    ▲     Allocate, GetPreferredAllocation ◄──DeviceAction──┘ └─► checkpoint
//!                                    └──── PreStartContainer ◄── executor of a pod worker's effects
//! ```
//! In: calls of plugins, [`DeviceAction`]s. Out: gRPC to plugins, [`DeviceEvent`]s, the file. Invariants: connections are numbered in the
//! order in which the pod manager learns of them; a plugin that registers again replaces its earlier connection; a plugin is a pod, so
//! the number of plugins and the size of what they send is bounded (module limits). Decisions are in agent-managers and agent-core.
//! Upstream: pkg/kubelet/cm/devicemanager.

mod client;
mod directory;
mod limits;
mod messages;
mod server;
pub mod watched;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_core::pod_manager::ManagerEvent;
use agent_core::resource_managers::{DeviceAction, DeviceEvent, ResourceManagers};
use agent_managers::devices::allocation::CHECKPOINT;
use agent_types::lock::Lock;
use tokio::sync::Semaphore;

use client::Clients;

use crate::node::NodeHandles;

/// The directory of the registration socket, of the plugins' sockets and of the checkpoint: plugins have it in their code, so it does
/// not depend on `--root-dir`.
pub const DIRECTORY: &str = "/var/lib/kubelet/device-plugins";

/// The node's device plugins; clones share them.
#[derive(Clone)]
pub struct DevicePlugins {
    directory: Arc<Path>,
    node: NodeHandles,
    clients: Arc<Lock<Clients>>,
    /// Registrations at one time.
    registering: Arc<Semaphore>,
}

impl DevicePlugins {
    /// Plugins with their sockets in this directory; nothing is served yet.
    #[must_use]
    pub fn new(directory: PathBuf, node: &NodeHandles) -> DevicePlugins {
        DevicePlugins {
            directory: directory.into(),
            node: node.clone(),
            clients: Arc::default(),
            registering: Arc::new(Semaphore::new(limits::REGISTRATIONS_MAX)),
        }
    }

    /// The managers with the device manager of an earlier agent, or of an upstream kubelet. A checkpoint that cannot be used is reported
    /// and not used, as upstream.
    #[must_use]
    pub fn restore(&self, managers: ResourceManagers) -> ResourceManagers {
        let earlier = directory::read_checkpoint(&self.directory.join(CHECKPOINT));
        managers.with_devices(earlier, self.node.tasks.now())
    }

    /// Does what the pod manager asks for, and sends it the answer.
    pub fn perform(&self, action: DeviceAction) {
        match action {
            DeviceAction::AskPreferred { ask, uid, question } => self.ask_preferred(ask, uid, question),
            DeviceAction::AskAllocate { ask, uid, question } => self.ask_allocate(ask, uid, question),
            DeviceAction::WriteCheckpoint(text) => {
                let (this, path) = (self.clone(), self.directory.join(CHECKPOINT));
                self.node.tasks.finish(async move {
                    let write = move || directory::write_checkpoint(&path, &text);
                    let written = this.node.tasks.blocking(write).await;
                    let stopped = || Err("the agent stops".to_owned());
                    this.send(DeviceEvent::Written(written.unwrap_or_else(stopped)));
                });
            }
        }
    }

    fn send(&self, event: DeviceEvent) {
        self.node.manager.send(ManagerEvent::Devices(event));
    }
}
