//! Resource claims of pods: asks their owner to prepare them, to find their devices, to give them back.
//!
//! In: effects on claims. Out: devices for the containers, upstream's words about a failure. Invariant: the owner bounds each call of a
//! driver; a call that is dropped at the effect's deadline goes on at its owner, and the next one finds what came of it.

use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult};
use agent_types::failure::Class;
use agent_types::ids::PodUid;
use agent_types::runtime::claims::{ClaimsOfPod, PodClaims};
use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::serving::metrics::Metrics;
use crate::tasks::actor::Tasks;

/// The owner of the node's resource claims, as pod workers need it. Errors are upstream's words.
pub trait PodClaimsDriver: Send + Sync + 'static {
    /// Prepares the claims of a pod that is about to get a sandbox.
    fn prepare(&self, pod: ClaimsOfPod) -> BoxFuture<'_, Result<PodClaims, String>>;

    /// The devices of the pod's claims, prepared before.
    fn find(&self, pod: ClaimsOfPod) -> BoxFuture<'_, Result<PodClaims, String>>;

    /// Gives back all claims of the pod.
    fn unprepare(&self, pod: PodUid) -> BoxFuture<'_, Result<(), String>>;
}

/// A node without DRA drivers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoClaims;

impl PodClaimsDriver for NoClaims {
    fn prepare(&self, _: ClaimsOfPod) -> BoxFuture<'_, Result<PodClaims, String>> {
        ready(Err("the node has no DRA drivers".to_owned())).boxed()
    }

    fn find(&self, _: ClaimsOfPod) -> BoxFuture<'_, Result<PodClaims, String>> {
        ready(Err("the node has no DRA drivers".to_owned())).boxed()
    }

    fn unprepare(&self, _: PodUid) -> BoxFuture<'_, Result<(), String>> {
        ready(Ok(())).boxed()
    }
}

/// Does the work and counts it, with its time, as this operation on a pod's claims.
pub(super) async fn counted(
    metrics: &Metrics,
    tasks: &Tasks,
    operation: &str,
    work: impl Future<Output = EffectResult>,
) -> EffectResult {
    let began = tasks.now().mono;
    let result = work.await;
    metrics.dra_operation(operation, result.is_err(), tasks.now().mono.since(began));
    result
}

/// [`agent_core::pod_worker::effect::Effect::PrepareClaims`].
pub(super) async fn prepare(driver: &dyn PodClaimsDriver, claims: ClaimsOfPod) -> EffectResult {
    answer(driver.prepare(claims).await)
}

/// [`agent_core::pod_worker::effect::Effect::FindClaims`].
pub(super) async fn find(driver: &dyn PodClaimsDriver, claims: ClaimsOfPod) -> EffectResult {
    answer(driver.find(claims).await)
}

/// [`agent_core::pod_worker::effect::Effect::UnprepareClaims`].
pub(super) async fn unprepare(driver: &dyn PodClaimsDriver, pod: &PodUid) -> EffectResult {
    let given_back = driver.unprepare(pod.clone()).await;
    given_back.map(|()| EffectOk::Done).map_err(|why| failed(format!("unprepare dynamic resources: {why}")))
}

fn answer(claims: Result<PodClaims, String>) -> EffectResult {
    claims.map(|claims| EffectOk::Claims(Box::new(claims))).map_err(failed)
}

/// Drivers come back: every failure allows another attempt.
fn failed(message: String) -> EffectError {
    EffectError { class: Class::Retryable { after_ms: 0 }, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses everything, in words.
    struct Refusing;

    impl PodClaimsDriver for Refusing {
        fn prepare(&self, pod: ClaimsOfPod) -> BoxFuture<'_, Result<PodClaims, String>> {
            ready(Err(format!("{}: not allocated", pod.pod))).boxed()
        }

        fn find(&self, _: ClaimsOfPod) -> BoxFuture<'_, Result<PodClaims, String>> {
            ready(Ok(PodClaims::default())).boxed()
        }

        fn unprepare(&self, pod: PodUid) -> BoxFuture<'_, Result<(), String>> {
            ready(Err(format!("DRA driver d of {pod} is not registered"))).boxed()
        }
    }

    #[tokio::test]
    async fn errors_keep_their_words_and_allow_another_attempt() {
        let claims = ClaimsOfPod { pod: "p".to_owned(), ..ClaimsOfPod::default() };
        let refused = prepare(&Refusing, claims.clone()).await.unwrap_err();
        assert_eq!(
            (refused.message.as_str(), refused.class),
            ("p: not allocated", Class::Retryable { after_ms: 0 })
        );
        assert_eq!(find(&Refusing, claims).await, Ok(EffectOk::Claims(Box::default())));
        let refused = unprepare(&Refusing, &PodUid::from("u")).await.unwrap_err();
        assert_eq!(refused.message, "unprepare dynamic resources: DRA driver d of u is not registered");
        assert_eq!(unprepare(&NoClaims, &PodUid::from("u")).await, Ok(EffectOk::Done));
    }
}
