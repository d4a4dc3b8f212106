//! The node itself.

use orlop_config::boot_trust::TRUST_PHASE;
use orlop_config::ledger::Ledger;
use orlop_proto::node_api::v1alpha1::NodeStatus;

use super::services;
use crate::facts::Facts;

/// The unit of the node agent.
pub(super) const AGENT: &str = "kubelet.service";

pub(super) fn node(facts: &Facts) -> NodeStatus {
    let config = facts.config();
    let join = &config["config"]["join"];
    NodeStatus {
        image_version: facts.os_release_value("IMAGE_VERSION"),
        image_name: facts.os_release_value("PRETTY_NAME"),
        kernel: facts.kernel.trim().to_owned(),
        architecture: std::env::consts::ARCH.to_owned(),
        machine_id: facts.machine_id.trim().to_owned(),
        boot_id: facts.boot_id.trim().to_owned(),
        uptime_seconds: uptime_seconds(&facts.uptime),
        agent: agent(facts),
        cluster: if join.is_object() { "member" } else { "standalone" }.to_owned(),
        api_server: join["server"].as_str().unwrap_or_default().to_owned(),
        degraded: facts.degraded.trim().to_owned(),
        addresses: facts.node_addresses.iter().map(ToString::to_string).collect(),
        firmware: firmware(facts),
    }
}

/// By the boot ledger; empty if it says nothing, or there is none.
fn firmware(facts: &Facts) -> String {
    let entries = Ledger::parse(&facts.ledger).map(|ledger| ledger.entries).unwrap_or_default();
    entries.into_iter().find(|entry| entry.phase == TRUST_PHASE).map(|entry| entry.detail).unwrap_or_default()
}

/// What the agent says it does, or why it says nothing.
fn agent(facts: &Facts) -> String {
    let units = match &facts.services {
        Some(Ok(text)) => services::parse(text),
        Some(Err(refusal)) => return format!("not known: {refusal}"),
        None => return "not known".to_owned(),
    };
    match units.get(AGENT) {
        Some(unit) if unit.active == "active" && !unit.status.is_empty() => unit.status.clone(),
        Some(unit) if unit.active == "active" => unit.sub.clone(),
        Some(unit) => format!("does not run: {}", services::words(unit)),
        None => "does not run: systemd does not know it".to_owned(),
    }
}

/// `proc/uptime`, whole seconds; 0 for another text.
fn uptime_seconds(text: &str) -> u64 {
    text.split(['.', ' ']).next().and_then(|seconds| seconds.trim().parse().ok()).unwrap_or(0)
}
