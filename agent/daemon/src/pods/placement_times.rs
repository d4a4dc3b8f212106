//! The time from the judgement of a pod's placement to its outcome, for `kubelet_topology_manager_admission_duration_ms`.
//!
//! In: questions to device plugins, the number of judged placements after a step of the pod manager. Out: durations. Invariant: a pod
//! that waits for a plugin is counted once, when it waits no longer; questions for the start of a container are no placements.
//! Upstream: pkg/kubelet/cm/topologymanager.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::time::Mono;

/// Pods that wait for device plugins, and the number of placements whose duration is known.
#[derive(Debug, Default)]
pub(super) struct PlacementTimes {
    asked: BTreeMap<PodUid, Mono>,
    /// Questions of the present step.
    new: BTreeMap<PodUid, Mono>,
    judged: u64,
}

impl PlacementTimes {
    /// A plugin is asked for the pod's devices.
    pub(super) fn asks(&mut self, uid: &PodUid, now: Mono) {
        self.new.entry(uid.clone()).or_insert(now);
    }

    /// The durations of placements that were judged in the step that began at `now` and took `step`. `judged`: their number since the
    /// start of the agent. `waits`: the pod's placement waits for a plugin.
    pub(super) fn after(
        &mut self,
        now: Mono,
        step: Duration,
        judged: u64,
        waits: impl Fn(&PodUid) -> bool,
    ) -> Vec<Duration> {
        let new = usize::try_from(judged.saturating_sub(std::mem::replace(&mut self.judged, judged)));
        for (uid, since) in std::mem::take(&mut self.new).into_iter().filter(|(uid, _)| waits(uid)) {
            self.asked.entry(uid).or_insert(since);
        }
        let over: Vec<PodUid> = self.asked.keys().filter(|uid| !waits(uid)).cloned().collect();
        let asked = over.iter().filter_map(|uid| self.asked.remove(uid));
        let asked: Vec<Duration> = asked.map(|since| now.since(since) + step).collect();
        asked.into_iter().chain(std::iter::repeat(step)).take(new.unwrap_or_default()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_waits_for_a_plugin_is_counted_when_it_waits_no_longer() {
        const SECOND: u64 = 1_000_000_000;
        let (mut times, ms) = (PlacementTimes::default(), Duration::from_millis);
        assert_eq!(times.after(Mono(0), ms(1), 2, |_| false), [ms(1), ms(1)]);
        times.asks(&"u".into(), Mono(0));
        assert!(times.after(Mono(0), ms(1), 2, |_| true).is_empty());
        times.asks(&"u".into(), Mono(SECOND));
        assert!(times.after(Mono(SECOND), ms(1), 2, |_| true).is_empty());
        assert_eq!(times.after(Mono(2 * SECOND), ms(1), 4, |_| false), [ms(2001), ms(1)]);
        assert!(times.after(Mono(3 * SECOND), ms(1), 4, |_| false).is_empty());
    }

    #[test]
    fn a_question_for_the_start_of_a_container_is_no_placement() {
        let (mut times, ms) = (PlacementTimes::default(), Duration::from_millis);
        times.asks(&"u".into(), Mono(0));
        assert!(times.after(Mono(0), ms(1), 0, |_| false).is_empty());
        assert_eq!(times.after(Mono(9_000_000), ms(1), 1, |_| false), [ms(1)]);
    }
}
