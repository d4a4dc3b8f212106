//! Shims that the runtime has forgotten: selects those to kill.
//!
//! A caller that dies in RunPodSandbox or StartContainer cancels its call, and containerd may then forget a
//! shim that is still starting, or a task that the shim makes afterwards. No call of CRI reaches such a shim
//! any more, and it does not end by itself (containerd's issue 7733): it would hold its memory until the next
//! boot, after every such crash. containerd removes a task's bundle, the directory in which its shim works,
//! as the last step of forgetting it; so a shim without a bundle is lost, unless the bundle of another container
//! names its socket: pods may share a shim (`agent_core::shim_groups`), and the first of them may go before the
//! others. A shim that dies while it makes a container leaves the process that was to become it, which waits for
//! a start that cannot come; without the bundle this process is lost, too. A shim that dies later leaves the
//! processes of its containers. containerd ends the sandboxes alone (its issue 10727): the pods are made again,
//! and the old containers would run on next to the new ones.
//!
//! In: shims without a bundle and what dead shims have left, as /proc shows them, and the time. Out: processes to
//! kill. Invariant: a process is killed only if it was seen so for [`CONFIRM`]; a shim that is ending has ended by
//! then.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Mono;

/// Longest time that a shim may run without its bundle.
pub const CONFIRM: Duration = Duration::from_secs(10);
/// Time between two searches if none is suspected; upstream's `ContainerGCPeriod`.
pub const EVERY: Duration = Duration::from_mins(1);

/// Kind of a lost process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A containerd shim.
    Shim,
    /// The process of a shim that died, which would have become a container's first process.
    Unstarted,
    /// The first process of a container whose shim died.
    Orphan,
}

/// A process of a shim, or one that a shim has left: its id alone may belong to another process later.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shim {
    /// Kind of the process.
    pub kind: Kind,
    /// Process id.
    pub pid: i32,
    /// Start time, clock ticks since the boot (proc(5): `starttime`).
    pub started_ticks: u64,
    /// The sandbox that the shim was started for, or the container (or sandbox) that was being made.
    pub id: String,
}

/// Suspected processes, and the time since which each is suspected.
#[derive(Clone, Debug, Default)]
pub struct LostShims(BTreeMap<Shim, Mono>);

impl LostShims {
    /// Takes the shims that have no bundle now; returns those without one for long enough. The next call
    /// returns them again if they still exist.
    pub fn look(&mut self, now: Mono, lost: impl IntoIterator<Item = Shim>) -> Vec<Shim> {
        let before = std::mem::take(&mut self.0);
        let since = |shim: Shim| {
            let since = before.get(&shim).copied().unwrap_or(now);
            (shim, since)
        };
        self.0 = lost.into_iter().map(since).collect();
        let long = |(_, since): &(&Shim, &Mono)| now.since(**since) >= CONFIRM;
        self.0.iter().filter(long).map(|(shim, _)| shim.clone()).collect()
    }

    /// Time of the next search.
    #[must_use]
    pub fn next(&self, now: Mono) -> Mono {
        now.after(if self.0.is_empty() { EVERY } else { CONFIRM })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shim(pid: i32, started_ticks: u64) -> Shim {
        Shim { kind: Kind::Shim, pid, started_ticks, id: "s".to_owned() }
    }

    fn at(seconds: u64) -> Mono {
        Mono(0).after(Duration::from_secs(seconds))
    }

    #[test]
    fn only_who_stays_without_a_bundle_is_ended() {
        let mut lost = LostShims::default();
        let (none, one): ([Shim; 0], _) = ([], shim(1, 5));
        assert_eq!((lost.look(at(0), none.clone()), lost.next(at(0))), (vec![], at(60)));
        assert_eq!((lost.look(at(60), [one.clone()]), lost.next(at(60))), (vec![], at(70)));
        // The shim is ending, and then gone.
        assert_eq!((lost.look(at(70), none), lost.next(at(70))), (vec![], at(130)));
        assert_eq!(lost.look(at(130), [one.clone(), shim(2, 6)]), []);
        assert_eq!(lost.look(at(139), [one.clone(), shim(2, 6)]), []);
        // Another process with the same id is observed from the start.
        assert_eq!(lost.look(at(140), [one.clone(), shim(2, 7)]), std::slice::from_ref(&one));
        assert_eq!(lost.look(at(150), [one.clone(), shim(2, 7)]), [one, shim(2, 7)]);
    }
}
