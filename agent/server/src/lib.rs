//! The node's HTTP endpoints: healthz on 10248.
#![forbid(unsafe_code)]
