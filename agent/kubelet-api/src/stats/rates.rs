//! Recent rate of processor time: `usageNanoCores`.
//!
//! In: snapshots, at the time of each request. Out: the same, with rates. The node does not sample between
//! two requests, so the first answer about an object has no rate. Invariants: a rate covers at least
//! [`WINDOW_NS`] once the history is that long, however frequent the requests; an object that disappears is
//! forgotten. Upstream: cadvisor's two last samples, 10 to 15 s apart.

use std::collections::BTreeMap;

use agent_types::time::Wall;

use super::usage::Usage;
use super::{PodUsage, Snapshot};

/// The shortest time that a rate is measured over, once there is such a time.
pub const WINDOW_NS: i64 = 10_000_000_000;
/// Time after which an object without requests is forgotten.
const KEEP_NS: i64 = 600_000_000_000;

/// A count and when it was so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    at: Wall,
    ns: u64,
}

/// Two marks, [`WINDOW_NS`] apart or the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    older: Mark,
    newer: Mark,
}

/// What was seen before.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    marks: BTreeMap<String, Marks>,
}

impl Rates {
    /// Fills in the rates of a snapshot and remembers it.
    pub fn apply(&mut self, snapshot: &mut Snapshot) {
        self.fill("node", &mut snapshot.node);
        for (name, usage) in &mut snapshot.system {
            self.fill(&format!("system/{name}"), usage);
        }
        let mut newest = snapshot.node.at;
        for pod in &mut snapshot.pods {
            self.fill_pod(pod);
            newest = pod.containers.iter().map(|(_, usage)| usage.at).fold(newest, Ord::max);
        }
        self.marks.retain(|_, marks| newest.0.saturating_sub(marks.newer.at.0) < KEEP_NS);
    }

    fn fill_pod(&mut self, pod: &mut PodUsage) {
        for (id, usage) in &mut pod.containers {
            self.fill(&format!("container/{id}"), usage);
        }
        if let Some(usage) = &mut pod.usage {
            self.fill(&format!("pod/{}", pod.pod), usage);
        }
    }

    fn fill(&mut self, key: &str, usage: &mut Usage) {
        let Some(ns) = usage.cpu.total_ns else { return };
        let now = Mark { at: usage.at, ns };
        usage.cpu.nano_cores = match self.marks.get_mut(key) {
            Some(marks) => marks.step(now),
            None => {
                self.marks.insert(key.to_owned(), Marks { older: now, newer: now });
                None
            }
        };
    }

    /// How many things are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// True if nothing is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }
}

impl Marks {
    /// The rate up to `now`, which becomes a mark when its time has come. A clock that was set back, or a
    /// counter that started again, resets the history.
    fn step(&mut self, now: Mark) -> Option<u64> {
        let went_back = self.newer.at.0.saturating_sub(now.at.0) > WINDOW_NS || now.ns < self.older.ns;
        if went_back {
            *self = Marks { older: now, newer: now };
            return None;
        }
        if now.at.0.saturating_sub(self.newer.at.0) >= WINDOW_NS {
            *self = Marks { older: self.newer, newer: now };
        }
        rate(self.older, now)
    }
}

fn rate(from: Mark, to: Mark) -> Option<u64> {
    let elapsed = u128::try_from(to.at.0.checked_sub(from.at.0)?).ok().filter(|elapsed| *elapsed > 0)?;
    let used = u128::from(to.ns.checked_sub(from.ns)?);
    u64::try_from(used.saturating_mul(1_000_000_000) / elapsed).ok()
}
