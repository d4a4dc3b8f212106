//! Updates of the node (docs/reference/update.md). Upstream has none of these.

use super::{Counter, Gauge, counter, gauge};

/// Always 1.
pub static SLOT_INFO: Gauge<3> = gauge(
    "orlop_slot_info",
    ["slot", "version", "state"],
    "What each slot of the disk holds; the state is empty, writing, staged, trial, good or refused.",
);
/// 1 for the present phase.
pub static UPDATE_PHASE: Gauge<1> =
    gauge("orlop_update_phase", ["phase"], "1 for the phase of the update that is under way, or idle.");
/// By the event's reason.
pub static UPDATE_ATTEMPTS: Counter<1> = counter(
    "orlop_update_attempts_total",
    ["result"],
    "Updates that ended since the agent began: committed, rolled-back or refused.",
);
/// Boots in a row.
pub static BOOTS_UNREADY: Gauge<0> = gauge(
    "orlop_boots_unready",
    [],
    "Boots in a row of the desired slot in which the node did not become ready.",
);
/// As the updater counts them, over restarts of the agent and of the machine.
pub static UPDATE_BYTES: Counter<1> = counter(
    "orlop_update_bytes_total",
    ["from"],
    "Bytes of the releases that were staged: from the source, copied from the slot that ran, or present before.",
);
