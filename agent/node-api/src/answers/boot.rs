//! The boot: its phases, and the root that it took.

use agent_core::console::banner::booted_root;
use orlop_config::ledger::Ledger;
use orlop_proto::node_api::v1alpha1::object::Status;
use orlop_proto::node_api::v1alpha1::{BootPhase, SlotStatus};

use super::NamedObjects;
use crate::facts::Facts;
use crate::refusal::{Reason, Refusal};

/// The ledger of this boot.
///
/// # Errors
/// There is none, or it cannot be read.
pub(super) fn ledger(facts: &Facts) -> Result<Ledger, Refusal> {
    let refused = |message: String| Refusal::new(Reason::PartDown, "boot ledger", message);
    if facts.ledger.trim().is_empty() {
        return Err(refused(
            "/run/orlop/boot.json is not there: orlop-initrd did not boot this machine".to_owned(),
        ));
    }
    Ledger::parse(&facts.ledger).map_err(|error| refused(error.to_string()))
}

pub(super) fn phases(facts: &Facts) -> Result<NamedObjects, Refusal> {
    let entries = ledger(facts)?.entries.into_iter();
    let phase = |entry: orlop_config::ledger::LedgerEntry| {
        let phase =
            BootPhase { at_ms: entry.at_ms, took_ms: entry.took_ms, detail: entry.detail, ok: entry.ok };
        (entry.phase, Status::Boot(phase))
    };
    Ok(entries.map(phase).collect())
}

pub(super) fn slots(facts: &Facts) -> Result<NamedObjects, Refusal> {
    let ledger = ledger(facts)?;
    let verity = ledger.entries.iter().find(|entry| entry.phase == "init.verity");
    let booted = verity.and_then(|entry| booted_root(&entry.detail));
    let Some((slot, partition, hash)) = booted else {
        let message = "it has no phase `init.verity` with a root";
        return Err(Refusal::new(Reason::PartDown, "boot ledger", message));
    };
    let name = if slot.is_empty() { partition } else { slot };
    let status = SlotStatus {
        slot: slot.to_owned(),
        partition: partition.to_owned(),
        root_hash: hash.split_whitespace().next().unwrap_or_default().to_owned(),
        image_version: facts.os_release_value("IMAGE_VERSION"),
    };
    Ok(vec![(name.to_owned(), Status::Slot(status))])
}
