//! Nothing but a manifest: the features of other packages that only tests turn on (`Cargo.toml` says why). No crate uses this one,
//! and no program waits for its compilation.
#![forbid(unsafe_code)]
