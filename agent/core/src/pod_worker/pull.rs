//! A container's image with what its pod may use.
//!
//! In: a chain. Out: the effect that fetches the pod's pull secrets, if it names any, then the look whether the image is
//! there for this pod, and the pull, both with the credentials that fit the image. Invariant: a Secret that is missing or
//! broken is told and does not keep the image from being pulled with the others, or anonymously. Upstream:
//! getPullSecretsForPod, image manager (contract 7.4).

use super::api::{EventKind, PodAction};
use super::base::Base;
use super::ledger::{Purpose, Target};
use super::start::step;
use super::state::{Chain, Syncing};
use crate::images::{self, keyring::Keyring};
use crate::machine::Outbox;
use crate::runtime::effect::Effect;
use crate::time::Now;
use crate::volume::{Objects, look_up, references};

/// The chain begins: what of the image is there is to be found out.
pub(super) fn look(s: &mut Syncing, b: &mut Base, now: Now, out: &mut Outbox<PodAction>) {
    let Some(chain) = &s.chain else { return };
    let objects = references::pull_secrets(&s.pod);
    if objects.is_empty() {
        return step(s, b, Purpose::InspectImage, now, out);
    }
    let target = Target::Container(chain.start.slot.name.clone());
    b.issue(now, target, Purpose::FetchPullSecrets, Effect::FetchObjects { objects }, out);
}

/// The pod's pull secrets are known.
pub(super) fn secrets_known(
    s: &mut Syncing,
    b: &mut Base,
    secrets: &Objects,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    let mut keyring = Keyring::default();
    let mut unusable = Vec::new();
    for of in secrets.keys() {
        let found = look_up(secrets, of, false);
        let added = found.map(|found| found.map_or(Ok(()), |d| keyring.add_secret(of, d)));
        if !matches!(added, Ok(Ok(()))) {
            unusable.push(of.name.as_str());
        }
    }
    if !unusable.is_empty() && s.told.insert(format!("pull secrets {unusable:?}")) {
        let text = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            unusable.join(", ")
        );
        b.event(EventKind::Warning, "FailedToRetrieveImagePullSecret", text, None, out);
    }
    if let Some(chain) = &mut s.chain {
        chain.user.credentials = keyring.lookup(&images::repository(&chain.image));
    }
    step(s, b, Purpose::InspectImage, now, out);
}

/// The image is to be pulled.
pub(super) fn begin(b: &mut Base, chain: &Chain, now: Now, out: &mut Outbox<PodAction>) {
    let name = &chain.start.slot.name;
    let text = format!("Pulling image \"{}\"", chain.image);
    b.event(EventKind::Normal, "Pulling", text, Some(name), out);
    let effect = Effect::PullImage { image: chain.image.clone(), user: chain.user.clone() };
    b.issue(now, Target::Container(name.clone()), Purpose::PullImage, effect, out);
}
