//! The fake passes the contract suite, over TLS on the loopback.

use std::sync::Arc;

use agent_apiserver::testing::{FakeServer, Strangers, TestPki, Validity, contract_suite};
use agent_apiserver::{Access, Credentials};

#[tokio::test]
async fn the_fake_keeps_the_contract() {
    let fake = FakeServer::start(Arc::new(TestPki::new())).await.unwrap();
    fake.accept_tokens(&["abcdef.0123456789abcdef"]);
    let with_pair = |pem: String| {
        let credentials = Credentials::from_pem(pem.as_bytes(), pem.as_bytes()).unwrap();
        fake.client_with(Access { server: fake.server(), trust: fake.pki.trust(), credentials })
    };
    let pair = |pki: &TestPki, validity| pki.client_pem("system:node:suite", "system:nodes", validity);
    let strangers = Strangers {
        unknown: vec![
            with_pair(pair(&fake.pki, Validity(-7200, -3600))),
            with_pair(pair(&TestPki::new(), Validity::default())),
            fake.client_without_certificate(Some("abcdef.fedcba9876543210")),
        ],
        anonymous: fake.client_without_certificate(None),
        bootstrap: fake.client_without_certificate(Some("abcdef.0123456789abcdef")),
    };
    let checks = contract_suite(&fake.node("suite"), &fake.admin(), &strangers, "suite").await.unwrap();
    assert!(checks.len() >= 24, "{checks:?}");
}
