//! Failures of calls to the runtime, to the API server, and to the kernel: the class that core decides by, and the text for people.
//!
//! In: errors of drivers. Out: [`Class`]. Invariant: core decides by the class alone, never by the text.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a failure allows: core decides by this, people read the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Try again, not sooner than this.
    Retryable {
        /// Milliseconds; 0 leaves it to the caller's back-off.
        after_ms: u64,
    },
    /// The object is not there: a success for removals.
    NotFound,
    /// The object is there already: adopt it.
    AlreadyExists,
    /// Somebody else changed it: look again, then decide.
    Conflict,
    /// The same request can never succeed.
    Invalid,
    /// The driver's peer is down, or not ready yet: nothing was applied.
    Unavailable,
    /// The connection broke while the answer was awaited: **may or may not have been applied**. What is still going on is over
    /// [`CANCELLED_CALL_MAX`] later: the peer is gone, or sees that its caller is.
    Interrupted,
    /// No answer in time: **may or may not have been applied**.
    DeadlineExceeded,
}

/// Longest time that the runtime may continue a call whose caller is gone: gRPC cancels the calls of a lost
/// connection. A call that outlives even that is recognised by its name: sandbox and container names are
/// functions of (UID, name, attempt), and the runtime refuses a second one of the same name.
pub const CANCELLED_CALL_MAX: Duration = Duration::from_secs(5);

/// A driver's failure: which operation on which object, its class, and the cause.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {object}: {message}")]
pub struct DriverError {
    /// CRI verb or system call.
    pub operation: &'static str,
    /// Pod, container, path.
    pub object: String,
    /// What to do about it.
    pub class: Class,
    /// The peer's words.
    pub message: String,
}
