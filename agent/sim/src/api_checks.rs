//! Writes at the API server as input of the checkers.
//!
//! In: the fake API server after every change, and whether the agent made the change. Out: [`TraceEvent`]s. The module
//! reads the stored objects, never the agent's state.

use std::collections::{BTreeMap, BTreeSet};

use agent_core::checkers::TraceEvent;
use agent_types::api::ApiCall;
use agent_types::ids::PodUid;
use agent_types::pod::{CONFIG_MIRROR, annotation};
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::NODE;
use crate::fake_api::resource::text;
use crate::fake_api::{FakeApi, Resource, Selector, WatchLine};
use crate::stopping::is_left_over;

/// The last state that the checkers saw.
#[derive(Default)]
pub struct ApiChecks {
    seen: u64,
    /// The last noted status of each pod.
    shown: BTreeMap<PodUid, TraceEvent>,
    asked: BTreeSet<PodUid>,
    /// Names of pods that are or were on this node.
    own: BTreeSet<(String, String)>,
}

fn uid_of(object: &Value) -> PodUid {
    PodUid::from(text(object, "/metadata/uid"))
}

fn is_mirror(object: &Value) -> bool {
    object.pointer("/metadata/annotations").and_then(|a| a.get(CONFIG_MIRROR)).is_some()
}

/// The status as an event; `None` for a pod that cannot be decoded.
fn status_of(object: &Value) -> Option<TraceEvent> {
    Pod::deserialize(object).ok().map(|pod| TraceEvent::api_status(&pod))
}

impl ApiChecks {
    /// A static pod has this name: its mirror pod is the node's own object.
    pub fn owns(&mut self, namespace: &str, name: &str) {
        self.own.insert((namespace.to_owned(), name.to_owned()));
    }

    /// The event of a call of the agent, before the server applies it.
    #[must_use]
    pub fn asked(&self, call: &ApiCall) -> TraceEvent {
        TraceEvent::ApiAsked { what: call.describe(), own: self.is_own(call) }
    }

    fn is_own(&self, call: &ApiCall) -> bool {
        let here = |name: Option<&str>| name == Some(NODE);
        match call {
            ApiCall::GetNode { name }
            | ApiCall::PatchNode { name, .. }
            | ApiCall::PatchNodeStatus { name, .. }
            | ApiCall::GetLease { name } => here(Some(name)),
            ApiCall::CreateNode(node) => here(node.metadata.name.as_deref()),
            ApiCall::CreateLease(lease) | ApiCall::ReplaceLease(lease) => {
                here(lease.metadata.name.as_deref())
            }
            ApiCall::FindPod { pod, .. }
            | ApiCall::PatchPodStatus { pod, .. }
            | ApiCall::DeletePod { pod, .. }
            | ApiCall::EvictPod { pod, .. } => {
                self.own.contains(&(pod.namespace.to_string(), pod.name.to_string()))
            }
            ApiCall::CreatePod(pod) => {
                let bound = here(pod.spec.as_ref().and_then(|s| s.node_name.as_deref()));
                bound && annotation(pod, CONFIG_MIRROR).is_some()
            }
            ApiCall::CreateEvent(event) => here(event.source.as_ref().and_then(|s| s.host.as_deref())),
            // The simulated agent gets its values from the world, which checks each set-up (`volumes`).
            ApiCall::GetConfigMap(_)
            | ApiCall::CreateConfigMap(_)
            | ApiCall::ReplaceConfigMap(_)
            | ApiCall::GetSecret(_)
            | ApiCall::GetServiceAccount(_)
            | ApiCall::GetClaim(_)
            | ApiCall::GetVolume { .. }
            | ApiCall::GetCsiDriver { .. }
            | ApiCall::GetAttachment { .. }
            | ApiCall::PatchClaimStatus { .. }
            | ApiCall::GetCsiNode { .. }
            | ApiCall::CreateCsiNode(_)
            | ApiCall::ReplaceCsiNode(_)
            | ApiCall::DeleteCsiNode { .. }
            | ApiCall::GetResourceClaim(_)
            | ApiCall::DeleteResourceSlices { .. }
            | ApiCall::CreatePodCertificate(_)
            | ApiCall::CreateToken { .. } => false,
            ApiCall::PatchEvent { .. }
            | ApiCall::CreateCsr(_)
            | ApiCall::GetCsr { .. }
            | ApiCall::ReviewToken(_)
            | ApiCall::ReviewAccess(_) => true,
        }
    }

    /// Changes since the last look; `by` is the call of the agent that made them.
    pub fn changes(&mut self, server: &FakeApi, by: Option<&ApiCall>) -> Vec<TraceEvent> {
        let Ok(lines) = server.changes_since(Resource::Pods, &Selector::default(), self.seen) else {
            return self.anew(server);
        };
        self.seen = server.version();
        let mut events = Vec::new();
        for line in lines {
            match line {
                WatchLine::Added(object) | WatchLine::Modified(object) => {
                    self.stored(&object, by, &mut events)
                }
                WatchLine::Deleted(object) => {
                    let pod = uid_of(&object);
                    if matches!(by, Some(ApiCall::DeletePod { .. })) {
                        let mirror = is_mirror(&object);
                        events.push(TraceEvent::ApiDeletedByAgent { pod: pod.clone(), mirror });
                    }
                    self.shown.remove(&pod);
                    self.asked.remove(&pod);
                    events.push(TraceEvent::ApiGone { pod });
                }
                WatchLine::Bookmark(_) => {}
            }
        }
        events
    }

    fn stored(&mut self, object: &Value, by: Option<&ApiCall>, events: &mut Vec<TraceEvent>) {
        let pod = uid_of(object);
        if text(object, "/spec/nodeName") == NODE {
            self.owns(text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        }
        // A deletion that the agent requested itself does not permit anything.
        let deleting = !text(object, "/metadata/deletionTimestamp").is_empty();
        if deleting && by.is_none() && self.asked.insert(pod.clone()) {
            events.push(TraceEvent::ApiDeletionAsked { pod: pod.clone() });
        }
        // The node deletes a pod that a shutdown ended and its controller replaced.
        if is_left_over(object) {
            events.push(TraceEvent::ApiLeftOver { pod: pod.clone() });
        }
        if by.is_none() && self.shown.contains_key(&pod) {
            return; // The agent is not responsible for the writes of others.
        }
        let Some(status) = status_of(object) else { return };
        if self.shown.get(&pod) != Some(&status) {
            events.push(status.clone());
            self.shown.insert(pod, status);
        }
    }

    /// The server was restored from a backup: the comparison starts again from its present state.
    pub fn anew(&mut self, server: &FakeApi) -> Vec<TraceEvent> {
        self.seen = server.version();
        self.asked.clear();
        let gone = std::mem::take(&mut self.shown).into_keys();
        let mut events: Vec<TraceEvent> = gone.map(|pod| TraceEvent::ApiGone { pod }).collect();
        for object in server.list(Resource::Pods, &Selector::default()).0 {
            self.stored(&object, None, &mut events);
        }
        events
    }
}
