//! The service manager: states that the agent sends to systemd.

use agent_linux::notify::Notifier;

use crate::pods::pod_dirs::chain;

/// Sends a state and logs why if it does not arrive; the agent's work goes on.
pub fn notify(notifier: &Notifier, state: &str) {
    if let Err(error) = notifier.send(state) {
        tracing::warn!(error = %chain(&error), "service manager not told");
    }
}
