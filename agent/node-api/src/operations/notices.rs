//! Notices to the agent: an operation that began or ended becomes an event of the Node.
//!
//! Invariant: an agent that is dead or slow delays no operation: notices wait in a short queue, and those that find no place are lost. The
//! record and the log have the operation in any case.

use std::path::{Path, PathBuf};
use std::time::Duration;

use orlop_proto::node_api::v1alpha1::OperationStatus;
use orlop_proto::node_api::v1alpha1::notices_client::NoticesClient;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::agent_socket;

/// Notices that wait: an operation has two.
const WAITING_MAX: usize = 8;
/// The agent takes one within this.
const TAKEN_MAX: Duration = Duration::from_secs(2);

/// Sends notices, without waiting.
#[derive(Clone, Debug)]
pub(crate) struct NoticeSender(mpsc::Sender<OperationStatus>);

impl NoticeSender {
    /// Of an operation that began or ended.
    pub(crate) fn send(&self, status: OperationStatus) {
        if let Err(error) = self.0.try_send(status) {
            tracing::warn!(%error, "the Node has no event of an operation");
        }
    }
}

/// Passes notices on.
pub(crate) struct NoticeTask {
    socket: PathBuf,
    waiting: mpsc::Receiver<OperationStatus>,
}

/// The task, and the way to it. `root` is the root directory.
pub(crate) fn notices(root: &Path) -> (NoticeSender, NoticeTask) {
    let (sender, waiting) = mpsc::channel(WAITING_MAX);
    (NoticeSender(sender), NoticeTask { socket: agent_socket::path(root), waiting })
}

impl NoticeTask {
    /// Runs for as long as there are senders.
    pub(crate) async fn run(mut self) {
        while let Some(status) = self.waiting.recv().await {
            let id = status.id.clone();
            let told = async {
                let channel = agent_socket::channel(&self.socket).await.map_err(|error| error.to_string())?;
                NoticesClient::new(channel).tell(status).await.map_err(|status| status.to_string())
            };
            let problem = match timeout(TAKEN_MAX, told).await {
                Ok(Ok(_)) => continue,
                Ok(Err(problem)) => problem,
                Err(late) => late.to_string(),
            };
            // A node without a cluster has no events.
            tracing::info!(id, problem, "the agent makes no event of an operation");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn notices_without_an_agent_are_lost_and_delay_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, task) = notices(dir.path());
        for _ in 0..WAITING_MAX * 2 {
            sender.send(OperationStatus::default());
        }
        drop(sender);
        // It ends: each notice was tried.
        task.run().await;
    }
}
