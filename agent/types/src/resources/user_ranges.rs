//! Ranges of host ids for pods with their own user namespace (`hostUsers: false`, KEP-127).
//!
//! In: pods that need a range, earlier records, pods that are gone. Out: a range for each pod, and its record
//! for the disk. Invariants: two pods never share an id, and no pod has one of the host's own (below the
//! first range); a pod keeps its range as long as its directory exists; a range that became free is given
//! last. While a record is unreadable, no pod gets a range: it might be that one. Upstream:
//! pkg/kubelet/userns.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::{IdMapping, PodUid};

/// Name of a pod's record, below its directory.
pub const RECORD: &str = "userns";
/// Ranges are multiples of this many ids.
pub const UNIT: u32 = 65_536;

/// Reason for which a pod gets no range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// All ranges are taken.
    #[error("could not find an empty slot to allocate a user namespace: all {0} are taken")]
    Exhausted(usize),
    /// This node cannot have written the record, or the record belongs to another pod.
    #[error(
        "invalid user namespace record of pod {pod}: {why}; nobody is given ids until it is removed with its pod"
    )]
    Record {
        /// Pod of the range.
        pod: PodUid,
        /// The mistake.
        why: String,
    },
    /// The node's settings leave no room.
    #[error("user namespaces: {0}")]
    Settings(String),
}

/// A pod's record on disk, with upstream's field names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Record {
    uid_mappings: Vec<IdMapping>,
    gid_mappings: Vec<IdMapping>,
}

impl From<IdMapping> for Record {
    fn from(mapping: IdMapping) -> Record {
        Record { uid_mappings: vec![mapping], gid_mappings: vec![mapping] }
    }
}

/// The ids that the node may assign, and their pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRanges {
    length: u32,
    first: u32,
    count: u32,
    next: u32,
    given: BTreeMap<PodUid, u32>,
    broken: BTreeMap<PodUid, String>,
}

impl Default for UserRanges {
    fn default() -> UserRanges {
        UserRanges::whole(UNIT)
    }
}

impl UserRanges {
    fn whole(length: u32) -> UserRanges {
        let count = u32::MAX / length.max(1);
        UserRanges { length, first: length, count, next: 0, given: BTreeMap::new(), broken: BTreeMap::new() }
    }

    /// Ranges of `ids_per_pod` ids each, from `subordinate` (first, number) or from all ids except those
    /// below the first range.
    ///
    /// # Errors
    /// The ids are not aligned to ranges, begin with the host's own, or are too few for `pods_max` pods.
    pub fn new(
        ids_per_pod: u32,
        subordinate: Option<(u32, u32)>,
        pods_max: u32,
    ) -> Result<UserRanges, RangeError> {
        let wrong = |text: String| Err(RangeError::Settings(text));
        if ids_per_pod == 0 || !ids_per_pod.is_multiple_of(UNIT) {
            return wrong(format!("idsPerPod {ids_per_pod} is not a multiple of {UNIT}"));
        }
        let mut ranges = UserRanges::whole(ids_per_pod);
        if let Some((first, number)) = subordinate {
            if !first.is_multiple_of(ids_per_pod) || !number.is_multiple_of(ids_per_pod) {
                return wrong(format!(
                    "the subordinate ids of user kubelet, {number} from {first} on, are no multiples of {ids_per_pod}"
                ));
            }
            if first < ids_per_pod {
                return wrong(format!("the subordinate ids of user kubelet begin below {ids_per_pod}"));
            }
            let fits = u32::MAX / ids_per_pod - first / ids_per_pod + 1;
            (ranges.first, ranges.count) = (first, (number / ids_per_pod).min(fits));
        }
        if ranges.count < pods_max {
            return wrong(format!("{} ranges of ids are not enough for {pods_max} pods", ranges.count));
        }
        Ok(ranges)
    }

    /// The pod's range, assigned now unless it has one. The second value is true for a new range.
    ///
    /// # Errors
    /// No range is free, or a record is unreadable.
    pub fn give(&mut self, pod: &PodUid) -> Result<(IdMapping, bool), RangeError> {
        if let Some(slot) = self.given.get(pod) {
            return Ok((self.mapping(*slot), false));
        }
        if let Some((pod, why)) = self.broken.first_key_value() {
            return Err(RangeError::Record { pod: pod.clone(), why: why.clone() });
        }
        let taken: BTreeSet<u32> = self.given.values().copied().collect();
        let free = (self.next..self.count).chain(0..self.next).find(|slot| !taken.contains(slot));
        let slot = free.ok_or(RangeError::Exhausted(taken.len()))?;
        self.next = (slot + 1) % self.count.max(1);
        self.given.insert(pod.clone(), slot);
        Ok((self.mapping(slot), true))
    }

    /// Takes over a pod's range from the record of an earlier agent.
    ///
    /// # Errors
    /// The record does not fit this node's ranges; then no pod gets a range until this pod is released.
    pub fn restore(&mut self, pod: &PodUid, record: &[u8]) -> Result<IdMapping, RangeError> {
        let understood = self.understood(pod, record);
        match understood {
            Ok(slot) => {
                self.given.insert(pod.clone(), slot);
                Ok(self.mapping(slot))
            }
            Err(why) => {
                self.broken.insert(pod.clone(), why.clone());
                Err(RangeError::Record { pod: pod.clone(), why })
            }
        }
    }

    fn understood(&self, pod: &PodUid, record: &[u8]) -> Result<u32, String> {
        let record: Record = serde_json::from_slice(record).map_err(|e| e.to_string())?;
        let ([mapping], [groups]) = (&*record.uid_mappings, &*record.gid_mappings) else {
            return Err("exactly one mapping of users and one of groups is understood".to_owned());
        };
        if mapping != groups {
            return Err("users and groups are mapped differently".to_owned());
        }
        if mapping.container_id != 0 {
            return Err("id 0 is not mapped".to_owned());
        }
        if mapping.length != self.length {
            return Err(format!("it has {} ids and not {}", mapping.length, self.length));
        }
        let slot = mapping.host_id.checked_sub(self.first).filter(|ids| ids.is_multiple_of(self.length));
        let slot = slot.map(|ids| ids / self.length).filter(|slot| *slot < self.count);
        let slot = slot.ok_or_else(|| format!("id {} begins no range of this node", mapping.host_id))?;
        match self.given.iter().find(|(_, s)| **s == slot) {
            Some((other, _)) if other != pod => Err(format!("the range is pod {other}'s already")),
            _ => Ok(slot),
        }
    }

    /// The pod's directory is gone.
    pub fn release(&mut self, pod: &PodUid) {
        self.given.remove(pod);
        self.broken.remove(pod);
    }

    fn mapping(&self, slot: u32) -> IdMapping {
        IdMapping { host_id: self.first + slot * self.length, container_id: 0, length: self.length }
    }
}

/// The subordinate ids (first, number) of `user` in `/etc/subuid` or `/etc/subgid`: `user:first:number`.
///
/// # Errors
/// The file has not exactly one line for the user, or the line has no numbers.
pub fn subordinate_ids(text: &str, user: &str) -> Result<(u32, u32), RangeError> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(user)?.strip_prefix(':'));
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err(RangeError::Settings(format!("user {user} wants exactly one line of subordinate ids")));
    };
    let ids = line.split_once(':').and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    ids.ok_or_else(|| RangeError::Settings(format!("{user}:{line} is no line of subordinate ids")))
}

#[cfg(test)]
mod tests;
