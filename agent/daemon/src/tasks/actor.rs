//! `Actor`: one task for each state owner, and the only place that starts tasks.
//!
//! ```text
//! senders ──► mailbox ──► machine.step(now, event) ──► outbox ──► Shell::perform (starts effects, never waits)
//!                ▲  one timer from machine.deadline()                    │
//!                └──────────────── answers ◄─────────────────────────────┘
//! ```
//! Invariants: a machine is stepped by its own task only; `perform` does not wait, so the loop always comes
//! back to its mailbox; every task is tracked and ends when the node stops.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use agent_linux::clock::Clock;
use agent_types::ids::PodUid;
use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::tasks::mailbox::{Coalesce, Inbox, Sender, mailbox};
use crate::tasks::pools::{PoolPermit, Pools};

/// The surroundings of a machine: carries out its actions and publishes its state.
pub trait Shell: Send + 'static {
    /// The state owner.
    type Machine: Machine<Event: Coalesce + Send, Action: Send> + Send + 'static;

    /// The event for "the deadline came".
    fn tick(&self) -> <Self::Machine as Machine>::Event;

    /// Sees an event before the machine does.
    fn before(&mut self, _now: Now, _event: &<Self::Machine as Machine>::Event) {}

    /// Carries out one action. Never waits: a long action is started as a task that sends its answer.
    fn perform(&mut self, now: Now, action: <Self::Machine as Machine>::Action);

    /// After all actions of a step; false ends the actor.
    fn after(&mut self, _now: Now, _machine: &Self::Machine) -> bool {
        true
    }
}

/// Starts tasks, reads the time, and stops everything. Clones share all of it.
#[derive(Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    clock: Arc<dyn Clock>,
    alive: Arc<Notify>,
    pools: Arc<Pools>,
}

impl Tasks {
    /// Tasks of one node that live until `stop`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, stop: CancellationToken) -> Tasks {
        Tasks {
            tracker: TaskTracker::new(),
            stop,
            clock,
            alive: Arc::new(Notify::new()),
            pools: Arc::default(),
        }
    }

    /// Both clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        self.clock.now()
    }

    /// Ends everything.
    #[must_use]
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Notified when an owner answers the watchdog's question.
    #[must_use]
    pub fn alive(&self) -> &Notify {
        &self.alive
    }

    /// Runs `task` until it ends or the node stops.
    pub fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        // A task is stopped by dropping it at an await; work that must be finished uses `finish`.
        self.tracker.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Runs `task` to its end; it watches `stop` itself.
    pub fn finish(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(task);
    }

    /// Runs the node's own blocking work: short work on files that no pod can make long. Few threads carry all of it.
    ///
    /// # Errors
    /// `None` if the runtime is shutting down.
    pub async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.in_place(self.pools.node().await?, work).await
    }

    /// Runs blocking work on a pod's directories and volumes; the pod can make it take arbitrarily long. Each pod has
    /// one thread at a time: repeated work waits for the earlier one, even if the caller of the earlier one has given
    /// up.
    ///
    /// # Errors
    /// `None` if the runtime is shutting down.
    pub async fn blocking_of_pod<T: Send + 'static>(
        &self,
        uid: &PodUid,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.in_place(self.pools.of_pod(uid.as_str()).await?, work).await
    }

    /// The same for a volume that several pods may use: a device, or a staging directory of a driver.
    ///
    /// # Errors
    /// `None` if the runtime is shutting down.
    pub async fn blocking_of_volume<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.in_place(self.pools.of_volume(volume).await?, work).await
    }

    /// Runs blocking work that measures a pod's volumes, one at a time for each pod.
    ///
    /// # Errors
    /// `None` if the runtime is shutting down.
    pub async fn blocking_measure<T: Send + 'static>(
        &self,
        uid: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.in_place(self.pools.measure(uid).await?, work).await
    }

    /// Reads a source of the machine's metrics, which may hang; one read at a time for each source.
    ///
    /// # Errors
    /// `None` if the runtime is shutting down.
    pub async fn blocking_machine<T: Send + 'static>(
        &self,
        source: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.in_place(self.pools.machine(source).await?, work).await
    }

    /// Runs a look for shims that the runtime lost, one at a time.
    ///
    /// # Errors
    /// `None` if the runtime is shutting down.
    pub async fn blocking_shims<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.in_place(self.pools.shims().await?, work).await
    }

    /// Runs blocking work for updates of the node, one at a time.
    ///
    /// # Errors
    /// `None` if the runtime is shutting down.
    pub async fn blocking_update<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.in_place(self.pools.updates().await?, work).await
    }

    /// Runs blocking work that walks through a volume's files, one at a time for each volume. Once `end` is called it is not begun;
    /// work that has begun has to look at that itself.
    ///
    /// # Errors
    /// `None` if the work did not begin, or the runtime is shutting down.
    pub async fn blocking_walk<T: Send + 'static>(
        &self,
        volume: &str,
        end: &CancellationToken,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let place = tokio::select! {
            // Waiting for a place can be dropped at any await: no place is taken yet.
            biased;
            () = end.cancelled() => None,
            place = self.pools.walk(volume) => place,
        };
        self.in_place(place?, work).await
    }

    async fn in_place<T: Send + 'static>(
        &self,
        place: PoolPermit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let work = move || {
            let done = work();
            drop(place);
            done
        };
        self.tracker.spawn_blocking(work).await.ok()
    }

    /// Waits for `until` by the node's clock, which the runtime's timer approximates.
    pub async fn wait_until(&self, until: Mono) {
        loop {
            let left = until.since(self.now().mono);
            if left.is_zero() {
                return;
            }
            sleep_until(Instant::now() + round_up(left)).await;
        }
    }

    /// Waits for a deadline; never returns without one.
    pub async fn wait_for_deadline(&self, deadline: Option<Mono>) {
        match deadline {
            Some(deadline) => self.wait_until(deadline).await,
            None => std::future::pending().await,
        }
    }

    /// Waits for all tasks to end, at most `within`; false if some did not.
    pub async fn drain(&self, within: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(within, self.tracker.wait()).await.is_ok()
    }

    /// A mailbox for an owner.
    #[must_use]
    pub fn mailbox<E: Coalesce>(&self) -> (Sender<E>, Inbox<E>) {
        mailbox(self.alive.clone())
    }

    /// Starts a state owner. It lives until the node stops or [`Shell::after`] ends it.
    pub fn own<S: Shell>(&self, machine: S::Machine, shell: S, inbox: Inbox<<S::Machine as Machine>::Event>) {
        let tasks = self.clone();
        // Boxed: a future contains its arguments several times.
        self.start(run(tasks, Box::new(machine), shell, inbox));
    }
}

