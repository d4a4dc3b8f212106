//! One look at a source: trust, channel, and the release that this node takes now.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use orlop_config::release::{
    ChannelClock, ChannelDocument, DocumentError, DocumentName, NodeRelease, RELEASE_DOCUMENT, ReleaseChoice,
    ReleaseDocument, ReleaseReason, ReleaseVersion, TrustDocument, UtcSecond, channel_path, choose,
    is_document_name, release_path, trust_path,
};
use orlop_files::ReplaceError;

use super::directory::MountedDirectory;
use super::signatures::RingSignatures;
use super::source::{DocumentSource, SourceError};
use super::store::UpdateStore;

/// What a node knows about itself, and what it asks.
#[derive(Clone, Debug)]
pub struct SurveyRequest<'a> {
    /// Channel of the node.
    pub channel: &'a str,
    /// Architecture, version and floor.
    pub node: NodeRelease<'a>,
    /// The node's own seed, which gives its place in a rollout.
    pub seed: &'a [u8],
    /// Versions that the node has gone back from.
    pub refused: &'a BTreeSet<ReleaseVersion>,
    /// Time, once the clock is trusted.
    pub now: Option<UtcSecond>,
    /// A version that a person has named, in place of the channel's choice.
    pub version: Option<ReleaseVersion>,
}

/// What a source says to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The newest trust document.
    pub trust: TrustDocument,
    /// The channel's document.
    pub channel: ChannelDocument,
    /// Whether its time was checked.
    pub clock: ChannelClock,
    /// What the node does.
    pub answer: SurveyAnswer,
}

/// What a node does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SurveyAnswer {
    /// Nothing.
    UpToDate,
    /// It takes a release later.
    Waits {
        /// Version whose turn comes first.
        version: ReleaseVersion,
        /// The node's turn.
        turn: UtcSecond,
    },
    /// It takes this release.
    Take(ReleaseDocument),
}

/// Why a look at a source has no result.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// The image has no trust document.
    #[error(
        "updates are not configured: this image has no {}; build it with `orlop-image build --trust FILE`",
        .0.display()
    )]
    NotConfigured(PathBuf),
    /// A name of a channel that is none.
    #[error("{0:?} is no name of a channel")]
    ChannelName(String),
    /// The source gives no answer.
    #[error(transparent)]
    Unreachable(#[from] SourceError),
    /// The source has no such document.
    #[error(
        "{place} has no {document} ({path}): publish it, or correct the source or the channel of the node"
    )]
    Missing {
        /// Source.
        place: String,
        /// Document.
        document: DocumentName,
        /// Path below the source.
        path: String,
    },
    /// A document is not taken.
    #[error("{} from {place}: {}", error.document, error.fault)]
    Document {
        /// Source, or file.
        place: String,
        /// Document and reason.
        error: Box<DocumentError>,
    },
    /// A kept file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// The directory of what is kept cannot be made.
    #[error("make {}", path.display())]
    Directory {
        /// Directory.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// A document cannot be kept.
    #[error("keep a document of updates")]
    Keep(#[source] ReplaceError),
}

impl UpdateError {
    pub(crate) fn document(place: String, error: DocumentError) -> UpdateError {
        UpdateError::Document { place, error: Box::new(error) }
    }
}

/// Looks at a source: follows the chain of trust documents, takes the channel's document, and reads the release that the node takes
/// now. What was taken is kept even if a later document is refused.
///
/// # Errors
/// The first thing that is wrong.
pub async fn survey(
    place: &impl DocumentSource,
    store: &mut UpdateStore,
    request: &SurveyRequest<'_>,
) -> Result<Survey, UpdateError> {
    if !is_document_name(request.channel) {
        return Err(UpdateError::ChannelName(request.channel.to_owned()));
    }
    // Each number once, and each one signed: the chain ends.
    while let Some(text) = place.document(&trust_path(store.trust().next_number())).await? {
        store.follow_trust(&place.place(), &text)?;
    }
    let refused = |error| UpdateError::document(place.place(), error);
    let (channel, clock) = follow_channel(place, store, request).await?;
    let node = &request.node;
    let (version, reason) = match request.version {
        Some(version) => (version, ReleaseReason::ByName),
        None => match choose(&channel, node, request.seed, request.refused, request.now) {
            ReleaseChoice::Take(version) => (version, ReleaseReason::Offered),
            ReleaseChoice::UpToDate => return Ok(found(store, channel, clock, SurveyAnswer::UpToDate)),
            ReleaseChoice::Waits { version, turn } => {
                return Ok(found(store, channel, clock, SurveyAnswer::Waits { version, turn }));
            }
        },
    };
    let path = release_path(version, node.arch, RELEASE_DOCUMENT);
    let text = place.document(&path).await?.ok_or_else(|| UpdateError::Missing {
        place: place.place(),
        document: DocumentName::Release(version),
        path,
    })?;
    let release =
        ReleaseDocument::read(store.trust(), version, node.arch, &text, &RingSignatures).map_err(refused)?;
    release.judge(node, Some(&channel), reason).map_err(refused)?;
    Ok(found(store, channel, clock, SurveyAnswer::Take(release)))
}

fn found(store: &UpdateStore, channel: ChannelDocument, clock: ChannelClock, answer: SurveyAnswer) -> Survey {
    Survey { trust: store.trust().clone(), channel, clock, answer }
}

async fn follow_channel(
    place: &impl DocumentSource,
    store: &UpdateStore,
    request: &SurveyRequest<'_>,
) -> Result<(ChannelDocument, ChannelClock), UpdateError> {
    let refused = |error| UpdateError::document(place.place(), error);
    let path = channel_path(request.channel);
    let text = place.document(&path).await?.ok_or_else(|| UpdateError::Missing {
        place: place.place(),
        document: DocumentName::Channel(request.channel.to_owned()),
        path,
    })?;
    let channel =
        ChannelDocument::read(store.trust(), request.channel, &text, &RingSignatures).map_err(refused)?;
    let seen = store.seen(request.channel)?;
    let clock = channel.follow(seen.as_ref(), request.now).map_err(refused)?;
    if seen.as_ref() != Some(&channel) {
        store.keep_channel(request.channel, &text)?;
    }
    Ok((channel, clock))
}

/// [`survey`] of a directory, for programs without a runtime.
///
/// # Errors
/// Those of [`survey`].
///
/// # Panics
/// Never: a directory's documents are read when they are asked for, so the future does not wait.
pub fn survey_directory(
    directory: &MountedDirectory,
    store: &mut UpdateStore,
    request: &SurveyRequest<'_>,
) -> Result<Survey, UpdateError> {
    let mut future = pin!(survey(directory, store, request));
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a directory is read at once"),
    }
}
