//! The simulated world: fakes, fault plans, checkers.
#![forbid(unsafe_code)]
