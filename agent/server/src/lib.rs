//! agent-server: the node's HTTP endpoints. Now: healthz on 10248; the HTTPS API on 10250 joins it here.
//! See docs/agent.md and contract chapter 14.
#![forbid(unsafe_code)]

mod bounded;
pub mod healthz;
