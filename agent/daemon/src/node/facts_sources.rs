//! The facts of a real machine as the sources that the runtime's observation and the Node object's feeds read.

use std::sync::Arc;

use agent_core::events::Fact;
use agent_core::pod_worker::WorkerContext;
use agent_linux::network_changes::{NetworkChanges, NetworkChangesError};
use agent_linux::{network, node_info};
use agent_types::resources::machine::{HostNetwork, MachineFacts};
use agent_types::runtime::status::RuntimeHandler;
use k8s_openapi::api::core::v1::NodeAddress;
use tokio::sync::Notify;

use crate::cluster::feeds::NodeFactsSource;
use crate::node::node_settings::NodeFacts;
use crate::pods::pod_dirs::chain;
use crate::runtime::runtime_state::ContextSource;
use crate::tasks::actor::Tasks;

impl ContextSource for NodeFacts {
    fn worker_context(
        &self,
        shown: &[NodeAddress],
        handlers: &[RuntimeHandler],
    ) -> anyhow::Result<WorkerContext> {
        NodeFacts::worker_context(self, shown, handlers)
    }
}

impl NodeFactsSource for NodeFacts {
    fn machine_facts(&self) -> anyhow::Result<MachineFacts> {
        Ok(node_info::machine_facts(self.storage())?)
    }

    fn host_network(&self, look_up: bool) -> anyhow::Result<HostNetwork> {
        Ok(network::host_network(self.name_to_look_up().filter(|_| look_up)))
    }

    fn warnings(&self) -> Vec<Fact> {
        NodeFacts::warnings(self)
    }

    fn network_changes(&self, tasks: &Tasks) -> Arc<Notify> {
        let changed = Arc::new(Notify::new());
        tasks.start(watch_network(changed.clone()));
        changed
    }
}

/// Passes the kernel's hints on; without them the timer of the readers has to do.
pub async fn watch_network(changed: Arc<Notify>) {
    let listened = async {
        let mut changes = NetworkChanges::open()?;
        loop {
            changes.changed().await?;
            changed.notify_one();
        }
    };
    let ended: Result<(), NetworkChangesError> = listened.await;
    if let Err(error) = ended {
        tracing::warn!(error = %chain(&error), "changes of addresses are noticed by the timer only");
    }
}
