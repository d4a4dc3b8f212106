//! What tests of this crate and of others use: the contract suite with its subject, the wire probe, and a fake
//! CRI server on a unix socket. Behind the feature `testing`; never part of the agent.

mod contract_suite;
mod fake_server;
mod fake_service;
mod fake_state;
mod subject;
mod wire_probe;

pub use contract_suite::{Subject, Violation, contract_suite};
pub use fake_server::{FakeCri, Fault, RecordedCall};
pub use fake_state::{FakeContainer, FakeSandbox, FakeState};
pub use subject::{Commands, container_config, sandbox_config};
pub use wire_probe::WireProbe;
