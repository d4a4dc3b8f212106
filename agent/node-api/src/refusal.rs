//! Refusals: why a call has no answer, for programs and for people.
//!
//! In: a [`Reason`], the object and what happened. Out: a gRPC status with an `ErrorDetail`. Invariants: clients branch on the reason's
//! word and never on a text; each reason has a gRPC code, a remedy and a section of docs/reference/node-api.md (a test compares).

use std::time::Duration;

use orlop_proto::node_api::encode;
use orlop_proto::node_api::v1alpha1::ErrorDetail;
use tonic::{Code, Status};

/// The page with a section for each reason.
const PAGE: &str = "docs/reference/node-api.md";

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
    /// The peer may ask, but not for this.
    RoleTooLow,
    /// The document has mistakes, or another source would be refused because of it.
    ConfigRefused,
    /// The document changes keys that belong to the first boot.
    FirstBootOnly,
    /// Another change has not ended.
    ChangeOpen,
    /// There is no such change, or nothing would change.
    NoChange,
    /// The change cannot be confirmed or taken back like this.
    ChangeNotReady,
    /// The state partition cannot be used.
    StateDegraded,
    /// Another operation has not ended.
    OperationRunning,
    /// The node has no record of such an operation.
    NoSuchOperation,
    /// The service is none that may be restarted.
    NotRestartable,
    /// The operation has begun, or has ended.
    TooLate,
    /// The state partition does not keep the record of an operation.
    NotRecorded,
    /// The other slot holds no version to which the node could go.
    NoOtherVersion,
    /// A version is on trial, or is to be tried, and has no verdict yet.
    TrialUnderWay,
    /// The node has gone back from the version, and does not boot it again.
    VersionRefused,
    /// The cluster does not know the token of the call.
    UnknownToken,
    /// The cluster does not let its user do this.
    NotAllowed,
    /// The cluster cannot be asked about a token.
    CannotAsk,
}

impl Reason {
    /// All of them.
    pub const ALL: &[Reason] = &[
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
        Reason::RoleTooLow,
        Reason::ConfigRefused,
        Reason::FirstBootOnly,
        Reason::ChangeOpen,
        Reason::NoChange,
        Reason::ChangeNotReady,
        Reason::StateDegraded,
        Reason::OperationRunning,
        Reason::NoSuchOperation,
        Reason::NotRestartable,
        Reason::TooLate,
        Reason::NotRecorded,
        Reason::NoOtherVersion,
        Reason::TrialUnderWay,
        Reason::VersionRefused,
        Reason::UnknownToken,
        Reason::NotAllowed,
        Reason::CannotAsk,
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
            Reason::RoleTooLow => "ROLE_TOO_LOW",
            Reason::ConfigRefused => "CONFIG_REFUSED",
            Reason::FirstBootOnly => "FIRST_BOOT_ONLY",
            Reason::ChangeOpen => "CHANGE_OPEN",
            Reason::NoChange => "NO_CHANGE",
            Reason::ChangeNotReady => "CHANGE_NOT_READY",
            Reason::StateDegraded => "STATE_DEGRADED",
            Reason::OperationRunning => "OPERATION_RUNNING",
            Reason::NoSuchOperation => "NO_SUCH_OPERATION",
            Reason::NotRestartable => "NOT_RESTARTABLE",
            Reason::TooLate => "TOO_LATE",
            Reason::NotRecorded => "NOT_RECORDED",
            Reason::NoOtherVersion => "NO_OTHER_VERSION",
            Reason::TrialUnderWay => "TRIAL_UNDER_WAY",
            Reason::VersionRefused => "VERSION_REFUSED",
            Reason::UnknownToken => "UNKNOWN_TOKEN",
            Reason::NotAllowed => "NOT_ALLOWED",
            Reason::CannotAsk => "CANNOT_ASK",
        }
    }

    /// The code of the call's status.
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Reason::NotTrusted | Reason::UnknownKey | Reason::UnknownToken => Code::Unauthenticated,
            Reason::RoleTooLow | Reason::NotAllowed => Code::PermissionDenied,
            Reason::UnknownKind | Reason::BadRequest | Reason::ConfigRefused | Reason::FirstBootOnly => {
                Code::InvalidArgument
            }
            Reason::TooManyCalls | Reason::TooManyStreams | Reason::TooManyObjects => Code::ResourceExhausted,
            Reason::PartDown | Reason::CannotAsk => Code::Unavailable,
            Reason::PartSilent => Code::DeadlineExceeded,
            Reason::NoSuchLog | Reason::NoSuchOperation => Code::NotFound,
            Reason::LogTooLong => Code::DataLoss,
            Reason::ChangeOpen
            | Reason::NoChange
            | Reason::ChangeNotReady
            | Reason::StateDegraded
            | Reason::OperationRunning
            | Reason::NotRestartable
            | Reason::TooLate
            | Reason::NotRecorded
            | Reason::NoOtherVersion
            | Reason::TrialUnderWay
            | Reason::VersionRefused => Code::FailedPrecondition,
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
            Reason::NoSuchLog => "`orlopctl logs --list` lists units, files and pods",
            Reason::LogTooLong => "read the log by its end: `--lines`",
            Reason::RoleTooLow => {
                "ask by TCP with a key of `api.admins`, or by vsock as a host that the NodeConfig trusts"
            }
            Reason::ConfigRefused => "`orlopctl config check FILE` lists all mistakes",
            Reason::FirstBootOnly => {
                "leave these keys as they are, or install the node again with the document"
            }
            Reason::ChangeOpen => "confirm the open change, take it back, or wait for its deadline",
            Reason::NoChange => "`orlopctl config history` lists the changes",
            Reason::ChangeNotReady => {
                "`orlopctl config history` shows how far the change is; ask again by a new connection"
            }
            Reason::StateDegraded => {
                "docs/reference/boot.md says what to do about the state partition; nothing is kept before that"
            }
            Reason::OperationRunning => {
                "`orlopctl wait` waits for its end; `orlopctl cancel` calls off one that waits"
            }
            Reason::NoSuchOperation => "`orlopctl get operations` lists those of the node",
            Reason::NotRestartable => "reboot the node, or look at the service's log",
            Reason::TooLate => "`orlopctl wait` shows how it ends",
            Reason::NotRecorded => {
                "look at the state partition (`orlopctl status`); `--unrecorded` does it without a record"
            }
            Reason::NoOtherVersion => {
                "`orlopctl upgrade --stage --version X.Y.Z` brings another version to the node"
            }
            Reason::TrialUnderWay => {
                "wait for the end of the trial: `orlopctl get operations`, docs/reference/update.md"
            }
            Reason::VersionRefused => {
                "`orlopctl upgrade --now --version X.Y.Z` takes it all the same, or take a newer one"
            }
            Reason::UnknownToken => {
                "ask for a token of the audience `orlop.dev/node-api/NODE`: `kubectl create token`"
            }
            Reason::NotAllowed => {
                "bind a ClusterRole with that verb on that resource of the group `node.orlop.dev`"
            }
            Reason::CannotAsk => "ask with a key of `api.admins` meanwhile; `orlopctl status` says why",
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
        let page = include_str!("../../../docs/reference/node-api.md");
        let words: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.word()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        for reason in Reason::ALL.iter().copied() {
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
            ("door unix", "docs/reference/node-api.md#too_many_calls")
        );
        assert!(detail.remedy.contains("again"));
    }
}
