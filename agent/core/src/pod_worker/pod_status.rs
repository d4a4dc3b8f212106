//! The pod's status, as its worker publishes it.
//!
//! In: the worker's data, waiting reasons of containers, the stage of the pod's life. Out:
//! [`PodAction::PublishStatus`]. Invariant: a status that equals the last one is not published, and not generated if
//! that is known before.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::ids::ContainerId;
use agent_types::machine::Outbox;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::api::PodAction;
use super::base::Base;
use super::status_basis::{LifeStage, OwnParts, SharedParts, StatusBasis};
use super::tracker::Target;
use crate::status::{self, Phase, StatusInputs, Verdict, WaitingReason};

/// How far a pod has come, and what was decided about it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stage<'a> {
    verdict: Option<&'a Verdict>,
    life: LifeStage,
}

impl<'a> Stage<'a> {
    /// Containers are started as they should run.
    pub(super) const MAY_START: Stage<'static> = Stage { verdict: None, life: LifeStage::MayStart };

    /// No container is started any more.
    pub(super) fn down(verdict: Option<&'a Verdict>) -> Stage<'a> {
        Stage { verdict, life: LifeStage::Down }
    }

    /// No container runs any more.
    pub(super) fn over(verdict: Option<&'a Verdict>) -> Stage<'a> {
        Stage { verdict, life: LifeStage::Over }
    }

    fn may_start(self) -> bool {
        self.life == LifeStage::MayStart
    }

    fn is_terminating(self) -> bool {
        matches!(self.life, LifeStage::Down | LifeStage::Over)
    }
}

impl Base {
    /// Publishes what `finish` makes of the pod's status, if it differs from the last one; nothing if `finish` makes
    /// nothing of it. The result of `finish` depends only on its arguments. As long as nothing changed that a status shows,
    /// none is generated: for a pod of many containers that is the largest part of a pass.
    pub(super) fn tell(
        &mut self,
        pod: &Arc<Pod>,
        waiting: &BTreeMap<String, WaitingReason>,
        stage: Stage<'_>,
        now: Now,
        finish: impl FnOnce(&Base, PodStatus) -> Option<PodStatus>,
        out: &mut Outbox<PodAction>,
    ) {
        let basis = self.basis(pod, waiting, stage, now);
        let is_told = self.told.is_some() && self.told == basis;
        if is_told && !cfg!(test) {
            self.told = basis;
            return;
        }
        self.counts.statuses += u64::from(!is_told);
        let generated = self.with_status_inputs(pod, waiting, stage, now, status::generate);
        let Some(status) = finish(self, generated) else { return };
        if self.published.as_deref() == Some(&status) {
            self.told = basis;
            return;
        }
        // Tests generate every status, and prove at each step that those which the agent does not generate are the last ones.
        assert!(!is_told, "a status changed without a change of its basis");
        self.told = None;
        let status = Arc::new(status);
        self.published = Some(Arc::clone(&status));
        out.push(PodAction::PublishStatus(status));
    }

    fn basis(
        &mut self,
        pod: &Arc<Pod>,
        waiting: &BTreeMap<String, WaitingReason>,
        stage: Stage<'_>,
        now: Now,
    ) -> Option<StatusBasis> {
        let start_time = self.start_time(pod, now);
        let shared = SharedParts {
            pod: pod.clone(),
            snapshot: self.snapshot.clone(),
            ctx: self.ctx.clone(),
            placement: self.placing.wanted.clone(),
            claims: self.claims.known.clone(),
            previous: self.published.clone()?,
        };
        let own = OwnParts {
            life: stage.life,
            verdict: stage.verdict.cloned(),
            waiting: waiting.clone(),
            hidden: self.hidden(stage),
            probes: self.probes.verdicts().clone(),
            replaced: self.replaced.clone(),
            resetting: self.resetting,
            pending: self.resize.pending.clone(),
            progress: self.resize.progress.clone(),
            cgroup: self.resize.cgroup.clone(),
            start_time,
        };
        Some(StatusBasis { shared, own })
    }

    /// The end that the pod's status would show.
    pub(super) fn ended(
        &mut self,
        pod: &Arc<Pod>,
        waiting: &BTreeMap<String, WaitingReason>,
        stage: Stage<'_>,
        now: Now,
    ) -> Option<Phase> {
        self.with_status_inputs(pod, waiting, stage, now, status::ended)
    }

    fn with_status_inputs<T>(
        &mut self,
        pod: &Arc<Pod>,
        waiting: &BTreeMap<String, WaitingReason>,
        stage: Stage<'_>,
        now: Now,
        take: impl FnOnce(&StatusInputs<'_>) -> T,
    ) -> T {
        let start_time = self.start_time(pod, now);
        let features = self.ctx.specs.features();
        let wanted = if features.pod_level_resize { self.wanted_cgroup(pod) } else { None };
        let whole = features.pod_level_resize.then(|| {
            let applied = self.resize.cgroup.as_ref();
            let settled = applied == wanted.as_ref().map(|cgroup| &cgroup.values);
            status::PodCgroupState { applied, settled }
        });
        let snapshot = self.snapshot.as_deref();
        let snapshot =
            snapshot.map(|seen| if stage.may_start() { self.reported(seen) } else { Cow::Borrowed(seen) });
        take(&StatusInputs {
            pod,
            snapshot: snapshot.as_deref(),
            waiting,
            previous: self.published.as_deref(),
            terminating: stage.is_terminating(),
            may_start: stage.may_start(),
            verdict: stage.verdict,
            probes: self.probes.verdicts(),
            resetting: self.resetting,
            replaced: &self.replaced,
            resize: status::ResizeShown {
                pending: self.resize.pending.as_ref(),
                progress: self.resize.progress.as_ref(),
                whole,
            },
            stop_signals: features.stop_signals,
            devices: features.resource_health.then_some(status::DevicesShown {
                of_plugins: &self.placing.wanted.devices,
                of_claims: self.claims.known.as_deref(),
            }),
            recursive_read_only: self.makes_read_only(),
            host_ips: &self.ctx.host_ips,
            ipv6_first: self.ctx.ipv6_first,
            runtime_name: &self.ctx.runtime_name,
            start_time,
            now: now.wall,
        })
    }

    /// The snapshot for the status: without containers that are created but not started. No component waits
    /// for that state, and it costs a status of its own; readers also take a container with resources for a
    /// running one.
    fn reported<'a>(&self, seen: &'a PodSnapshot) -> Cow<'a, PodSnapshot> {
        let is_shown = |c: &ContainerObserved| self.is_shown(c, seen.as_of);
        if seen.containers.iter().all(is_shown) {
            return Cow::Borrowed(seen);
        }
        let mut told = seen.clone();
        told.containers.retain(is_shown);
        Cow::Owned(told)
    }

    fn is_shown(&self, c: &ContainerObserved, as_of: Mono) -> bool {
        c.state != ContainerState::Created || self.tracker.fresh(&Target::Container(c.name.clone()), as_of)
    }

    /// The containers that [`Base::reported`] leaves out at this stage.
    fn hidden(&self, stage: Stage<'_>) -> Vec<ContainerId> {
        let Some(seen) = self.snapshot.as_ref().filter(|_| stage.may_start()) else { return Vec::new() };
        let hidden = seen.containers.iter().filter(|c| !self.is_shown(c, seen.as_of));
        hidden.map(|c| c.id.clone()).collect()
    }
}
