//! Parts of a worker's state: its cgroup, its preStop hooks, its resize, its processors and devices, its resource claims.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_types::ids::ContainerId;
use agent_types::resources::cgroups::CgroupValues;
use agent_types::resources::cgroups::pod::PodCgroup;
use agent_types::runtime::claims::PodClaims;
use agent_types::runtime::placement::Placement;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::Pod;

use super::api::WorkerContext;
use crate::allocation::PodAllocation;
use crate::allocation::resize::PendingResize;
use crate::status::Progress;

/// What this incarnation did to it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cgroup {
    /// This incarnation has not ensured it yet.
    Unseen,
    /// Created, or found in order; with the time of the request.
    Made(Mono),
    /// Removed by this incarnation.
    Removed,
}

/// The cgroup that a pod should have, computed once for the pod and the node as they are: that reads the amounts of all
/// containers several times.
#[derive(Clone, Debug)]
pub(super) struct WantedCgroup {
    pod: Arc<Pod>,
    ctx: Arc<WorkerContext>,
    /// `None` on a node without pod cgroups.
    pub(super) cgroup: Option<Arc<PodCgroup>>,
}

impl WantedCgroup {
    /// The cgroup of `pod` on the node of `ctx`.
    pub(super) fn of(pod: &Arc<Pod>, ctx: &Arc<WorkerContext>) -> WantedCgroup {
        let cgroup = ctx.specs.cgroup(pod).map(Arc::new);
        WantedCgroup { pod: pod.clone(), ctx: ctx.clone(), cgroup }
    }

    /// True if it was computed for these.
    pub(super) fn is_of(&self, pod: &Arc<Pod>, ctx: &Arc<WorkerContext>) -> bool {
        Arc::ptr_eq(&self.pod, pod) && Arc::ptr_eq(&self.ctx, ctx)
    }
}

/// The preStop hook of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreStop {
    /// When the stop of the instance began.
    pub(super) since: Mono,
    /// Time limit for the hook and for the stop after it.
    pub(super) within: Duration,
    /// It has ended, or could not begin, or is not waited for any more.
    pub(super) over: bool,
}

/// What is going on.
#[derive(Clone, Debug, Default)]
pub(super) struct Resize {
    /// The pod requests resources that are not allocated to it.
    pub(super) pending: Option<PendingResize>,
    /// It was given something that its containers do not have yet.
    pub(super) progress: Option<Progress>,
    /// Values that the cgroup was last given; `None`: unknown.
    pub(super) cgroup: Option<CgroupValues>,
    /// Values of the effect in flight.
    pub(super) asked: Option<CgroupValues>,
    /// A container that runs is about to give requests back: no other container of the pod grows before that.
    pub(super) gives_back: bool,
    /// What its containers were last seen to have all of.
    pub(super) settled: Option<PodAllocation>,
}

/// Processors, memory nodes and devices of the pod's containers.
#[derive(Clone, Debug, Default)]
pub(super) struct Placing {
    /// As the managers have assigned them.
    pub(super) wanted: Arc<Placement>,
    /// Processors that the runtime was given for an instance: at its creation or later. Empty after a start of the agent: each
    /// running instance gets them again.
    pub(super) sent: BTreeMap<ContainerId, String>,
    /// Processors of the container that is being created.
    pub(super) creating: String,
    /// Processors of the effect in flight.
    pub(super) asked: BTreeMap<ContainerId, String>,
}

/// Resource claims of the pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    /// What they give the containers; `None`: this incarnation does not know.
    pub(super) known: Option<Arc<PodClaims>>,
    /// The attempt of the sandbox for which they were prepared last.
    pub(super) prepared_for: Option<u32>,
    /// The claims changed after the question of the effect in flight.
    pub(super) is_stale: bool,
    /// How often they could not be prepared, in a row.
    pub(super) failures: u32,
    /// Whether they were given back.
    pub(super) give_back: GiveBack,
}

/// Giving claims back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum GiveBack {
    /// It has not begun.
    #[default]
    Unasked,
    /// It was asked for.
    Asked,
    /// The pod has no claims any more.
    Done,
}
