//! orlop-update: what a node knows about updates. It fetches the signed documents, verifies them, keeps the newest, and says which
//! release the node may take. It writes no slot.
//!
//! ```text
//! DocumentSource ──► survey ──► Survey: trust, channel, the release to take
//!  https, directory    │  ▲
//!                      ▼  │ RingSignatures
//!                  UpdateStore: /var/lib/orlop/update
//! ```
//! The documents and all decisions are those of [`orlop_config::release`]. Invariants: no document takes more memory than
//! [`DOCUMENT_BYTES_MAX`](orlop_config::release::DOCUMENT_BYTES_MAX); a document is on disk before anything follows from it, so a power
//! cut brings no older one back; no redirect is followed. For operators: docs/update.md.
#![forbid(unsafe_code)]

mod directory;
mod https;
mod signatures;
mod source;
mod store;
mod survey;

pub use directory::MountedDirectory;
pub use https::{HttpsDirectory, client_config};
pub use signatures::RingSignatures;
pub use source::{DocumentSource, SourceError};
pub use store::UpdateStore;
pub use survey::{Survey, SurveyAnswer, SurveyRequest, UpdateError, survey, survey_directory};
