//! orlop-e2e: the cases of levels L3, L4n (native node) and L4v (booted VM), and the benchmarks.
//!
//! In: a run of the harness (`orlop_harness`), which has the nodes and the control plane. Out: the list of cases
//! ([`cases::all`]), and printed figures. See docs/internals/testing.md.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cases;
