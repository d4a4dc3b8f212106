//! Kernel calls that `nix` has no safe wrapper for. The only unsafe code of init; each module wraps one thing.

pub mod block;
pub mod child;
pub mod dm;
pub mod inode;
pub mod swap;
pub mod watchdog;
pub mod xattr;
