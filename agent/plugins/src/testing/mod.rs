//! Plugins on real sockets, for tests of this crate and of the agent. Behind the feature `testing`; never part of the agent.

// A test's helpers fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

mod dra_driver;

pub use dra_driver::{FakeDraDriver, Served};
