//! orlop-update: what a node knows about updates, and how one gets into the slot that does not run.
//!
//! ```text
//! DocumentSource ──► survey ──► Survey: trust, channel, the release to take ──► stage ──► slot, boot record, ESP, table
//!  https, directory    │  ▲                                            ByteSource ─┘ ▲
//!                      ▼  │ RingSignatures                                           │ AreaWriter (pure)
//!                  UpdateStore: /var/lib/orlop/update
//! ```
//! The documents and all decisions on them are those of [`orlop_config::release`]; the decisions on slots are those of [`slot`].
//! Invariants: no document takes more memory than [`DOCUMENT_BYTES_MAX`](orlop_config::release::DOCUMENT_BYTES_MAX); a document is on
//! disk before anything follows from it, so a power cut brings no older one back; no redirect is followed but those of a registry; the
//! slot that runs is only read; staging lets no slot boot. The agent orders trials ([`SlotDisk::order_trial`]). For operators:
//! docs/reference/update.md.
#![forbid(unsafe_code)]

mod boot_files;
#[cfg(test)]
mod cuts;
mod device;
mod directory;
mod disk;
mod http;
mod https;
mod oci;
mod oci_answers;
pub mod service;
mod signatures;
pub mod slot;
mod source;
mod stage;
mod stage_error;
#[cfg(test)]
mod stage_fixture;
mod store;
mod survey;
mod trial;

pub use directory::MountedDirectory;
pub use disk::{DiskFault, SlotDisk};
pub use http::client_config;
pub use https::HttpsDirectory;
pub use oci::OciRepository;
pub use oci_answers::{OCI_MANIFEST_TYPE, OciPlace, oci_place};
pub use signatures::RingSignatures;
pub use source::{ByteRange, ByteSource, DocumentSource, SourceError, TakePiece};
pub use stage::{SayProgress, StageProgress, StagedRelease, stage};
pub use stage_error::{SlotPart, StageError};
pub use store::UpdateStore;
pub use survey::{Survey, SurveyAnswer, SurveyRequest, UpdateError, survey, survey_directory};
pub use trial::TrialFault;
