//! Reports a missing delay lock: logind would not wait for the pods.
//!
//! In: whether the agent holds a delay lock, and the reason if not. Out: an event and a condition of the Node after the
//! lock was missing for [`TELL_AFTER`], and their end when the lock is back. Invariant: a short restart of the bus is
//! not reported.

use std::time::Duration;

use agent_core::events::Fact;
use agent_core::node_shutdown::NO_DELAY;
use agent_types::backoff::Backoff;
use agent_types::event::EventKind;
use agent_types::time::Mono;

use crate::node::node_events::NodeEvents;

/// A lock that is away for longer is the Node's to show.
const TELL_AFTER: Duration = Duration::from_secs(15);
/// Pauses before logind is looked for again.
const RECONNECT: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(4));

/// Reports a missing lock.
pub(super) struct Delay {
    node_events: NodeEvents,
    without_since: Option<Mono>,
    /// The reason that the Node shows.
    told: Option<String>,
}

impl Delay {
    /// The node is not waited for yet.
    pub(super) fn new(node_events: NodeEvents, now: Mono) -> Delay {
        Delay { node_events, without_since: Some(now), told: None }
    }

    /// There is a lock.
    pub(super) fn held(&mut self) {
        self.without_since = None;
        if self.told.take().is_some() {
            let again = "systemd-logind waits for this node's pods again";
            self.node_events.of_node(Fact::of_node(EventKind::Normal, NO_DELAY, again));
        }
        self.node_events.shutdown_delay(Ok(()));
    }

    /// The lock is missing for this reason.
    pub(super) fn missing(&mut self, now: Mono, why: &str) {
        let since = *self.without_since.get_or_insert(now);
        if now.since(since) < TELL_AFTER || self.told.as_deref() == Some(why) {
            return;
        }
        if self.told.replace(why.to_owned()).is_none() {
            let words = format!("systemd-logind does not wait for this node's pods: {why}");
            self.node_events.of_node(Fact::of_node(EventKind::Warning, NO_DELAY, words));
        }
        self.node_events.shutdown_delay(Err(why.to_owned()));
    }
}

/// How long to wait after so many failures in a row.
pub(super) fn pause(failures: u32) -> Duration {
    RECONNECT.next(failures)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent_core::events::RecorderEvent;
    use agent_core::node_status::{NodeInput, NodeStatusEvent};
    use futures_util::FutureExt;
    use tokio::sync::Notify;
    use tokio_util::sync::CancellationToken;

    use crate::node::node_events::ApiMailboxes;
    use crate::node::shutdown::delay::*;
    use crate::pods::status::StatusStore;
    use crate::serving::metrics::Metrics;
    use crate::tasks::actor::Tasks;
    use crate::testing::VirtualClock;

    #[test]
    fn pauses_grow_and_stay_short() {
        let millis: Vec<u128> = [0, 1, 2, 3, 4, 5, u32::MAX].map(|n| pause(n).as_millis()).to_vec();
        assert_eq!(millis, [250, 500, 1000, 2000, 4000, 4000, 4000]);
    }

    #[tokio::test]
    async fn a_lock_that_stays_away_is_told_once_and_its_return_too() {
        let clock = Arc::new(VirtualClock::new());
        let tasks = Tasks::new(clock.clone(), CancellationToken::new());
        let (node, mut to_node) = tasks.mailbox::<NodeStatusEvent>();
        let (recorder, mut to_recorder) = tasks.mailbox::<RecorderEvent>();
        let api = ApiMailboxes {
            status: tasks.mailbox().0,
            mirrors: tasks.mailbox().0,
            recorder,
            node,
            read_node: Arc::new(Notify::new()),
        };
        let node_events = NodeEvents::new(StatusStore::default(), Metrics::new(clock), Some(api), None, None);
        let at = |seconds: u64| Mono(seconds * 1_000_000_000);
        let mut delay = Delay::new(node_events, at(0));
        let mut heard = || {
            let mut said = Vec::new();
            while let Some(NodeStatusEvent::Input(NodeInput::ShutdownDelay(delay))) =
                to_node.recv().now_or_never()
            {
                said.push(delay.err().unwrap_or_default());
            }
            while let Some(RecorderEvent::Record(fact)) = to_recorder.recv().now_or_never() {
                said.push(format!("{:?} {}", fact.kind, fact.message));
            }
            said
        };
        delay.missing(at(14), "no bus");
        assert_eq!(heard(), [""; 0], "the machine has only just come up");
        delay.held();
        assert_eq!(heard(), [""], "a condition of an earlier agent is taken back");
        delay.missing(at(100), "no bus");
        delay.missing(at(114), "no bus");
        assert_eq!(heard(), [""; 0]);
        delay.missing(at(115), "no bus");
        let lost = "Warning systemd-logind does not wait for this node's pods: no bus";
        assert_eq!(heard(), ["no bus", lost]);
        delay.missing(at(116), "no bus");
        assert_eq!(heard(), [""; 0]);
        delay.missing(at(117), "no logind");
        assert_eq!(heard(), ["no logind"], "one event, and the reason that is true now");
        delay.held();
        assert_eq!(heard(), ["", "Normal systemd-logind waits for this node's pods again"]);
        delay.missing(at(200), "no bus");
        assert_eq!(heard(), [""; 0], "its absence is measured anew");
    }
}
