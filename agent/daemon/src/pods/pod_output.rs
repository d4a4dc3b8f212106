//! Pods' output to the host channel and the consoles (`console.podOutput: true`): for a person who watches a machine boot.
//!
//! In: snapshots of pods that changed. Out: [`HostMessage::PodOutput`], one a line, and the same lines for the consoles,
//! short and few (docs/reference/boot.md, "Consoles"). Containers that ran before the agent are followed from where they are, so a restart
//! repeats nothing. Invariant: the agent drops lines rather than wait for host or consoles, and reports their number.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent_core::console::text::clean;
use agent_linux::log_follow::{LogFollower, StartAt};
use agent_types::ids::{ContainerId, PodUid};
use agent_types::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot};
use agent_types::time::Wall;
use agent_types::token_bucket::TokenBucket;
use orlop_config::ledger::HostMessage;
use tokio::sync::mpsc;

use crate::node::host_channel::Host;
use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;

/// Largest number of queued snapshots. A dropped snapshot loses at most a container's first lines: the next change of
/// the pod includes the same containers.
const SNAPSHOTS_MAX: usize = 256;
/// Lines for the consoles at once, and then one in each period: a serial port writes some ten kilobytes a second, and the
/// kernel's own lines need room in its log.
const CONSOLE_LINES: (u32, Duration) = (50, Duration::from_millis(200));
/// Longest line on a console, characters.
const CONSOLE_CHARS_MAX: usize = 300;

/// Names one log for its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    id: ContainerId,
    pod: Arc<str>,
    container: Arc<str>,
}

/// Starts following every container of the snapshots that are sent; `None` if there is neither a host nor a console.
#[must_use]
pub fn start(host: &Host, tasks: &Tasks) -> Option<mpsc::Sender<Arc<PodSnapshot>>> {
    if !host.is_connected() && host.console().is_none() {
        return None;
    }
    let (sender, snapshots) = mpsc::channel(SNAPSHOTS_MAX);
    tasks.start(follow(snapshots, host.clone(), tasks.clone()));
    Some(sender)
}

/// Follows every container that is seen until the node stops.
async fn follow(mut snapshots: mpsc::Receiver<Arc<PodSnapshot>>, host: Host, tasks: Tasks) {
    let mut follower = match LogFollower::new() {
        Ok(follower) => follower,
        Err(error) => {
            tracing::warn!(error = %chain(&error), "pods' output is not shown");
            return;
        }
    };
    let since = tasks.now().wall;
    let limit = TokenBucket::new(CONSOLE_LINES.1, CONSOLE_LINES.0);
    let mut output = Output { host, tasks, since, known: BTreeMap::new(), dropped: 0, limit, left_out: 0 };
    loop {
        tokio::select! {
            // Both are cancel-safe: a snapshot or a line is taken only when its arm wins.
            snapshot = snapshots.recv() => match snapshot {
                Some(snapshot) => output.seen(&mut follower, &snapshot),
                None => return,
            },
            lines = follower.next() => match lines {
                Ok((source, lines)) => output.say(&source, lines),
                Err(error) => tracing::warn!(error = %chain(&error), "a pod's output is no longer shown"),
            },
        }
    }
}

struct Output {
    host: Host,
    tasks: Tasks,
    since: Wall,
    /// Containers that are or were followed, by pod.
    known: BTreeMap<PodUid, Vec<(Source, bool)>>,
    dropped: u64,
    /// Of lines on the consoles.
    limit: TokenBucket,
    /// Lines that the consoles did not get since the last one.
    left_out: u64,
}

impl Output {
    fn seen(&mut self, follower: &mut LogFollower<Source>, snapshot: &PodSnapshot) {
        let mut known = self.known.remove(&snapshot.pod.uid).unwrap_or_default();
        for container in &snapshot.containers {
            let index = match known.iter().position(|(s, _)| s.id == container.id) {
                Some(index) => index,
                None if container.started.is_some() => {
                    let source = Source {
                        id: container.id.clone(),
                        pod: format!("{}/{}", snapshot.pod.namespace, snapshot.pod.name).into(),
                        container: container.name.as_str().into(),
                    };
                    self.begin(follower, &source, container);
                    known.push((source, true));
                    known.len() - 1
                }
                None => continue,
            };
            if container.state == ContainerState::Exited && std::mem::take(&mut known[index].1) {
                follower.end(&known[index].0);
            }
        }
        known.retain(|(source, following)| {
            let there = snapshot.containers.iter().any(|c| c.id == source.id);
            if !there && *following {
                follower.end(source);
            }
            there
        });
        if !known.is_empty() {
            self.known.insert(snapshot.pod.uid.clone(), known);
        }
    }

    fn begin(&self, follower: &mut LogFollower<Source>, source: &Source, container: &ContainerObserved) {
        let ran_before = container.started.is_some_and(|s| s < self.since);
        let at = if ran_before { StartAt::End } else { StartAt::Beginning };
        if let Err(error) = follower.follow(source.clone(), Path::new(&container.log_path), at) {
            tracing::debug!(container = %source.id, error = %chain(&error), "output not followed");
        }
    }

    /// One line on the consoles, if their limit allows it.
    fn show(&mut self, source: &Source, line: &str) {
        let Some(console) = self.host.console() else { return };
        let now = self.tasks.now().mono;
        if self.left_out > 0 && self.limit.reserve(now, Duration::ZERO).is_ok() {
            let said = console.output(format!("{} lines of pods' output are not shown here", self.left_out));
            self.left_out = if said { 0 } else { self.left_out };
        }
        let text = || clean(&format!("{} {}: {line}", source.pod, source.container), CONSOLE_CHARS_MAX);
        if !(self.limit.reserve(now, Duration::ZERO).is_ok() && console.output(text())) {
            self.left_out = self.left_out.saturating_add(1);
        }
    }

    fn say(&mut self, source: &Source, lines: Vec<String>) {
        for line in lines {
            self.show(source, &line);
            let message = HostMessage::PodOutput {
                pod: source.pod.to_string(),
                container: source.container.to_string(),
                line,
            };
            if !self.host.tell(message) {
                self.dropped += 1;
            } else if self.dropped > 0 {
                let message =
                    format!("{} lines of pods' output were dropped: the host reads too slowly", self.dropped);
                if self.host.tell(HostMessage::Problem { source: "agent".to_owned(), message }) {
                    self.dropped = 0;
                }
            }
        }
    }
}
