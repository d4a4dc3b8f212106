//! VM and native harness, cases, benchmarks.
#![forbid(unsafe_code)]
