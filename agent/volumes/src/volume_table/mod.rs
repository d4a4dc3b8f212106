//! The volume table: which task works at which volume, which volumes are staged and published, and which go back to their
//! drivers. Only one owner in the daemon has the table.
//!
//! ```text
//! a task asks ─► Turns ─► granted ─► (the task works) ─► ended ─► the next one
//! wishes, tasks that ended, back-off over, a minute ─► the disk is read ─► Staging ─► volumesInUse
//!                                                                            └─► idle: a turn ─► unstaged
//! ```
//! In: wishes of pods, what the disk holds, the Node as the API server has it, tasks that ask for turns and end, the time. Out:
//! [`Order`]s, answers. Invariants: one task at a time works at a volume; a volume is unstaged in a turn of its own and after a
//! look at the disk within that turn; what cannot be read is no reason to take anything back, or to say that it is not in use;
//! nothing here is needed after a kill: the disk says what is here, and what was done is asked for again.
//! Upstream: pkg/kubelet/volumemanager/reconciler.

mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::time::Mono;

use crate::attach::{Attached, OnDisk, Staging};
use crate::key::VolumeKey;

use turns::Turns;
pub use turns::{Subject, Ticket};

/// How often the disk is read without a hint.
const RESCAN: Duration = Duration::from_secs(60);

/// What the owner of the table is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// The disk is read: [`VolumeTable::disk`].
    ReadDisk,
    /// The API server hears that these volumes are in use.
    Report(Vec<String>),
    /// The task with this ticket has its turn.
    Grant(Ticket),
    /// The volume goes back to its driver ([`crate::csi::unstaging`]), in this turn: [`VolumeTable::unstaged`].
    Unstage(VolumeKey, Ticket),
}

/// A volume that is published for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Whose it is.
    pub pod: PodUid,
    /// Name of the volume in the pod.
    pub name: String,
    /// Which volume.
    pub key: VolumeKey,
    /// The driver wants to be asked again and again.
    pub again: bool,
}

/// How far the disk is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disk {
    /// The next look is due at this time.
    Read(Mono),
    /// It could not be read; the next look is due at this time, also if a volume is to be unstaged earlier.
    Unread(Mono),
    /// It is being read.
    Reading,
    /// It is being read, and may have changed since that began.
    Changed,
}

/// The table.
#[derive(Clone, Debug)]
pub struct VolumeTable {
    staging: Staging,
    turns: Turns,
    /// Volumes that are to be unstaged and wait for their turns.
    returning: BTreeMap<Ticket, VolumeKey>,
    staged: BTreeSet<VolumeKey>,
    /// By the targets.
    published: BTreeMap<String, Published>,
    disk: Disk,
    /// What the disk held when it was last read.
    last: Option<OnDisk>,
    reported: Option<Vec<String>>,
    orders: Vec<Order>,
}

impl Default for VolumeTable {
    fn default() -> Self {
        VolumeTable {
            staging: Staging::default(),
            turns: Turns::default(),
            returning: BTreeMap::new(),
            staged: BTreeSet::new(),
            published: BTreeMap::new(),
            disk: Disk::Read(Mono(0)),
            last: None,
            reported: None,
            orders: Vec::new(),
        }
    }
}

impl VolumeTable {
    /// What is to be done since the last question.
    pub fn orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// A task wants to work at something; its turn comes as [`Order::Grant`].
    pub fn ask(&mut self, subject: Subject) -> Ticket {
        let (ticket, at_once) = self.turns.ask(subject);
        if at_once {
            self.grant(ticket);
        }
        ticket
    }

    /// The task with this ticket works no more, or waits no more.
    pub fn end(&mut self, ticket: Ticket) {
        self.returning.remove(&ticket);
        if let Some(next) = self.turns.end(ticket) {
            self.grant(next);
        }
    }

    fn grant(&mut self, ticket: Ticket) {
        self.orders.push(match self.returning.get(&ticket) {
            Some(key) => Order::Unstage(key.clone(), ticket),
            None => Order::Grant(ticket),
        });
    }

    /// A pod wants a volume; `attached` is whether it has to be attached to the node. The answer is whether it is.
    pub fn wish(&mut self, pod: &PodUid, key: &VolumeKey, attached: bool) -> Attached {
        if self.staging.want(pod, key, attached) {
            self.look();
        }
        self.staging.is_attached(key)
    }

    /// A pod's volumes were taken away: it wants none any more.
    pub fn forget(&mut self, pod: &PodUid) {
        self.staging.forget(pod);
        self.look();
    }

