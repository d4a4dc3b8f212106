//! The owner of the volume table. Which volumes are in use goes to the API server, and volumes that no pod has go back to their
//! drivers.
//!
//! ```text
//! questions, news ─► VolumeTable ─► answers, turns
//!                        ├─► the disk is read (a task) ─► VolumeTable ─► volumesInUse of the Node
//!                        └─► unstage (a task each) ─► its answer
//! ```
//! In: the mailbox, the disk. Out: answers, the Node's `volumesInUse`, calls of drivers. Invariants: the owner never waits for a
//! task; the steps of a task are those of [`Unstaging`]. The decisions are those of `agent_volumes::volume_table`.
//! Upstream: pkg/kubelet/volumemanager/reconciler.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_core::node_status::{NodeInput, NodeStatusEvent};
use agent_types::machine::{Machine, Outbox};
use agent_types::time::{Mono, Now};
use agent_volumes::attach::VolumeOnDisk;
use agent_volumes::csi::failures::StagedAs;
use agent_volumes::csi::publishing::Facts;
use agent_volumes::csi::unregistered;
use agent_volumes::csi::unstaging::{UnstageStep, Unstaging};
use agent_volumes::key::VolumeKey;
use agent_volumes::volume_table::{Order, Ticket, VolumeTable};
use tokio::sync::{oneshot, watch};

use super::Csi;
use super::volumes::{Ask, OwnersEnd, Turn, View};
use crate::pods::pod_dirs::{PodDirs, chain};
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::alive::Owner;
use crate::tasks::mailbox::Sender;
use crate::tasks::stops::AgentStops;
use crate::volumes::network_disks;

/// What the shell does for the table.
enum TableAction {
    /// The disk is read: [`Ask::Disk`].
    ReadDisk,
    /// The API server hears that these volumes are in use.
    Report(Vec<String>),
    /// The volume goes back to its driver, in this turn: [`Ask::Unstaged`].
    Unstage(VolumeKey, Ticket),
    /// Readers see what is published.
    Show(View),
}

/// The table with the tasks that wait for their turns. Answers leave within the step.
struct TableOwner {
    table: VolumeTable,
    waiting: BTreeMap<Ticket, oneshot::Sender<Turn>>,
    /// The owner's mailbox, for turns that end.
    own: Sender<Ask>,
}

impl TableOwner {
    /// Handles one request. An answer without a waiting caller is dropped.
    fn hear(&mut self, asked: Ask, now: Mono, out: &mut Outbox<TableAction>) {
        let table = &mut self.table;
        match asked {
            Ask::Wish { pod, key, attached, to } => {
                let _ = to.send(table.wish(&pod, &key, attached));
            }
            Ask::Forget(pod) => table.forget(&pod),
            Ask::Look => table.look(),
            Ask::Disk(found) => table.disk(found, now),
            Ask::NodeSays { of, to } => {
                let _ = to.send(table.node_says(of.in_use, of.attached, of.devices));
            }
            Ask::Device { key, to } => {
                let _ = to.send(table.device(&key));
            }
            Ask::Turn { of, to } => {
                let ticket = table.ask(of);
                self.waiting.insert(ticket, to);
            }
            Ask::End(ticket) => table.end(ticket),
            Ask::Facts { key, target, to } => {
                let (staged, published) = (table.is_staged(&key), table.is_published(&target));
                let _ = to.send(Facts { staged, published, ..Facts::default() });
            }
            Ask::Settled { target, to } => {
                let _ = to.send(table.is_settled(&target));
            }
            Ask::Staged { ticket, is } => table.set_staged(ticket, is),
            Ask::Published { target, of } => {
                table.set_published(&target, of);
                out.push(TableAction::Show(Arc::new(table.published().clone())));
            }
            Ask::MayUnstage { key, disk, to } => {
                let _ = to.send(table.may_unstage(&key, &disk));
            }
            Ask::Unstaged { key, ticket, done } => table.unstaged(&key, ticket, done, now),
            Ask::Tick => table.tick(now),
        }
    }

