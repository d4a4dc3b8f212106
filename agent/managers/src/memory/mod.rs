//! Memory and huge pages of containers, by NUMA node (`memoryManagerPolicy: Static`).

pub mod hints;
pub mod manager;
pub mod start;
pub mod state;
