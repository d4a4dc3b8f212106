//! The reason for which work is not done: the agent stops.
//!
//! In: nothing. Out: one error for all askers, in the form that they answer with. Invariant: the words are the same everywhere.
//! `None` of [`Tasks::blocking`](super::actor::Tasks::blocking) and its siblings means this.

/// The runtime shuts down, so the work was not done, or nobody can say whether it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent stops")]
pub(crate) struct AgentStops;

impl From<AgentStops> for String {
    fn from(stops: AgentStops) -> String {
        stops.to_string()
    }
}
