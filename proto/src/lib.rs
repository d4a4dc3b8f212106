//! The public wire contracts, restated: CRI v1.
#![forbid(unsafe_code)]
