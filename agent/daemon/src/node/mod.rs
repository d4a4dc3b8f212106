//! The node itself: cgroups, eviction, shutdown, rotation of logs, settings, and reports about the node.

pub mod api_key;
pub mod cluster_problems;
pub mod console;
pub mod container_manager;
pub mod eviction;
pub mod facts_sources;
pub mod host_channel;
pub mod log_rotation;
pub mod node_events;
pub mod node_settings;
pub mod service_manager;
pub mod shutdown;
pub mod system_oom;

use agent_core::pod_manager::ManagerEvent;

use crate::node::node_events::NodeEvents;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;

/// Handles that most state owners of a node need; clones share them.
#[derive(Clone)]
pub struct NodeHandles {
    /// The pod manager.
    pub manager: Sender<ManagerEvent>,
    /// Receivers of news about pods and the node.
    pub node_events: NodeEvents,
    /// The node's tasks.
    pub tasks: Tasks,
}
