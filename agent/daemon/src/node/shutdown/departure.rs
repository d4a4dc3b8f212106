//! The end of the pods in the stop of the agent's own unit.
//!
//! In: SIGTERM, and systemd's jobs. Out: pods that end in order, as with a delay lock. Invariants: if only the agent
//! stops, its containers go on; the unit's stop is bounded, also if pods do not end.

use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use agent_core::node_shutdown::ShutdownEvent;
use agent_linux::notify::Notifier;
use agent_linux::service_manager;
use tokio::sync::watch;

use crate::node::service_manager::notify;
use crate::pods::pod_dirs::chain;
use crate::tasks::mailbox::Sender;

/// Largest part of the time that systemd gives all units (`JobTimeoutSec=3min` of the image's targets) for this unit's
/// stop: containerd, the network and the remaining containers need the rest.
const UNIT_STOP_MAX: Duration = Duration::from_secs(120);
/// Time for the agent's own stop after the pods have ended: calls in progress may finish.
const AFTERWARDS: Duration = Duration::from_secs(10);

/// The kind of the machine's stop, as systemd has it; `None` if it stays, or if no stop is known of.
pub async fn stop_of_machine() -> Option<String> {
    let told = service_manager::going_down(Path::new(service_manager::SYSTEMCTL)).await;
    told.unwrap_or_else(|error| {
        tracing::info!(error = %chain(&error), "no stop of the machine is known of");
        None
    })
}

/// Ends the pods while systemd stops the agent's unit, if there was no delay lock or the lock ran out. systemd stops
/// the pods' scopes and the runtime later (docs/reference/shutdown.md, "Order of the units").
pub struct Departure {
    to: Sender<ShutdownEvent>,
    over: watch::Receiver<bool>,
    needed: Duration,
}

impl Departure {
    /// `to` decides on the end of the pods, and `over` reports that all work is done; the wait takes `needed` at most.
    #[must_use]
    pub fn new(to: Sender<ShutdownEvent>, over: watch::Receiver<bool>, needed: Duration) -> Departure {
        Departure { to, over, needed: needed.min(UNIT_STOP_MAX) }
    }

    /// If the machine goes down and logind did not wait for the pods, ends them now: systemd stops their containers and
    /// the runtime only after this unit. At any other stop of the agent the pods go on. `again`: a second request to
    /// stop. Out: the kind of the machine's stop; `None` if only the agent stops.
    pub async fn leave(
        self,
        notifier: &Notifier,
        again: impl Future<Output = &'static str>,
    ) -> Option<String> {
        let asked = Instant::now();
        let kind = stop_of_machine().await;
        let answered_ms = asked.elapsed().as_millis();
        let Some(kind) = kind else {
            tracing::info!(answered_ms, "the machine stays; containers are left running");
            return None;
        };
        if *self.over.borrow() {
            return Some(kind);
        }
        let needed = self.needed + AFTERWARDS;
        notify(notifier, &format!("EXTEND_TIMEOUT_USEC={}", needed.as_micros()));
        tracing::warn!(
            kind,
            answered_ms,
            needed_s = needed.as_secs(),
            "nobody waited for the pods: they end while the agent stops"
        );
        tokio::select! {
            all = self.end_pods(kind.clone()) => {
                if !all {
                    tracing::warn!("pods were given up: the machine does not wait any longer");
                }
            }
            signal = again => tracing::warn!(signal, "pods were given up: the agent is to stop at once"),
        }
        Some(kind)
    }

    /// Ends the pods in order, reports to the API server, and writes the receipt; false if it took too long.
    async fn end_pods(mut self, kind: String) -> bool {
        self.to.send(ShutdownEvent::GoingDown { kind });
        let over = tokio::time::timeout(self.needed, self.over.wait_for(|over| *over)).await;
        matches!(over, Ok(Ok(_)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio_util::sync::CancellationToken;

    use crate::node::shutdown::departure::*;
    use crate::tasks::actor::Tasks;
    use crate::testing::VirtualClock;

    #[tokio::test(start_paused = true)]
    async fn it_asks_waits_and_gives_up() {
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        for (ends_after_s, all) in [(0, true), (119, true), (121, false)] {
            let (to, mut inbox) = tasks.mailbox();
            let (over, view) = watch::channel(false);
            let departure = Departure::new(to, view, Duration::from_secs(500));
            let end = async {
                let asked = inbox.recv().await;
                assert!(matches!(asked, ShutdownEvent::GoingDown { kind } if kind == "halt"));
                tasks.wait_until(tasks.now().mono.after(Duration::from_secs(ends_after_s))).await;
                over.send_replace(true);
            };
            let (ended, ()) = tokio::join!(departure.end_pods("halt".to_owned()), end);
            assert_eq!(ended, all, "{ends_after_s} s");
        }
    }
}
