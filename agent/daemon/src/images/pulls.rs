//! How many image pulls are under way at once, and how many begin in a second.
//!
//! In: KubeletConfiguration (`serializeImagePulls`, `maxParallelImagePulls`, `registryPullQPS`, `registryBurst`). Out: a permit for each
//! pull, or the refusal of the rate ([`agent_core::images::pull_rate`] decides). Invariant: a pull takes its token when its turn
//! has come, so waiting pulls use up nothing.

use agent_core::images::pull_rate::{self, PullRate};
use agent_core::pod_worker::effect::EffectError;
use agent_types::failure::Class;
use agent_types::lock::Lock;
use orlop_config::kubelet::KubeletConfiguration;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::tasks::actor::Tasks;

/// Bounds on the node's image pulls.
#[derive(Clone, Copy, Debug)]
pub struct PullLimits {
    /// Pulls at once, at least one.
    pub at_once: usize,
    /// Pulls that may begin in a second; 0: no bound.
    pub qps: i32,
    /// Pulls that may begin at once after a pause.
    pub burst: i32,
}

impl PullLimits {
    /// The configured bounds: one pull at once while pulls are serialised, otherwise the configured number or no bound.
    #[must_use]
    pub fn of(kubelet: &KubeletConfiguration) -> PullLimits {
        let parallel = kubelet.max_parallel_image_pulls.map(|n| usize::try_from(n).unwrap_or(1));
        let at_once = if kubelet.serialize_image_pulls { 1 } else { parallel.unwrap_or(usize::MAX) };
        PullLimits { at_once, qps: kubelet.registry_pull_qps, burst: kubelet.registry_burst }
    }
}

/// The node's image pulls.
#[derive(Debug)]
pub(crate) struct Pulls {
    at_once: Semaphore,
    rate: Lock<PullRate>,
}

impl Pulls {
    pub(crate) fn new(limits: PullLimits) -> Pulls {
        Pulls {
            at_once: Semaphore::new(limits.at_once.clamp(1, Semaphore::MAX_PERMITS)),
            rate: Lock::new(PullRate::new(limits.qps, limits.burst)),
        }
    }

    /// Waits for the pull's turn. The permit is held until the pull has ended.
    ///
    /// # Errors
    /// Too many pulls have begun in this second.
    pub(crate) async fn begin(&self, tasks: &Tasks) -> Result<Option<SemaphorePermit<'_>>, EffectError> {
        // The semaphore is never closed; waiting for it counts as part of the pull.
        let permit = self.at_once.acquire().await.ok();
        let mut rate = self.rate.lock();
        if rate.take(tasks.now().mono) {
            return Ok(permit);
        }
        Err(EffectError { class: Class::Retryable { after_ms: 0 }, message: pull_rate::EXCEEDED.to_owned() })
    }
}
