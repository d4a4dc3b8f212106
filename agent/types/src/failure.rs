//! Failures of calls to the runtime, to the API server, and to the kernel: the class for core's decisions, and the text for people.
//!
//! In: errors of drivers. Out: [`Class`]. Invariant: core decides by the class alone, never by the text.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Class of a failure. Core uses the class for its decisions; the message is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Try again, not sooner than this.
    Retryable {
        /// Milliseconds; 0 leaves it to the caller's back-off.
        after_ms: u64,
    },
    /// The object does not exist: a success for removals.
    NotFound,
    /// The object exists already: adopt it.
    AlreadyExists,
    /// Another client has changed the object: read it again, then decide.
    Conflict,
    /// The same request can never succeed.
    Invalid,
    /// The driver's peer is down, or not ready yet: nothing was applied.
    Unavailable,
    /// The connection broke before the answer: **may or may not have been applied**. A call that still runs ends within
    /// [`CANCELLED_CALL_MAX`], because the peer is gone or notices that its caller is gone.
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
    /// Class of the failure.
    pub class: Class,
    /// Message of the peer.
    pub message: String,
}
