//! The harness of the cases and benchmarks: native node, booted VM, control plane, upstream programs and suite, the
//! runner, and `selftest`. It has no cases of its own: its caller passes them.
//!
//! In: cases, the built image and the built agent. Out: a verdict per case and the artefacts of failures.
//! Invariants: every resource of a run carries the run's id and is recorded before it exists ([`run`]), so that
//! Ctrl-C and `clean` remove exactly that. See docs/internals/testing.md.
#![forbid(unsafe_code)]

pub mod ages;
pub mod built;
pub mod case;
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
