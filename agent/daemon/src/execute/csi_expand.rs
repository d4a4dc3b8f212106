//! What a volume holds becomes as large as the volume, by its driver.
//!
//! In: a volume that is published. Out: a call of the driver, and what the claim says of it. Invariants: the driver is asked
//! only if the claim is smaller than its volume and the controller is done; the claim says so afterwards, or why not. The
//! decisions are `agent_core::csi::expand`'s.

use std::path::Path;

use agent_core::api::ObjectName;
use agent_core::csi::expand;
use agent_core::csi::request::Capabilities;
use agent_core::csi::volume::Persistent;
use agent_core::drivers::{ImageService, Runtime};
use agent_core::runtime::effect::{EffectOk, Mounted};
use agent_core::volume::{ClaimId, Resize};

use super::csi::{AGAIN, Job};

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
        let sources = &self.executor.sources;
        let (namespace, _, _) = &self.csi.pod;
        let named =
            ObjectName { namespace: namespace.as_str().into(), name: persistent.claim.as_str().into() };
        let failed = |step: &str, why: &str| format!("mountVolume.NodeExpandVolume {step} : {why}");
        let (mut claim, volume) = match sources.claimed(named.clone()).await {
            Ok(found) => found,
            Err(why) if in_use => {
                tracing::debug!(claim = persistent.claim, why, "it is not known whether a claim has grown");
                return Ok(None);
            }
            Err(why) => return Err(failed("get PVC failed", &why)),
        };
        let Some(growth) = expand::needed(&claim, &volume) else { return Ok(None) };
        let secrets = self.secret(Some("NodeExpandSecretRef"), persistent.expand_secret.as_ref()).await?;
        if growth.announced {
            let patched = sources.patch_claim(named.clone(), expand::began(&claim)).await;
            claim = patched.map_err(|why| failed("failed to mark node expansion in progress", &why))?;
        }
        let request = self.csi.expand((&self.target, staging), growth.bytes, driver, secrets);
        if let Err(e) = agent_plugins::expand(endpoint, &request).await {
            let (driver, volume) = (&self.csi.driver, &self.csi.handle);
            tracing::warn!(driver, volume, error = %e, "volume is not made larger");
            let why = format!("Expander.NodeExpand failed to expand the volume : {}", e.words());
            if growth.recorded && e.is_final() {
                let infeasible = e.is_infeasible() || growth.unwanted;
                let words = expand::refused(&why, infeasible, self.executor.tasks.now().wall);
                if let Err(why) = sources.patch_claim(named, words).await {
                    tracing::warn!(
                        claim = persistent.claim,
                        why,
                        "the claim does not say that it is not larger"
                    );
                }
            }
            return if e.is_in_use() { Ok(None) } else { Err(why) };
        }
        let (driver, volume, bytes) = (&self.csi.driver, &self.csi.handle, growth.bytes);
        tracing::info!(driver, volume, bytes, "volume is larger");
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        let of = ClaimId { name: persistent.claim.clone(), uid };
        let done = Resize::Done { node: self.csi.node.clone(), claim: of };
        let patched = sources.patch_claim(named, expand::done(&claim, &growth)).await;
        patched.map(|_| Some(done)).map_err(|why| failed("update pvc status failed", &why))
    }
}
