//! Problems of the node with its cluster, as sentences for its administrator.
//!
//! ```text
//! identity, kubeconfig, Node object, lease ─► ClusterProblems ─┬─► log: each wording once
//!                                                              ├─► follow: service manager (STATUS=), host channel
//!                                                              └─► subscribe: consoles (`node::console`)
//! ```
//! In: a sentence for each part, empty when the problem is solved. Out: the sentence nearest to the cause, in the log
//! and in the service's status. Invariant: only present problems are shown; they influence no decision.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_core::console::runbook::{self, ProblemRunbook};
use agent_linux::notify::Notifier;
use orlop_config::ledger::HostMessage;
use tokio::sync::watch;

use crate::node::host_channel::Host;
use crate::node::service_manager::notify;

/// Parts that may have a problem. A problem of an earlier part causes problems of later parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Getting and renewing the client certificate.
    Identity,
    /// Using it.
    Kubeconfig,
    /// The Node object.
    Node,
    /// The node lease.
    Lease,
    /// The certificate of the HTTPS API.
    Serving,
    /// The clock. A wrong one causes the others. A right one without a server that vouches for it does not.
    Clock,
}

impl Part {
    /// All of them, in their order.
    pub const ALL: [Part; 6] =
        [Part::Identity, Part::Kubeconfig, Part::Node, Part::Lease, Part::Serving, Part::Clock];

    /// Its name, for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Part::Identity => "identity",
            Part::Kubeconfig => "kubeconfig",
            Part::Node => "node",
            Part::Lease => "lease",
            Part::Serving => "serving certificate",
            Part::Clock => "clock",
        }
    }

    /// Its section of the runbooks.
    #[must_use]
    pub fn runbook(self) -> &'static ProblemRunbook {
        match self {
            Part::Identity => &runbook::CLUSTER_IDENTITY,
            Part::Kubeconfig => &runbook::CLUSTER_KUBECONFIG,
            Part::Node => &runbook::CLUSTER_NODE,
            Part::Lease => &runbook::CLUSTER_LEASE,
            Part::Serving => &runbook::CLUSTER_SERVING,
            Part::Clock => &runbook::CLUSTER_CLOCK,
        }
    }
}

/// One sentence for each part with a problem.
pub type Problems = BTreeMap<Part, String>;

/// Present problems, by part; clones share the map.
#[derive(Clone, Debug)]
pub struct ClusterProblems(Arc<watch::Sender<Problems>>);

impl Default for ClusterProblems {
    fn default() -> Self {
        ClusterProblems(Arc::new(watch::Sender::new(Problems::new())))
    }
}

impl ClusterProblems {
    /// Sets the problem of `part`, with its remedy; an empty sentence removes it.
    pub fn say(&self, part: Part, problem: &str) {
        let line: String = problem.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let changed = self.0.send_if_modified(|all| {
            if line.is_empty() {
                return all.remove(&part).is_some();
            }
            all.insert(part, line.clone()).is_none_or(|before| before != line)
        });
        match (changed, line.is_empty()) {
            (false, _) => {}
            (true, true) => tracing::info!(part = part.as_str(), "problem with the cluster resolved"),
            (true, false) => {
                tracing::warn!(part = part.as_str(), "problem with the cluster: {line}");
            }
        }
    }

    /// The sentence nearest to the cause; `None` if all is well.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.0.borrow().values().next().cloned()
    }

    /// Follows the sentences.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Problems> {
        self.0.subscribe()
    }

    /// Sends the agent's state (`base`) and the problem to the service manager, and the problem to the host.
    pub async fn follow(self, mut base: watch::Receiver<&'static str>, notifier: Arc<Notifier>, host: Host) {
        let mut changes = self.0.subscribe();
        let (mut told, mut warned) = (String::new(), None);
        loop {
            let problem = changes.borrow_and_update().values().next().cloned();
            let status = status(*base.borrow_and_update(), problem.as_deref());
            if status != told {
                notify(&notifier, &status);
                told = status;
            }
            if let Some(message) = problem.clone().filter(|_| problem != warned) {
                host.tell(HostMessage::Problem { source: "join".to_owned(), message });
            }
            warned = problem;
            tokio::select! {
                // Both branches only signal a change; the senders live as long as the node.
                Ok(()) = changes.changed() => {}
                Ok(()) = base.changed() => {}
                else => return,
            }
        }
    }
}

fn status(base: &str, problem: Option<&str>) -> String {
    match problem {
        Some(problem) => format!("STATUS={base}; {problem}"),
        None => format!("STATUS={base}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use crate::node::cluster_problems::*;
    use crate::tasks::actor::Tasks;
    use crate::testing::VirtualClock;

    #[tokio::test(start_paused = true)]
    async fn the_service_manager_hears_the_cause_first_and_that_it_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let heard = || {
            let mut buffer = [0u8; 256];
            let next = || manager.recv(&mut buffer).ok().map(|n| String::from_utf8(buffer[..n].to_vec()));
            std::iter::from_fn(next).map(Result::unwrap).collect::<Vec<_>>()
        };
        let notifier = Arc::new(Notifier::new(path.to_str()).unwrap());
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let host = Host::new(tasks.clone(), dir.path(), None);
        let (cluster_problems, (base_view, base)) = (ClusterProblems::default(), watch::channel("starting"));
        tasks.start(cluster_problems.clone().follow(base, notifier, host));
        let settle = || tasks.wait_until(tasks.now().mono.after(Duration::from_millis(1)));
        settle().await;
        assert_eq!(heard(), ["STATUS=starting"]);
        cluster_problems.say(Part::Node, "no\nserver");
        settle().await;
        cluster_problems.say(Part::Identity, "no token");
        settle().await;
        base_view.send_replace("running");
        cluster_problems.say(Part::Identity, "no token");
        settle().await;
        assert_eq!(
            heard(),
            ["STATUS=starting; no server", "STATUS=starting; no token", "STATUS=running; no token"]
        );
        assert_eq!(cluster_problems.problem().as_deref(), Some("no token"));
        for part in [Part::Identity, Part::Node, Part::Lease] {
            cluster_problems.say(part, "");
        }
        settle().await;
        assert_eq!(heard(), ["STATUS=running"]);
        tasks.stop().cancel();
    }
}
