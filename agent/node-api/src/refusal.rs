//! Refusals: why a call has no answer, for programs and for people.
//!
//! In: a [`Reason`], the object and what happened. Out: a gRPC status with an `ErrorDetail`. Invariants: clients branch on the reason's
//! word and never on a text; each reason has a gRPC code, a remedy and a section of docs/node-api.md (a test compares).

use std::time::Duration;

use orlop_proto::node_api::encode;
use orlop_proto::node_api::v1alpha1::ErrorDetail;
use tonic::{Code, Status};

/// The page with a section for each reason.
const PAGE: &str = "docs/node-api.md";

/// What kind of refusal it is. Reasons are added, never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The peer may not ask.
    NotTrusted,
    /// The key of the peer is not in the configuration.
    UnknownKey,
    /// The request names a kind that this node does not have.
    UnknownKind,
    /// A value of the request cannot be.
    BadRequest,
    /// More calls than one door takes.
    TooManyCalls,
    /// More readers of logs than the node takes.
    TooManyStreams,
    /// More objects than one answer has.
    TooManyObjects,
    /// What knows the answer does not run, or its file cannot be read.
    PartDown,
    /// It did not answer in time.
    PartSilent,
    /// There is no such file of logs.
    NoSuchLog,
    /// A line or a file is longer than what is sent.
    LogTooLong,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 11] = [
        Reason::NotTrusted,
        Reason::UnknownKey,
        Reason::UnknownKind,
        Reason::BadRequest,
        Reason::TooManyCalls,
        Reason::TooManyStreams,
        Reason::TooManyObjects,
        Reason::PartDown,
        Reason::PartSilent,
        Reason::NoSuchLog,
        Reason::LogTooLong,
    ];

    /// The word for programs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Reason::NotTrusted => "NOT_TRUSTED",
            Reason::UnknownKey => "UNKNOWN_KEY",
            Reason::UnknownKind => "UNKNOWN_KIND",
            Reason::BadRequest => "BAD_REQUEST",
            Reason::TooManyCalls => "TOO_MANY_CALLS",
            Reason::TooManyStreams => "TOO_MANY_STREAMS",
            Reason::TooManyObjects => "TOO_MANY_OBJECTS",
            Reason::PartDown => "PART_DOWN",
            Reason::PartSilent => "PART_SILENT",
            Reason::NoSuchLog => "NO_SUCH_LOG",
            Reason::LogTooLong => "LOG_TOO_LONG",
        }
    }

    /// The code of the call's status.
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Reason::NotTrusted | Reason::UnknownKey => Code::Unauthenticated,
            Reason::UnknownKind | Reason::BadRequest => Code::InvalidArgument,
            Reason::TooManyCalls | Reason::TooManyStreams | Reason::TooManyObjects => Code::ResourceExhausted,
            Reason::PartDown => Code::Unavailable,
            Reason::PartSilent => Code::DeadlineExceeded,
            Reason::NoSuchLog => Code::NotFound,
            Reason::LogTooLong => Code::DataLoss,
        }
    }

    /// What a person can do.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Reason::NotTrusted => {
                "set `api.vsock.trustHost: true` in the NodeConfig, or ask as root on the node's unix socket"
            }
            Reason::UnknownKey => {
                "add the key to `api.admins` of the NodeConfig; `orlopctl key show` prints it"
            }
            Reason::UnknownKind => "`orlopctl kinds` lists the kinds of this node",
            Reason::BadRequest => "correct the request",
            Reason::TooManyCalls => "ask again after the time that the refusal names",
            Reason::TooManyStreams => "end another `orlopctl logs`",
            Reason::TooManyObjects => "ask for objects by name",
            Reason::PartDown => "`orlopctl get services` shows what runs; the other kinds answer without it",
            Reason::PartSilent => "ask again; the other kinds answer without it",
            Reason::NoSuchLog => "`orlopctl logs --list` lists units and files",
            Reason::LogTooLong => "read the log by its end: `--lines`",
        }
    }

    /// Where the documentation has more.
    #[must_use]
    pub fn runbook(self) -> String {
        format!("{PAGE}#{}", self.word().to_lowercase())
    }
}

/// A refused call, or a kind without an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {message}")]
pub struct Refusal {
    /// What kind of refusal it is.
    pub reason: Reason,
    /// What it is about.
    pub object: String,
    /// What happened.
    pub message: String,
    /// When to ask again; zero: the time does not matter.
    pub retry_after: Duration,
}

impl Refusal {
    /// A refusal for which the time does not matter.
    #[must_use]
    pub fn new(reason: Reason, object: impl Into<String>, message: impl Into<String>) -> Refusal {
        Refusal { reason, object: object.into(), message: message.into(), retry_after: Duration::ZERO }
    }

    /// For programs.
    #[must_use]
    pub fn detail(&self) -> ErrorDetail {
        ErrorDetail {
            reason: self.reason.word().to_owned(),
            object: self.object.clone(),
            remedy: self.reason.remedy().to_owned(),
            runbook: self.reason.runbook(),
            retry_after_ms: u64::try_from(self.retry_after.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let detail = encode(&refusal.detail());
        Status::with_details(refusal.reason.code(), refusal.to_string(), detail.into())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use orlop_proto::node_api::decode;

    use super::*;

    #[test]
    fn each_reason_has_a_word_of_its_own_and_a_section_of_the_page() {
        let page = include_str!("../../../docs/node-api.md");
        let words: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.word()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            let heading = format!("### {}", reason.word());
            assert!(page.lines().any(|line| line == heading), "{PAGE} lacks `{heading}`");
            assert!(!reason.remedy().is_empty() && reason.code() != Code::Ok);
            assert!(reason.runbook().ends_with(&reason.word().to_lowercase()));
        }
        let sections = page.lines().filter_map(|line| line.strip_prefix("### "));
        let of_reasons = sections.filter(|title| title.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'));
        assert_eq!(of_reasons.collect::<BTreeSet<_>>(), words, "a section without a reason");
    }

    #[test]
    fn a_status_has_the_detail() {
        let refusal = Refusal {
            retry_after: Duration::from_millis(1500),
            ..Refusal::new(Reason::TooManyCalls, "door unix", "more than 20 calls a second")
        };
        let status = Status::from(refusal);
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "door unix: more than 20 calls a second");
        let detail = decode(status.details()).unwrap();
        assert_eq!((detail.reason.as_str(), detail.retry_after_ms), ("TOO_MANY_CALLS", 1500));
        assert_eq!(
            (detail.object.as_str(), detail.runbook.as_str()),
            ("door unix", "docs/node-api.md#too_many_calls")
        );
        assert!(detail.remedy.contains("again"));
    }
}
