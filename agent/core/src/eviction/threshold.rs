//! Eviction thresholds: parses them from the configuration, and finds those that are met.
//!
//! In: the configuration, the layout of the disks, observations. Out: indices of met thresholds, in the order
//! of service. Invariants: pure; memory is served first; a threshold without an observation is not met; a
//! share is computed in integers, so a few bytes may differ from upstream's 32-bit floats. Upstream:
//! pkg/kubelet/eviction/helpers.go, pkg/kubelet/eviction/api.

use std::time::Duration;

use agent_types::Quantity;
use agent_types::quantity_text::{binary, decimal};
use agent_types::resources::observation::{Layout, Observations};
use orlop_config::kubelet::eviction::{EvictionProblem, Signal};
use orlop_config::kubelet::{KubeletConfiguration, eviction as config};

/// A starved resource, with its name in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Memory, bytes.
    Memory,
    /// Space on disks, bytes.
    EphemeralStorage,
    /// Inodes of a file system.
    Inodes,
    /// Process ids of the kernel.
    Pids,
}

impl Resource {
    /// What the signal is about.
    #[must_use]
    pub fn of(signal: Signal) -> Resource {
        match signal {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => Resource::Memory,
            Signal::NodefsAvailable | Signal::ImagefsAvailable | Signal::ContainerfsAvailable => {
                Resource::EphemeralStorage
            }
            Signal::NodefsInodesFree | Signal::ImagefsInodesFree | Signal::ContainerfsInodesFree => {
                Resource::Inodes
            }
            Signal::PidAvailable => Resource::Pids,
        }
    }

    /// Name of the resource in messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Resource::Memory => "memory",
            Resource::EphemeralStorage => "ephemeral-storage",
            Resource::Inodes => "inodes",
            Resource::Pids => "pids",
        }
    }

    /// It is a disk that is full.
    #[must_use]
    pub fn is_disk(self) -> bool {
        matches!(self, Resource::EphemeralStorage | Resource::Inodes)
    }

    /// Text of an amount in messages.
    #[must_use]
    pub fn text(self, amount: i64) -> String {
        match self {
            Resource::Memory | Resource::EphemeralStorage => binary(amount),
            Resource::Inodes | Resource::Pids => decimal(Quantity::from_units(amount)),
        }
    }
}

/// An amount, absolute or relative to the capacity.
#[derive(Clone, Debug, PartialEq)]
pub enum Amount {
    /// Bytes, inodes or pids, and how they are written.
    Units(i64, String),
    /// Of the capacity.
    Share(f32),
}

impl Amount {
    fn new(amount: &config::Amount) -> Amount {
        match amount {
            config::Amount::Quantity(quantity) => {
                let text = quantity.as_str();
                let parsed = Quantity::parse(text).unwrap_or_default();
                let written = if text.ends_with('i') { binary(parsed.value()) } else { decimal(parsed) };
                Amount::Units(parsed.value(), written)
            }
            config::Amount::Share(share) => Amount::Share(*share),
        }
    }

    /// Of `capacity`.
    #[must_use]
    pub fn of(&self, capacity: i64) -> i64 {
        match self {
            Amount::Units(units, _) => *units,
            // As upstream computes it, to the byte.
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                reason = "upstream's figures"
            )]
            Amount::Share(share) => (capacity as f64 * f64::from(*share)) as i64,
        }
    }

    /// Name of the signal in messages.
    #[must_use]
    pub fn text(&self, capacity: i64) -> String {
        match self {
            Amount::Units(_, written) => written.clone(),
            Amount::Share(_) => binary(self.of(capacity)),
        }
    }
}

/// One eviction threshold of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// What is measured.
    pub signal: Signal,
    /// Less than this is too little.
    pub value: Amount,
    /// Time that the threshold must be met before a pod is evicted; zero for a hard one.
    pub grace: Duration,
    /// What must be free beyond the value once it was met.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// Pods are evicted at once.
    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// Least free amount at which the threshold is not met (any more).
    #[must_use]
    pub fn least(&self, capacity: i64, reclaimed: bool) -> i64 {
        let more = self.min_reclaim.as_ref().filter(|_| reclaimed).map_or(0, |amount| amount.of(capacity));
        self.value.of(capacity).saturating_add(more)
    }

    /// True if less than the threshold is free. `reclaimed`: the minimum reclaim counts on top of the
    /// threshold.
    #[must_use]
    pub fn is_met(&self, observations: &Observations, reclaimed: bool) -> bool {
        let observed = observations.get(&self.signal);
        observed.is_some_and(|o| self.least(o.capacity, reclaimed) > o.available)
    }

    /// Memory before everything, hard before soft, then by signal: upstream leaves the rest to chance.
    #[must_use]
    pub fn rank(&self) -> (bool, bool, Signal) {
        (Resource::of(self.signal) != Resource::Memory, !self.is_hard(), self.signal)
    }
}

/// The thresholds of a configuration.
///
/// # Errors
/// Every wrong entry.
pub(super) fn of_configuration(
    kubelet: &KubeletConfiguration,
) -> Result<Vec<Threshold>, Vec<EvictionProblem>> {
    let threshold = |found: config::Threshold| Threshold {
        signal: found.signal,
        value: Amount::new(&found.value),
        grace: found.grace_period.map(orlop_config::Duration::to_std).unwrap_or_default(),
        min_reclaim: found.min_reclaim.as_ref().map(Amount::new),
    };
    Ok(config::thresholds(kubelet)?.into_iter().map(threshold).collect())
}

/// `containerfs` has the thresholds of the file system with the writable layers; its own configuration does
/// not count. Upstream: `UpdateContainerFsThresholds` of pkg/kubelet/eviction/helpers.go.
pub(super) fn with_containerfs(thresholds: &[Threshold], layout: Layout) -> Vec<Threshold> {
    let of_images = layout.dedicated_images && !layout.split_containers;
    let twin = |signal: Signal| match (signal, of_images) {
        (Signal::NodefsAvailable, false) | (Signal::ImagefsAvailable, true) => {
            Some(Signal::ContainerfsAvailable)
        }
        (Signal::NodefsInodesFree, false) | (Signal::ImagefsInodesFree, true) => {
            Some(Signal::ContainerfsInodesFree)
        }
        _ => None,
    };
    let is_own =
        |t: &&Threshold| !matches!(t.signal, Signal::ContainerfsAvailable | Signal::ContainerfsInodesFree);
    let own = thresholds.iter().filter(is_own);
    let twins = own.clone().filter_map(|t| Some(Threshold { signal: twin(t.signal)?, ..t.clone() }));
    own.cloned().chain(twins).collect()
}

/// Those of `thresholds` that are met.
pub(super) fn met<'t>(
    thresholds: &'t [Threshold],
    observations: &'t Observations,
    reclaimed: bool,
) -> impl Iterator<Item = usize> + 't {
    let is_met = move |(_, t): &(usize, &Threshold)| t.is_met(observations, reclaimed);
    thresholds.iter().enumerate().filter(is_met).map(|(index, _)| index)
}
