//! Eviction thresholds: signals, defaults, and the typed form of the four maps.
//!
//! In: `evictionHard`, `evictionSoft`, `evictionSoftGracePeriod`, `evictionMinimumReclaim`. Out: [`Threshold`]s.
//! Upstream term: `eviction.ParseThresholdConfig`.

use super::KubeletConfiguration;
use super::enums::NodeAllocatableEnforcement;
use crate::duration::Duration;
use crate::field::config_enum;
use crate::path;
use crate::quantity::Quantity;
use std::collections::BTreeMap;

config_enum! {
    /// What is measured.
    pub enum Signal {
        /// Memory of the node.
        MemoryAvailable = "memory.available",
        /// Memory of all pods together.
        AllocatableMemoryAvailable = "allocatableMemory.available",
        /// Space of the file system with volumes and logs.
        NodefsAvailable = "nodefs.available",
        /// Inodes of that file system.
        NodefsInodesFree = "nodefs.inodesFree",
        /// Space of the file system with images.
        ImagefsAvailable = "imagefs.available",
        /// Inodes of that file system.
        ImagefsInodesFree = "imagefs.inodesFree",
        /// Space of the file system with writable layers.
        ContainerfsAvailable = "containerfs.available",
        /// Inodes of that file system.
        ContainerfsInodesFree = "containerfs.inodesFree",
        /// Process ids of the node.
        PidAvailable = "pid.available",
    }
}

/// Every signal.
pub const SIGNALS: [Signal; 9] = [
    Signal::MemoryAvailable,
    Signal::AllocatableMemoryAvailable,
    Signal::NodefsAvailable,
    Signal::NodefsInodesFree,
    Signal::ImagefsAvailable,
    Signal::ImagefsInodesFree,
    Signal::ContainerfsAvailable,
    Signal::ContainerfsInodesFree,
    Signal::PidAvailable,
];

/// Hard thresholds of a node whose configuration sets none.
const DEFAULT_HARD: [(Signal, &str); 5] = [
    (Signal::MemoryAvailable, "100Mi"),
    (Signal::NodefsAvailable, "10%"),
    (Signal::NodefsInodesFree, "5%"),
    (Signal::ImagefsAvailable, "15%"),
    (Signal::ImagefsInodesFree, "5%"),
];

/// `evictionHard` of a node whose configuration sets none.
#[must_use]
pub fn default_hard() -> BTreeMap<String, String> {
    DEFAULT_HARD.iter().map(|(s, v)| (s.as_str().to_owned(), (*v).to_owned())).collect()
}

/// An amount, absolute or relative to the capacity.
#[derive(Clone, Debug, PartialEq)]
pub enum Amount {
    /// Bytes, inodes or pids.
    Quantity(Quantity),
    /// Share of the capacity, 0 to 1. In upstream's precision: a share is some bytes more or less in another.
    Share(f32),
}

/// One threshold: crossed when less than `value` is left.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    /// What is measured.
    pub signal: Signal,
    /// Less than this is too little.
    pub value: Amount,
    /// How long it must be so before pods are evicted; none for a hard threshold.
    pub grace_period: Option<Duration>,
    /// What must be free beyond the value once crossed.
    pub min_reclaim: Option<Amount>,
}

/// A wrong entry of the maps: JSON path, value, what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionProblem {
    /// Dotted path.
    pub path: String,
    /// As written.
    pub value: Option<String>,
    /// What is allowed.
    pub reason: String,
}

/// The signal of that name.
#[must_use]
pub fn signal(name: &str) -> Option<Signal> {
    SIGNALS.into_iter().find(|s| s.as_str() == name)
}

