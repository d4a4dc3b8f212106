//! Which pods have a worker, and what each worker is told. Upstream: pod manager and the dispatch half of
//! pod workers.
//!
//! In: what the sources want, what the runtime has, what an earlier incarnation left. Out: workers to start
//! and events for them. A machine without I/O, so that its rules are tested apart from the shell.
//! Invariants:
//! - nothing is started, and nothing is an orphan, before every source was read and the runtime was listed;
//! - a pod waits for the end of any other pod of its name (a changed static pod has a new UID);
//! - what is found and not wanted is taken down, whether it is in the runtime or only a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_core::machine::{Machine, Outbox};
use agent_core::pod_source::{PodOp, PodUpdate, Source};
use agent_core::pod_worker::{KillReason, PodEvent, TerminatingRecord, WorkerContext};
use agent_core::runtime::observed::PodSnapshot;
use agent_core::runtime::{PodKey, PodUid};
use agent_core::time::{Mono, Now};
use agent_core::types::pod;
use k8s_openapi::api::core::v1::Pod;

use crate::mailbox::{Coalesce, Relation};

/// What the dispatcher reacts to.
#[derive(Clone, Debug)]
pub enum DispatchEvent {
    /// A source changed.
    Update(PodUpdate),
    /// The runtime was listed: it holds these pods.
    Listed(Vec<PodKey>),
    /// A pod changed in the runtime.
    Changed(Arc<PodSnapshot>),
    /// A worker is done; nothing of its pod is left.
    Finished(PodUid),
    /// Whether the node's network is ready.
    Network(Result<(), String>),
    /// What workers share changed.
    Context(Arc<WorkerContext>),
    /// Nothing; there is no deadline to come.
    Tick,
}

/// How a worker begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// Knowing nothing.
    Fresh,
    /// In the middle of a termination that an earlier incarnation began.
    Resume(Box<TerminatingRecord>),
}

/// What the dispatcher asks for.
#[derive(Clone, Debug)]
pub enum DispatchAction {
    /// Start a worker.
    Start {
        /// For which pod.
        key: PodKey,
        /// How.
        beginning: Beginning,
        /// Calls of earlier incarnations for this pod are over then.
        fence_until: Mono,
    },
    /// Tell a worker something.
    Tell {
        /// Which.
        uid: PodUid,
        /// What.
        event: PodEvent,
    },
    /// The worker has ended; nothing more is sent to it.
    Forget(PodUid),
    /// Every source was read and the runtime listed: from now on the node does its work.
    Synced,
}

/// What an earlier incarnation left behind.
#[derive(Clone, Debug, Default)]
pub struct Leftovers {
    /// Terminations that had begun.
    pub records: Vec<TerminatingRecord>,
    /// Pods that have a directory.
    pub directories: BTreeSet<PodUid>,
    /// When the last call of an earlier incarnation is over.
    pub fence_until: Mono,
}

/// The machine.
#[derive(Debug)]
pub struct Dispatcher {
    expected: BTreeSet<Source>,
    listed: Option<Vec<PodKey>>,
    synced: bool,
    leftovers: Leftovers,
    desired: BTreeMap<PodUid, Arc<Pod>>,
    workers: BTreeMap<PodUid, PodKey>,
    network: Result<(), String>,
}

impl Dispatcher {
    /// A dispatcher that waits for `expected` sources and the first list of the runtime.
    #[must_use]
    pub fn new(expected: BTreeSet<Source>, leftovers: Leftovers, network: Result<(), String>) -> Dispatcher {
        Dispatcher {
            expected,
            listed: None,
            synced: false,
            leftovers,
            desired: BTreeMap::new(),
            workers: BTreeMap::new(),
            network,
        }
    }

