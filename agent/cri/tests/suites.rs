//! The contract suite over everything that claims to be a runtime and can run here: the client with the fake
//! server, and the simulation's fake runtime. The real one is run by `examples/cri-contract`.

mod support;

use agent_cri::testing::{Commands, Subject, contract_suite};
use agent_sim::driver::FakeDriver;
use agent_sim::fake_runtime::{FakeRuntime, Program, image, now_at};
use agent_types::ids::{ContainerId, ImageId};
use agent_types::runtime::config::NamespaceMode;
use agent_types::runtime::observed::ContainerState;
use agent_types::time::{Mono, Now};

use support::pair;

const CHECKS: usize = 34;

fn commands() -> Commands {
    let words = |w: &[&str]| w.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    Commands { runs: words(&["pause"]), exits: (words(&["exit", "7"]), 7), deaf: words(&["deaf"]) }
}

#[tokio::test(start_paused = true)]
async fn client_with_fake_server() {
    for network in [NamespaceMode::Pod, NamespaceMode::Node] {
        let (fake, client) = pair().await;
        let subject = Subject::new("suite", network, &ImageId::from("sha256:fake"), &commands());
        let checks = contract_suite(&client, &subject, tokio::task::yield_now).await.unwrap();
        assert_eq!(checks.len(), CHECKS);
        assert!(fake.with(|s| s.sandboxes.is_empty() && s.containers.is_empty()));
    }
}

#[tokio::test]
async fn simulated_runtime() {
    let reference = "localhost/orlop/contract:1";
    let mut runtime = FakeRuntime::default();
    let present = image(reference);
    runtime.images.insert(reference.to_owned(), present.clone());
    runtime.images.insert(present.id.to_string(), present.clone());
    runtime.programs.insert("exits".to_owned(), Program { exits: Some((10, 7)), term_ms: Some(0) });
    runtime.programs.insert("deaf".to_owned(), Program { exits: None, term_ms: None });
    let clock = std::sync::atomic::AtomicU64::new(1);
    let tick =
        move || -> Now { now_at(Mono(clock.fetch_add(1_000_000, std::sync::atomic::Ordering::Relaxed))) };
    let driver = FakeDriver::new(runtime, tick);
    let subject = Subject::new("suite", NamespaceMode::Pod, &present.id, &commands());
    // The world's part: a container that exits by itself does so when time passes.
    let pause = async || {
        driver.with(|r| {
            let ends: Vec<(ContainerId, i32)> = r
                .containers
                .iter()
                .filter(|(_, c)| c.observed.state == ContainerState::Running)
                .filter_map(|(id, c)| c.program.exits.map(|(_, code)| (id.clone(), code)))
                .collect();
            ends.iter().for_each(|(id, code)| r.exit(now_at(Mono(u64::MAX / 4)), id, *code, "Error"));
        });
    };
    let checks = contract_suite(&driver, &subject, pause).await.unwrap();
    assert_eq!(checks.len(), CHECKS);
}