/// The typed thresholds, hard before soft, sorted by signal name.
///
/// # Errors
/// Every wrong entry of the four maps.
pub fn thresholds(config: &KubeletConfiguration) -> Result<Vec<Threshold>, Vec<EvictionProblem>> {
    let mut problems = Vec::new();
    let graces = entries("evictionSoftGracePeriod", &config.eviction_soft_grace_period, &mut problems, grace);
    let reclaims =
        entries("evictionMinimumReclaim", &config.eviction_minimum_reclaim, &mut problems, reclaim);
    let hard = entries("evictionHard", &config.eviction_hard, &mut problems, threshold);
    let soft = entries("evictionSoft", &config.eviction_soft, &mut problems, threshold);
    let mut found = Vec::new();
    for (signal, value) in hard {
        let Some(value) = value else { continue };
        found.push(Threshold {
            signal,
            value,
            grace_period: None,
            min_reclaim: reclaims.get(&signal).cloned(),
        });
    }
    for (signal, value) in soft {
        let Some(value) = value else { continue };
        match graces.get(&signal) {
            Some(grace) => found.push(Threshold {
                signal,
                value,
                grace_period: Some(*grace),
                min_reclaim: reclaims.get(&signal).cloned(),
            }),
            None => problems.push(EvictionProblem {
                path: path::child("evictionSoft", signal.as_str()),
                value: None,
                reason: format!("needs a grace period: set evictionSoftGracePeriod for {}", signal.as_str()),
            }),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    // Pods together may not use more than their share: the node's memory threshold counts for them as well.
    if config.enforce_node_allocatable.contains(&NodeAllocatableEnforcement::Pods) {
        let memory = found.iter().find(|t| t.signal == Signal::MemoryAvailable && t.grace_period.is_none());
        if let Some(memory) = memory.cloned() {
            found.push(Threshold { signal: Signal::AllocatableMemoryAvailable, ..memory });
        }
    }
    Ok(found)
}

/// Every readable entry of one map.
fn entries<T>(
    field: &str,
    map: &BTreeMap<String, String>,
    problems: &mut Vec<EvictionProblem>,
    read: fn(&str) -> Result<T, &'static str>,
) -> BTreeMap<Signal, T> {
    let mut found = BTreeMap::new();
    for (name, text) in map {
        let path = path::child(field, name);
        let Some(signal) = signal(name) else {
            let names: Vec<&str> = SIGNALS.iter().map(|s| s.as_str()).collect();
            let reason = format!("is an unknown eviction signal, allowed are {}", names.join(", "));
            problems.push(EvictionProblem { path, value: None, reason });
            continue;
        };
        match read(text) {
            Ok(value) => {
                found.insert(signal, value);
            }
            Err(reason) => {
                problems.push(EvictionProblem { path, value: Some(text.clone()), reason: reason.to_owned() });
            }
        }
    }
    found
}

fn share(text: &str) -> Option<f32> {
    let number = text.strip_suffix('%')?;
    let plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if !plain {
        return None;
    }
    number.parse::<f32>().ok().map(|n| n / 100.0)
}

/// `None`: 0% and 100% switch the threshold off.
fn threshold(text: &str) -> Result<Option<Amount>, &'static str> {
    const ALLOWED: &str = "must be a quantity above 0 or a percentage from 0% to 100%";
    if text == "0%" || text == "100%" {
        return Ok(None);
    }
    if text.ends_with('%') {
        let share = share(text).filter(|s| (0.0..=1.0).contains(s)).ok_or(ALLOWED)?;
        return Ok(Some(Amount::Share(share)));
    }
    let quantity = Quantity::parse(text).ok().filter(|q| q.signum() > 0).ok_or(ALLOWED)?;
    Ok(Some(Amount::Quantity(quantity)))
}

fn reclaim(text: &str) -> Result<Amount, &'static str> {
    const ALLOWED: &str = "must be a quantity of 0 or more, or a percentage above 0%";
    if text.ends_with('%') {
        return share(text).filter(|s| *s > 0.0).map(Amount::Share).ok_or(ALLOWED);
    }
    Quantity::parse(text).ok().filter(|q| q.signum() >= 0).map(Amount::Quantity).ok_or(ALLOWED)
}

fn grace(text: &str) -> Result<Duration, &'static str> {
    Duration::parse(text)
        .ok()
        .filter(|d| *d >= Duration::ZERO)
        .ok_or("must be a duration of 0s or more, such as \"1m30s\"")
}

#[cfg(test)]
mod tests;
