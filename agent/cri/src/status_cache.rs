//! What the runtime said of a pod's sandboxes and containers, for as long as it would say the same again.
//!
//! A look at a pod lists what it has. A status is asked for only where it may have changed; otherwise the start of a pod of
//! many containers, each of which is looked for, would cost their number squared. In: lists, answers, what we change.
//! Out: what is known, and what has to be asked for.
//!
//! Invariants: what is kept was said by the runtime in the state that the list shows; nothing is kept that was asked for
//! before one of our changes was answered; nothing is kept for longer than [`KEPT`], for others may change it too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::ids::{ContainerId, PodUid};
use agent_types::lock::Lock;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, SandboxObserved, SandboxState};
use tokio::time::Instant;

/// An answer is good for so long.
const KEPT: Duration = Duration::from_secs(30);
/// containerd may learn that the kernel killed a container for its memory after it has learnt of its end.
const REASON_MAY_COME: Duration = Duration::from_secs(10);

/// Something that lists show with its state, and statuses in full.
pub(crate) trait HasState: Clone {
    /// As lists show it.
    type State: Copy + PartialEq;

    fn id(&self) -> &str;

    fn state(&self) -> Self::State;

    /// How long its status may still change in this state; `None`: it is asked for each time.
    fn settles_after(state: Self::State) -> Option<Duration>;
}

impl HasState for SandboxObserved {
    type State = SandboxState;

    fn id(&self) -> &str {
        self.id.as_str()
    }

    fn state(&self) -> SandboxState {
        self.state
    }

    fn settles_after(state: SandboxState) -> Option<Duration> {
        (state == SandboxState::Ready).then_some(Duration::ZERO)
    }
}

impl HasState for ContainerObserved {
    type State = ContainerState;

    fn id(&self) -> &str {
        self.id.as_str()
    }

    fn state(&self) -> ContainerState {
        self.state
    }

    fn settles_after(state: ContainerState) -> Option<Duration> {
        match state {
            ContainerState::Running => Some(Duration::ZERO),
            ContainerState::Exited => Some(REASON_MAY_COME),
            ContainerState::Created | ContainerState::Unknown => None,
        }
    }
}

/// What a list shows.
pub(crate) struct Split<T> {
    /// Its status is known.
    pub(crate) known: Vec<T>,
    /// The ids of those whose status has to be asked for.
    pub(crate) to_ask: BTreeSet<String>,
}

struct CachedStatus<T> {
    what: T,
    /// When it was asked for and this was the answer.
    asked: Instant,
    /// The first time in this state.
    since: Instant,
}

struct CachedPods<T> {
    pods: BTreeMap<PodUid, BTreeMap<String, CachedStatus<T>>>,
}

impl<T> Default for CachedPods<T> {
    fn default() -> Self {
        CachedPods { pods: BTreeMap::new() }
    }
}

impl<T: HasState> CachedPods<T> {
    /// Forgets what the list does not show.
    fn split(&mut self, uid: &PodUid, listed: &[(&str, T::State)], now: Instant) -> Split<T> {
        let mut split = Split { known: Vec::new(), to_ask: BTreeSet::new() };
        let mut had = self.pods.remove(uid).unwrap_or_default();
        let mut has = BTreeMap::new();
        for (id, state) in listed {
            let said = had.remove(*id).filter(|said| said.what.state() == *state);
            match said.as_ref().filter(|said| said.is_good(now)) {
                Some(said) => split.known.push(said.what.clone()),
                None => {
                    split.to_ask.insert((*id).to_owned());
                }
            }
            has.extend(said.map(|said| ((*id).to_owned(), said)));
        }
        if !has.is_empty() {
            self.pods.insert(uid.clone(), has);
        }
        split
    }

    fn keep(&mut self, uid: &PodUid, said: &[T], asked: Instant) {
        for what in said.iter().filter(|what| T::settles_after(what.state()).is_some()) {
            let of_pod = self.pods.entry(uid.clone()).or_default();
            let before = of_pod.get(what.id()).filter(|before| before.what.state() == what.state());
            let since = before.map_or(asked, |before| before.since);
            of_pod.insert(what.id().to_owned(), CachedStatus { what: what.clone(), asked, since });
        }
    }
}

impl<T: HasState> CachedStatus<T> {
    fn is_good(&self, now: Instant) -> bool {
        let settled =
            T::settles_after(self.what.state()).is_some_and(|after| self.asked >= self.since + after);
        settled && now < self.asked + KEPT
    }
}

#[derive(Default)]
struct Inner {
    /// Counts what makes answers under way worthless.
    changes: u64,
    sandboxes: CachedPods<SandboxObserved>,
    containers: CachedPods<ContainerObserved>,
}

/// When a look began, and of which past it may keep answers.
#[derive(Clone, Copy)]
pub(crate) struct InspectStart {
    began: Instant,
    changes: u64,
}

/// What is known of all pods.
#[derive(Default)]
pub(crate) struct StatusCache(Lock<Inner>);

impl StatusCache {
    /// A look begins: nothing was asked for it yet.
    pub(crate) fn look(&self) -> InspectStart {
        InspectStart { began: Instant::now(), changes: self.0.lock().changes }
    }

    /// What is known of what the pod has, by the lists.
    pub(crate) fn split(
        &self,
        uid: &PodUid,
        sandboxes: &[(&str, SandboxState)],
        containers: &[(&str, ContainerState)],
        look: InspectStart,
    ) -> (Split<SandboxObserved>, Split<ContainerObserved>) {
        let mut inner = self.0.lock();
        (
            inner.sandboxes.split(uid, sandboxes, look.began),
            inner.containers.split(uid, containers, look.began),
        )
    }

    /// Keeps what was asked for in a look.
    pub(crate) fn keep(
        &self,
        uid: &PodUid,
        sandboxes: &[SandboxObserved],
        containers: &[ContainerObserved],
        look: InspectStart,
    ) {
        let mut inner = self.0.lock();
        if inner.changes == look.changes {
            inner.sandboxes.keep(uid, sandboxes, look.began);
            inner.containers.keep(uid, containers, look.began);
        }
    }

    /// The container was changed, or may have been.
    pub(crate) fn changed(&self, container: &ContainerId) {
        let mut inner = self.0.lock();
        inner.changes += 1;
        for of_pod in inner.containers.pods.values_mut() {
            of_pod.remove(container.as_str());
        }
    }

    /// Only these pods are there.
    pub(crate) fn retain(&self, is_there: impl Fn(&PodUid) -> bool) {
        let mut inner = self.0.lock();
        inner.sandboxes.pods.retain(|uid, _| is_there(uid));
        inner.containers.pods.retain(|uid, _| is_there(uid));
    }

    /// The runtime may be another one.
    pub(crate) fn forget(&self) {
        let mut inner = self.0.lock();
        *inner = Inner { changes: inner.changes + 1, ..Inner::default() };
    }
}
