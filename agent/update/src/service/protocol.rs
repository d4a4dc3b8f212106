//! What is said over the socket: a request, then reports, each a JSON object in a line of its own.

use orlop_config::release::ReleaseVersion;
use serde::{Deserialize, Serialize};

/// The updater's socket.
pub const SOCKET: &str = "/run/orlop/update.sock";
/// Longest request, bytes.
pub const REQUEST_BYTES_MAX: usize = 4096;

/// What the updater is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum UpdateRequest {
    /// The report of what runs, or of what ran last.
    Status,
    /// Look at the source, and do what the node's policy says.
    Check,
    /// Stage a release of the source, whatever the policy says.
    Take {
        /// This version; none: the channel's choice.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<ReleaseVersion>,
    },
    /// Stage the release of the drive that is plugged in.
    Stick,
    /// What the boot record says about both slots.
    Slots,
    /// Order a trial of the other slot, which holds this version, and show the slot to the loader. The asker reboots the node.
    Try {
        /// The version that the other slot must hold.
        version: ReleaseVersion,
    },
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateState {
    /// Nothing was asked for since the updater has started, or nothing is to be done.
    Idle,
    /// It looks at the source.
    Looking,
    /// It writes the slot.
    Writing,
    /// A release is in the slot that does not run. Nothing boots it.
    Staged,
    /// The node runs the newest release that it may take.
    UpToDate,
    /// The node's turn comes later.
    Waits,
    /// It failed; the message says why, and what to do.
    Failed,
    /// Another request runs.
    Busy,
    /// The next boot tries the version of the other slot.
    Ordered,
}

/// A report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateReport {
    /// Where it stands.
    pub state: UpdateState,
    /// For a person.
    pub message: String,
    /// The version that is concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<ReleaseVersion>,
    /// Blocks of the part that is written that are in their place.
    #[serde(default)]
    pub done: u32,
    /// All blocks of that part.
    #[serde(default)]
    pub blocks: u32,
    /// Both slots; absent if the request did not ask for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<Box<SlotsSeen>>,
}

/// Both slots of the disk, as the boot record has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlotsSeen {
    /// The slot that runs: `a` or `b`.
    pub running: String,
    /// The slot that the node boots.
    pub desired: String,
    /// The slot that is to be tried, or is on trial; empty: there is no trial without a verdict.
    pub trial: String,
    /// The version that runs.
    pub running_version: String,
    /// What the slot that runs is, in the words of the record: `good`, `trial`.
    pub running_state: String,
    /// The version in the other slot; empty: none, or it is not known.
    pub other_version: String,
    /// What the other slot is: `empty`, `writing`, `staged`, `trial`, `good`, `refused`.
    pub other_state: String,
    /// How the last trial of the other slot ended, with the check that failed; empty: it was good, or was not tried.
    pub other_reason: String,
}

impl UpdateReport {
    /// A report without version and progress.
    #[must_use]
    pub fn new(state: UpdateState, message: impl Into<String>) -> UpdateReport {
        UpdateReport { state, message: message.into(), version: None, done: 0, blocks: 0, slots: None }
    }

    /// The same about a version.
    #[must_use]
    pub fn about(self, version: ReleaseVersion) -> UpdateReport {
        UpdateReport { version: Some(version), ..self }
    }

    /// Does no other report of the request follow?
    #[must_use]
    pub fn is_last(&self) -> bool {
        !matches!(self.state, UpdateState::Looking | UpdateState::Writing)
    }

    /// The line that is sent.
    #[must_use]
    pub fn line(&self) -> Vec<u8> {
        // Numbers and texts always have a JSON form.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// Reads a request.
///
/// # Errors
/// It is none.
pub fn request(line: &[u8]) -> Result<UpdateRequest, serde_json::Error> {
    serde_json::from_slice(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_as_a_person_types_them() {
        let version = Some("0.2.0".parse().expect("a version"));
        for (text, want) in [
            (r#"{"do":"status"}"#, UpdateRequest::Status),
            (r#"{"do":"check"}"#, UpdateRequest::Check),
            (r#"{"do":"take"}"#, UpdateRequest::Take { version: None }),
            (r#"{"do":"take","version":"0.2.0"}"#, UpdateRequest::Take { version }),
            (r#"{"do":"stick"}"#, UpdateRequest::Stick),
            (r#"{"do":"slots"}"#, UpdateRequest::Slots),
            (
                r#"{"do":"try","version":"0.2.0"}"#,
                UpdateRequest::Try { version: "0.2.0".parse().expect("a version") },
            ),
        ] {
            assert_eq!(request(text.as_bytes()).expect(text), want);
            assert_eq!(serde_json::to_string(&want).expect("JSON"), text);
        }
        for bad in [
            "",
            "{}",
            r#"{"do":"boot"}"#,
            r#"{"do":"take","version":"new"}"#,
            r#"{"do":"take","verison":"0.2.0"}"#,
            r#"{"do":"try"}"#,
        ] {
            assert!(request(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn reports_are_lines() {
        let report =
            UpdateReport::new(UpdateState::UpToDate, "a\nb").about("0.2.0".parse().expect("a version"));
        let line = report.line();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(serde_json::from_slice::<UpdateReport>(&line).expect("JSON"), report);
        assert!(line.starts_with(br#"{"state":"up-to-date","message":"a\nb","version":"0.2.0""#));
        assert!(report.is_last());
        assert!(!UpdateReport::new(UpdateState::Writing, "").is_last());
    }
}
