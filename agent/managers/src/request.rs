//! The requests of a pod's containers, as the managers need them.
//!
//! In: nothing. Out: plain values that an adapter makes from a Pod. Invariant: containers are in the order of the spec. Upstream:
//! the fields of v1.Pod that cpumanager, memorymanager and devicemanager read.

use std::collections::{BTreeMap, BTreeSet};

/// A resource's name in a request (`memory`, `hugepages-2Mi`, `example.com/gpu`).
pub type ResourceName = String;

/// A pod in admission.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// UID of the pod.
    pub uid: String,
    /// QoS class Guaranteed.
    pub guaranteed: bool,
    /// `spec.resources` is set. Without the gate PodLevelResourceManagers such a pod has nothing exclusive.
    pub pod_level: bool,
    /// Init containers, then the others.
    pub containers: Vec<ContainerRequest>,
}

/// A container's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An init container that ends.
    Init,
    /// An init container that keeps running (restartPolicy Always).
    Sidecar,
    /// A regular container.
    App,
}

/// The request of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Name in the spec.
    pub name: String,
    /// Kind.
    pub kind: Kind,
    /// Requested processors, thousandths.
    pub cpu_milli: u64,
    /// Requested memory and huge pages, bytes; the resources that the request names.
    pub memory: BTreeMap<ResourceName, u64>,
    /// Devices.
    pub devices: DeviceLimits,
}

/// The extended resources of a container. Their requests equal their limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceLimits {
    /// The limits. The device manager ignores resources that no device plugin has registered.
    pub limits: BTreeMap<ResourceName, u64>,
    /// Resources among them that a resource claim provides (`status.extendedResourceClaimStatus`).
    pub claimed: BTreeSet<ResourceName>,
}

impl PodRequest {
    /// True if containers of the pod may have exclusive resources.
    #[must_use]
    pub fn is_eligible(&self) -> bool {
        self.guaranteed && !self.pod_level
    }

    /// The container of this name.
    #[must_use]
    pub fn container(&self, name: &str) -> Option<&ContainerRequest> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// The largest amount that containers of the pod have at one time: an init container with the sidecars before it, or
    /// all sidecars and app containers.
    #[must_use]
    pub fn peak(&self, amount: impl Fn(&ContainerRequest) -> u64) -> u64 {
        let (mut init, mut sidecars, mut app) = (0, 0_u64, 0_u64);
        for container in &self.containers {
            let amount = amount(container);
            match container.kind {
                Kind::Init => init = sidecars.saturating_add(amount).max(init),
                Kind::Sidecar => sidecars = sidecars.saturating_add(amount),
                Kind::App => app = app.saturating_add(amount),
            }
        }
        init.max(sidecars.saturating_add(app))
    }
}

impl ContainerRequest {
    /// Whole processors; 0 for a request that is not a whole number.
    #[must_use]
    pub fn whole_cpus(&self) -> usize {
        if self.cpu_milli.is_multiple_of(1000) {
            usize::try_from(self.cpu_milli / 1000).unwrap_or(usize::MAX)
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(kind: Kind, cpus: u64) -> ContainerRequest {
        ContainerRequest {
            name: String::new(),
            kind,
            cpu_milli: cpus * 1000,
            memory: BTreeMap::new(),
            devices: DeviceLimits::default(),
        }
    }

    #[test]
    fn the_peak_is_an_init_container_with_the_sidecars_before_it_or_all_that_go_on() {
        use Kind::{App, Init, Sidecar};
        let containers = [(Init, 5), (Sidecar, 1), (Sidecar, 2), (Init, 5), (Sidecar, 3), (App, 1)]
            .map(|(kind, n)| container(kind, n));
        let pod = PodRequest { containers: containers.to_vec(), ..PodRequest::default() };
        assert_eq!(pod.peak(|container| container.cpu_milli / 1000), 8);
    }

    #[test]
    fn a_part_of_a_processor_is_nothing_exclusive() {
        let mut container = container(Kind::App, 2);
        assert_eq!(container.whole_cpus(), 2);
        container.cpu_milli = 1500;
        assert_eq!(container.whole_cpus(), 0);
    }
}
