//! The cluster's side of an update: the Node is cordoned, pods are evicted, the group's ConfigMap is read and written.
//!
//! In: steps of the machine. Out: calls in the general lane, with the node's own identity: none of them holds up a heartbeat. Decisions
//! are those of [`agent_core::node_update`]. Invariants: a read that failed is a failure, never an empty ConfigMap; each write names the
//! version of the object that was read.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_core::node_update::cordon::{cordon, uncordon};
use agent_core::node_update::drain::{DrainedPod, drain_step};
use agent_core::node_update::semaphore::{
    CONFIG_MAP, NAMESPACE, PermitDecision, PermitRequest, RebootMap, give_back, take,
};
use agent_core::node_update::{DrainBlocked, WorkResult};
use agent_types::api::{ApiCall, ApiError, ApiReply, ApiResult, ApiServer, ObjectName};
use agent_types::failure::Class;
use agent_types::ids::PodUid;
use agent_types::lock::Lock;
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use orlop_config::release::UtcSecond;
use serde_json::Value;
use tokio::sync::watch;

use crate::cluster::calls::{Caller, no_client};
use crate::pods::desired_pods::DesiredPods;
use crate::pods::status::PodViews;

/// A write that another node's write has overtaken is made anew so often.
const CONFLICTS_MAX: u32 = 5;
/// Names of pods that are shown.
const NAMES_MAX: usize = 3;
/// HTTP status of an eviction that a budget forbids.
const TOO_MANY_REQUESTS: u16 = 429;

/// The cluster, as an update needs it.
pub struct ClusterSide<A> {
    /// The way to the API server.
    pub caller: Caller<A>,
    /// Name of the Node.
    pub node_name: Arc<str>,
    /// The Node as its watch shows it.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// The answer to the last patch: the watch may be behind it.
    pub patched: Lock<Option<Arc<Node>>>,
    /// The node's group in the ConfigMap.
    pub group: String,
}

/// Why the group's ConfigMap was not written.
enum SlotRefusal {
    /// The group does not give a slot, and why.
    Wait(String),
    /// A call failed.
    Failed(String),
}

impl<A: ApiServer> ClusterSide<A> {
    async fn call(&self, call: ApiCall) -> ApiResult {
        match self.caller.client().await {
            Some(client) => client.call(&call).await,
            None => Err(no_client(&call, "the node is being stopped")),
        }
    }

    /// The newest Node that is known.
    fn newest(&self) -> Option<Arc<Node>> {
        let watched = self.node.borrow().clone();
        let patched = self.patched.lock().clone();
        newer(watched, patched)
    }

    async fn patch(&self, patch: Option<Value>) -> WorkResult {
        let Some(patch) = patch else { return WorkResult::Done };
        match self.call(ApiCall::PatchNode { name: Arc::clone(&self.node_name), patch }).await {
            Ok(ApiReply::Node(node)) => {
                *self.patched.lock() = Some(Arc::from(node));
                WorkResult::Done
            }
            Ok(other) => WorkResult::Failed(format!("a patch of the Node was answered with {other:?}")),
            Err(error) => {
                if error.class == Class::Conflict {
                    // The API server has another Node than the answer to the last patch, and the watch brings it.
                    *self.patched.lock() = None;
                }
                WorkResult::Failed(error.to_string())
            }
        }
    }

    /// Cordons the node for this update.
    pub async fn cordon(&self, update: &str) -> WorkResult {
        match self.newest() {
            Some(node) => self.patch(cordon(&node, update)).await,
            None => unread(),
        }
    }

    /// Takes the cordon of an update back.
    pub async fn uncordon(&self) -> WorkResult {
        match self.newest() {
            Some(node) => self.patch(uncordon(&node)).await,
            None => unread(),
        }
    }

    /// Evicts what is to leave; one look. `is_listed`: the pods of the API server are known.
    pub async fn drain(&self, is_listed: bool, desired: &DesiredPods, statuses: &PodViews) -> WorkResult {
        if !is_listed {
            // An agent that has just begun would find a node without pods.
            return WorkResult::Wait("waits for the list of the node's pods".to_owned());
        }
        let phase = |uid: &PodUid| statuses.get(uid).map_or("", |view| view.phase());
        let pods = desired.iter().map(|(uid, pod)| DrainedPod { pod, phase: phase(uid) });
        let ends = |phase: &str| !matches!(phase, "Succeeded" | "Failed");
        let ending: BTreeSet<String> = statuses
            .iter()
            .filter(|(uid, view)| !desired.contains_key(*uid) && ends(view.phase()))
            .map(|(_, view)| format!("{}/{}", view.key.namespace, view.key.name))
            .collect();
        let step = drain_step(pods, ending);
        if step.is_done() {
            return WorkResult::Done;
        }
        let (mut blocked, mut failed) = (None, None);
        for evicted in &step.evict {
            let call = ApiCall::EvictPod { pod: evicted.pod.clone(), uid: evicted.uid.clone() };
            match self.call(call).await {
                Ok(_) => {}
                Err(error) if error.code == Some(TOO_MANY_REQUESTS) => {
                    let pod = format!("{}/{}", evicted.pod.namespace, evicted.pod.name);
                    blocked.get_or_insert(DrainBlocked { pod, budget: error.message });
                }
                // It is gone, or another pod has its name: seen at the next look.
                Err(ApiError { class: Class::NotFound | Class::Conflict, .. }) => {}
                // Two budgets for one pod, for example: the other pods leave all the same.
                Err(error) if error.code.is_some() => {
                    failed.get_or_insert(error.to_string());
                }
                Err(error) => return WorkResult::Failed(error.to_string()),
            }
        }
        match (blocked, failed) {
            (Some(blocked), _) => return WorkResult::Blocked(blocked),
            (None, Some(words)) => return WorkResult::Failed(words),
            (None, None) => {}
        }
        let evicted =
            step.evict.iter().map(|evicted| format!("{}/{}", evicted.pod.namespace, evicted.pod.name));
        WorkResult::Wait(waits_for(step.leaving.into_iter().chain(evicted).collect()))
    }

