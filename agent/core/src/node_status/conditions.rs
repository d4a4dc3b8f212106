//! The Node's conditions (API field `status.conditions`).
//!
//! In: pressures, errors of runtime, network, storage and shutdown, the end of the last boot, whether a stop
//! would be delayed, updates of the node, the conditions that the Node has. Out: the new conditions, and events for those that
//! change. Invariants: `lastHeartbeatTime` is new in each report, `lastTransitionTime` only when the status
//! changes; reason and message of a pressure condition change on a transition only; Ready is last in a new
//! list. Upstream: pkg/kubelet/nodestatus/setters.go, pkg/kubelet/runtime.go.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_types::api_time::api_time;
use agent_types::resources::node_allocatable::{EPHEMERAL_STORAGE, PODS};
use agent_types::resources::requests::{CPU, MEMORY};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::{Node, NodeCondition};

use super::inputs::Inputs;
use crate::node_shutdown::{LastEnd, NO_DELAY, UNCLEAN_SHUTDOWN};
use crate::node_update::report::UpdateShown;

/// A runtime that was not seen ready for this long is down.
const RUNTIME_SYNC_THRESHOLD: Duration = Duration::from_secs(30);

/// One pressure condition: type, and for false and true its reason, message and event.
pub(super) struct Pressure {
    pub(super) kind: &'static str,
    absent: [&'static str; 3],
    pub(super) present: [&'static str; 3],
}

/// All of them.
pub(super) const PRESSURES: [Pressure; 3] = [MEMORY_PRESSURE, DISK_PRESSURE, PID_PRESSURE];

const MEMORY_PRESSURE: Pressure = Pressure {
    kind: "MemoryPressure",
    absent: [
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
        "NodeHasSufficientMemory",
    ],
    present: [
        "KubeletHasInsufficientMemory",
        "kubelet has insufficient memory available",
        "NodeHasInsufficientMemory",
    ],
};

const DISK_PRESSURE: Pressure = Pressure {
    kind: "DiskPressure",
    absent: ["KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"],
    present: ["KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"],
};

const PID_PRESSURE: Pressure = Pressure {
    kind: "PIDPressure",
    absent: ["KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"],
    present: [
        "KubeletHasInsufficientPID",
        "kubelet has insufficient PID available",
        "NodeHasInsufficientPID",
    ],
};

/// Sets all conditions of `node`; the events (reasons) of those that changed.
pub(super) fn set(node: &mut Node, inputs: &Inputs, isolation: bool, now: Now) -> Vec<&'static str> {
    let mut events = Vec::new();
    let ready = ready(node, inputs, isolation, now.mono);
    let conditions = node.status.get_or_insert_default().conditions.get_or_insert_default();
    let pressures = inputs.pressures;
    for (pressure, present) in PRESSURES.into_iter().zip([pressures.memory, pressures.disk, pressures.pid]) {
        events.extend(set_pressure(conditions, &pressure, present, now));
    }
    if let Some(end) = &inputs.last_end {
        set_last_end(conditions, end, now);
    }
    if let Some(delay) = &inputs.shutdown_delay {
        set_delay(conditions, delay, now);
    }
    if let Some(shown) = &inputs.update {
        set_update(conditions, shown, now);
    }
    events.extend(set_ready(conditions, ready, now));
    events
}

/// Status of condition `kind`: `Some(true)`, `Some(false)`, or `None` if unknown or absent.
pub(super) fn status_of(node: &Node, kind: &str) -> Option<bool> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    match conditions.iter().find(|c| c.type_ == kind)?.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

fn set_pressure(
    conditions: &mut Vec<NodeCondition>,
    pressure: &Pressure,
    present: bool,
    now: Now,
) -> Option<&'static str> {
    let time = api_time(now.wall);
    let (status, [reason, message, event]) =
        if present { ("True", pressure.present) } else { ("False", pressure.absent) };
    let condition = of_type(conditions, pressure.kind);
    condition.last_heartbeat_time = Some(time.clone());
    if condition.status == status {
        return None;
    }
    condition.status = status.to_owned();
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message.to_owned());
    condition.last_transition_time = Some(time);
    Some(event)
}

/// Whether the last boot ended its pods in order; upstream has no such condition. Its event is the recorder's.
fn set_last_end(conditions: &mut Vec<NodeCondition>, end: &LastEnd, now: Now) {
    set_own(conditions, UNCLEAN_SHUTDOWN, end.unclean.is_some(), end.reason(), end.message(), now);
}

/// Whether a stop of the machine would not wait for the pods; upstream has no such condition. A node that
/// always had its lock does not have it either.
fn set_delay(conditions: &mut Vec<NodeCondition>, delay: &Result<(), String>, now: Now) {
    match delay {
        Err(why) => {
            let message = format!("systemd-logind does not wait for this node's pods: {why}");
            set_own(conditions, NO_DELAY, true, "NoDelayLock", message, now);
        }
        Ok(()) if conditions.iter().any(|c| c.type_ == NO_DELAY) => {
            let message = "systemd-logind waits for this node's pods".to_owned();
            set_own(conditions, NO_DELAY, false, "DelayLockHeld", message, now);
        }
        Ok(()) => {}
    }
}

