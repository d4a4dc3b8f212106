//! What systemd is asked for by operations, and how long it may take. Pure.

use std::time::Duration;

use super::record::OperationVerb;
use crate::blocking::ANSWER_MAX;

/// systemctl waits for a logind that hangs for 25 s (sd_bus_set_method_call_timeout(3)), and asks PID 1 then.
pub(crate) const STOP_ANSWER_MAX: Duration = Duration::from_secs(60);

/// What systemctl is asked for. logind delays a stop until the agent has ended the pods; without logind, systemctl asks PID 1, and the pods
/// end while the agent stops (docs/reference/shutdown.md).
pub(crate) fn systemctl_arguments(what: &OperationVerb) -> Option<Vec<&str>> {
    Some(match what {
        OperationVerb::Reboot
        | OperationVerb::Reset { .. }
        | OperationVerb::Upgrade { .. }
        | OperationVerb::Rollback { .. } => {
            vec!["reboot", "--no-ask-password", "--no-wall"]
        }
        OperationVerb::Shutdown => vec!["poweroff", "--no-ask-password", "--no-wall"],
        OperationVerb::Restart { unit, .. } => {
            vec!["restart", "--no-block", "--no-ask-password", "--", unit.as_str()]
        }
        // The updater's end is the operation's.
        OperationVerb::Stage { .. } => return None,
    })
}

/// How long systemctl may take.
pub(crate) fn answer_max(what: &OperationVerb) -> Duration {
    if what.stops_machine() { STOP_ANSWER_MAX } else { ANSWER_MAX }
}
