//! What nodes update from: keys, signed documents and the files of releases, in a directory that a web server or a stick can hold.
//!
//! ```text
//! keys ─► trust/<n>.json ──────────────┐
//! bundle: build ─► releases/<version>/ ├─► the published directory ─► verify
//! bundle, sign ─► channels/<name>.json ┘            └─► layout ─► an OCI layout, for a registry
//! ```
//! In: a build, the directory of keys. Out: the published directory. Invariants: a release is never written twice; a document is
//! written only if a node would take it. Documents: [`orlop_config::release`]. For operators: docs/reference/update.md.

mod bundle;
mod channel;
mod detached;
mod keys;
mod layout;
mod sbom;
mod signing_key;
mod verify;

#[cfg(test)]
mod tests;

pub use bundle::{BuildFiles, BundleArgs, ReleaseSigning, ReleaseTerms, bundle, write_release};
pub use channel::{ChannelChange, SignArgs, change_channel, sign};
pub use detached::{SignFileArgs, add_signature, sign_file};
pub use keys::{KeyDirectory, KeysArgs, keys, newest_trust};
pub use layout::{LayoutArgs, WrittenLayout, layout, write_layout};
pub use signing_key::SigningKey;
pub use verify::{VerifyArgs, check_files, verify};

use anyhow::{Context, Result};
use orlop_config::release::UtcSecond;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time of this machine.
fn now() -> Result<UtcSecond> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    Ok(UtcSecond::new(since.as_secs()))
}
