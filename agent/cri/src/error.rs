//! Failures: of connecting ([`CriError`]) and of calls (gRPC status to [`Class`]).
//!
//! In: `tonic::Status`. Out: [`CallError`], which becomes a `DriverError`.
//! Invariant: `Unavailable` means that the request did not reach the runtime, or that the runtime refused it; a connection
//! that broke while an answer was awaited is `Interrupted`, because the call may have been applied.

use std::error::Error;

use agent_types::failure::{Class, DriverError};
use tonic::{Code, Status, TimeoutExpired};

use crate::connect::ConnectFailed;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The endpoint is not a unix socket.
    #[error("container runtime endpoint {endpoint:?}: expected unix:///absolute/path")]
    Endpoint {
        /// As configured.
        endpoint: String,
    },
    /// The runtime did not answer in time.
    #[error("container runtime at {endpoint} does not answer after {waited_ms} ms: {last}")]
    NoAnswer {
        /// As configured.
        endpoint: String,
        /// How long it was tried.
        waited_ms: u128,
        /// The last failure.
        last: String,
    },
    /// It speaks another CRI.
    #[error(
        "container runtime at {endpoint} speaks CRI version {found:?}; version {wanted:?} of CRI v1 is needed"
    )]
    Version {
        /// As configured.
        endpoint: String,
        /// What it answered.
        found: String,
        /// What is needed.
        wanted: &'static str,
    },
}

/// One failed call.
#[derive(Debug)]
pub(crate) struct CallError {
    /// The gRPC code, for callers that treat one specially.
    pub(crate) code: Code,
    /// What core gets.
    pub(crate) driver: DriverError,
}

impl From<CallError> for DriverError {
    fn from(error: CallError) -> Self {
        error.driver
    }
}

impl CallError {
    /// An answer that arrived but is unusable.
    pub(crate) fn unusable(
        operation: &'static str,
        object: &str,
        class: Class,
        message: String,
    ) -> CallError {
        let driver = DriverError { operation, object: object.to_owned(), class, message };
        CallError { code: Code::Internal, driver }
    }

    /// No answer within the call's time; gRPC for Go says it in these words.
    pub(crate) fn deadline(operation: &'static str, object: &str) -> CallError {
        CallError::status(operation, object, &Status::deadline_exceeded(LATE))
    }

    /// The runtime, or the way to it, answered with an error.
    pub(crate) fn status(operation: &'static str, object: &str, status: &Status) -> CallError {
        let (class, message) = match fault(status) {
            Fault::NotConnected(why) => (Class::Unavailable, why),
            Fault::Lost(why) => {
                let hint =
                    "connection lost while waiting for the answer; it may or may not have been applied";
                (Class::Interrupted, format!("{hint}: {why}"))
            }
            Fault::Late => (Class::DeadlineExceeded, words(operation, &Status::deadline_exceeded(LATE))),
            Fault::Answered => (classify(status.code()), words(operation, status)),
        };
        let driver = DriverError { operation, object: object.to_owned(), class, message };
        CallError { code: status.code(), driver }
    }

    /// True if the runtime refuses because the object's name is in use: containerd and CRI-O say so in words,
    /// with the code `Unknown`.
    pub(crate) fn name_is_taken(&self) -> bool {
        self.code == Code::AlreadyExists
            || (matches!(self.code, Code::Unknown | Code::Internal | Code::FailedPrecondition)
                && ["is reserved for", "name is reserved"].iter().any(|w| self.driver.message.contains(w)))
    }
}

/// gRPC's message for a call whose time is over.
const LATE: &str = "context deadline exceeded";

/// The runtime's answer as people read it in statuses and events: upstream prints the error of gRPC whole but where it
/// takes its message out (containers) or leaves a code out that says nothing (pulls).
fn words(operation: &str, status: &Status) -> String {
    let bare = status.message();
    match (operation, status.code()) {
        ("PullImage", Code::Unknown) => bare.to_owned(),
        (
            "PullImage" | "RunPodSandbox" | "ImageStatus" | "ListPodSandbox" | "PodSandboxStatus"
            | "ListContainers" | "ContainerStatus",
            code,
        ) => format!("rpc error: code = {code:?} desc = {bare}"),
        _ => bare.to_owned(),
    }
}

/// Where a failure comes from.
enum Fault {
    /// No connection: nothing was sent.
    NotConnected(String),
    /// The connection broke: unknown.
    Lost(String),
    /// The time of the call is over, by our own clock.
    Late,
    /// The runtime's own answer.
    Answered,
}

