//! Changes of the devices' health on their way to the pods' workers and to the disk.
//!
//! In: drivers with changes, the claims that workers have. Out: pods with changed claims. Invariants: a worker gets each change once, and
//! no change that it has already; a driver that reports without end causes at most one round in a second. Upstream:
//! pkg/kubelet/cm/dra/manager.go HandleWatchResourcesStream (a queue of 100, further changes are lost).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::runtime::claims::{ClaimsOfPod, PodClaims};
use agent_types::time::Mono;

/// Time between two rounds.
const ROUND: Duration = Duration::from_secs(1);

/// A pod whose containers have devices.
#[derive(Clone, Debug)]
struct User {
    pod: Arc<ClaimsOfPod>,
    /// The last claims that the worker got.
    told: PodClaims,
}

/// The next round.
#[derive(Clone, Debug, Default)]
pub(super) struct HealthNews {
    users: BTreeMap<PodUid, User>,
    /// Drivers with changes since the last round.
    changed: BTreeSet<String>,
    /// The next round comes at this time or later.
    not_before: Mono,
}

impl HealthNews {
    /// The worker got these claims in an answer.
    pub(super) fn told(&mut self, uid: PodUid, pod: Arc<ClaimsOfPod>, told: PodClaims) {
        self.users.insert(uid, User { pod, told });
    }

    /// The pod has no claims any more.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.users.remove(uid);
    }

    /// The health of devices of these drivers changed.
    pub(super) fn note(&mut self, drivers: impl IntoIterator<Item = String>) {
        self.changed.extend(drivers);
    }

    /// Time of the next round.
    pub(super) fn deadline(&self) -> Option<Mono> {
        (!self.changed.is_empty()).then_some(self.not_before)
    }

    /// The drivers of a due round; a second call returns `None`.
    pub(super) fn take_due(&mut self, now: Mono) -> Option<BTreeSet<String>> {
        self.deadline().filter(|at| *at <= now)?;
        self.not_before = now.after(ROUND);
        Some(std::mem::take(&mut self.changed))
    }

    /// The pod's claims if the worker has others; the worker counts as informed then.
    pub(super) fn news_for(
        &mut self,
        uid: &PodUid,
        find: impl FnOnce(&ClaimsOfPod) -> PodClaims,
    ) -> Option<PodClaims> {
        let user = self.users.get_mut(uid)?;
        let claims = find(&user.pod);
        (claims != user.told).then(|| {
            user.told.clone_from(&claims);
            claims
        })
    }
}
