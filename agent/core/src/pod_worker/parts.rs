//! Parts of a worker's state: its cgroup, its preStop hooks, its resize.

use std::time::Duration;

use agent_types::resources::cgroups::CgroupValues;
use agent_types::time::Mono;

use crate::allocation::PodAllocation;
use crate::allocation::resize::PendingResize;
use crate::status::Progress;

/// What this incarnation did to it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cgroup {
    /// Nothing.
    Unseen,
    /// Made it, or saw that it is as it should be; asked for then.
    Made(Mono),
    /// Removed it.
    Removed,
}

/// The preStop hook of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreStop {
    /// When the stop of the instance began.
    pub(super) since: Mono,
    /// How long it may take, the hook and what follows.
    pub(super) within: Duration,
    /// It has ended, or could not begin, or is not waited for any more.
    pub(super) over: bool,
}

/// What is going on.
#[derive(Clone, Debug, Default)]
pub(super) struct Resize {
    /// The pod asks for something that it was not given.
    pub(super) pending: Option<PendingResize>,
    /// It was given something that its containers do not have yet.
    pub(super) progress: Option<Progress>,
    /// What its cgroup was last given; `None`: nobody knows.
    pub(super) cgroup: Option<CgroupValues>,
    /// What it is being given.
    pub(super) asked: Option<CgroupValues>,
    /// What its containers were last seen to have all of.
    pub(super) settled: Option<PodAllocation>,
}