    /// True once everything was read and listed.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    fn update(&mut self, update: PodUpdate, out: &mut Outbox<DispatchAction>) {
        self.expected.remove(&update.source);
        for pod in update.pods {
            let uid = pod::key(&pod).uid;
            if update.op == PodOp::Remove {
                self.desired.remove(&uid);
                if self.synced && self.workers.contains_key(&uid) {
                    tell(&uid, PodEvent::Kill { reason: KillReason::Removed, grace_s: None }, out);
                }
                continue;
            }
            self.desired.insert(uid.clone(), pod.clone());
            if self.synced && self.workers.contains_key(&uid) {
                tell(&uid, PodEvent::Desired(pod), out);
            }
        }
    }

    /// Once everything is known: take up what an earlier incarnation left, then start what is wanted.
    fn sync(&mut self, out: &mut Outbox<DispatchAction>) {
        if self.synced || !self.expected.is_empty() {
            return;
        }
        let Some(listed) = self.listed.take() else { return };
        self.synced = true;
        for record in std::mem::take(&mut self.leftovers.records) {
            let key = record.pod.clone();
            self.start(key.clone(), Beginning::Resume(Box::new(record)), out);
            if let Some(pod) = self.desired.get(&key.uid) {
                tell(&key.uid, PodEvent::Desired(pod.clone()), out);
            }
        }
        for key in listed {
            self.orphan(key, out);
        }
        for uid in self.leftovers.directories.clone() {
            self.orphan(PodKey { namespace: Arc::from(""), name: Arc::from(""), uid }, out);
        }
        out.push(DispatchAction::Synced);
    }

    /// Takes down what nobody wants.
    fn orphan(&mut self, key: PodKey, out: &mut Outbox<DispatchAction>) {
        if self.desired.contains_key(&key.uid) || self.workers.contains_key(&key.uid) {
            return;
        }
        let uid = key.uid.clone();
        self.start(key, Beginning::Fresh, out);
        tell(&uid, PodEvent::Kill { reason: KillReason::Orphan, grace_s: None }, out);
    }

    /// Starts every wanted pod that has no worker and whose name is free.
    fn start_wanted(&mut self, out: &mut Outbox<DispatchAction>) {
        if !self.synced {
            return;
        }
        let waiting: Vec<Arc<Pod>> = self
            .desired
            .iter()
            .filter(|(uid, _)| !self.workers.contains_key(uid))
            .map(|(_, p)| p.clone())
            .collect();
        for pod in waiting {
            let key = pod::key(&pod);
            let taken = self.workers.values().any(|w| w.name == key.name && w.namespace == key.namespace);
            if !taken {
                self.start(key.clone(), Beginning::Fresh, out);
                tell(&key.uid, PodEvent::Desired(pod), out);
            }
        }
    }

    fn start(&mut self, key: PodKey, beginning: Beginning, out: &mut Outbox<DispatchAction>) {
        let had_calls = self.leftovers.directories.contains(&key.uid) || beginning != Beginning::Fresh;
        let fence_until = if had_calls { self.leftovers.fence_until } else { Mono(0) };
        self.workers.insert(key.uid.clone(), key.clone());
        out.push(DispatchAction::Start { key: key.clone(), beginning, fence_until });
        if self.network.is_err() {
            tell(&key.uid, PodEvent::Network(self.network.clone()), out);
        }
    }

    fn changed(&mut self, snapshot: Arc<PodSnapshot>, out: &mut Outbox<DispatchAction>) {
        if !self.synced {
            return; // a worker looks for itself when it starts
        }
        let uid = snapshot.pod.uid.clone();
        if !(snapshot.sandboxes.is_empty() && snapshot.containers.is_empty()) {
            self.orphan(snapshot.pod.clone(), out);
        }
        if self.workers.contains_key(&uid) {
            tell(&uid, PodEvent::Observed(snapshot), out);
        }
    }

    fn tell_all(&self, event: &PodEvent, out: &mut Outbox<DispatchAction>) {
        for uid in self.workers.keys() {
            tell(uid, event.clone(), out);
        }
    }
}

fn tell(uid: &PodUid, event: PodEvent, out: &mut Outbox<DispatchAction>) {
    out.push(DispatchAction::Tell { uid: uid.clone(), event });
}

impl Machine for Dispatcher {
    type Event = DispatchEvent;
    type Action = DispatchAction;

    fn step(&mut self, _now: Now, event: DispatchEvent, out: &mut Outbox<DispatchAction>) {
        match event {
            DispatchEvent::Update(update) => self.update(update, out),
            DispatchEvent::Listed(pods) => self.listed = Some(pods),
            DispatchEvent::Changed(snapshot) => self.changed(snapshot, out),
            DispatchEvent::Finished(uid) => {
                self.workers.remove(&uid);
                self.leftovers.directories.remove(&uid);
                out.push(DispatchAction::Forget(uid));
            }
            DispatchEvent::Network(network) if network != self.network => {
                self.network = network;
                self.tell_all(&PodEvent::Network(self.network.clone()), out);
            }
            DispatchEvent::Network(_) | DispatchEvent::Tick => {}
            DispatchEvent::Context(context) => self.tell_all(&PodEvent::Context(context), out),
        }
        self.sync(out);
        self.start_wanted(out);
    }

    fn deadline(&self) -> Option<Mono> {
        None
    }
}

impl Coalesce for DispatchEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (DispatchEvent::Network(_), DispatchEvent::Network(_))
            | (DispatchEvent::Context(_), DispatchEvent::Context(_)) => Relation::Supersedes,
            (DispatchEvent::Changed(a), DispatchEvent::Changed(b))
                if a.pod.uid == b.pod.uid && a.as_of <= b.as_of =>
            {
                Relation::Supersedes
            }
            _ => Relation::Independent,
        }
    }
}

#[cfg(test)]
mod tests;
