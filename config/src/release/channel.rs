//! The channel document: which releases there are, for whom, from when on, and which of them are withdrawn.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::envelope::{Envelope, SignatureCheck, SignedDocument};
use super::trust::{KeyRole, NUMBER_MAX, TrustDocument};
use super::values::{check_count, check_name};
use super::{DocumentError, DocumentFault, DocumentName, ReleaseVersion, UtcSecond};

/// Most releases of a channel.
const RELEASES_MAX: usize = 256;
/// Most withdrawn versions of a channel.
const WITHDRAWN_MAX: usize = 256;
/// Longest reason of a withdrawal, bytes.
const REASON_BYTES_MAX: usize = 200;
/// Longest rollout, hours: a year.
const ROLLOUT_HOURS_MAX: u64 = 8784;

/// A channel document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelDocument {
    /// Product of the releases.
    pub product: String,
    /// Name of the channel.
    pub channel: String,
    /// Number of the newest trust document when this one was signed: a node that has not been shown it takes nothing.
    pub trust: u64,
    /// Higher in every document than in the one before.
    pub sequence: u64,
    /// The node does not take the document any more from this time on.
    pub expires: UtcSecond,
    /// The releases.
    #[serde(default)]
    pub releases: Vec<ChannelRelease>,
    /// Releases that no node takes any more.
    #[serde(default)]
    pub withdrawn: Vec<WithdrawnRelease>,
}

/// A release of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChannelRelease {
    /// Version.
    pub version: ReleaseVersion,
    /// Architecture.
    pub arch: String,
    /// A node with an older version takes another release first (a barrier).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_version: Option<ReleaseVersion>,
    /// When nodes take it; none: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
}

/// When nodes take a release: spread evenly over some hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// The first node's turn.
    pub start: UtcSecond,
    /// Hours from the first node's turn to the last one's.
    pub hours: u64,
}

/// A release that no node takes any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithdrawnRelease {
    /// Version, of every architecture.
    pub version: ReleaseVersion,
    /// What a person reads.
    pub reason: String,
}

/// Whether the end of a channel's time counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelClock {
    /// The clock is trusted, and the document is in its time.
    Verified,
    /// The clock is not trusted yet: the source may show an old document (`ClockUnverified`).
    Unverified,
}

impl SignedDocument for ChannelDocument {
    const PAYLOAD_TYPE: &'static str = "application/vnd.orlop.channel.v1+json";

    fn name(&self) -> DocumentName {
        DocumentName::Channel(self.channel.clone())
    }

    fn check(&self) -> Result<(), DocumentFault> {
        check_name("product", &self.product)?;
        check_name("channel", &self.channel)?;
        if !(1..=NUMBER_MAX).contains(&self.trust) {
            return Err(DocumentFault::field("trust", "must be 1 or more"));
        }
        if !(1..=NUMBER_MAX).contains(&self.sequence) {
            return Err(DocumentFault::field("sequence", "must be 1 or more"));
        }
        check_count("releases", self.releases.len(), RELEASES_MAX)?;
        check_count("withdrawn", self.withdrawn.len(), WITHDRAWN_MAX)?;
        let mut releases = BTreeSet::new();
        for (at, release) in self.releases.iter().enumerate() {
            check_name(&format!("releases[{at}].arch"), &release.arch)?;
            if !releases.insert((release.version, release.arch.as_str())) {
                return Err(DocumentFault::field(format!("releases[{at}]"), "is in the list twice"));
            }
            if release.rollout.is_some_and(|rollout| rollout.hours > ROLLOUT_HOURS_MAX) {
                let why = format!("must be at most {ROLLOUT_HOURS_MAX}");
                return Err(DocumentFault::field(format!("releases[{at}].rollout.hours"), why));
            }
        }
        let mut withdrawn = BTreeSet::new();
        for (at, release) in self.withdrawn.iter().enumerate() {
            if !withdrawn.insert(release.version) {
                return Err(DocumentFault::field(format!("withdrawn[{at}]"), "is in the list twice"));
            }
            if release.reason.len() > REASON_BYTES_MAX || release.reason.chars().any(char::is_control) {
                let why = format!("must be one line of at most {REASON_BYTES_MAX} bytes");
                return Err(DocumentFault::field(format!("withdrawn[{at}].reason"), why));
            }
        }
        Ok(())
    }
}

impl ChannelDocument {
    /// Reads the document of the channel `channel`.
    ///
    /// # Errors
    /// It is not readable, not signed by enough keys of the role `channel`, another channel's, or was signed after a trust document
    /// that follows `trust`: the source hides that one, and with it the end of a key.
    pub fn read(
        trust: &TrustDocument,
        channel: &str,
        text: &[u8],
        check: &impl SignatureCheck,
    ) -> Result<ChannelDocument, DocumentError> {
        let read = || -> Result<ChannelDocument, DocumentFault> {
            let envelope = Envelope::read(text)?;
            envelope.verify(trust, KeyRole::Channel, check)?;
            let document: ChannelDocument = envelope.document()?;
            if document.product != trust.product {
                let (found, want) = (document.product, trust.product.clone());
                return Err(DocumentFault::OtherProduct { found, want });
            }
            if document.channel != channel {
                return Err(DocumentFault::OtherDocument { found: document.name() });
            }
            if document.trust > trust.number {
                return Err(DocumentFault::TrustHidden { known: trust.number, want: document.trust });
            }
            Ok(document)
        };
        read().map_err(|fault| fault.of(DocumentName::Channel(channel.to_owned())))
    }

    /// Whether the document may follow `seen`, the last one that the node has taken. `now` is none while the clock is not trusted.
    ///
    /// # Errors
    /// Its sequence is lower, or the same with other contents; or its time is over.
    pub fn follow(
        &self,
        seen: Option<&ChannelDocument>,
        now: Option<UtcSecond>,
    ) -> Result<ChannelClock, DocumentError> {
        let refuse = |fault: DocumentFault| Err(fault.of(self.name()));
        if let Some(seen) = seen {
            if self.sequence < seen.sequence {
                return refuse(DocumentFault::Replayed { found: self.sequence, seen: seen.sequence });
            }
            if self.sequence == seen.sequence && self != seen {
                return refuse(DocumentFault::Forked(self.sequence));
            }
        }
        match now {
            None => Ok(ChannelClock::Unverified),
            Some(now) if now >= self.expires => refuse(DocumentFault::Expired { until: self.expires, now }),
            Some(_) => Ok(ChannelClock::Verified),
        }
    }

    /// Reason why no node takes this version any more.
    #[must_use]
    pub fn withdrawal(&self, version: ReleaseVersion) -> Option<&str> {
        self.withdrawn.iter().find(|w| w.version == version).map(|w| w.reason.as_str())
    }
}
