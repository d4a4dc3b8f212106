//! Reports to the service manager that the agent's state owners and its own file work still answer.
//!
//! In: the watchdog's period, the main owners' mailboxes, health checks that only a restart mends. Out: `WATCHDOG=1`. Invariant: a
//! beat is sent only while no such check fails, after every main owner has answered this round's question in its own loop, and
//! after a thread for the node's own file work was free. A failed check, a stuck owner or a stuck pool stops the beat, and systemd
//! restarts the agent. docs/decisions/watchdog.md. Upstream: pkg/kubelet/watchdog.

use std::sync::Arc;
use std::time::Duration;

use agent_linux::notify::Notifier;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::node::service_manager::notify;
use crate::tasks::actor::Tasks;
use crate::tasks::alive::Owner;

/// A health check whose failure only a restart of the agent mends.
pub struct HealthCheck {
    /// Its name below `/healthz`.
    pub name: &'static str,
    /// Its state; an error has the reason.
    pub state: watch::Receiver<Result<(), String>>,
}

/// Beats every half period for as long as no check fails and all owners answer within it.
pub async fn beat(
    notifier: Arc<Notifier>,
    period: Duration,
    owners: Vec<Owner>,
    checks: Vec<HealthCheck>,
    tasks: Tasks,
) {
    let every = period / 2;
    for round in 1.. {
        let next = tasks.now().mono.after(every);
        if let Some((check, reason)) = failed(&checks) {
            tracing::error!(check, reason, "no beat for the service manager: this health check fails");
        } else if timeout(every, all_answer(&owners, round, &tasks)).await.is_ok() {
            notify(&notifier, "WATCHDOG=1");
        } else {
            let silent: Vec<&str> =
                owners.iter().filter(|owner| !owner.has_answered(round)).map(|owner| owner.name).collect();
            let silent = if silent.is_empty() { "file work of the node".into() } else { silent.join(" ") };
            tracing::error!(
                silent,
                "no beat for the service manager: this part of the agent does not answer"
            );
        }
        tasks.wait_until(next).await;
    }
}

/// The first check that fails, and the reason.
fn failed(checks: &[HealthCheck]) -> Option<(&'static str, String)> {
    checks.iter().find_map(|check| {
        let state = check.state.borrow().clone();
        state.err().map(|reason| (check.name, reason))
    })
}

async fn all_answer(owners: &[Owner], round: u64, tasks: &Tasks) {
    for owner in owners {
        owner.ask(round);
    }
    loop {
        // Registered before the look, so that an answer in between is not missed.
        let mut answered = std::pin::pin!(tasks.alive().notified());
        answered.as_mut().enable();
        if owners.iter().all(|owner| owner.has_answered(round)) {
            break;
        }
        answered.await;
    }
    // `None` means that the runtime is shutting down; then there are no more beats.
    let _ = tasks.blocking(|| ()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::mailbox::{Coalesce, Relation};
    use crate::testing::VirtualClock;
    use std::os::unix::net::UnixDatagram;
    use tokio_util::sync::CancellationToken;

    struct Ev;

    impl Coalesce for Ev {
        fn relation(&self, _: &Self) -> Relation {
            Relation::Independent
        }
    }

    /// The service manager's socket in a directory of its own, and the notifier that writes to it.
    fn service_manager() -> (tempfile::TempDir, UnixDatagram, Arc<Notifier>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let notifier = Arc::new(Notifier::new(path.to_str()).unwrap());
        (dir, manager, notifier)
    }

    fn beats(socket: &UnixDatagram) -> usize {
        let mut buffer = [0u8; 32];
        std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn beats_while_all_answer_and_stops_with_a_stuck_owner() {
        let (_dir, manager, notifier) = service_manager();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let (one, mut inbox_one) = tasks.mailbox::<Ev>();
        let (two, inbox_two) = tasks.mailbox::<Ev>();
        let owners: Vec<Owner> = vec![Owner::new("one", one), Owner::new("two", two.clone())];
        tasks.start(async move {
            loop {
                inbox_one.recv().await;
            }
        });
        // The second owner answers until the test blocks it.
        let mut inbox_two = inbox_two;
        tasks.start(async move {
            inbox_two.recv().await;
            std::future::pending::<()>().await;
        });
        tasks.start(beat(notifier, Duration::from_secs(2), owners, Vec::new(), tasks.clone()));
        tasks.wait_until(tasks.now().mono.after(Duration::from_millis(10_500))).await;
        let healthy = beats(&manager);
        assert!((10..=11).contains(&healthy), "{healthy} beats in ten seconds of one a second");
        two.send(Ev);
        tasks.wait_until(tasks.now().mono.after(Duration::from_millis(1500))).await;
        let _ = beats(&manager);
        tasks.wait_until(tasks.now().mono.after(Duration::from_secs(10))).await;
        assert_eq!(beats(&manager), 0);
        tasks.stop().cancel();
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_check_stops_the_beat_until_it_passes_again() {
        let (_dir, manager, notifier) = service_manager();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let (state, health) = watch::channel(Ok(()));
        let checks = vec![
            HealthCheck { name: "passes", state: watch::channel(Ok(())).1 },
            HealthCheck { name: "device-plugin", state: health },
        ];
        tasks.start(beat(notifier, Duration::from_secs(2), Vec::new(), checks, tasks.clone()));
        for (failure, expected) in [(None, 9..=11), (Some("no descriptors"), 0..=0), (None, 9..=11)] {
            drop(state.send_replace(failure.map_or(Ok(()), |reason: &str| Err(reason.to_owned()))));
            tasks.wait_until(tasks.now().mono.after(Duration::from_millis(1500))).await;
            let _ = beats(&manager);
            tasks.wait_until(tasks.now().mono.after(Duration::from_secs(10))).await;
            let found = beats(&manager);
            assert!(expected.contains(&found), "{failure:?}: {found} beats in ten seconds of one a second");
        }
        tasks.stop().cancel();
    }
}
