//! Grows the contents of a published CSI volume to the volume's size (NodeExpandVolume).
//!
//! In: a volume that is published. Out: a call of the driver. `super::growth` decides when to call, and writes the
//! claim's status.

use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_volumes::Resize;
use agent_volumes::bind::OfClaim;
use agent_volumes::csi::no_secret;
use agent_volumes::csi::publishing::Publishing;

use super::csi::Job;
use super::growth::{self, Refused};

impl<R: Runtime, I: ImageService> Job<'_, R, I> {
    /// Grows the volume if needed; `None`: no call was made.
    pub(super) async fn expand(
        &self,
        way: &Publishing,
        staged: bool,
        in_use: bool,
    ) -> Result<Option<Resize>, String> {
        let Some(persistent) = way.expandable() else { return Ok(None) };
        let csi = way.volume();
        let (namespace, _, _) = csi.pod.clone();
        let (name, node) = (persistent.claim.clone(), csi.node.clone());
        let of = OfClaim { namespace, name, node, read_only: csi.read_only };
        growth::grow(self.executor, &of, in_use, async |growth| {
            let secrets = match &persistent.expand_secret {
                Some(of) => self.secret(of).await.map_err(|why| {
                    Refused::Later(no_secret(Some("NodeExpandSecretRef"), &of.namespace, &of.name, &why))
                })?,
                None => Default::default(),
            };
            let staging = staged.then_some(self.paths.staging.as_str());
            let request = csi.expand((&self.paths.target, staging), growth.bytes, way.driver(), secrets);
            agent_plugins::expand(&self.endpoint, &request).await.map_err(|e| {
                let (driver, volume) = (&csi.driver, &csi.handle);
                tracing::warn!(driver, volume, error = %e, "volume is not made larger");
                let why = format!("Expander.NodeExpand failed to expand the volume : {}", e.words());
                match e.is_final() {
                    true => Refused::Final { why, infeasible: e.is_infeasible(), in_use: e.is_in_use() },
                    false => Refused::Later(why),
                }
            })
        })
        .await
    }
}
