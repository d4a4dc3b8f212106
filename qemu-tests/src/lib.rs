//! orlop-e2e: the cases of levels L3, L4n (native node) and L4v (booted VM), the runner, the benchmarks and
//! `selftest`.
//!
//! What comes in: case names, the built image and the built agent. What goes out: a verdict per case, one
//! closing line, and the artefacts of what failed. Invariants: everything a run makes carries the run's id
//! and is recorded before it exists ([`run`]), so that Ctrl-C and `clean` remove exactly that.
//! See docs/testing.md.
#![forbid(unsafe_code)]

pub mod bench;
pub mod built;
pub mod case;
pub mod cases;
pub mod changes;
pub mod cluster;
pub mod conformance;
pub mod counts;
pub mod gate;
pub mod history;
pub mod native;
pub mod prepare;
pub mod process;
pub mod resource;
pub mod rng;
pub mod run;
pub mod runner;
pub mod say;
pub mod schedule;
pub mod select;
pub mod selftest;
pub mod signals;
pub mod usage;
pub mod vm;
pub mod workspace;
