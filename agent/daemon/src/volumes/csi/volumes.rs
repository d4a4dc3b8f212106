//! The way to the owner of the volume table: wishes of pods, turns at volumes, what this agent staged and published.
//!
//! ```text
//! set-ups, tearings down, the watch on the Node ─► mailbox ─► the owner (`super::volume_table`) ─► answers, turns
//! ```
//! In: questions and news. Out: the owner's answers. Invariants: who has a `Turn` gives it back by dropping it, also if the task
//! is cancelled; when the node stops there are no answers. The decisions are those of `agent_volumes::volume_table`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_types::api::WatchEvent;
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_volumes::attach::{Attached, OnDisk};
use agent_volumes::csi::publishing::Facts;
use agent_volumes::key::VolumeKey;
use agent_volumes::volume_table::{Published, Subject, Ticket};
use k8s_openapi::api::core::v1::Node;
use tokio::sync::{oneshot, watch};

use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::{Coalesce, Inbox, Relation, Sender};

/// All that is published, by target.
pub(super) type View = Arc<BTreeMap<String, Published>>;

/// A question to the owner, or news.
pub(super) enum Ask {
    /// A pod wants a volume; `attached` is whether it has to be attached to the node.
    Wish { pod: PodUid, key: VolumeKey, attached: bool, to: oneshot::Sender<Attached> },
    /// A pod's volumes were taken away.
    Forget(PodUid),
    /// What the disk holds is different.
    Look,
    /// The disk was read; `None`: it could not be.
    Disk(Option<OnDisk>),
    /// Volumes of the Node: in use, attached, and as which devices.
    NodeSays { of: NodeVolumes, to: oneshot::Sender<BTreeSet<PodUid>> },
    /// As which device a volume is attached.
    Device { key: VolumeKey, to: oneshot::Sender<String> },
    /// A task waits for its turn.
    Turn { of: Subject, to: oneshot::Sender<Turn> },
    /// A task has had its turn.
    End(Ticket),
    /// What this agent did with a volume and a target.
    Facts { key: VolumeKey, target: String, to: oneshot::Sender<Facts> },
    /// Nothing is left to ask the driver for at the target.
    Settled { target: String, to: oneshot::Sender<bool> },
    /// The volume of the turn is staged, or may no longer be.
    Staged { ticket: Ticket, is: bool },
    /// A volume is published at the target, or may no longer be.
    Published { target: String, of: Option<Published> },
    /// The disk holds this in the turn of a volume that is to be unstaged.
    MayUnstage { key: VolumeKey, disk: OnDisk, to: oneshot::Sender<bool> },
    /// The driver let go of the volume, or did not.
    Unstaged { key: VolumeKey, ticket: Ticket, done: bool },
    /// The table's deadline has passed.
    Tick,
}

/// What the Node says of volumes.
#[derive(Default)]
pub(super) struct NodeVolumes {
    pub(super) in_use: BTreeSet<String>,
    pub(super) attached: BTreeSet<String>,
    pub(super) devices: BTreeMap<String, String>,
}

impl NodeVolumes {
    /// `None`: the event says nothing of volumes.
    fn in_event(event: &WatchEvent<Node>) -> Option<NodeVolumes> {
        let node = match event {
            WatchEvent::Listed(nodes) => nodes.first()?,
            WatchEvent::Applied(node) => node,
            WatchEvent::Deleted(_) | WatchEvent::Lost(_) => return None,
        };
        let status = node.status.as_ref()?;
        let attached = || status.volumes_attached.iter().flatten();
        let devices = attached().map(|v| (v.name.clone(), v.device_path.clone()));
        Some(NodeVolumes {
            in_use: status.volumes_in_use.iter().flatten().cloned().collect(),
            attached: attached().map(|v| v.name.clone()).collect(),
            devices: devices.filter(|(_, path)| !path.is_empty()).collect(),
        })
    }
}

impl Coalesce for Ask {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (Ask::Look, Ask::Look) => Relation::Supersedes,
            _ => Relation::Independent,
        }
    }
}

/// The turn of one task at one volume or target; it ends when this is dropped.
pub(crate) struct Turn {
    ticket: Ticket,
    to: Sender<Ask>,
}

impl Turn {
    pub(super) fn new(ticket: Ticket, to: Sender<Ask>) -> Turn {
        Turn { ticket, to }
    }

    /// The turn's volume is staged, or may no longer be.
    pub(crate) fn set_staged(&self, is: bool) {
        self.to.send(Ask::Staged { ticket: self.ticket, is });
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.to.send(Ask::End(self.ticket));
    }
}

