//! Netlink requests for pods' networks: what the CNI plugin and init ask of the kernel, and what it answers.
//!
//! `wire`, `link`, `address`, `route` and `nft` are pure: values in, messages out, and back; no parser panics on any
//! input. `socket` sends and receives, one request after the other. A module of our own because both programs are
//! started for a moment and must be small: of the kept crates, `netlink-packet-route` decodes every attribute of a link,
//! and none has nftables' messages.
#![forbid(unsafe_code)]

pub mod address;
pub mod link;
pub mod nft;
pub mod route;
pub mod socket;
pub mod wire;

pub use socket::{NetlinkError, Socket};
