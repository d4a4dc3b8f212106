//! Where documents come from: one verb, *the document of this name*.

use std::io;
use std::path::PathBuf;

/// A directory with published documents.
pub trait DocumentSource {
    /// Its place, as a person names it.
    fn place(&self) -> String;

    /// The document at `path` below the directory, at most [`DOCUMENT_BYTES_MAX`](orlop_config::release::DOCUMENT_BYTES_MAX) bytes;
    /// `None` if there is none. The paths are those of [`orlop_config::release`].
    fn document(&self, path: &str) -> impl Future<Output = Result<Option<Vec<u8>>, SourceError>> + Send;
}

/// A source that does not give its document.
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