/// The runtime's timer has milliseconds: never wake before the deadline.
fn round_up(left: Duration) -> Duration {
    Duration::from_millis(u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
        .min(Duration::from_secs(24 * 3600))
}

async fn run<S: Shell>(
    tasks: Tasks,
    mut machine: Box<S::Machine>,
    mut shell: S,
    mut inbox: Inbox<<S::Machine as Machine>::Event>,
) {
    let mut outbox = Outbox::new();
    loop {
        let deadline = machine.deadline();
        let event = tokio::select! {
            // `recv` and `wait_until` are cancel-safe: neither takes anything before it returns.
            event = inbox.recv() => event,
            () = tasks.wait_for_deadline(deadline) => shell.tick(),
        };
        let now = tasks.now();
        shell.before(now, &event);
        machine.step(now, event, &mut outbox);
        for action in outbox.drain() {
            shell.perform(now, action);
        }
        if !shell.after(now, &machine) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::mailbox::Relation;
    use crate::testing::VirtualClock;
    use tokio::sync::mpsc;

    /// Counts down from what it is given, one a second.
    #[derive(Default)]
    struct Countdown {
        left: u32,
        at: Option<Mono>,
    }

    enum Ev {
        Start(u32),
        Tick,
    }

    impl Coalesce for Ev {
        fn relation(&self, _: &Self) -> Relation {
            Relation::Independent
        }
    }

    impl Machine for Countdown {
        type Event = Ev;
        type Action = u32;

        fn step(&mut self, now: Now, event: Ev, out: &mut Outbox<u32>) {
            match event {
                Ev::Start(n) => self.left = n,
                Ev::Tick => self.left -= 1,
            }
            out.push(self.left);
            self.at = (self.left > 0).then(|| now.mono.after(Duration::from_secs(1)));
        }

        fn deadline(&self) -> Option<Mono> {
            self.at
        }
    }

    struct Report(mpsc::UnboundedSender<(Mono, u32)>);

    impl Shell for Report {
        type Machine = Countdown;

        fn tick(&self) -> Ev {
            Ev::Tick
        }

        fn perform(&mut self, now: Now, action: u32) {
            self.0.send((now.mono, action)).unwrap();
        }

        fn after(&mut self, _: Now, machine: &Countdown) -> bool {
            machine.left > 0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_timer_from_the_deadline_and_an_end() {
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let (sender, inbox) = tasks.mailbox();
        let (reports, mut seen) = mpsc::unbounded_channel();
        tasks.own(Countdown::default(), Report(reports), inbox);
        let start = tasks.now().mono;
        assert!(sender.send(Ev::Start(3)));
        let mut got = Vec::new();
        while let Some((at, left)) = seen.recv().await {
            got.push((at.since(start).as_secs(), left));
        }
        assert_eq!(got, [(0, 3), (1, 2), (2, 1), (3, 0)]);
        assert!(!sender.send(Ev::Start(1)), "the actor has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn everything_ends_when_the_node_stops() {
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let (_sender, inbox) = tasks.mailbox();
        let (reports, _seen) = mpsc::unbounded_channel();
        tasks.own(Countdown::default(), Report(reports), inbox);
        tasks.start(std::future::pending());
        assert!(!tasks.drain(Duration::from_secs(1)).await);
        tasks.stop().cancel();
        assert!(tasks.drain(Duration::from_secs(1)).await);
    }
}
