//! Shared by the tests against the fake server: a connected pair, and waiting without sleeping.

#![allow(dead_code)] // not every test file uses everything
#![allow(clippy::unwrap_used)] // helpers of tests, outside of the test functions

use std::time::Duration;

use agent_cri::CriClient;
use agent_cri::testing::{FakeCri, container_config, sandbox_config};
use agent_types::ids::ImageId;
use agent_types::runtime::config::{ContainerConfig, SandboxConfig};

/// `runtimeRequestTimeout` in these tests; the clock is paused, so it costs nothing.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// A fake runtime and a client of it.
pub(crate) async fn pair() -> (FakeCri, CriClient) {
    let fake = FakeCri::start().unwrap();
    let client = CriClient::connect(&fake.endpoint(), TIMEOUT).await.unwrap();
    (fake, client)
}

/// Lets everything else run until `condition` holds.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("never came true: {what}");
}

/// A pod and its only container.
pub(crate) fn pod(name: &str) -> (SandboxConfig, ContainerConfig) {
    let sandbox = sandbox_config(name, 0);
    let container = container_config(&sandbox, "main", 0, &ImageId::from("sha256:fake"));
    (sandbox, container)
}
