//! Bindings of pods' claims: the claim, its volume and, if the volume is restricted to some nodes, this node's labels;
//! for a CSI volume also its attachment and its Secrets.
//!
//! In: a [`ClaimRef`]. Out: a [`Bound`], or an error. The module caches nothing: a node may get claims and volumes of
//! its pods, but not watch them. The decisions are `agent_volumes::claim`'s.

use std::sync::Arc;

use agent_types::api::{ApiCall, ApiReply, ApiServer, ObjectName};
use agent_volumes::bound::Bound;
use agent_volumes::claim::{ClaimError, ClaimRef, check_node, is_choosy};
use agent_volumes::csi::source::SecretRef;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde_json::Value;

use super::{Claimed, FoundSecret, ask};
use crate::cluster::calls::Caller;
use crate::tasks::actor::Tasks;
use crate::volumes::csi::objects::of_driver;

/// Looks claims up.
pub(super) struct ClaimStore<A> {
    caller: Caller<A>,
    tasks: Tasks,
    node_name: Arc<str>,
}

impl<A: ApiServer> ClaimStore<A> {
    pub(super) fn new(caller: Caller<A>, tasks: Tasks, node_name: Arc<str>) -> ClaimStore<A> {
        ClaimStore { caller, tasks, node_name }
    }

    /// The CSIDriver object.
    pub(super) async fn csi_driver(&self, name: String) -> Result<Option<CSIDriver>, String> {
        of_driver(&self.caller, &name).await
    }

    /// The VolumeAttachment `name`.
    pub(super) async fn attachment(&self, name: String) -> Result<VolumeAttachment, String> {
        match ask(&self.caller, &self.tasks, ApiCall::GetAttachment { name }).await? {
            ApiReply::Attachment(found) => Ok(*found),
            _ => Err("the API server answered another question".to_owned()),
        }
    }

    /// A claim and the volume that it is bound to, as they are now.
    pub(super) async fn claimed(&self, of: ObjectName) -> Result<Claimed, String> {
        let other = || "the API server answered another question".to_owned();
        let claim = match ask(&self.caller, &self.tasks, ApiCall::GetClaim(of)).await? {
            ApiReply::Claim(found) => *found,
            _ => return Err(other()),
        };
        let name = claim.spec.as_ref().and_then(|s| s.volume_name.clone()).unwrap_or_default();
        match ask(&self.caller, &self.tasks, ApiCall::GetVolume { name }).await? {
            ApiReply::Volume(found) => Ok((claim, *found)),
            _ => Err(other()),
        }
    }

    /// Patches a claim's status.
    pub(super) async fn patch_claim(
        &self,
        claim: ObjectName,
        patch: Value,
    ) -> Result<PersistentVolumeClaim, String> {
        match ask(&self.caller, &self.tasks, ApiCall::PatchClaimStatus { claim, patch }).await? {
            ApiReply::Claim(found) => Ok(*found),
            _ => Err("the API server answered another question".to_owned()),
        }
    }

    /// The Secret of a PersistentVolume.
    pub(super) async fn secret(&self, secret: SecretRef) -> Result<FoundSecret, String> {
        let named =
            ObjectName { namespace: secret.namespace.as_str().into(), name: secret.name.as_str().into() };
        match ask(&self.caller, &self.tasks, ApiCall::GetSecret(named)).await? {
            ApiReply::Secret(found) => Ok(FoundSecret {
                kind: found.type_.unwrap_or_default(),
                data: found.data.into_iter().flatten().map(|(k, v)| (k, v.0)).collect(),
            }),
            _ => Err("the API server answered another question".to_owned()),
        }
    }

    pub(super) async fn bound(&self, of: ClaimRef) -> Result<Bound, ClaimError> {
        let other = || of.unprocessed("the API server answered another question");
        let named = ObjectName { namespace: of.namespace.as_str().into(), name: of.name.as_str().into() };
        let fetched = ask(&self.caller, &self.tasks, ApiCall::GetClaim(named)).await;
        let claim =
            fetched.map_err(|why| of.unprocessed(&format!("failed to fetch PVC from API server: {why}")))?;
        let ApiReply::Claim(claim) = claim else { return Err(other()) };
        let name = of.volume_name(&claim)?;
        let fetched = ask(&self.caller, &self.tasks, ApiCall::GetVolume { name: name.clone() }).await;
        let failed =
            |why: String| of.unprocessed(&format!("failed to fetch PV {name} from API server: {why}"));
        let ApiReply::Volume(volume) = fetched.map_err(failed)? else { return Err(other()) };
        let bound = of.bound(&claim, &volume)?;
        if is_choosy(&volume) {
            let fetched =
                ask(&self.caller, &self.tasks, ApiCall::GetNode { name: self.node_name.clone() }).await;
            let node = fetched
                .map_err(|why| of.unprocessed(&format!("failed to fetch this node's labels: {why}")))?;
            let ApiReply::Node(node) = node else { return Err(other()) };
            check_node(&volume, &node.metadata.labels.unwrap_or_default())?;
        }
        Ok(bound)
    }
}
