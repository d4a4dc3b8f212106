//! The build machine: its package archive, its tools, and running commands on it.

pub mod apt;
mod cargo;
pub mod emulator;
pub mod run;
pub mod tools;

pub use cargo::cargo;