/// The owner's end, which it takes when it begins.
pub(super) struct OwnersEnd {
    pub(super) inbox: Inbox<Ask>,
    pub(super) view: watch::Sender<View>,
}

/// The volumes of drivers; clones lead to the same owner.
#[derive(Clone)]
pub struct CsiVolumes {
    to: Sender<Ask>,
    published: watch::Receiver<View>,
    owners: Arc<Lock<Option<OwnersEnd>>>,
}

impl CsiVolumes {
    /// The way to an owner that does not run yet: questions wait for it.
    #[must_use]
    pub fn new(tasks: &Tasks) -> CsiVolumes {
        let (to, inbox) = tasks.mailbox();
        let (view, published) = watch::channel(View::default());
        CsiVolumes { to, published, owners: Arc::new(Lock::new(Some(OwnersEnd { inbox, view }))) }
    }

    /// The owner's end, once.
    pub(super) fn owners_end(&self) -> Option<OwnersEnd> {
        self.owners.lock().take()
    }

    pub(super) fn sender(&self) -> Sender<Ask> {
        self.to.clone()
    }

    /// The owner's answer; `None` when the node stops.
    async fn ask<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
        let (to, answer) = oneshot::channel();
        self.to.send(question(to));
        answer.await.ok()
    }

    /// The turn of the caller at a volume, as soon as it is granted.
    pub(crate) async fn turn(&self, key: &VolumeKey) -> Option<Turn> {
        let of = Subject::Volume(key.clone());
        self.ask(|to| Ask::Turn { of, to }).await
    }

    /// The turn of the caller at an iSCSI target, as soon as it is granted.
    pub(crate) async fn turn_at_target(&self, iqn: &str) -> Option<Turn> {
        let of = Subject::Target(iqn.to_owned());
        self.ask(|to| Ask::Turn { of, to }).await
    }

    /// What the disk holds is different: some volume may be free.
    pub(crate) fn look_again(&self) {
        self.to.send(Ask::Look);
    }

    /// A pod wants a volume; `attached` is whether it has to be attached to the node. The answer is whether it is.
    pub(crate) async fn wish(&self, pod: &PodUid, key: &VolumeKey, attached: bool) -> Attached {
        let (pod, key) = (pod.clone(), key.clone());
        self.ask(|to| Ask::Wish { pod, key, attached, to }).await.unwrap_or(Attached::NotInUse)
    }

    /// A pod's volumes were taken away.
    pub(crate) fn forget(&self, pod: &PodUid) {
        self.to.send(Ask::Forget(pod.clone()));
    }

    /// As which device the cluster attached a volume; empty: as none.
    pub(crate) async fn device(&self, key: &VolumeKey) -> String {
        let key = key.clone();
        self.ask(|to| Ask::Device { key, to }).await.unwrap_or_default()
    }

    /// What the watch on the Node says; the answer is pods that may have a volume now.
    pub(crate) async fn node_says(&self, event: &WatchEvent<Node>) -> BTreeSet<PodUid> {
        let Some(of) = NodeVolumes::in_event(event) else { return BTreeSet::new() };
        self.ask(|to| Ask::NodeSays { of, to }).await.unwrap_or_default()
    }

    /// What this agent did with a volume and a target.
    pub(crate) async fn facts(&self, key: &VolumeKey, target: &str) -> Option<Facts> {
        let (key, target) = (key.clone(), target.to_owned());
        self.ask(|to| Ask::Facts { key, target, to }).await
    }

    /// A volume was published at the target, and nothing is left to ask its driver for.
    pub(crate) async fn is_settled(&self, target: &str) -> bool {
        let target = target.to_owned();
        self.ask(|to| Ask::Settled { target, to }).await.unwrap_or_default()
    }

    /// A volume is published at the target.
    pub(crate) fn published(&self, target: &str, of: Published) {
        self.to.send(Ask::Published { target: target.to_owned(), of: Some(of) });
    }

    /// It may no longer be.
    pub(crate) fn unpublished(&self, target: &str) {
        self.to.send(Ask::Published { target: target.to_owned(), of: None });
    }

    /// All that is published, by target.
    pub(crate) fn all_published(&self) -> View {
        self.published.borrow().clone()
    }

    /// In the turn of a volume that is to be unstaged the disk holds this: true if its driver may be asked.
    pub(super) async fn may_unstage(&self, key: &VolumeKey, disk: &OnDisk) -> Option<bool> {
        let (key, disk) = (key.clone(), disk.clone());
        self.ask(|to| Ask::MayUnstage { key, disk, to }).await
    }
}
