//! The error of work that is not done because the agent stops.
//!
//! In: nothing. Out: one error for all callers. Invariant: the message is the same everywhere. `None` of
//! [`Tasks::blocking`](super::actor::Tasks::blocking) and its siblings means this error.

/// The runtime shuts down: the work was not done, or its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent stops")]
pub(crate) struct AgentStops;

impl From<AgentStops> for String {
    fn from(stops: AgentStops) -> String {
        stops.to_string()
    }
}
