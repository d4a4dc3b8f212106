//! Resizes of pods.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_core::pod_manager::ResizeNote;
use agent_core::status::{PENDING_RESIZE, PROGRESS_OF_RESIZE};
use agent_kubelet_api::metrics::families;

use super::{Metrics, MetricsState};
use crate::pods::status::PodViews;

impl Metrics {
    /// A resize was requested, was carried out, or is infeasible.
    pub fn resize(&self, note: &ResizeNote) {
        self.with(|state| match note {
            ResizeNote::Requested((resource, requirement, operation)) => {
                state.main.count(&families::REQUESTED_RESIZES, [resource, requirement, operation]);
            }
            ResizeNote::Infeasible(detail) => state.main.count(&families::INFEASIBLE_RESIZES, [detail]),
            ResizeNote::DeferredAccepted(trigger) => {
                state.main.count(&families::DEFERRED_ACCEPTED_RESIZES, [trigger]);
            }
        });
    }

    /// The resources of a pod's containers were changed, or the change failed.
    pub fn resized(&self, took: Duration, done: bool) {
        let done = if done { "true" } else { "false" };
        let ms = took.as_secs_f64() * 1000.0;
        self.with(|state| state.main.observe(&families::RESIZE_DURATION, [done], ms));
    }
}

impl MetricsState {
    /// Counts the resizes in the pods' statuses.
    pub(super) fn tell_resizes(&mut self, statuses: &PodViews) {
        let mut pending = BTreeMap::<String, u32>::new();
        let mut under_way = 0u32;
        let shown = statuses.values().flat_map(|view| view.status.conditions.iter().flatten());
        for condition in shown {
            if condition.type_ == PENDING_RESIZE {
                let reason = condition.reason.as_deref().unwrap_or_default().to_lowercase();
                *pending.entry(reason).or_default() += 1;
            }
            under_way += u32::from(condition.type_ == PROGRESS_OF_RESIZE);
        }
        self.main.clear(families::PENDING_RESIZES.name);
        for (reason, n) in pending {
            self.main.set(&families::PENDING_RESIZES, [&reason], n.into());
        }
        self.main.set(&families::PROGRESSING_RESIZES, [], under_way.into());
    }
}
