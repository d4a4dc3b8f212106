//! The build machine: its package archive, its tools, and running commands on it.

pub mod apt;
pub mod run;
pub mod tools;
