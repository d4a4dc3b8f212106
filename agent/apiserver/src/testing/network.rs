//! A network in memory: tests with a paused clock need one that the clock's owner can see through.
//!
//! In: connections from a client. Out: streams for a server. Invariant: refuses when there is no listener.

use std::sync::Arc;

use agent_types::lock::Lock;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;

/// What a socket's buffers would hold.
const BUFFER: usize = 64 * 1024;
/// Connections waiting to be accepted.
const BACKLOG: usize = 16;

/// One address; clones are the same address.
#[derive(Clone, Debug, Default)]
pub struct MemoryNetwork {
    listener: Arc<Lock<Option<mpsc::Sender<DuplexStream>>>>,
}

impl MemoryNetwork {
    /// Listens, and replaces an earlier listener; dropping the receiver stops.
    #[must_use]
    pub fn listen(&self) -> mpsc::Receiver<DuplexStream> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        *self.listener.lock() = Some(sender);
        receiver
    }

    pub(crate) fn connect(&self) -> Option<DuplexStream> {
        let (ours, theirs) = duplex(BUFFER);
        let listener = self.listener.lock();
        listener.as_ref()?.try_send(theirs).ok()?;
        Some(ours)
    }
}