    /// What the disk holds is different: some volume may be free.
    pub fn look(&mut self) {
        self.disk = match self.disk {
            Disk::Read(_) | Disk::Unread(_) => {
                self.orders.push(Order::ReadDisk);
                Disk::Reading
            }
            Disk::Reading | Disk::Changed => Disk::Changed,
        };
    }

    /// What the API server's Node says of volumes: in use, attached, and as which devices. The answer is pods that may have a
    /// volume now that they could not have before.
    pub fn node_says(
        &mut self,
        in_use: BTreeSet<String>,
        attached: BTreeSet<String>,
        devices: BTreeMap<String, String>,
    ) -> BTreeSet<PodUid> {
        self.staging.devices_are(devices);
        self.staging.node_says(in_use, attached)
    }

    /// As which device the cluster attached a volume; empty: as none.
    #[must_use]
    pub fn device(&self, key: &VolumeKey) -> String {
        self.staging.device(key)
    }

    /// This agent staged the volume, and did not take it back.
    #[must_use]
    pub fn is_staged(&self, key: &VolumeKey) -> bool {
        self.staged.contains(key)
    }

    /// The volume is staged, or may no longer be. Only the task in its turn can say so.
    pub fn set_staged(&mut self, ticket: Ticket, is: bool) {
        let Some(key) = self.turns.volume(ticket) else { return };
        if is {
            self.staged.insert(key.clone());
        } else {
            self.staged.remove(key);
        }
    }

    /// This agent published a volume at the target, and did not take it back.
    #[must_use]
    pub fn is_published(&self, target: &str) -> bool {
        self.published.contains_key(target)
    }

    /// It did, and nothing is left to ask its driver for.
    #[must_use]
    pub fn is_settled(&self, target: &str) -> bool {
        self.published.get(target).is_some_and(|of| !of.again)
    }

    /// All that is published, by target.
    #[must_use]
    pub fn published(&self) -> &BTreeMap<String, Published> {
        &self.published
    }

    /// A volume is published at the target; `None`: it may no longer be.
    pub fn set_published(&mut self, target: &str, of: Option<Published>) {
        match of {
            Some(of) => self.published.insert(target.to_owned(), of),
            None => self.published.remove(target),
        };
    }

    /// The disk was read; `None`: it could not be.
    pub fn disk(&mut self, found: Option<OnDisk>, now: Mono) {
        let again = self.disk == Disk::Changed;
        let read = found.is_some();
        let next = now.after(RESCAN);
        self.disk = if read { Disk::Read(next) } else { Disk::Unread(next) };
        self.last = found.or_else(|| self.last.take());
        if let Some(disk) = &self.last {
            // Of what cannot be read it is taken that it is here still.
            let in_use = self.staging.in_use(disk);
            if self.reported.as_ref() != Some(&in_use) {
                self.orders.push(Order::Report(in_use.clone()));
                self.reported = Some(in_use);
            }
            let due = if read { self.staging.unstage(disk, now) } else { Vec::new() };
            for key in due {
                let (ticket, at_once) = self.turns.ask(Subject::Volume(key.clone()));
                self.returning.insert(ticket, key);
                if at_once {
                    self.grant(ticket);
                }
            }
        }
        if again {
            self.look();
        }
    }

    /// Within the turn of a volume that is to be unstaged, the disk holds this. True if its driver may be asked: no pod has the
    /// volume, and none wants it.
    pub fn may_unstage(&mut self, key: &VolumeKey, disk: &OnDisk) -> bool {
        let idle = self.staging.is_idle(key, disk);
        if idle {
            // Also if the driver fails the volume may no longer be what it was.
            self.staged.remove(key);
        }
        idle
    }

    /// The driver let go of the volume, or did not; or it was found that it may not be asked. The turn is over.
    pub fn unstaged(&mut self, key: &VolumeKey, ticket: Ticket, done: bool, now: Mono) {
        self.staging.unstaged(key, done, now);
        self.end(ticket);
        self.look();
    }

    /// The time of [`Self::deadline`] has come.
    pub fn tick(&mut self, now: Mono) {
        if self.deadline().is_some_and(|at| at <= now) {
            self.look();
        }
    }

    /// When to look again if nothing happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        match self.disk {
            Disk::Read(rescan) => Some(self.staging.deadline().map_or(rescan, |at| at.min(rescan))),
            Disk::Unread(again) => Some(again),
            Disk::Reading | Disk::Changed => None,
        }
    }

    /// No task works at anything, and none waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests;
