//! The image builder and runner.
#![forbid(unsafe_code)]
