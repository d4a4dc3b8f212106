//! The semaphore of a group of nodes: how many of them may be away for an update at one time.
//!
//! It is the ConfigMap `orlop-system/orlop-reboots`, with a key for each group. In: the ConfigMap as it was read, the node. Out:
//! the ConfigMap to be written with the resourceVersion that was read, or why the node waits. Pure: the shell reads and writes,
//! and asks again after a conflict. Invariants: a write never takes a slot that is not free, never removes another node's holder,
//! and keeps what it does not understand; a halted group gives nothing. Why no Lease: docs/decisions/semaphore.md.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Namespace of the ConfigMap.
pub const NAMESPACE: &str = "orlop-system";
/// Name of the ConfigMap.
pub const CONFIG_MAP: &str = "orlop-reboots";
/// Most holders of a group that are read.
const HOLDERS_MAX: usize = 1000;

/// The ConfigMap, as it was read or is to be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebootMap {
    /// The version that was read: the write succeeds only if it is still that one. None: there is no such ConfigMap, and the
    /// write creates it.
    pub resource_version: Option<String>,
    /// Groups, each a JSON object.
    pub data: BTreeMap<String, String>,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RebootGroup {
    /// Nodes that may be away at one time.
    slots: usize,
    /// Nodes that are.
    holders: Vec<RebootHolder>,
    /// Failed updates after which the group is halted.
    max_failures: u32,
    /// Failed updates since the group was last let go.
    failures: u32,
    /// Why nobody gets a slot; empty if the group is not halted.
    halted: String,
    #[serde(flatten)]
    kept: Map<String, Value>,
}

impl Default for RebootGroup {
    fn default() -> RebootGroup {
        let (holders, halted, kept) = Default::default();
        RebootGroup { slots: 1, holders, max_failures: 1, failures: 0, halted, kept }
    }
}

/// A node that holds a slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RebootHolder {
    node: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    update: String,
    /// RFC 3339.
    #[serde(default)]
    since: String,
    #[serde(flatten)]
    kept: Map<String, Value>,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitRequest<'a> {
    /// Its group.
    pub group: &'a str,
    /// Name of the Node.
    pub node: &'a str,
    /// UID of the Node.
    pub uid: &'a str,
    /// Identifier of the update.
    pub update: &'a str,
    /// Now, RFC 3339.
    pub since: &'a str,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermitDecision {
    /// The node holds a slot.
    Held,
    /// Write this; once it is accepted, the node holds a slot.
    Write(RebootMap),
    /// Not now: why, for people.
    Wait(String),
}

fn read(map: &RebootMap, name: &str) -> Result<RebootGroup, String> {
    let Some(text) = map.data.get(name) else { return Ok(RebootGroup::default()) };
    let unreadable =
        |why: String| format!("group {name} of ConfigMap {NAMESPACE}/{CONFIG_MAP} is not readable: {why}");
    let group: RebootGroup = serde_json::from_str(text).map_err(|e| unreadable(e.to_string()))?;
    if group.holders.len() > HOLDERS_MAX {
        return Err(unreadable(format!("it has more than {HOLDERS_MAX} holders")));
    }
    Ok(group)
}

fn with(map: &RebootMap, name: &str, group: &RebootGroup) -> PermitDecision {
    match serde_json::to_string(group) {
        Ok(text) => {
            let mut map = map.clone();
            map.data.insert(name.to_owned(), text);
            PermitDecision::Write(map)
        }
        Err(e) => PermitDecision::Wait(format!("group {name} cannot be written: {e}")),
    }
}

/// Asks for a slot.
#[must_use]
pub fn take(map: &RebootMap, ask: &PermitRequest<'_>) -> PermitDecision {
    let mut group = match read(map, ask.group) {
        Ok(group) => group,
        Err(why) => return PermitDecision::Wait(why),
    };
    if !group.halted.is_empty() {
        let (name, why) = (ask.group, &group.halted);
        return PermitDecision::Wait(format!(
            "group {name} is halted: {why}; to let it go, set its halted to \"\""
        ));
    }
    let holder = RebootHolder {
        node: ask.node.to_owned(),
        uid: ask.uid.to_owned(),
        update: ask.update.to_owned(),
        since: ask.since.to_owned(),
        kept: Map::new(),
    };
    // Let go: failures are counted anew.
    if group.failures >= group.max_failures {
        group.failures = 0;
    }
    if let Some(own) = group.holders.iter_mut().find(|holder| holder.node == ask.node) {
        if own.uid == ask.uid && own.update == ask.update {
            return PermitDecision::Held;
        }
        // Its own, from an earlier update or from a Node of the same name.
        *own = holder;
        return with(map, ask.group, &group);
    }
    if group.holders.len() < group.slots {
        group.holders.push(holder);
        return with(map, ask.group, &group);
    }
    let held = group
        .holders
        .first()
        .map_or_else(String::new, |holder| format!(", held by {} since {}", holder.node, holder.since));
    PermitDecision::Wait(format!("waits for a reboot slot of group {}{held}", ask.group))
}

/// Gives the slot back. `failure`: the update failed, and the group is halted after its `maxFailures` such. `Held`: there is
/// nothing to give back.
#[must_use]
pub fn give_back(map: &RebootMap, ask: &PermitRequest<'_>, failure: Option<&str>) -> PermitDecision {
    let mut group = match read(map, ask.group) {
        Ok(group) => group,
        Err(why) => return PermitDecision::Wait(why),
    };
    let before = group.holders.len();
    // A failure is counted together with the end of the hold: once, however often this is asked.
    group.holders.retain(|holder| holder.node != ask.node);
    if group.holders.len() == before {
        return PermitDecision::Held;
    }
    if let Some(why) = failure {
        group.failures = group.failures.saturating_add(1);
        if group.failures >= group.max_failures && group.halted.is_empty() {
            group.halted = format!("{}: {why}", ask.node);
        }
    }
    with(map, ask.group, &group)
}
