//! Reports to the service manager that the agent is ready, and that its state owners and its own file work still
//! answer.
//!
//! In: the watchdog's period, the main owners' mailboxes. Out: `READY=1`, `WATCHDOG=1`. Invariant: a beat is sent only
//! after every main owner has answered this round's question in its own loop, and after a thread for the node's own
//! file work was free: a stuck owner or a stuck pool stops the beat, and systemd restarts the agent.

use std::sync::Arc;
use std::time::Duration;

use agent_linux::notify::Notifier;
use tokio::time::timeout;

use crate::node::service_manager::notify;
use crate::tasks::actor::Tasks;
use crate::tasks::alive::Owner;

/// Beats every half period for as long as all owners answer within it.
pub async fn beat(notifier: Arc<Notifier>, period: Duration, owners: Vec<Owner>, tasks: Tasks) {
    let every = period / 2;
    for round in 1.. {
        let next = tasks.now().mono.after(every);
        if timeout(every, all_answer(&owners, round, &tasks)).await.is_ok() {
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

    fn beats(socket: &UnixDatagram) -> usize {
        let mut buffer = [0u8; 32];
        std::iter::from_fn(|| socket.recv(&mut buffer).ok()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn beats_while_all_answer_and_stops_with_a_stuck_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let notifier = Arc::new(Notifier::new(path.to_str()).unwrap());
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
        tasks.start(beat(notifier, Duration::from_secs(2), owners, tasks.clone()));
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
}
