//! Inline volumes of CSI drivers: published before the pod's containers, unpublished after them.
//!
//! In: an [`Inline`]. Out: calls of the driver, each with upstream's time limit. Invariants: it is written down whose the
//! volume is before the driver is asked; every volume that is written down is unpublished before its directory goes, also one
//! whose publication nobody heard the end of.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use agent_core::csi::inline::{Given, Inline, Publish, Terms, unregistered};
use agent_core::drivers::{Class, ImageService, Runtime};
use agent_core::runtime::effect::{EffectError, EffectOk, EffectResult};
use agent_core::runtime::{PodKey, PodUid};
use agent_core::time::Wall;
use agent_core::volume::{ObjectRef, Objects, SetUp, look_up};

use super::volumes::{RENEW_MIN, answer};
use super::{Executor, error, gave_up};

/// How often a driver that wants to be asked again is (upstream: between 60 and 90 s).
const AGAIN: Duration = Duration::from_secs(75);

/// Publishes a volume.
pub(super) async fn set_up<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    volume: &SetUp,
    inline: &Inline,
) -> EffectResult {
    let Some(endpoint) = executor.sources.csi_endpoint(&inline.driver) else {
        return failed(unregistered("mounter.SetUpAt", &inline.driver));
    };
    let object = match executor.sources.csi_driver(inline.driver.clone()).await {
        Ok(object) => object,
        Err(why) => return failed(why),
    };
    let terms = inline.terms(object.as_ref()).map_err(refusal)?;
    let now = executor.tasks.now().wall;
    let (tokens, renew) = tokens(executor, &terms).await.map_err(refusal)?;
    let secrets = match &inline.secret {
        Some(secret) => secrets(executor, secret).await.map_err(refusal)?,
        None => BTreeMap::new(),
    };
    let delegated = match volume.fs_group {
        Some(_) => agent_plugins::gives_groups(&endpoint).await.map_err(|e| refusal(e.to_string()))?,
        None => false,
    };
    let group = volume.fs_group.filter(|_| delegated);
    let request = inline.publish(&volume.path, &terms, &tokens, secrets, group);
    publish(executor, key, (inline, &request), &endpoint).await?;
    if let Some(group) = volume.fs_group.filter(|_| !delegated && inline.node_gives_group(&terms)) {
        let (at, uid, target) = (executor.dirs.clone(), key.uid.clone(), volume.path.clone());
        let by_root = inline.by_root;
        let given = executor.tasks.blocking(move || at.give_target(&uid, &target, group, by_root)).await;
        answer(given)?;
    }
    let renew = renew.map(|at| at.since(now).max(RENEW_MIN));
    let again = terms.again.then_some(AGAIN);
    Ok(EffectOk::Volume { renew_after: [renew, again].into_iter().flatten().min(), warning: None })
}

async fn publish<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    key: &PodKey,
    (inline, request): (&Inline, &Publish),
    endpoint: &Path,
) -> Result<(), EffectError> {
    let (at, uid, target, data) =
        (executor.dirs.clone(), key.uid.clone(), request.target.clone(), inline.data());
    let prepared = executor.tasks.blocking(move || at.prepare_target(&uid, &target, &data)).await;
    answer(prepared)?;
    agent_plugins::publish(endpoint, request).await.map_err(|e| refusal(e.to_string()))
}

/// The driver's tokens, and when the first of them is to be renewed.
async fn tokens<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    terms: &Terms,
) -> Result<(Vec<Given>, Option<Wall>), String> {
    let (mut given, mut renew) = (Vec::new(), None::<Wall>);
    for token in &terms.tokens {
        let held = executor.sources.token(token.clone()).await?;
        // Only a driver that wants to be asked again hears of the next one.
        if terms.again {
            renew = Some(renew.map_or(held.renew, |at| at.min(held.renew)));
        }
        given.push(Given { audience: token.audience.clone(), text: held.text, ends: held.ends });
    }
    Ok((given, renew))
}

async fn secrets<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    secret: &ObjectRef,
) -> Result<BTreeMap<String, String>, String> {
    let known = Objects::from([(secret.clone(), executor.sources.fetch(secret.clone()).await)]);
    let ObjectRef { namespace, name, .. } = secret;
    let found = look_up(&known, secret, false)
        .map_err(|why| format!("fetching NodePublishSecretRef {namespace}/{name} failed: {why}"))?;
    let data = found.map(|found| found.data.clone()).unwrap_or_default();
    Ok(data.into_iter().map(|(k, v)| (k, String::from_utf8_lossy(&v).into_owned())).collect())
}

/// Has drivers let go of all that is written down of a pod.
pub(super) async fn tear_down<R: Runtime, I: ImageService>(
    executor: &Executor<R, I>,
    uid: &PodUid,
) -> Result<(), EffectError> {
    let (at, of) = (executor.dirs.clone(), uid.clone());
    let Some(targets) = executor.tasks.blocking(move || at.targets(&of)).await else {
        return Err(gave_up("the agent stops"));
    };
    for (target, data) in targets.map_err(error)? {
        let Some(endpoint) = executor.sources.csi_endpoint(&data.driver) else {
            return failed(unregistered("Unmounter.TearDownAt", &data.driver)).map(drop);
        };
        let released = agent_plugins::unpublish(&endpoint, &data.handle, &target).await;
        released.map_err(|e| refusal(format!("kubernetes.io/csi: Unmounter.TearDownAt failed: {e}")))?;
        let (at, of) = (executor.dirs.clone(), uid.clone());
        let Some(done) = executor.tasks.blocking(move || at.release_target(&of, &target)).await else {
            return Err(gave_up("the agent stops"));
        };
        done.map_err(error)?;
    }
    Ok(())
}

fn failed(why: String) -> EffectResult {
    Err(refusal(why))
}

fn refusal(message: String) -> EffectError {
    EffectError { class: Class::Retryable { after_ms: 0 }, message }
}
