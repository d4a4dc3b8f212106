//! Where updates come from. Two verbs: *the document of this name*, and *these bytes of the file of this name*.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;

pub use super::slot::area::ByteRange;

/// A directory with published documents.
pub trait DocumentSource {
    /// Its place, as a person names it.
    fn place(&self) -> String;

    /// The document at `path` below the directory, at most [`DOCUMENT_BYTES_MAX`](orlop_config::release::DOCUMENT_BYTES_MAX) bytes;
    /// `None` if there is none. The paths are those of [`orlop_config::release`].
    fn document(&self, path: &str) -> impl Future<Output = Result<Option<Vec<u8>>, SourceError>> + Send;
}

/// Takes a piece of a file, with its place in it. Breaks if no more is wanted.
pub type TakePiece<'a> = dyn FnMut(u64, &[u8]) -> ControlFlow<()> + Send + 'a;

/// A directory with published files of any size.
pub trait ByteSource: DocumentSource {
    /// Gives these bytes of the file at `path` in order and in pieces. A source that has no ranges begins at 0, whatever was asked
    /// for. The end of the call is the end of the answer, and says nothing about how many bytes came.
    fn bytes(
        &self,
        path: &str,
        range: ByteRange,
        take: &mut TakePiece<'_>,
    ) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// A source that does not give what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A text that names no source.
    #[error("{text:?} is no directory of updates: {why}")]
    Place {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The machine's certificate authorities cannot be used.
    #[error("no certificate authority: {0}")]
    Authorities(String),
    /// No connection, in the system's words.
    #[error("{url}: no connection: {why}")]
    Connection {
        /// Document.
        url: String,
        /// Cause.
        why: String,
    },
    /// This node has no route, which is not the source's fault.
    #[error("{url}: this node's network does not reach it: {why}; it is asked again at the next request")]
    NoRoute {
        /// Document.
        url: String,
        /// Cause.
        why: String,
    },
    /// No TLS.
    #[error(
        "{url}: {why}; the machine must trust the server's authority (`trust` in the NodeConfig), and its clock must be right"
    )]
    Tls {
        /// Document.
        url: String,
        /// Cause.
        why: String,
    },
    /// Connected, and no whole answer in time.
    #[error("{url}: no whole answer within {seconds} s")]
    Silent {
        /// Document.
        url: String,
        /// Limit.
        seconds: u64,
    },
    /// Neither a document nor its absence.
    #[error(
        "{url}: the server answers {status}; it must serve the documents themselves (200, or 404 for one that is not there)"
    )]
    Status {
        /// Document.
        url: String,
        /// Status code.
        status: u16,
    },
    /// No HTTP, or it ends in the middle.
    #[error("{url}: the answer breaks off: {why}")]
    Broken {
        /// Document.
        url: String,
        /// Cause.
        why: String,
    },
    /// Another part of a file than the one that was asked for.
    #[error("{url}: the server gives {found:?} in place of the bytes from {from} on")]
    OtherRange {
        /// File.
        url: String,
        /// `Content-Range` of the answer.
        found: String,
        /// First byte that was asked for.
        from: u64,
    },
    /// A registry does not let this node in.
    #[error(
        "{url}: the registry does not let this node in: {why}; give it a login (`/var/lib/kubelet/config.json`)"
    )]
    Login {
        /// Document.
        url: String,
        /// Cause.
        why: &'static str,
    },
    /// A registry leads elsewhere, and nobody follows there.
    #[error("{url}: the registry leads elsewhere: {why}")]
    Redirect {
        /// Document.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A manifest or a blob of a registry that is none.
    #[error("{url}: {why}; publish the directory again with `orlop-image layout`")]
    Manifest {
        /// Document.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The file is not there.
    #[error("{0} is not there: publish it, or correct the source of the node")]
    NoSuchFile(String),
    /// More bytes than a document may have.
    #[error("{place}: more than {bytes_max} bytes, which no document has")]
    TooLarge {
        /// Document.
        place: String,
        /// Limit.
        bytes_max: usize,
    },
    /// A path that leads out of the directory, or to no file.
    #[error("{} is no file of the directory", path.display())]
    NoFile {
        /// Document.
        path: PathBuf,
    },
    /// A file that cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// Document.
        path: PathBuf,
        /// The system's words.
        #[source]
        source: io::Error,
    },
}

impl SourceError {
    /// The source lies or is away, and is left for a while. A node without a network says nothing about its source.
    #[must_use]
    pub fn is_of_source(&self) -> bool {
        !matches!(self, SourceError::NoRoute { .. })
    }
}
