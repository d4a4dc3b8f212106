//! Follows the kernel's log for OOM kills.
//!
//! In: /dev/kmsg. Out: the Node's events `SystemOOM`, and the containers in which the kernel killed a process
//! ([`KernelKills`]). Decisions are in [`agent_core::eviction::system_oom`]. Invariant: if the log may not be read,
//! there are no such events, the agent logs this once, and OOM kills of containers are known from the runtime only.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use agent_core::events::Fact;
use agent_core::eviction::system_oom::{OomParser, REASON};
use agent_linux::files::FilesError;
use agent_linux::kernel_log::{self, KernelLog};
use agent_types::event::EventKind;
use agent_types::ids::ContainerId;
use agent_types::lock::Lock;

use crate::node::node_events::NodeEvents;
use crate::pods::pod_dirs::chain;

/// Containers of which it is remembered that the kernel killed in them: the newest.
const REMEMBERED: usize = 512;

/// Containers in which the kernel killed for want of memory since the agent began; clones share them.
#[derive(Clone, Debug, Default)]
pub struct KernelKills(Arc<Lock<VecDeque<ContainerId>>>);

impl KernelKills {
    /// The kernel killed in it.
    pub fn add(&self, container: ContainerId) {
        let mut all = self.0.lock();
        if !all.contains(&container) {
            all.truncate(REMEMBERED - 1);
            all.push_front(container);
        }
    }

    /// The kernel killed in it, as far as that is remembered.
    #[must_use]
    pub fn contains(&self, container: &ContainerId) -> bool {
        self.0.lock().contains(container)
    }
}

/// Listens until the node stops.
pub async fn follow(node_events: NodeEvents, kills: KernelKills) {
    let Err(error) = listen(&node_events, &kills).await;
    tracing::warn!(error = chain(&error), "kills by the kernel for want of memory are not told any more");
}

async fn listen(node_events: &NodeEvents, kills: &KernelKills) -> Result<Infallible, FilesError> {
    let mut log = KernelLog::open(Path::new(kernel_log::PATH))?;
    let mut parser = OomParser::default();
    loop {
        let found = parser.record(&log.next().await?);
        found.container.into_iter().for_each(|container| kills.add(container));
        if let Some(kill) = found.machine {
            node_events.of_node(Fact::of_node(EventKind::Warning, REASON, kill.message()));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::node::system_oom::*;

    #[test]
    fn the_newest_are_remembered() {
        let kills = KernelKills::default();
        let id = |n: usize| ContainerId::from(format!("c{n}"));
        (0..=REMEMBERED).for_each(|n| kills.clone().add(id(n)));
        kills.add(id(1));
        assert_eq!(
            (kills.contains(&id(0)), kills.contains(&id(1)), kills.contains(&id(REMEMBERED))),
            (false, true, true)
        );
    }
}
