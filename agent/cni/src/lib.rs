//! The CNI plugin of the node's own pod network (docs/decisions/cni-plugin.md): what `bridge` and `host-local` do, in one start.
//!
//! `config`, `range`, `ipam`, `outcome` and `portmap` are pure: text in, values and text out; no input panics. `store`
//! keeps reservations in host-local's format; `network` asks the kernel; `attachment` puts both together for each
//! command; `pass_on` runs the program that knows more.
#![forbid(unsafe_code)]

pub mod attachment;
pub mod check;
pub mod config;
pub mod environment;
pub mod failure;
pub mod ipam;
pub mod network;
pub mod outcome;
pub mod pass_on;
pub mod plugin;
pub mod portmap;
pub mod range;
pub mod store;
