//! The event stream against the fake server, clock paused.

mod support;

use std::time::Duration;

use agent_cri::testing::Fault;
use agent_kubelet_api::drivers::Runtime as _;
use agent_types::ids::PodUid;
use agent_types::runtime::observed::{RelistReason, RuntimeHint, RuntimeSignal};
use orlop_proto::cri::v1;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Code;

use support::{pair, pod, until};

fn hint(name: &str) -> RuntimeSignal {
    RuntimeSignal::Hint(RuntimeHint { uid: PodUid::from(format!("uid-{name}")) })
}

const ESTABLISHED: RuntimeSignal = RuntimeSignal::Relist(RelistReason::Established);
const LOST: RuntimeSignal = RuntimeSignal::Relist(RelistReason::Lost);

/// The next signal, within an hour of virtual time.
async fn next(signals: &mut mpsc::Receiver<RuntimeSignal>) -> Option<RuntimeSignal> {
    tokio::time::timeout(Duration::from_secs(3600), signals.recv()).await.expect("no signal within an hour")
}

fn event(uid: &str) -> v1::ContainerEventResponse {
    let metadata = Some(v1::PodSandboxMetadata { uid: uid.to_owned(), ..Default::default() });
    let pod_sandbox_status = Some(v1::PodSandboxStatus { metadata, ..Default::default() });
    v1::ContainerEventResponse { pod_sandbox_status, ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn hints_name_the_pod_and_a_lost_stream_asks_for_a_relist() {
    let (mut fake, client) = pair().await;
    let (mut signals, driver) = client.events();
    let driver = tokio::spawn(driver);
    assert_eq!(next(&mut signals).await, Some(ESTABLISHED));
    assert!(fake.seen("GetContainerEvents").iter().all(|s| s.deadline.is_none()));
    client.run_sandbox(&pod("web").0).await.unwrap();
    assert_eq!(next(&mut signals).await, Some(hint("web")));
    // The runtime ends the stream.
    fake.end_event_streams(Code::Unavailable);
    assert_eq!(next(&mut signals).await, Some(LOST));
    assert_eq!(next(&mut signals).await, Some(ESTABLISHED));
    fake.send_event(event("uid-db"));
    assert_eq!(next(&mut signals).await, Some(hint("db")));
    // The runtime dies and comes back; one Lost only, however long it takes.
    fake.stop();
    assert_eq!(next(&mut signals).await, Some(LOST));
    tokio::time::advance(Duration::from_secs(60)).await;
    fake.listen().unwrap();
    assert_eq!(next(&mut signals).await, Some(ESTABLISHED));
    drop(signals);
    driver.await.unwrap();
}

/// containerd answers the call with its first event, not before.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_silent_until_the_first_event_counts_as_listening() {
    let (mut fake, client) = pair().await;
    fake.inject("GetContainerEvents", Fault::Delay(Duration::from_secs(600)));
    let (mut signals, driver) = client.events();
    tokio::spawn(driver);
    let start = Instant::now();
    assert_eq!(next(&mut signals).await, Some(ESTABLISHED));
    assert!(start.elapsed() < Duration::from_secs(1));
    fake.send_event(event("uid-db"));
    assert_eq!(next(&mut signals).await, Some(ESTABLISHED), "again, when it is certain");
    assert!(start.elapsed() >= Duration::from_secs(600));
    assert_eq!(next(&mut signals).await, Some(hint("db")));
    // Lost while silent is lost as well.
    fake.inject("GetContainerEvents", Fault::Hang);
    fake.end_event_streams(Code::Unavailable);
    assert_eq!(next(&mut signals).await, Some(LOST));
    assert_eq!(next(&mut signals).await, Some(ESTABLISHED));
    fake.stop();
    assert_eq!(next(&mut signals).await, Some(LOST));
}

#[tokio::test(start_paused = true)]
async fn an_event_without_a_pod_asks_for_a_relist() {
    let (fake, client) = pair().await;
    let (mut signals, driver) = client.events();
    tokio::spawn(driver);
    assert_eq!(next(&mut signals).await, Some(ESTABLISHED));
    fake.send_event(v1::ContainerEventResponse { container_id: "c".to_owned(), ..Default::default() });
    assert_eq!(next(&mut signals).await, Some(RuntimeSignal::Relist(RelistReason::Unnamed)));
    let labels = ["name", "namespace", "uid"].map(|l| (format!("io.kubernetes.pod.{l}"), "uid-x".to_owned()));
    let containers_statuses = vec![v1::ContainerStatus { labels: labels.into(), ..Default::default() }];
    fake.send_event(v1::ContainerEventResponse { containers_statuses, ..Default::default() });
    assert_eq!(next(&mut signals).await, Some(hint("x")));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_without_events_is_said_once() {
    let (fake, client) = pair().await;
    fake.inject("GetContainerEvents", Fault::Refuse(Code::Unimplemented, "no".to_owned()));
    let (mut signals, driver) = client.events();
    let driver = tokio::spawn(driver);
    assert_eq!(next(&mut signals).await, Some(RuntimeSignal::Unsupported));
    assert_eq!(next(&mut signals).await, None);
    driver.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_loses_nothing() {
    let (fake, client) = pair().await;
    let (mut signals, driver) = client.events();
    tokio::spawn(driver);
    assert_eq!(next(&mut signals).await, Some(ESTABLISHED));
    for i in 0..1000 {
        fake.send_event(event(&format!("uid-{i}")));
    }
    until("the channel is full", || signals.len() == signals.max_capacity()).await;
    for i in 0..1000 {
        assert_eq!(next(&mut signals).await, Some(hint(&i.to_string())));
    }
}

#[tokio::test(start_paused = true)]
async fn the_driver_ends_with_its_reader() {
    let (mut fake, client) = pair().await;
    let (signals, driver) = client.events();
    let driver = tokio::spawn(driver);
    until("the stream is open", || fake.event_streams() == 1).await;
    drop(signals);
    driver.await.unwrap();
    until("the stream is closed", || fake.event_streams() == 0).await;
    // The same while it backs off.
    fake.stop();
    let (signals, driver) = client.events();
    let driver = tokio::spawn(driver);
    tokio::time::advance(Duration::from_secs(5)).await;
    drop(signals);
    driver.await.unwrap();
}
