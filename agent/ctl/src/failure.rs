//! What went wrong, for people, and the exit code, for scripts.
//!
//! Invariant: a script branches on the exit code and on the reason of a refusal; texts may change.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use orlop_proto::node_api::decode;
use orlop_proto::node_api::v1alpha1::ErrorDetail;
use tonic::{Code, Status};

use crate::controlplane::failure::ControlplaneError;
use crate::render::plain;

/// The node says no, or a check failed.
pub(crate) const NO: u8 = 1;
/// The command line makes no sense.
pub(crate) const USAGE: u8 = 2;
const UNREACHABLE: u8 = 3;
const NOT_ALLOWED: u8 = 4;
const TIMED_OUT: u8 = 5;
/// The reason of an answer that has only the first objects of a kind.
pub(crate) const TOO_MANY_OBJECTS: &str = "TOO_MANY_OBJECTS";

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CtlError {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// No connection.
    #[error("cannot reach {target}: {why}; does the node run, and is this its door?")]
    Unreachable {
        /// By which way.
        target: String,
        /// The system's words.
        why: String,
    },
    /// A key file.
    #[error("key {0}")]
    Key(String),
    /// The node is not the one that was meant, or it is not known yet which key it has.
    #[error("{target} shows the key {shown}, {}", pinned(.pin))]
    OtherKey {
        /// By which way.
        target: String,
        /// Fingerprint of its key.
        shown: String,
        /// The fingerprint that was expected; empty: none.
        pin: String,
    },
    /// No answer in time.
    #[error("{what} has not answered within {} s (`--timeout`)", limit.as_secs())]
    TimedOut {
        /// Who or what.
        what: String,
        /// The limit.
        limit: Duration,
    },
    /// The node's refusal.
    #[error("{}", refusal(.0))]
    Refused(Status),
    /// kubectl.
    #[error("kubectl {}", plain(.0))]
    Kubectl(String),
    /// Objects that were asked for by name.
    #[error("there is no {0}")]
    NotFound(String),
    /// Some of several nodes; each has its own line.
    #[error("{failed} of {asked} nodes have not answered")]
    Nodes {
        /// So many.
        failed: usize,
        /// Of so many.
        asked: usize,
        /// The exit code of all of them, or that of [`NO`].
        code: u8,
    },
    /// No control plane was made.
    #[error(transparent)]
    Controlplane(#[from] ControlplaneError),
    /// The output cannot be written.
    #[error("write the output: {0}")]
    Output(#[from] io::Error),
}

impl CtlError {
    /// For scripts.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            CtlError::Usage(_) | CtlError::Key(_) => USAGE,
            CtlError::Unreachable { .. } => UNREACHABLE,
            CtlError::OtherKey { .. } => NOT_ALLOWED,
            CtlError::TimedOut { .. } => TIMED_OUT,
            CtlError::Refused(status) => of_status(status),
            CtlError::NotFound(_) | CtlError::Kubectl(_) | CtlError::Output(_) => NO,
            CtlError::Nodes { code, .. } => *code,
            CtlError::Controlplane(error) => error.exit_code(),
        }
    }

    /// The node does not let this caller ask.
    pub(crate) fn is_not_allowed(&self) -> bool {
        self.exit_code() == NOT_ALLOWED
    }

    /// The node's word for a refusal; empty: it is none.
    pub(crate) fn reason(&self) -> String {
        match self {
            CtlError::Refused(status) => decode(status.details()).unwrap_or_default().reason,
            _ => String::new(),
        }
    }

    /// The connection is gone, not the answer refused.
    pub(crate) fn is_lost_connection(&self) -> bool {
        self.exit_code() == UNREACHABLE
    }
}

/// A status without a detail is not the node's own: the connection broke.
fn of_status(status: &Status) -> u8 {
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => NOT_ALLOWED,
        Code::DeadlineExceeded => TIMED_OUT,
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
            if status.details().is_empty() =>
        {
            UNREACHABLE
        }
        _ => NO,
    }
}

fn pinned(pin: &str) -> String {
    match pin {
        "" => {
            "and none is expected: compare it with `orlopctl version` on the node, then pass it as --node-key"
                .to_owned()
        }
        pin => {
            format!("expected is {pin}: was it reinstalled, is it another machine, or is somebody between?")
        }
    }
}

fn refusal(status: &Status) -> String {
    let detail: ErrorDetail = decode(status.details()).unwrap_or_default();
    let mut text = plain(status.message());
    if !detail.reason.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(text, " ({})", plain(&detail.reason));
    }
    for (name, value) in [("remedy", &detail.remedy), ("more", &detail.runbook)] {
        if !value.is_empty() {
            let _ = write!(text, "\n  {name}: {}", plain(value));
        }
    }
    if detail.retry_after_ms > 0 {
        let _ = write!(text, "\n  again in: {} ms", detail.retry_after_ms);
    }
    text
}

#[cfg(test)]
mod tests {
    use orlop_proto::node_api::encode;

    use super::*;

    fn refused(code: Code, reason: &str) -> CtlError {
        let detail = ErrorDetail {
            reason: reason.to_owned(),
            remedy: "do this".to_owned(),
            runbook: "docs/x.md#y".to_owned(),
            retry_after_ms: 50,
            ..ErrorDetail::default()
        };
        CtlError::Refused(Status::with_details(code, "a\u{1b}: no", encode(&detail).into()))
    }

    #[test]
    fn exit_codes_are_those_of_the_page() {
        for (error, code) in [
            (refused(Code::Unauthenticated, "NOT_TRUSTED"), 4),
            (refused(Code::PermissionDenied, "X"), 4),
            (refused(Code::Unavailable, "PART_DOWN"), 1),
            (refused(Code::InvalidArgument, "UNKNOWN_KIND"), 1),
            (refused(Code::DeadlineExceeded, "PART_SILENT"), 5),
            (CtlError::Refused(Status::unavailable("transport error")), 3),
            (CtlError::Refused(Status::unknown("transport error")), 3),
            (CtlError::Refused(Status::internal("h2 protocol error")), 3),
            (CtlError::Refused(Status::unimplemented("x")), 1),
            (CtlError::Usage("x".to_owned()), 2),
            (CtlError::NotFound("x".to_owned()), 1),
            (CtlError::Key("x".to_owned()), 2),
            (CtlError::Kubectl("x".to_owned()), 1),
            (CtlError::OtherKey { target: "t".to_owned(), shown: "s".to_owned(), pin: String::new() }, 4),
            (CtlError::Unreachable { target: "t".to_owned(), why: "w".to_owned() }, 3),
            (CtlError::TimedOut { what: "t".to_owned(), limit: Duration::from_secs(1) }, 5),
            (CtlError::from(ControlplaneError::Exists("x".into())), 2),
            (CtlError::from(ControlplaneError::NoRandomness), 1),
        ] {
            assert_eq!(error.exit_code(), code, "{error}");
            assert_eq!(
                (error.is_lost_connection(), error.is_not_allowed()),
                (code == 3, code == 4),
                "{error}"
            );
        }
    }

    #[test]
    fn a_refusal_has_reason_remedy_and_page() {
        let error = refused(Code::ResourceExhausted, "TOO_MANY_CALLS");
        assert_eq!(
            (error.reason().as_str(), CtlError::Usage("x".to_owned()).reason()),
            ("TOO_MANY_CALLS", String::new())
        );
        let text = error.to_string();
        assert_eq!(
            text,
            "a?: no (TOO_MANY_CALLS)\n  remedy: do this\n  more: docs/x.md#y\n  again in: 50 ms"
        );
    }
}
