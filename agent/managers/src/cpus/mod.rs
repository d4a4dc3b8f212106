//! Exclusive processors of containers (`cpuManagerPolicy: static`).

pub mod accumulator;
pub mod distribution;
pub mod hints;
pub mod manager;
pub mod options;
pub mod start;
pub mod state;
