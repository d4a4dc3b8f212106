//! Makes sure that the image of a container, and the images that it mounts, are present and that the pod may
//! use them.
//!
//! In: a start chain. Out: the effect that reads the pod's pull secrets, if the pod names any, then the check
//! whether this pod may use a present image, and the pull; both with the credentials that match the image.
//! Invariant: a missing or broken Secret is reported and does not prevent the pull with the other
//! credentials, or without any. Upstream: `getPullSecretsForPod` of pkg/kubelet/kubelet_pods.go,
//! `EnsureImageExists` of pkg/kubelet/images/image_manager.go.

use agent_types::event::EventKind;
use agent_types::machine::Outbox;
use agent_types::objects::{Objects, look_up};
use agent_types::pod;
use agent_types::time::Now;
use agent_volumes::references;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::api::PodAction;
use super::base::Base;
use super::state::{Chain, Occasion, RequiredImage};
use super::tracker::{Purpose, Target};
use crate::images::keyring::Keyring;
use crate::images::{self, ReferenceError};
use crate::pod_worker::chain::step;
use crate::pod_worker::effect::{Effect, ImageUser};
use crate::pod_worker::pass::Pass;

/// The chain begins: checks which of its images are present.
pub(super) fn look(pass: &mut Pass<'_>) {
    let Some(chain) = &pass.state.chain else { return };
    let objects = references::pull_secrets(&pass.state.pod);
    if objects.is_empty() {
        return step(pass, Purpose::InspectImage);
    }
    let target = Target::Container(chain.start.slot.name.clone());
    pass.issue(target, Purpose::FetchPullSecrets, Effect::FetchObjects { objects });
}

/// The pod's pull secrets are known.
pub(super) fn secrets_known(pass: &mut Pass<'_>, secrets: &Objects) {
    let mut keyring = Keyring::default();
    let mut unusable = Vec::new();
    for of in secrets.keys() {
        let found = look_up(secrets, of, false);
        let added = found.map(|found| found.map_or(Ok(()), |d| keyring.add_secret(of, d)));
        if !matches!(added, Ok(Ok(()))) {
            unusable.push(of.name.clone());
        }
    }
    if !unusable.is_empty() && pass.state.reported.insert(Occasion::PullSecrets(unusable.clone())) {
        let text = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            unusable.join(", ")
        );
        pass.event(EventKind::Warning, "FailedToRetrieveImagePullSecret", text, None);
    }
    if let Some(chain) = &mut pass.state.chain {
        for wanted in chain.mounted.iter_mut().chain([&mut chain.own]) {
            wanted.user.credentials = keyring.lookup(&images::repository(&wanted.image));
        }
    }
    step(pass, Purpose::InspectImage);
}

/// The image is to be pulled.
pub(super) fn begin(b: &mut Base, chain: &Chain, now: Now, out: &mut Outbox<PodAction>) {
    let wanted = chain.wanted();
    let text = format!("Pulling image \"{}\"", wanted.written());
    b.event(EventKind::Normal, "Pulling", text, about(chain), out);
    let effect = Effect::PullImage { image: wanted.image.clone(), user: wanted.user.clone() };
    b.issue(now, Target::Container(chain.start.slot.name.clone()), Purpose::PullImage, effect, out);
}

/// Container that events about the image name: the one that runs it; none for an image volume, whose events
/// are about the pod.
pub(super) fn about(chain: &Chain) -> Option<&str> {
    chain.wanted().volume.is_none().then_some(chain.start.slot.name.as_str())
}

/// The container's own image, and the images that it mounts.
///
/// # Errors
/// The image with an invalid name: the name, whether the container runs it, and the reason.
pub(super) fn wanted(
    pod: &Pod,
    container: &Container,
) -> Result<(RequiredImage, Vec<RequiredImage>), (String, bool, ReferenceError)> {
    let account = pod::spec(pod).service_account_name.clone().unwrap_or_default();
    let want = |volume: Option<&str>, policy: Option<&str>, written: &str| {
        let image = images::normalize(written).map_err(|e| (written.to_owned(), volume.is_none(), e))?;
        Ok(RequiredImage {
            volume: volume.map(str::to_owned),
            policy: images::policy_of(policy, written),
            user: ImageUser { written: written.to_owned(), account: account.clone(), ..ImageUser::default() },
            image,
        })
    };
    let mounted = container.volume_mounts.iter().flatten().filter_map(|mount| {
        let volume = pod::spec(pod).volumes.iter().flatten().find(|v| v.name == mount.name)?;
        let source = volume.image.as_ref()?;
        let written = source.reference.as_deref().unwrap_or_default();
        Some(want(Some(&volume.name), source.pull_policy.as_deref(), written))
    });
    let mounted = mounted.collect::<Result<_, _>>()?;
    let own = want(None, container.image_pull_policy.as_deref(), container.image.as_deref().unwrap_or(""))?;
    Ok((own, mounted))
}
