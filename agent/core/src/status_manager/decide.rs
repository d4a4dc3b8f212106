//! The next call for one pod.
//!
//! In: the worker's status, the API's pod. Out: the next call, or nothing. Pure.

use agent_types::api::{ApiCall, ObjectName};
use agent_types::pod;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::entries::{ApiPods, StatusEntry, Via};
use super::merge::{MergeInputs, merge};
use super::patch::{self, Guard, status_patch};
use super::{name_of, transition};
use crate::node_shutdown::is_left_over;
use crate::status::{Phase, terminated_status};
use crate::status_manager::entries::StatusCall;

/// A call that should be sent.
pub(super) struct PendingCall {
    pub(super) need: StatusCall,
    pub(super) call: ApiCall,
    pub(super) api_uid: String,
    /// Not sooner than this.
    pub(super) not_before: Option<Mono>,
}

/// `stays`: no shutdown of the machine is pending.
pub(super) fn decide(entry: &StatusEntry, api: &ApiPods, stays: bool, now: Now) -> Option<PendingCall> {
    let (shown, via) = api.of(&entry.key)?;
    if entry.deleted {
        return None;
    }
    let uid = pod::uid(shown).to_owned();
    let wanted = |need, call, not_before| Some(PendingCall { need, call, api_uid: uid.clone(), not_before });
    let before = shown.status.clone().unwrap_or_default();
    let asked = shown.metadata.deletion_timestamp.is_some() && entry.is_over();
    // None of its containers runs; the rest on the node goes with the object, as after a deletion of an ended
    // pod by another client. A requested deletion waits for the rest as well.
    let left_over =
        stays && shown.metadata.deletion_timestamp.is_none() && !entry.may_run() && is_left_over(shown);
    let told = Phase::end(&before).is_some();
    // The status manager never deletes a pod with the annotation of a mirror pod, under any UID.
    let ours = via == Via::Itself && super::entries::mirror_hash(shown).is_none();
    let to_delete = (asked || left_over) && told && ours;
    let find = || ApiCall::FindPod { pod: name_of(shown), node: api.node_name().into() };
    // Only after the API has shown its end: a restored server may show the pod as it was before.
    let delete = || {
        if entry.stale {
            return wanted(StatusCall::Find, find(), entry.not_before(&uid));
        }
        let (pod, resource_version) = (name_of(shown), shown.metadata.resource_version.clone());
        wanted(
            StatusCall::Delete,
            ApiCall::DeletePod { pod, uid: uid.clone(), resource_version, grace_s: 0 },
            None,
        )
    };
    // What the server took once and shows differently must not keep the pod for ever.
    if to_delete && entry.not_before(&uid).is_some() {
        return delete();
    }
    if let Some(after) = target(entry, shown, via, &before, now) {
        let version = entry.version;
        let resource_version = shown.metadata.resource_version.as_deref().filter(|_| entry.names_version());
        let guard = Guard { uid: &uid, resource_version };
        if let Some(patch) = status_patch(&before, &after, &guard) {
            if entry.stale {
                return wanted(StatusCall::Find, find(), entry.not_before(&uid));
            }
            let call = ApiCall::PatchPodStatus { pod: name_of(shown), patch };
            return wanted(StatusCall::Patch { version }, call, entry.not_before(&uid));
        }
    }
    if to_delete {
        return delete();
    }
    None
}

/// The mirror pod that shows an ended run while its static pod runs again: its name and UID.
pub(super) fn outdated(entry: &StatusEntry, api: &ApiPods) -> Option<(ObjectName, String)> {
    let (shown, via) = api.of(&entry.key)?;
    let said = entry.status.as_deref().filter(|_| via == Via::Mirror)?;
    transition::check(shown.status.as_ref(), said, Some(shown)).err()?;
    Some((name_of(shown), pod::uid(shown).to_owned()))
}

/// The status that the API should show.
fn target(entry: &StatusEntry, shown: &Pod, via: Via, before: &PodStatus, now: Now) -> Option<PodStatus> {
    let said = entry.status.as_deref();
    let over = entry.is_over() && via == Via::Itself;
    let status = match (said, over) {
        (Some(status), false) => status.clone(),
        (said, true) => terminated_status(shown, said.unwrap_or(before)),
        (None, false) => return None,
    };
    let status = patch::normalized(shown, status);
    let inputs = MergeInputs { shown, mirror: via == Via::Mirror, may_run: entry.may_run(), now: now.wall };
    Some(merge(&inputs, status))
}
