//! What is published for updates: versions of images.

mod version;

pub use version::{ReleaseVersion, VersionError};