    fn grant(&mut self, ticket: Ticket) {
        let turn = Turn::new(ticket, self.own.clone());
        // A task that waits no more drops it.
        if let Some(to) = self.waiting.remove(&ticket) {
            let _ = to.send(turn);
        }
    }
}

impl Machine for TableOwner {
    type Event = Ask;
    type Action = TableAction;

    fn step(&mut self, now: Now, event: Ask, out: &mut Outbox<TableAction>) {
        self.hear(event, now.mono, out);
        for order in self.table.orders() {
            match order {
                Order::ReadDisk => out.push(TableAction::ReadDisk),
                Order::Report(in_use) => out.push(TableAction::Report(in_use)),
                Order::Grant(ticket) => self.grant(ticket),
                Order::Unstage(key, ticket) => out.push(TableAction::Unstage(key, ticket)),
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        self.table.deadline()
    }
}

/// Starts the owner of the table; `None` if it runs already. Without `to_node` no API server is informed of volumes.
pub fn start(
    dirs: Arc<PodDirs>,
    csi: Csi,
    to_node: Option<Sender<NodeStatusEvent>>,
    tasks: &Tasks,
) -> Option<Owner> {
    let OwnersEnd { inbox, view } = csi.volumes.owners_end()?;
    let own = csi.volumes.sender();
    let owner = TableOwner { table: VolumeTable::default(), waiting: BTreeMap::new(), own: own.clone() };
    tasks.own(owner, TableShell { dirs, csi, to_node, tasks: tasks.clone(), view }, inbox);
    Some(Owner::new("volume table", own))
}

struct TableShell {
    dirs: Arc<PodDirs>,
    csi: Csi,
    to_node: Option<Sender<NodeStatusEvent>>,
    tasks: Tasks,
    view: watch::Sender<View>,
}

impl Shell for TableShell {
    type Machine = TableOwner;

    fn tick(&self) -> Ask {
        Ask::Tick
    }

    fn perform(&mut self, _now: Now, action: TableAction) {
        match action {
            TableAction::ReadDisk => self.read(),
            TableAction::Report(in_use) => {
                if let Some(to_node) = &self.to_node {
                    to_node.send(NodeStatusEvent::Input(NodeInput::VolumesInUse(Some(in_use))));
                }
            }
            TableAction::Unstage(key, ticket) => {
                let task = (self.dirs.clone(), self.csi.clone(), self.tasks.clone());
                self.tasks.start(async move { unstage(task, key, ticket).await });
            }
            TableAction::Show(published) => {
                self.view.send_replace(published);
            }
        }
    }
}

impl TableShell {
    fn read(&self) {
        let (at, to, tasks) = (self.dirs.clone(), self.csi.volumes.sender(), self.tasks.clone());
        self.tasks.start(async move {
            let found = match tasks.blocking(move || at.csi_on_disk()).await {
                Some(Ok(found)) => Some(found),
                Some(Err(error)) => {
                    tracing::warn!(error = %chain(&error), "volumes of CSI drivers are not known; none is given back");
                    None
                }
                None => return,
            };
            to.send(Ask::Disk(found));
        });
    }
}

async fn unstage((dirs, csi, tasks): (Arc<PodDirs>, Csi, Tasks), key: VolumeKey, ticket: Ticket) {
    let done = match give_back(&dirs, &csi, &key, &tasks).await {
        Ok(done) => done,
        Err(error) => {
            tracing::warn!(
                driver = key.driver,
                volume = key.handle,
                error,
                "UnmountVolume.UnmountDevice failed"
            );
            false
        }
    };
    csi.volumes.sender().send(Ask::Unstaged { key, ticket, done });
}

/// True if it is given back; false if a pod has it again.
async fn give_back(dirs: &Arc<PodDirs>, csi: &Csi, key: &VolumeKey, tasks: &Tasks) -> Result<bool, String> {
    if key.is_network_disk() || key.flex_driver().is_some() {
        if look(dirs, csi, key, tasks).await?.is_none() {
            return Ok(false);
        }
        return match key.flex_driver() {
            Some(_) => let_flex_go(dirs, csi, key, tasks).await.map(|()| true),
            None => let_go(dirs, csi, key, tasks).await.map(|()| true),
        };
    }
    let mut way = Unstaging::default();
    loop {
        match way.step() {
            UnstageStep::Look => way.looked(look(dirs, csi, key, tasks).await),
            UnstageStep::IsThere(volume) => {
                let stage = dirs.device_stage(&volume);
                let found = tasks.blocking_of_volume(&key.handle, move || stage.exists()).await;
                way.is_there(found.ok_or_else(|| AgentStops.into()));
            }
            UnstageStep::Unstage(staged) => {
                let at = match staged {
                    StagedAs::Files => dirs.stage_of(key),
                    StagedAs::Device(volume) => dirs.device_stage(&volume),
                };
                way.done(match csi.registered.endpoint(&key.driver) {
                    Some(endpoint) => {
                        agent_plugins::unstage(&endpoint, &key.handle, &at).await.map_err(|e| e.to_string())
                    }
                    None => Err(unregistered("attacher.UnmountDevice", &key.driver)),
                });
            }
            UnstageStep::Forget(staged) => {
                let (at, of) = (dirs.clone(), key.clone());
                let forgotten = tasks.blocking_of_volume(&key.handle, move || match staged {
                    StagedAs::Files => at.unstaged(&of),
                    StagedAs::Device(volume) => at.forget_device(&volume),
                });
                let forgotten = forgotten.await.ok_or_else(|| AgentStops.into());
                way.done(forgotten.and_then(|done| done.map_err(|e| chain(&e))));
            }
            UnstageStep::Done => {
                tracing::info!(
                    driver = key.driver,
                    volume = key.handle,
                    "volume is given back to its CSI driver"
                );
                return Ok(true);
            }
            UnstageStep::InUse => return Ok(false),
            UnstageStep::Failed(why) => return Err(why),
        }
    }
}

/// What the disk holds of the volume; `None`: a pod has it, or wants it.
async fn look(
    dirs: &Arc<PodDirs>,
    csi: &Csi,
    key: &VolumeKey,
    tasks: &Tasks,
) -> Result<Option<VolumeOnDisk>, String> {
    let at = dirs.clone();
    let mut disk =
        tasks.blocking(move || at.csi_on_disk()).await.ok_or(AgentStops)?.map_err(|e| chain(&e))?;
    let idle = csi.volumes.may_unstage(key, &disk).await.ok_or(AgentStops)?;
    Ok(idle.then(|| disk.remove(key).unwrap_or_default()))
}

/// Has a driver of `flexVolume` let go of a volume.
async fn let_flex_go(dirs: &Arc<PodDirs>, csi: &Csi, key: &VolumeKey, tasks: &Tasks) -> Result<(), String> {
    let at = dirs.clone();
    let all = tasks.blocking(move || at.flex_records()).await.ok_or(AgentStops)?.map_err(|e| chain(&e))?;
    for record in all.iter().filter(|record| record.key() == *key) {
        csi.flex.give_back(record, dirs.root(), tasks).await?;
    }
    tracing::info!(driver = key.flex_driver(), volume = key.handle, "a volume is given back to its driver");
    Ok(())
}

/// Has the node let go of a disk that another machine keeps.
async fn let_go(dirs: &Arc<PodDirs>, csi: &Csi, key: &VolumeKey, tasks: &Tasks) -> Result<(), String> {
    let at = dirs.clone();
    let all = tasks.blocking(move || at.network_disks()).await.ok_or(AgentStops)?.map_err(|e| chain(&e))?;
    for record in all.iter().filter(|record| record.key() == *key) {
        network_disks::detach(record, dirs.root(), csi, tasks).await?;
    }
    tracing::info!(plugin = key.driver, volume = key.handle, "a disk of another machine is given back");
    Ok(())
}

#[cfg(test)]
mod tests {
    use agent_core::node_status::NodeInput;
    use agent_types::ids::PodUid;
    use agent_volumes::attach::Attached;
    use agent_volumes::volume_table::Published;
    use futures_util::FutureExt;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::testing::VirtualClock;

    struct Rig {
        csi: Csi,
        tasks: Tasks,
        owner: Owner,
        _dir: tempfile::TempDir,
    }

    fn rig(to: Option<Sender<NodeStatusEvent>>) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let dirs = PodDirs::new(dir.path(), &dir.path().join("logs"), &dir.path().join("links"));
        let csi = Csi::new(&tasks);
        let owner = start(Arc::new(dirs), csi.clone(), to, &tasks).unwrap();
        Rig { csi, tasks, owner, _dir: dir }
    }

    fn key() -> VolumeKey {
        VolumeKey { driver: "d".to_owned(), handle: "h".to_owned() }
    }

    #[tokio::test]
    async fn a_turn_ends_with_its_task_and_one_that_waits_no_more_has_none() {
        let rig = rig(None);
        let (volumes, key) = (&rig.csi.volumes, key());
        let first = volumes.turn(&key).await.unwrap();
        assert!(volumes.turn_at_target("iqn").await.is_some(), "another subject");
        let (mut second, mut third) = (Box::pin(volumes.turn(&key)), Box::pin(volumes.turn(&key)));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        drop(second);
        first.set_staged(true);
        let facts = volumes.facts(&key, "t").await.unwrap();
        assert_eq!(facts, Facts { staged: true, published: false, walked: false });
        drop(first);
        let third = third.await.unwrap();
        third.set_staged(false);
        assert!(!volumes.facts(&key, "t").await.unwrap().staged);
    }

    #[tokio::test]
    async fn what_a_pod_wants_reaches_the_node_and_what_is_published_the_statistics() {
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let (to, mut node) = tasks.mailbox();
        let rig = rig(Some(to));
        let (volumes, pod) = (&rig.csi.volumes, PodUid::from("u"));
        assert_eq!(volumes.wish(&pod, &key(), true).await, Attached::NotInUse);
        loop {
            let NodeStatusEvent::Input(NodeInput::VolumesInUse(Some(names))) = node.recv().await else {
                panic!("no other news")
            };
            if names == ["kubernetes.io/csi/d^h"] {
                break;
            }
        }
        let of = Published { pod, name: "v".to_owned(), key: key(), again: false };
        volumes.published("t", of.clone());
        assert!(volumes.is_settled("t").await);
        assert_eq!(*volumes.all_published(), BTreeMap::from([("t".to_owned(), of)]));
        volumes.unpublished("t");
        assert!(!volumes.is_settled("t").await && volumes.all_published().is_empty());
    }

    #[tokio::test]
    async fn the_watchdog_hears_of_the_owner() {
        let rig = rig(None);
        let mut answered = std::pin::pin!(rig.tasks.alive().notified());
        answered.as_mut().enable();
        rig.owner.ask(1);
        answered.await;
        assert!(rig.owner.has_answered(1));
    }

    #[tokio::test]
    async fn nobody_answers_when_the_node_stops() {
        let rig = rig(None);
        let (volumes, key) = (&rig.csi.volumes, key());
        let _turn = volumes.turn(&key).await.unwrap();
        let waiting = volumes.turn(&key);
        rig.tasks.stop().cancel();
        assert!(waiting.await.is_none() && volumes.turn(&key).await.is_none());
        assert_eq!(volumes.wish(&PodUid::from("u"), &key, true).await, Attached::NotInUse);
    }
}
