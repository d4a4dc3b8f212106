//! Device plugins: the registration socket, one client for each registered plugin, the checkpoint. docs/internals/agent/devices.md.
//!
//! ```text
//! plugin ──Register──► server ──► client (options, ListAndWatch) ──DeviceEvent──► pod manager
//!                                    ▲     Allocate, GetPreferredAllocation ◄──DeviceAction──┘ └─► checkpoint
//!                                    └──── PreStartContainer ◄── executor of a pod worker's effects
//! ```
//! In: calls of plugins, [`DeviceAction`]s. Out: gRPC to plugins, [`DeviceEvent`]s, the file. Invariants: connections have numbers in the
//! order in which the pod manager gets them; a plugin that registers again replaces its earlier connection; a plugin is a pod, so the
//! number of plugins, and the size and the rate of their messages, are bounded (module limits). Decisions are in agent-managers and
//! agent-core. Upstream: pkg/kubelet/cm/devicemanager.

mod client;
mod directory;
mod limits;
mod messages;
mod newest_list;
mod registrations;
mod server;
pub mod watched;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_core::pod_manager::ManagerEvent;
use agent_core::resource_managers::{DeviceAction, DeviceEvent, ResourceManagers};
use agent_managers::devices::allocation::CHECKPOINT;
use agent_types::lock::Lock;
use tokio::sync::{Semaphore, watch};

use client::Clients;

use crate::node::NodeHandles;

/// The directory of the registration socket, of the plugins' sockets and of the checkpoint. Plugins have this path in their code, so it
/// does not depend on `--root-dir`.
pub const DIRECTORY: &str = "/var/lib/kubelet/device-plugins";

/// The node's device plugins; clones share them.
#[derive(Clone)]
pub struct DevicePlugins {
    directory: Arc<Path>,
    node: NodeHandles,
    clients: Arc<Lock<Clients>>,
    /// Bounds the registrations in progress, of resources that have registered before.
    registering: Arc<Semaphore>,
    /// The same of other resources.
    registering_new: Arc<Semaphore>,
    /// Whether plugins can register.
    health: Arc<watch::Sender<Result<(), String>>>,
}

impl DevicePlugins {
    /// A handle for plugins in this directory; [`DevicePlugins::start`] serves the registration socket.
    #[must_use]
    pub fn new(directory: PathBuf, node: &NodeHandles) -> DevicePlugins {
        DevicePlugins {
            directory: directory.into(),
            node: node.clone(),
            clients: Arc::new(Lock::new(Clients::new())),
            registering: Arc::new(Semaphore::new(limits::REGISTERING_MAX.0)),
            registering_new: Arc::new(Semaphore::new(limits::REGISTERING_MAX.1)),
            health: Arc::new(watch::channel(Ok(())).0),
        }
    }

    /// The check `device-plugin` of `/healthz`: an error once the registration server has ended.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Result<(), String>> {
        self.health.subscribe()
    }

    /// The managers with the device manager's state of an earlier agent or of an upstream kubelet. A checkpoint that cannot be used is
    /// logged and ignored, as upstream.
    #[must_use]
    pub fn restore(&self, managers: ResourceManagers) -> ResourceManagers {
        let earlier = directory::read_checkpoint(&self.directory.join(CHECKPOINT));
        let resources = earlier.iter().flat_map(|state| state.registered.keys());
        self.clients.lock().registrations.restore(resources);
        managers.with_devices(earlier, self.node.tasks.now())
    }

    /// Carries out an action of the pod manager, and sends the answer to the pod manager.
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
