//! What tests of this crate and of others use: a fake API server over TLS, with its certificates and its faults,
//! and the contract suite that it and the real one pass. Behind the feature `testing`; never part of the agent.
//!
//! The objects, their rules and the node's permissions are agent-sim's [`agent_sim::fake_api`]; here is HTTP.

#![allow(clippy::expect_used, clippy::missing_panics_doc)] // what is broken here is a broken test

mod authn;
mod contract_refusals;
mod contract_suite;
mod fake_server;
mod network;
mod odd_certificates;
mod pki;
mod review_load;
mod route;
mod watching;

pub use contract_suite::{Strangers, Violation, contract_suite};
pub use fake_server::{FakeServer, Fault, RecordedRequest};
pub use network::MemoryNetwork;
pub use odd_certificates::{CertificateDefect, OddCertificate};
pub use pki::{TestPki, Validity};
