//! Usage of writable layers and images, from the runtime's last answer. The runtime measures them periodically, but a
//! request for them makes the runtime ask every shim for all other figures, too.
//!
//! In: the runtime's figures, the published containers. Out: the same figures for a while, each with the time of its
//! measurement. Invariant: a container with an unknown layer causes a request at once.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_kubelet_api::stats::ShownPod;
use agent_kubelet_api::stats::disk::Layer;
use agent_types::lock::Lock;
use agent_types::time::Mono;

/// Layers by container, and images.
pub(super) type LayersAndImages = (BTreeMap<String, Layer>, Option<Layer>);

/// The last figures.
pub(super) struct Layers {
    /// `None`: never remembered.
    period: Option<Duration>,
    // Held for a moment only.
    last: Lock<Option<(Mono, LayersAndImages)>>,
}

impl Layers {
    /// `volumeStatsAggPeriod`; negative turns it off.
    pub(super) fn new(period: orlop_config::Duration) -> Layers {
        let period = (period >= orlop_config::Duration::ZERO).then(|| period.to_std());
        Layers { period, last: Lock::default() }
    }

    /// Figures that are younger than a period, if they include all of these containers.
    pub(super) fn fresh(&self, now: Mono, shown: &[ShownPod]) -> Option<LayersAndImages> {
        let last = self.last.lock();
        let (at, told) = last.as_ref()?;
        let mut containers = shown.iter().flat_map(|pod| &pod.containers);
        let fresh = now.since(*at) < self.period? && containers.all(|c| told.0.contains_key(&c.id));
        fresh.then(|| told.clone())
    }

    /// Remembers it.
    pub(super) fn remember(&self, now: Mono, told: &LayersAndImages) {
        *self.last.lock() = Some((now, told.clone()));
    }
}

#[cfg(test)]
mod tests {
    use agent_kubelet_api::stats::ShownContainer;
    use agent_types::time::Wall;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn pod(container: &str) -> ShownPod {
        let container = ShownContainer { id: container.to_owned(), ..ShownContainer::default() };
        ShownPod { containers: vec![container], ..ShownPod::default() }
    }

    #[test]
    fn figures_serve_for_a_period_and_only_those_that_they_have() {
        let layer =
            Layer { at: Wall(7), mountpoint: "/m".to_owned(), used_bytes: Some(1), inodes_used: None };
        let told: LayersAndImages = ([("a".to_owned(), layer)].into(), None);
        let layers = Layers::new(orlop_config::Duration::from_secs(60));
        assert_eq!(layers.fresh(Mono(0), &[]), None, "nothing was told yet");
        layers.remember(Mono(SECOND), &told);
        let at =
            |second: u64, container: &str| layers.fresh(Mono(second * SECOND), &[pod(container)]).is_some();
        assert_eq!([at(1, "a"), at(60, "a"), at(61, "a"), at(2, "new")], [true, true, false, false]);
        let never = Layers::new(orlop_config::Duration::from_secs(-1));
        never.remember(Mono(SECOND), &told);
        assert_eq!(never.fresh(Mono(SECOND), &[pod("a")]), None);
    }
}
