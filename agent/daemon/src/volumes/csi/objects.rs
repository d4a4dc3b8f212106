//! Node and CSINode at the API server: read, changed as `agent_core::csi_drivers::objects` says, written.
//!
//! In: registered and removed drivers. Out: requests. Invariant: called by one task only, so that every write is based
//! on the last read; after a conflict with another writer the object is read again.

use std::sync::Arc;
use std::time::Duration;

use agent_core::csi_drivers::objects;
use agent_types::api::{ApiCall, ApiReply, ApiServer};
use agent_types::failure::Class;
use agent_volumes::csi::plugin::NodeInfo;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use serde_json::Value;

use crate::cluster::calls::Caller;
use crate::tasks::actor::Tasks;
use crate::tasks::stops::AgentStops;

/// Waits between tries (upstream's, without its jitter: there is one node of this name).
const AGAIN_MS: [u64; 3] = [10, 50, 250];

/// The node's two objects.
pub(super) struct Objects<A> {
    caller: Caller<A>,
    node_name: Arc<str>,
    tasks: Tasks,
}

/// The change for a driver.
#[derive(Clone, Copy)]
enum Change<'a> {
    Begin,
    Install(&'a NodeInfo),
    Recount(&'a NodeInfo),
    Remove,
}

/// The driver's CSIDriver object, if it exists; or the error of the request.
pub(crate) async fn of_driver<A: ApiServer>(
    caller: &Caller<A>,
    driver: &str,
) -> Result<Option<CSIDriver>, String> {
    let client = caller.client().await.ok_or(AgentStops)?;
    match client.call(&ApiCall::GetCsiDriver { name: driver.to_owned() }).await {
        Ok(ApiReply::CsiDriver(found)) => Ok(Some(*found)),
        Ok(_) => Err("the API server answered another question".to_owned()),
        Err(e) if e.class == Class::NotFound => Ok(None),
        Err(e) => Err(e.message),
    }
}

impl<A: ApiServer> Objects<A> {
    pub(super) fn new(caller: Caller<A>, node_name: Arc<str>, tasks: Tasks) -> Objects<A> {
        Objects { caller, node_name, tasks }
    }

    /// There is a CSINode.
    pub(super) async fn begin(&self) -> Result<(), String> {
        self.attempt("", Change::Begin).await
    }

    /// The driver is in both objects.
    pub(super) async fn install(&self, driver: &str, info: &NodeInfo) -> Result<(), String> {
        self.change(driver, Change::Install(info)).await
    }

    /// Writes the driver's present number of volumes into the CSINode.
    pub(super) async fn recount(&self, driver: &str, info: &NodeInfo) -> Result<(), String> {
        self.change(driver, Change::Recount(info)).await
    }

    /// The driver is in neither.
    pub(super) async fn remove(&self, driver: &str) -> Result<(), String> {
        self.change(driver, Change::Remove).await
    }

    async fn change(&self, driver: &str, change: Change<'_>) -> Result<(), String> {
        for wait in AGAIN_MS {
            match self.attempt(driver, change).await {
                Ok(()) => return Ok(()),
                Err(why) => tracing::debug!(driver, why, "node's objects are tried again"),
            }
            self.tasks.wait_until(self.tasks.now().mono.after(Duration::from_millis(wait))).await;
        }
        self.attempt(driver, change).await
    }

    async fn attempt(&self, driver: &str, change: Change<'_>) -> Result<(), String> {
        let named = |why: String| format!("error updating Node object with CSI driver node info: {why}");
        let node = self.node().await.map_err(named)?;
        let patch = match change {
            Change::Begin | Change::Recount(_) => None,
            Change::Install(info) => objects::node_with(&node, driver, info).map_err(named)?,
            Change::Remove => objects::node_without(&node, driver).map_err(named)?,
        };
        if let Some(patch) = patch {
            self.patch(patch).await.map_err(named)?;
        }
        let named = |why: String| format!("error updating CSINode object with CSI driver node info: {why}");
        self.csi_node(&node, driver, change).await.map_err(named)
    }

    async fn csi_node(&self, node: &Node, driver: &str, change: Change<'_>) -> Result<(), String> {
        let name = self.node_name.to_string();
        let there = match self.call(ApiCall::GetCsiNode { name: name.clone() }).await {
            Ok(there) => there,
            Err((Class::NotFound, _)) if matches!(change, Change::Remove) => return Ok(()),
            Err((Class::NotFound, _)) => {
                let new = Box::new(objects::empty(node));
                self.call(ApiCall::CreateCsiNode(new)).await.map_err(|(_, why)| why)?
            }
            Err((_, why)) => return Err(why),
        };
        let ApiReply::CsiNode(there) = there else { return Err("an answer to another question".to_owned()) };
        if !objects::is_of(&there, node) {
            let uid = there.metadata.uid.clone().unwrap_or_default();
            let deleted = self.call(ApiCall::DeleteCsiNode { name: name.clone(), uid }).await;
            deleted.map_err(|(_, why)| format!("error deleting existing CSINode {name:?}: {why}"))?;
            return Err(format!("CSINode {name:?} was owned by different node, deleted it"));
        }
        let changed: Option<CSINode> = match change {
            Change::Begin => objects::begun(&there),
            Change::Install(info) | Change::Recount(info) => objects::with(&there, driver, info),
            Change::Remove => objects::without(&there, driver),
        };
        let Some(changed) = changed else { return Ok(()) };
        self.call(ApiCall::ReplaceCsiNode(Box::new(changed))).await.map(drop).map_err(|(_, why)| why)
    }

    async fn node(&self) -> Result<Box<Node>, String> {
        match self.call(ApiCall::GetNode { name: self.node_name.clone() }).await {
            Ok(ApiReply::Node(node)) => Ok(node),
            Ok(_) => Err("an answer to another question".to_owned()),
            Err((_, why)) => Err(why),
        }
    }

    async fn patch(&self, patch: Value) -> Result<(), String> {
        let call = ApiCall::PatchNodeStatus { name: self.node_name.clone(), patch };
        self.call(call).await.map(drop).map_err(|(_, why)| why)
    }

    async fn call(&self, call: ApiCall) -> Result<ApiReply, (Class, String)> {
        let Some(client) = self.caller.client().await else {
            return Err((Class::Unavailable, AgentStops.into()));
        };
        client.call(&call).await.map_err(|e| (e.class, e.message))
    }
}
