//! The versions that a run offers, and what is wrong with them.

use std::collections::BTreeSet;

use agent_core::node_update::check::CheckName;

use crate::checks::Violation;
use crate::rng::Rng;

/// What a version does on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quality {
    /// Everything that the version before did.
    Good,
    /// A check fails, whatever the cluster does.
    Fails(CheckName),
    /// The agent never runs.
    Silent,
    /// The kernel dies before init.
    DiesEarly,
}

/// A version.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) version: String,
    pub(super) generation: u64,
    pub(super) quality: Quality,
}

impl Release {
    pub(super) fn draw(number: u64, rng: &mut Rng, is_good: bool) -> Release {
        let checks = [
            CheckName::StaticPods,
            CheckName::Gateway,
            CheckName::Runtime,
            CheckName::NodeReady,
            CheckName::StatePartition,
        ];
        let quality = match rng.below(10) {
            _ if is_good => Quality::Good,
            0..5 => Quality::Good,
            5..8 => Quality::Fails(rng.pick(&checks).copied().unwrap_or(CheckName::Runtime)),
            8 => Quality::Silent,
            _ => Quality::DiesEarly,
        };
        Release { version: format!("1.{number}.0"), generation: number, quality }
    }

    pub(super) fn content(&self, is_whole: bool) -> SlotContent {
        SlotContent {
            version: self.version.clone(),
            generation: self.generation,
            is_whole,
            dies_early: self.quality == Quality::DiesEarly,
        }
    }
}

/// What a slot has.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotContent {
    pub(super) version: String,
    pub(super) generation: u64,
    pub(super) is_whole: bool,
    pub(super) dies_early: bool,
}

pub(super) fn violation(invariant: &'static str, detail: String) -> Violation {
    Violation { invariant, detail }
}

/// The checks that fail while the API server is away.
pub(super) fn away() -> BTreeSet<CheckName> {
    [CheckName::Api, CheckName::ApiIdentity, CheckName::Lease, CheckName::NodeReady].into_iter().collect()
}
