//! The kernel's log is listened to for kills because the machine was out of memory: events of the Node.
//!
//! In: /dev/kmsg. Out: `SystemOOM`. Decisions are in [`agent_core::eviction::system_oom`]. Invariant: a machine whose log may
//! not be read has no such events, and that is said once; nothing else depends on it.

use std::convert::Infallible;
use std::path::Path;

use agent_core::events::Fact;
use agent_core::eviction::system_oom::{OomParser, REASON};
use agent_core::pod_worker::EventKind;
use agent_linux::files::FilesError;
use agent_linux::kernel_log::{self, KernelLog};

use crate::outlets::Outlets;
use crate::pod_dirs::chain;

/// Listens until the node stops.
pub async fn follow(outlets: Outlets) {
    let Err(error) = listen(&outlets).await;
    tracing::warn!(error = chain(&error), "kills by the kernel for want of memory are not told any more");
}

async fn listen(outlets: &Outlets) -> Result<Infallible, FilesError> {
    let mut log = KernelLog::open(Path::new(kernel_log::PATH))?;
    let mut parser = OomParser::default();
    loop {
        if let Some(kill) = parser.record(&log.next().await?) {
            outlets.of_node(Fact::of_node(EventKind::Warning, REASON, kill.message()));
        }
    }
}