/// Only failures on our side of the wire have a source.
fn fault(status: &Status) -> Fault {
    let mut cause: Option<&(dyn Error + 'static)> = status.source();
    let mut deepest = None;
    while let Some(error) = cause {
        if let Some(failed) = error.downcast_ref::<ConnectFailed>() {
            return Fault::NotConnected(failed.to_string());
        }
        if error.is::<TimeoutExpired>() {
            return Fault::Late;
        }
        deepest = Some(error);
        cause = error.source();
    }
    match deepest {
        Some(error) => Fault::Lost(error.to_string()),
        None => Fault::Answered,
    }
}

/// What a code from the runtime allows.
fn classify(code: Code) -> Class {
    match code {
        Code::NotFound => Class::NotFound,
        Code::AlreadyExists => Class::AlreadyExists,
        Code::FailedPrecondition | Code::Aborted => Class::Conflict,
        Code::InvalidArgument | Code::Unimplemented => Class::Invalid,
        Code::Unavailable => Class::Unavailable,
        Code::DeadlineExceeded | Code::Cancelled => Class::DeadlineExceeded,
        // Runtimes answer Unknown for nearly everything; rights and quotas can change.
        Code::Ok
        | Code::Unknown
        | Code::ResourceExhausted
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::OutOfRange
        | Code::Internal
        | Code::DataLoss => Class::Retryable { after_ms: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_map_to_classes() {
        let table = [
            (Code::NotFound, Class::NotFound),
            (Code::AlreadyExists, Class::AlreadyExists),
            (Code::FailedPrecondition, Class::Conflict),
            (Code::InvalidArgument, Class::Invalid),
            (Code::Unimplemented, Class::Invalid),
            (Code::Unavailable, Class::Unavailable),
            (Code::DeadlineExceeded, Class::DeadlineExceeded),
            (Code::Cancelled, Class::DeadlineExceeded),
            (Code::Unknown, Class::Retryable { after_ms: 0 }),
            (Code::Internal, Class::Retryable { after_ms: 0 }),
        ];
        for (code, class) in table {
            let error = CallError::status("StopContainer", "c1", &Status::new(code, "words"));
            assert_eq!(error.driver.class, class, "{code:?}");
            assert!(error.driver.message.starts_with("words"), "{code:?}: {}", error.driver.message);
        }
    }

    #[test]
    fn answers_are_told_as_upstream_tells_them() {
        for (operation, code, expected) in [
            ("StartContainer", Code::Unknown, "words"),
            ("CreateContainer", Code::InvalidArgument, "words"),
            ("PullImage", Code::Unknown, "words"),
            ("PullImage", Code::NotFound, "rpc error: code = NotFound desc = words"),
            ("RunPodSandbox", Code::Unknown, "rpc error: code = Unknown desc = words"),
            ("ImageStatus", Code::Unknown, "rpc error: code = Unknown desc = words"),
            ("ContainerStatus", Code::Internal, "rpc error: code = Internal desc = words"),
        ] {
            let error = CallError::status(operation, "x", &Status::new(code, "words"));
            assert_eq!(error.driver.message, expected, "{operation} {code:?}");
        }
    }

    #[test]
    fn time_outs_are_told_as_upstream_tells_them() {
        for (operation, expected) in [
            ("CreateContainer", "context deadline exceeded"),
            ("RunPodSandbox", "rpc error: code = DeadlineExceeded desc = context deadline exceeded"),
        ] {
            let error = CallError::deadline(operation, "x");
            assert_eq!((error.driver.message.as_str(), error.code), (expected, Code::DeadlineExceeded));
            assert_eq!(error.driver.class, Class::DeadlineExceeded);
        }
    }

    #[test]
    fn taken_names_are_recognised_by_words_or_code() {
        let taken = |code, words: &str| {
            CallError::status("RunPodSandbox", "p", &Status::new(code, words)).name_is_taken()
        };
        assert!(taken(Code::Unknown, r#"failed to reserve sandbox name "a": name "a" is reserved for "x""#));
        assert!(taken(Code::Unknown, "error reserving pod name k8s_a: name is reserved"));
        assert!(taken(Code::AlreadyExists, "there"));
        assert!(!taken(Code::Unknown, "no space left on device"));
        assert!(!taken(Code::NotFound, "name is reserved"));
    }
}