    /// Takes a slot of the group.
    pub async fn take_slot(&self, update: &str, now: Wall) -> WorkResult {
        match self.reboots(update, now, take).await {
            Ok(()) => WorkResult::Done,
            Err(SlotRefusal::Wait(words)) => WorkResult::Wait(words),
            Err(SlotRefusal::Failed(words)) => WorkResult::Failed(words),
        }
    }

    /// Gives the slot of the group back. `failure`: the update failed.
    pub async fn give_back(&self, update: &str, failure: Option<&str>, now: Wall) -> WorkResult {
        match self.reboots(update, now, |map, ask| give_back(map, ask, failure)).await {
            Ok(()) => WorkResult::Done,
            // The machine asks again: the slot is the node's until it is given back.
            Err(SlotRefusal::Wait(words) | SlotRefusal::Failed(words)) => WorkResult::Failed(words),
        }
    }

    /// Reads the ConfigMap, has `decide` say what becomes of it, and writes that.
    async fn reboots(
        &self,
        update: &str,
        now: Wall,
        decide: impl Fn(&RebootMap, &PermitRequest<'_>) -> PermitDecision,
    ) -> Result<(), SlotRefusal> {
        let uid = self.newest().and_then(|node| node.metadata.uid.clone());
        let uid = uid.ok_or_else(|| SlotRefusal::Failed("the Node has not been read yet".to_owned()))?;
        let seconds = u64::try_from(now.0 / 1_000_000_000).unwrap_or(0);
        let since = UtcSecond::new(seconds).to_string();
        let ask =
            PermitRequest { group: &self.group, node: &self.node_name, uid: &uid, update, since: &since };
        for _ in 0..CONFLICTS_MAX {
            let read = self.read_reboots().await?;
            let map = RebootMap {
                resource_version: read.as_ref().and_then(|map| map.metadata.resource_version.clone()),
                data: read.as_ref().and_then(|map| map.data.clone()).unwrap_or_default(),
            };
            let written = match decide(&map, &ask) {
                PermitDecision::Held => return Ok(()),
                PermitDecision::Wait(words) => return Err(SlotRefusal::Wait(words)),
                PermitDecision::Write(written) => written,
            };
            match self.call(write_reboots(read, written)).await {
                Ok(_) => return Ok(()),
                Err(ApiError { class: Class::Conflict | Class::AlreadyExists, .. }) => {}
                Err(error) => return Err(SlotRefusal::Failed(refused(&error))),
            }
        }
        let words =
            format!("ConfigMap {NAMESPACE}/{CONFIG_MAP} changed {CONFLICTS_MAX} times while it was written");
        Err(SlotRefusal::Failed(words))
    }

    /// The ConfigMap; none if the API server says that there is none.
    async fn read_reboots(&self) -> Result<Option<ConfigMap>, SlotRefusal> {
        let name = ObjectName { namespace: NAMESPACE.into(), name: CONFIG_MAP.into() };
        match self.call(ApiCall::GetConfigMap(name)).await {
            Ok(ApiReply::ConfigMap(map)) => Ok(Some(*map)),
            Ok(other) => {
                let words = format!("ConfigMap {NAMESPACE}/{CONFIG_MAP} was answered with {other:?}");
                Err(SlotRefusal::Failed(words))
            }
            Err(error) if error.class == Class::NotFound => Ok(None),
            Err(error) => Err(SlotRefusal::Failed(refused(&error))),
        }
    }
}

/// The write of the ConfigMap: of the one that was read, or of a new one.
fn write_reboots(read: Option<ConfigMap>, written: RebootMap) -> ApiCall {
    match read {
        Some(mut map) => {
            map.data = Some(written.data);
            ApiCall::ReplaceConfigMap(Box::new(map))
        }
        None => {
            let mut map = ConfigMap { data: Some(written.data), ..ConfigMap::default() };
            map.metadata.namespace = Some(NAMESPACE.to_owned());
            map.metadata.name = Some(CONFIG_MAP.to_owned());
            ApiCall::CreateConfigMap(Box::new(map))
        }
    }
}

fn refused(error: &ApiError) -> String {
    if error.code == Some(403) {
        return format!("{error}; the nodes need the Role of docs/reference/update.md, \"Several nodes\"");
    }
    error.to_string()
}

fn unread() -> WorkResult {
    WorkResult::Failed("the Node has not been read yet".to_owned())
}

fn waits_for(pods: BTreeSet<String>) -> String {
    let names: Vec<&str> = pods.iter().take(NAMES_MAX).map(String::as_str).collect();
    let more = pods.len().saturating_sub(names.len());
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("waits for the end of {}{more}", names.join(", "))
}

/// The newer state of one object; if that cannot be told, the second one, which is an answer to a call.
fn newer(watched: Option<Arc<Node>>, patched: Option<Arc<Node>>) -> Option<Arc<Node>> {
    let (Some(watched), Some(patched)) = (&watched, &patched) else { return watched.or(patched) };
    let version = |node: &Node| node.metadata.resource_version.as_ref()?.parse::<u64>().ok();
    let is_other = watched.metadata.uid != patched.metadata.uid;
    let is_newer =
        version(watched).zip(version(patched)).is_some_and(|(watched, patched)| watched >= patched);
    Some(Arc::clone(if is_other || is_newer { watched } else { patched }))
}

#[cfg(test)]
#[path = "cluster_side_tests.rs"]
mod tests;
