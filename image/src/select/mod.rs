//! Which files of the package tree go into the image, and why (pure). Input: `image/contents.txt`, the tree's
//! listing, ELF facts and module dependencies. Output: path -> component and reason.

pub mod closure;
pub mod contents;
pub mod glob;
pub mod modules;

pub use closure::{InclusionReason, Kind, Listing, choose};
pub use contents::Contents;
