//! Updates of the node: what the slots hold, where an update is, how updates ended.

use agent_core::node_update::plan::UpdatePhase;
use agent_kubelet_api::metrics::families;
use orlop_config::slots::{BootRecord, SlotName};
use orlop_update::service::bytes::UpdateBytes;

use super::Metrics;

impl Metrics {
    /// The boot record as it is now.
    pub fn slots(&self, record: &BootRecord) {
        self.with(|state| {
            state.main.clear(families::SLOT_INFO.name);
            for slot in SlotName::ALL {
                let held = record.slot(slot);
                let labels = [slot.letter(), held.version.as_str(), held.state.name()];
                state.main.set(&families::SLOT_INFO, labels, 1.0);
            }
            state.main.set(&families::BOOTS_UNREADY, [], record.unready.into());
        });
    }

    /// The phase of the update.
    pub fn update_phase(&self, phase: UpdatePhase) {
        // As in the file of the plan.
        let name = serde_json::to_value(phase).ok();
        let name = name.as_ref().and_then(|name| name.as_str()).unwrap_or_default();
        self.with(|state| {
            state.main.clear(families::UPDATE_PHASE.name);
            state.main.set(&families::UPDATE_PHASE, [name], 1.0);
        });
    }

    /// Where the bytes of the staged releases came from.
    pub fn update_bytes(&self, bytes: UpdateBytes) {
        self.with(|state| {
            let all = [("source", bytes.source), ("slot", bytes.slot), ("present", bytes.present)];
            for (from, is) in all {
                state.main.total(&families::UPDATE_BYTES, [from], is as f64);
            }
        });
    }

    /// An update has ended.
    pub fn update_ended(&self, result: &str) {
        self.with(|state| state.main.count(&families::UPDATE_ATTEMPTS, [result]));
    }
}
