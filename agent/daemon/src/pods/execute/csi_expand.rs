//! What a volume holds becomes as large as the volume, by its driver.
//!
//! In: a volume that is published. Out: a call of the driver. When it is asked, and what the claim says of it, is
//! `super::growth`'s.

use std::path::Path;

use agent_core::pod_worker::effect::{EffectOk, Mounted};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_volumes::Resize;
use agent_volumes::bind::OfClaim;
use agent_volumes::csi::Persistent;
use agent_volumes::csi::request::Capabilities;

use super::csi::{AGAIN, Job};
use super::growth::{self, Refused};

impl<R: Runtime, I: ImageService> Job<'_, R, I> {
    /// The volume is a claim's that is written to, and the driver can make it larger.
    fn growing(&self, driver: Capabilities) -> Option<&Persistent> {
        self.csi.persistent.as_ref().filter(|p| driver.expands && !self.csi.read_only && !p.claim.is_empty())
    }

    /// It may have to be made larger some day.
    pub(super) fn may_grow(&self, driver: Capabilities) -> bool {
        self.growing(driver).is_some()
    }

    /// The volume is published: it is looked at whether it has grown, and nothing else.
    pub(super) async fn look_again(&self) -> EffectOk {
        let node = self.executor.sources.csi();
        let later = |resize| {
            let renew_after = self.csi.persistent.is_some().then_some(AGAIN);
            EffectOk::Volume(Mounted { renew_after, resize, ..Mounted::default() })
        };
        let Some(endpoint) = node.registered.endpoint(&self.csi.driver) else { return later(None) };
        let driver = match agent_plugins::capabilities(&endpoint).await {
            Ok(driver) if self.may_grow(driver) => driver,
            Ok(_) => return EffectOk::Volume(Mounted::default()),
            Err(error) => {
                tracing::debug!(driver = self.csi.driver, %error, "a driver does not say what it can do");
                return later(None);
            }
        };
        let key = self.csi.key();
        let _alone = node.volumes.alone(&key).await;
        let staging = driver.stages.then(|| self.staging());
        later(match self.expand(&endpoint, driver, staging.as_deref(), true).await {
            Ok(grown) => grown,
            // Containers have it: they may go on as they are.
            Err(why) => Some(Resize::Failed(why)),
        })
    }

    /// Makes it larger if it has to be; `None`: nothing was done now.
    pub(super) async fn expand(
        &self,
        endpoint: &Path,
        driver: Capabilities,
        staging: Option<&str>,
        in_use: bool,
    ) -> Result<Option<Resize>, String> {
        let Some(persistent) = self.growing(driver) else { return Ok(None) };
        let (namespace, _, _) = self.csi.pod.clone();
        let of = OfClaim { namespace, name: persistent.claim.clone(), node: self.csi.node.clone() };
        growth::grow(self.executor, &of, in_use, async |growth| {
            let secrets = self.secret(Some("NodeExpandSecretRef"), persistent.expand_secret.as_ref()).await;
            let secrets = secrets.map_err(Refused::Later)?;
            let request = self.csi.expand((&self.target, staging), growth.bytes, driver, secrets);
            agent_plugins::expand(endpoint, &request).await.map_err(|e| {
                let (driver, volume) = (&self.csi.driver, &self.csi.handle);
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
