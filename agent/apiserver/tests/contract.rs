//! The fake passes the contract suite, over TLS on the loopback.

use std::sync::Arc;

use agent_apiserver::testing::{FakeServer, TestPki, contract_suite};

#[tokio::test]
async fn the_fake_keeps_the_contract() {
    let fake = FakeServer::start(Arc::new(TestPki::new())).await.unwrap();
    let checks = contract_suite(&fake.node("suite"), &fake.admin(), "suite").await.unwrap();
    assert!(checks.len() >= 12, "{checks:?}");
}