/// What is under way of an update, and what has failed; upstream has no such conditions. A node on which neither was ever so does
/// not have them.
fn set_update(conditions: &mut Vec<NodeCondition>, shown: &UpdateShown, now: Now) {
    for condition in shown.conditions() {
        let is_known = conditions.iter().any(|c| c.type_ == condition.kind);
        if condition.is_true || is_known {
            let (reason, message) = (condition.reason, condition.message);
            set_own(conditions, condition.kind, condition.is_true, reason, message, now);
        }
    }
}

/// A condition that this node has beyond upstream's.
fn set_own(
    conditions: &mut Vec<NodeCondition>,
    kind: &str,
    is_so: bool,
    reason: &str,
    message: String,
    now: Now,
) {
    let time = api_time(now.wall);
    let condition = of_type(conditions, kind);
    let status = if is_so { "True" } else { "False" };
    if condition.status != status {
        condition.last_transition_time = Some(time.clone());
    }
    condition.status = status.to_owned();
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message);
    condition.last_heartbeat_time = Some(time);
}

/// The first condition of this type, made if there is none.
fn of_type<'c>(conditions: &'c mut Vec<NodeCondition>, kind: &str) -> &'c mut NodeCondition {
    let index = conditions.iter().position(|c| c.type_ == kind).unwrap_or_else(|| {
        conditions.push(NodeCondition {
            type_: kind.to_owned(),
            status: "Unknown".to_owned(),
            ..NodeCondition::default()
        });
        conditions.len() - 1
    });
    &mut conditions[index]
}

fn set_ready(conditions: &mut Vec<NodeCondition>, ready: (bool, String), now: Now) -> Option<&'static str> {
    let (is_ready, message) = ready;
    let time = api_time(now.wall);
    let is_new = !conditions.iter().any(|c| c.type_ == "Ready");
    let condition = of_type(conditions, "Ready");
    let status = if is_ready { "True" } else { "False" };
    let changes = condition.status != status;
    condition.status = status.to_owned();
    condition.reason = Some(if is_ready { "KubeletReady" } else { "KubeletNotReady" }.to_owned());
    condition.message = Some(message);
    condition.last_heartbeat_time = Some(time.clone());
    if changes || is_new {
        condition.last_transition_time = Some(time);
    }
    // A Node that begins not ready has not become so.
    let event = if is_ready { "NodeReady" } else { "NodeNotReady" };
    (changes && (is_ready || !is_new)).then_some(event)
}

/// Ready or not, and Ready's message.
fn ready(node: &Node, inputs: &Inputs, isolation: bool, now: Mono) -> (bool, String) {
    let mut errors = runtime_errors(inputs, now);
    errors.extend(inputs.runtime.network_error.clone());
    errors.extend(inputs.storage_error().map(str::to_owned));
    errors.extend(inputs.shutdown.as_ref().err().cloned());
    let capacity = node.status.as_ref().and_then(|s| s.capacity.as_ref());
    let mut required = vec![CPU, MEMORY, PODS];
    if isolation {
        required.push(EPHEMERAL_STORAGE);
    }
    required.retain(|name| capacity.is_none_or(|c| !c.contains_key(*name)));
    if !required.is_empty() {
        errors.push(format!("missing node capacity for resources: {}", required.join(", ")));
    }
    let is_ready = errors.is_empty();
    let mut message = match aggregate(errors) {
        message if message.is_empty() => "kubelet is posting ready status".to_owned(),
        message => message,
    };
    if let Some(soft) = &inputs.soft {
        message = format!("{message}. WARNING: {soft}");
    }
    (is_ready, message)
}

fn runtime_errors(inputs: &Inputs, now: Mono) -> Vec<String> {
    let mut errors = Vec::new();
    match inputs.runtime.ready_at {
        None => errors.push("container runtime status check may not have completed yet".to_owned()),
        Some(at) if now.since(at) >= RUNTIME_SYNC_THRESHOLD => {
            errors.push("container runtime is down".to_owned());
        }
        Some(_) => {}
    }
    if let Err(reason) = &inputs.pleg {
        // The error may begin with PLEG's text already.
        let prefix = "PLEG is not healthy: ";
        errors.push(format!("{prefix}{}", reason.strip_prefix(prefix).unwrap_or(reason)));
    }
    errors.extend(inputs.runtime.runtime_error.clone());
    errors
}

/// One message as it is, several in brackets, each once.
fn aggregate(errors: Vec<String>) -> String {
    let mut seen = BTreeSet::new();
    let unique: Vec<String> = errors.into_iter().filter(|e| seen.insert(e.clone())).collect();
    match unique.as_slice() {
        [one] => one.clone(),
        [] => String::new(),
        several => format!("[{}]", several.join(", ")),
    }
}
