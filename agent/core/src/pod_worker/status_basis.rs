//! What a pod's status is generated from, kept to know whether another one can come of it.
//!
//! In: the worker's data. Out: equal or not. Invariant: of two equal bases the second one gives the status of the first,
//! if that was the previous status of both: the time of the generation appears only in conditions that change.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::ids::ContainerId;
use agent_types::resources::cgroups::CgroupValues;
use agent_types::runtime::claims::PodClaims;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::runtime::placement::Placement;
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::api::WorkerContext;
use crate::allocation::resize::PendingResize;
use crate::pod_actions::Replaced;
use crate::probe::Verdicts;
use crate::status::{Progress, Verdict, WaitingReason};

/// How far a pod has come, for its status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LifeStage {
    /// No start is under way.
    #[default]
    Resting,
    /// Containers are started as they should run.
    MayStart,
    /// No container is started any more.
    Down,
    /// No container runs any more.
    Over,
}

/// All that a status is generated from, but the time of its generation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StatusBasis {
    pub(super) shared: SharedParts,
    pub(super) own: OwnParts,
}

/// Data that is replaced and never changed in place.
#[derive(Clone, Debug)]
pub(super) struct SharedParts {
    pub(super) pod: Arc<Pod>,
    pub(super) snapshot: Option<Arc<PodSnapshot>>,
    pub(super) ctx: Arc<WorkerContext>,
    pub(super) placement: Arc<Placement>,
    pub(super) claims: Option<Arc<PodClaims>>,
    /// The status before this one.
    pub(super) previous: Arc<PodStatus>,
}

/// Data of the worker itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OwnParts {
    pub(super) life: LifeStage,
    pub(super) verdict: Option<Verdict>,
    pub(super) waiting: BTreeMap<String, WaitingReason>,
    /// Containers that the snapshot shows and the status does not.
    pub(super) hidden: Vec<ContainerId>,
    pub(super) probes: Verdicts,
    pub(super) replaced: Replaced,
    pub(super) resetting: bool,
    pub(super) pending: Option<PendingResize>,
    pub(super) progress: Option<Progress>,
    pub(super) cgroup: Option<CgroupValues>,
    pub(super) start_time: Wall,
}

impl PartialEq for SharedParts {
    /// The runtime is looked at often and seldom differs; all other data is the same only if it is the same object.
    fn eq(&self, other: &SharedParts) -> bool {
        Arc::ptr_eq(&self.pod, &other.pod)
            && Arc::ptr_eq(&self.ctx, &other.ctx)
            && Arc::ptr_eq(&self.placement, &other.placement)
            && Arc::ptr_eq(&self.previous, &other.previous)
            && is_same(self.claims.as_ref(), other.claims.as_ref())
            && is_seen_alike(self.snapshot.as_ref(), other.snapshot.as_ref())
    }
}

fn is_same<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Alike but for the time of the look, which no status shows.
fn is_seen_alike(a: Option<&Arc<PodSnapshot>>, b: Option<&Arc<PodSnapshot>>) -> bool {
    let seen = |s: &Arc<PodSnapshot>, t: &Arc<PodSnapshot>| {
        s.actuated == t.actuated && s.sandboxes == t.sandboxes && s.containers == t.containers
    };
    is_same(a, b) || a.zip(b).is_some_and(|(a, b)| seen(a, b))
}
