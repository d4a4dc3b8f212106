//! What is wrong with a document, on which document, and what to do.

use std::fmt;

use super::{KeyRole, ReleaseVersion, UtcSecond};

/// Longest text of a stranger in a message, characters.
const QUOTED_CHARS_MAX: usize = 120;

/// A document as a person names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentName {
    /// The trust document with this number; none if its number is not known yet.
    Trust(Option<u64>),
    /// The channel with this name.
    Channel(String),
    /// The release with this version.
    Release(ReleaseVersion),
}

impl fmt::Display for DocumentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DocumentName::Trust(None) => f.write_str("trust document"),
            DocumentName::Trust(Some(number)) => write!(f, "trust {number}"),
            DocumentName::Channel(name) => write!(f, "channel {name}"),
            DocumentName::Release(version) => write!(f, "release {version}"),
        }
    }
}

/// A document that is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{document}: {fault}")]
pub struct DocumentError {
    /// Which one.
    pub document: DocumentName,
    /// Why.
    pub fault: DocumentFault,
}

/// Why a document is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentFault {
    /// More bytes than a document may have.
    #[error("it has more than {0} bytes and is not read; look at what the source serves in its place")]
    TooLarge(usize),
    /// More levels of lists and objects than a document may have.
    #[error("it has more than {0} levels of lists and objects and is not read")]
    TooDeep(usize),
    /// No JSON, or a field is missing or has another form.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// The envelope holds something else.
    #[error("its payload is {found:?}, not {want:?}: another document stands in its place")]
    OtherType {
        /// Payload type that was asked for.
        want: &'static str,
        /// Payload type of the envelope.
        found: String,
    },
    /// Too few signatures of the role's keys.
    #[error(
        "{good} of the {threshold} signatures that trust {trust} asks of role {role} (keys {keys}) are good, and it names {named}: \
         it is not taken; sign it with these keys, or publish the trust document that has the new ones"
    )]
    NotSigned {
        /// Role whose keys count.
        role: KeyRole,
        /// Number of the trust document that names the keys.
        trust: u64,
        /// Keys of the role with a good signature.
        good: usize,
        /// Keys that must have signed.
        threshold: usize,
        /// Identifiers of the role's keys.
        keys: String,
        /// Identifiers that the signatures name.
        named: String,
    },
    /// A field has a value that no document may have.
    #[error("{field} {why}")]
    Field {
        /// Path of the field.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// For another product.
    #[error("it is for product {found:?}, and this node is {want:?}")]
    OtherProduct {
        /// Product of the document.
        found: String,
        /// Product of the node.
        want: String,
    },
    /// For another architecture.
    #[error("it is for architecture {found:?}, and this node is {want:?}")]
    OtherArch {
        /// Architecture of the document.
        found: String,
        /// Architecture of the node.
        want: String,
    },
    /// It has another name, number or version than the one that was asked for.
    #[error("it says that it is {found}: the source serves one document in place of another")]
    OtherDocument {
        /// Its own name.
        found: DocumentName,
    },
    /// A trust document that is not the next one.
    #[error("it has number {found}, and only {want} can follow: publish every trust document, none left out")]
    OutOfOrder {
        /// Number of the document.
        found: u64,
        /// Number that follows the node's.
        want: u64,
    },
    /// A channel that was signed after a trust document that the node has not been shown.
    #[error(
        "it was signed after trust {want}, and this node has been shown {known}: the source is behind, or hides trust documents"
    )]
    TrustHidden {
        /// Number of the newest trust document of the node.
        known: u64,
        /// Number of the newest trust document when the channel was signed.
        want: u64,
    },
    /// A channel that is older than the one that the node has seen.
    #[error(
        "it has sequence {found}, and this node has seen {seen}: the source is behind, or replays an old document"
    )]
    Replayed {
        /// Sequence of the document.
        found: u64,
        /// Highest sequence that the node has taken.
        seen: u64,
    },
    /// Two channels with one sequence.
    #[error(
        "it differs from the document with the same sequence {0} that this node has seen: sign it again with a higher one"
    )]
    Forked(u64),
    /// A channel whose time is over.
    #[error(
        "it was good until {until}, and it is {now}: sign the channel again, or look whether the source is frozen"
    )]
    Expired {
        /// End of its time.
        until: UtcSecond,
        /// Time of the node.
        now: UtcSecond,
    },
    /// A release below the floor of the node.
    #[error("it has generation {generation}, this node takes {floor} or more")]
    BelowFloor {
        /// Generation of the release.
        generation: u64,
        /// Floor of the node.
        floor: u64,
    },
    /// A release that is not newer, and no person named it.
    #[error("it is not newer than the running {0}: a node goes back only to a version that is named")]
    NotNewer(ReleaseVersion),
    /// A release that the channel has withdrawn.
    #[error("it is withdrawn: {0}")]
    Withdrawn(String),
    /// A release that wants a newer one in between.
    #[error("it can be installed from {min} on, and this node runs {running}: update to {min} first")]
    BelowMinVersion {
        /// Oldest version that may install it.
        min: ReleaseVersion,
        /// Version of the node.
        running: ReleaseVersion,
    },
}

impl DocumentFault {
    /// The fault of this document.
    #[must_use]
    pub fn of(self, document: DocumentName) -> DocumentError {
        DocumentError { document, fault: self }
    }

    pub(super) fn field(field: impl Into<String>, why: impl Into<String>) -> DocumentFault {
        DocumentFault::Field { field: field.into(), why: why.into() }
    }
}

/// The beginning of a stranger's text.
pub(super) fn quoted(text: &str) -> String {
    let mut short: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}
