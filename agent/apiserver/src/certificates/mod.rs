//! The node's keys and certificates: this module makes, reads and stores them.
//!
//! In: the decisions of core's certificate machine (subject, names, time). Out: a key with its certificate
//! request ([`KeyAndCsr`]), the facts of a certificate ([`agent_types::certificates::CertificateFacts`]), and
//! the certificate store on disk ([`Store`]). Invariants: no log contains a private key; memory that held a
//! key is wiped where the libraries allow it; files have mode 0600. Upstream: client-go/util/certificate.

mod facts;
mod key;
pub(crate) mod pod_key;
mod self_signed;
mod store;

use std::path::PathBuf;

#[cfg(feature = "testing")]
pub(crate) use facts::facts_of_der;
pub use facts::{facts_of_pem, is_key_of};
pub use key::KeyAndCsr;
pub use pod_key::PodKey;
pub use self_signed::self_signed;
pub use store::Store;

/// What is wrong with a key, a certificate or the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// A file or directory cannot be used.
    #[error("{}: {operation}", path.display())]
    Io {
        /// Path of the file or directory.
        path: PathBuf,
        /// What was being done.
        operation: &'static str,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The store's current entry is a file that the agent did not write.
    #[error("{}: is not a symbolic link; it was not written by the kubelet: move it away", path.display())]
    NotALink {
        /// Path of the file or directory.
        path: PathBuf,
    },
    /// The contents are no certificate and key. The reason never quotes them.
    #[error("{what}: {reason}")]
    Contents {
        /// Which file or answer.
        what: String,
        /// Reason of the failure.
        reason: String,
    },
    /// A key or request could not be made.
    #[error("certificate request for {subject}: {reason}")]
    Request {
        /// The common name.
        subject: String,
        /// Reason of the failure.
        reason: String,
    },
}
