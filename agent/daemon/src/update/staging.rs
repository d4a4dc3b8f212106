//! Has the updater stage a version that somebody has named and that the other slot does not hold.
//!
//! In: the version that the machine wants. Out: requests to `orlop-update`, one at a time; a node event if the version cannot be staged. Whatever
//! is asked for, the updater takes signed releases at or above the floor only.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::events::Fact;
use agent_types::event::EventKind;
use orlop_config::release::ReleaseVersion;
use orlop_update::service::client::ask_from_task;
use orlop_update::service::protocol::{UpdateReport, UpdateRequest, UpdateState};
use tokio::sync::{Notify, watch};

use crate::node::node_events::NodeEvents;
use crate::tasks::actor::Tasks;

/// Reason of the event.
const NOT_STAGED: &str = "UpdateNotStaged";
/// A version that was not staged is asked for again after this: a source that has lied or was away is left for 10 minutes.
const AGAIN: Duration = Duration::from_secs(660);

/// What the requests need.
pub struct Staging {
    /// The updater's socket.
    pub socket: PathBuf,
    /// Events of the node.
    pub node_events: NodeEvents,
    /// Asks for a look at the boot record.
    pub look: Arc<Notify>,
    /// The node's tasks.
    pub tasks: Tasks,
}

impl Staging {
    /// Asks for each version that is wanted, until it is staged or wanted no more.
    pub async fn follow(self, mut wanted: watch::Receiver<Option<ReleaseVersion>>) {
        let mut told = String::new();
        loop {
            let version = *wanted.borrow_and_update();
            let Some(version) = version else {
                told.clear();
                // An error means that the driver has ended.
                if wanted.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let last = tokio::select! {
                // Who goes away ends nothing: the updater goes on with what it has begun.
                last = ask(&self.socket, version) => last,
                changed = wanted.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let words = match last {
                Ok(report) if report.state == UpdateState::Staged => {
                    tracing::info!(report = report.message, "the updater");
                    String::new()
                }
                Ok(report) => report.message,
                Err(error) => format!("the updater does not answer: {error}"),
            };
            self.look.notify_one();
            if !words.is_empty() && words != told {
                let message = format!("version {version} is not staged: {words}");
                self.node_events.of_node(Fact::of_node(EventKind::Warning, NOT_STAGED, message));
                told = words;
            }
            let until = self.tasks.now().mono.after(AGAIN);
            tokio::select! {
                // Both only wait.
                () = self.tasks.wait_until(until) => {}
                changed = wanted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// Asks for a version, and waits for the last report.
async fn ask(socket: &Path, version: ReleaseVersion) -> std::io::Result<UpdateReport> {
    ask_from_task(socket, &UpdateRequest::Take { version: Some(version) }, |_| {}).await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

    use super::*;

    #[tokio::test]
    async fn the_updater_is_asked_and_heard_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("update.sock");
        assert!(ask(&socket, "0.2.0".parse().unwrap()).await.is_err(), "nobody is there");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let updater = async {
            let (stream, _) = listener.accept().await.unwrap();
            let mut lines = BufReader::new(stream).lines();
            let asked = lines.next_line().await.unwrap().unwrap();
            let mut stream = lines.into_inner().into_inner();
            for state in [UpdateState::Looking, UpdateState::Writing, UpdateState::Staged] {
                stream.write_all(&UpdateReport::new(state, "words").line()).await.unwrap();
            }
            asked
        };
        let (asked, last) = tokio::join!(updater, ask(&socket, "0.2.0".parse().unwrap()));
        assert_eq!(asked, r#"{"do":"take","version":"0.2.0"}"#);
        assert_eq!(last.unwrap().state, UpdateState::Staged);
    }
}
