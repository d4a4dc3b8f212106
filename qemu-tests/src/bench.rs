//! Benchmarks: figures printed with the command that made them, never asserted.

pub mod boot;
pub mod dense;
pub mod eviction;
pub mod floor;
pub mod native;
pub mod node;
pub mod peer;
pub mod peer_vm;
pub mod projected;
pub mod rollover;
pub mod scrape;
mod scrape_vm;
pub mod size;
pub mod spent;
pub mod start;
pub mod stock;
pub mod streams;
pub mod update;
