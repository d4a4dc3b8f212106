//! Tests of the driver against the fake, with a paused clock: faults, watches, rotation, hostile answers.

mod http1;

use std::sync::Arc;
use std::time::Duration;

use agent_sim::fake_api::{Key, Resource};
use agent_types::api::{ApiCall, ApiReply, ApiServer, ObjectName, WatchEvent};
use agent_types::failure::Class;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout};

use crate::testing::{FakeServer, Fault, TestPki, Validity};
use crate::{ApiClient, Credentials, Health, Trust};

fn fake() -> FakeServer {
    FakeServer::in_memory(Arc::new(TestPki::new()))
}

fn get_node() -> ApiCall {
    ApiCall::GetNode { name: "n".into() }
}

fn status_patch() -> ApiCall {
    let pod = ObjectName { namespace: "default".into(), name: "p0".into() };
    ApiCall::PatchPodStatus { pod, patch: json!({ "status": { "message": "x" } }) }
}

fn add_node(fake: &FakeServer) {
    fake.with_api(|api, now| {
        let key = Key::new(Resource::Nodes, "", "n");
        let node = json!({ "metadata": { "name": "n" } });
        api.serve(
            now,
            &agent_sim::fake_api::Requester::Admin,
            &key,
            &agent_sim::fake_api::Verb::Create(node),
        )
        .unwrap();
    });
}

fn add_pod(fake: &FakeServer, name: &str) {
    let pod = json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "nodeName": "n", "containers": [{ "name": "c", "image": "i" }] },
    });
    fake.with_api(|api, now| api.create_pod(now, &pod).unwrap());
}

/// How often an event is waited for.
const TIMES: usize = 5;

async fn next<T>(events: &mut Receiver<WatchEvent<T>>) -> WatchEvent<T> {
    for _ in 0..TIMES {
        match timeout(Duration::from_secs(3600), events.recv()).await {
            Ok(event) => return event.expect("a driver"),
            // The clock jumps when nothing can be done, but on a busy host the loopback device may only be late.
            Err(_) => std::thread::park_timeout(Duration::from_millis(20)),
        }
    }
    panic!("no event");
}

fn names(event: &WatchEvent<Pod>) -> String {
    let name = |p: &Arc<Pod>| p.metadata.name.clone().unwrap_or_default();
    match event {
        WatchEvent::Listed(pods) => format!("listed {}", pods.iter().map(name).collect::<Vec<_>>().join(",")),
        WatchEvent::Applied(pod) => format!("applied {}", name(pod)),
        WatchEvent::Deleted(pod) => format!("deleted {}", name(pod)),
        WatchEvent::Lost(_) => "lost".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn faults_become_classes() {
    let fake = fake();
    add_node(&fake);
    add_pod(&fake, "p0");
    let client = fake.node("n");
    let table = [
        (Fault::Refuse(429, "TooManyRequests", Some(3)), Class::Retryable { after_ms: 3000 }),
        (Fault::Refuse(500, "InternalError", None), Class::Unavailable),
        (Fault::Refuse(503, "ServiceUnavailable", Some(1)), Class::Retryable { after_ms: 1000 }),
        (Fault::Refuse(401, "Unauthorized", None), Class::Unavailable),
        (Fault::Silence, Class::DeadlineExceeded),
        (Fault::DoneAndSilence, Class::DeadlineExceeded),
        (Fault::Cut, Class::DeadlineExceeded),
        (Fault::Raw(200, b"<html>".to_vec()), Class::DeadlineExceeded),
        (Fault::Endless(200, false), Class::DeadlineExceeded),
        (Fault::Endless(500, false), Class::Unavailable),
        (Fault::Headers(100_000), Class::DeadlineExceeded),
    ];
    for (fault, class) in table {
        fake.fail("/pods/p0/status", fault.clone());
        let began = Instant::now();
        let error = client.call(&status_patch()).await.unwrap_err();
        assert_eq!(error.class, class, "{fault:?}: {error}");
        assert!(began.elapsed() < Duration::from_secs(11), "{fault:?} took {:?}", began.elapsed());
        client.call(&status_patch()).await.unwrap_or_else(|e| panic!("after {fault:?}: {e}"));
    }
    // Reading changes nothing: not knowing is no more than not reaching.
    fake.fail("/nodes/n", Fault::Raw(200, b"{}}".to_vec()));
    assert_eq!(client.call(&get_node()).await.unwrap_err().class, Class::Unavailable);
    fake.fail("/nodes/n", Fault::Cut);
    client.call(&get_node()).await.expect("asked again on a new connection");
    fake.fail("/nodes/n", Fault::Cut);
    fake.fail("/nodes/n", Fault::Cut);
    assert_eq!(client.call(&get_node()).await.unwrap_err().class, Class::Unavailable);
    let seen = fake.seen();
    assert!(seen.iter().all(|s| s.user_agent == "orlop/test" && s.who == "system:node:n"), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_there_and_somebody_else() {
    let fake = fake();
    add_node(&fake);
    let client = fake.node("n");
    assert!(matches!(client.call(&get_node()).await, Ok(ApiReply::Node(_))));
    assert_eq!(client.health().await, Health::Healthy);
    let stranger = fake.client_with(crate::Access {
        trust: TestPki::new().trust(),
        ..fake.pki.access(fake.server(), "n", "o")
    });
    let error = stranger.call(&get_node()).await.unwrap_err();
    assert_eq!(error.class, Class::Unavailable);
    assert!(error.message.contains("does not trust"), "{error}");
    assert_eq!(stranger.health().await, Health::Unhealthy);
    let anonymous =
        crate::Access { credentials: Credentials::None, ..fake.pki.access(fake.server(), "n", "o") };
    let error = fake.client_with(anonymous).call(&get_node()).await.unwrap_err();
    assert_eq!((error.class, error.code), (Class::Invalid, Some(403)));
}

#[tokio::test(start_paused = true)]
async fn the_nodes_own_limit_holds_back_and_spares_heartbeats() {
    let fake = fake();
    add_node(&fake);
    let client = fake.node("n");
    let pod = ObjectName { namespace: "default".into(), name: "absent".into() };
    let pod = ApiCall::FindPod { pod, node: "n".into() };
    let began = Instant::now();
    for _ in 0..150 {
        assert_eq!(client.call(&pod).await.unwrap_err().class, Class::NotFound);
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(990) && took < Duration::from_millis(1500), "{took:?}");
    let began = Instant::now();
    for _ in 0..150 {
        client.call(&get_node()).await.unwrap();
    }
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_lists_follows_and_resumes() {
    for plain in [false, true] {
        let fake = fake();
        if plain {
            fake.without_streamed_lists();
        }
        add_node(&fake);
        add_pod(&fake, "p0");
        let (mut events, driver) = fake.node("n").watch_pods("n");
        let driver = tokio::spawn(driver);
        assert_eq!(names(&next(&mut events).await), "listed p0");
        add_pod(&fake, "p1");
        assert_eq!(names(&next(&mut events).await), "applied p1");
        // A cut connection costs no event and no list.
        fake.cut_connections();
        add_pod(&fake, "p2");
        assert_eq!(names(&next(&mut events).await), "applied p2");
        fake.with_api(|api, now| {
            api.remove_object(now, &Key::new(Resource::Pods, "default", "p1"), Some(0)).unwrap();
        });
        // The server marks it before it removes it, even without grace.
        assert_eq!(names(&next(&mut events).await), "applied p1");
        assert_eq!(names(&next(&mut events).await), "deleted p1");
        // A version that is forgotten costs a list.
        fake.with_api(|api, _| api.forget_history());
        fake.cut_connections();
        add_pod(&fake, "p3");
        fake.with_api(|api, _| api.forget_history());
        let mut last = names(&next(&mut events).await);
        if last == "applied p3" {
            fake.cut_connections();
            last = names(&next(&mut events).await);
        }
        assert_eq!(last, "listed p0,p2,p3");
        drop(events);
        timeout(Duration::from_secs(60), driver).await.expect("ends without a receiver").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_watch_lives_for_hours_on_bookmarks() {
    let fake = fake();
    add_node(&fake);
    let client = fake.node("n");
    let (mut events, driver) = client.watch_pods("n");
    let driver = tokio::spawn(driver);
    assert_eq!(names(&next(&mut events).await), "listed ");
    assert!(timeout(Duration::from_secs(4 * 3600), events.recv()).await.is_err(), "nothing happens");
    add_pod(&fake, "p0");
    assert_eq!(names(&next(&mut events).await), "applied p0");
    let watches = fake.seen().into_iter().filter(|s| s.path.contains("watch=true"));
    let (first, again): (Vec<_>, Vec<_>) = watches.partition(|s| s.path.contains("sendInitialEvents"));
    assert_eq!(first.len(), 1, "one list");
    // Four hours in pieces of 5 to 10 minutes.
    assert!((23..=49).contains(&again.len()), "{}", again.len());
    assert_eq!(client.stats().connections, 1);
    driver.abort();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_gone_is_said_and_comes_back_with_a_list() {
    let fake = fake();
    add_node(&fake);
    add_pod(&fake, "p0");
    let (mut events, driver) = fake.node("n").watch_pods("n");
    let driver = tokio::spawn(driver);
    assert_eq!(names(&next(&mut events).await), "listed p0");
    for _ in 0..3 {
        fake.fail("watch=true", Fault::Refuse(500, "InternalError", None));
    }
    fake.cut_connections();
    for _ in 0..3 {
        assert_eq!(names(&next(&mut events).await), "lost");
    }
    assert_eq!(names(&next(&mut events).await), "listed p0");
    driver.abort();
}

#[tokio::test(start_paused = true)]
async fn a_watch_does_not_sit_out_its_back_off_once_another_call_is_answered() {
    let fake = fake();
    add_node(&fake);
    add_pod(&fake, "p0");
    let client = fake.node("n");
    let (mut events, driver) = client.watch_pods("n");
    let driver = tokio::spawn(driver);
    assert_eq!(names(&next(&mut events).await), "listed p0");
    // A long outage: the watch has doubled its wait to half a minute and more.
    for _ in 0..12 {
        fake.fail("watch=true", Fault::Refuse(500, "InternalError", None));
    }
    // Reading is tried twice.
    for _ in 0..2 {
        fake.fail("/nodes/n", Fault::Cut);
    }
    fake.cut_connections();
    for _ in 0..12 {
        assert_eq!(names(&next(&mut events).await), "lost");
    }
    assert!(client.call(&get_node()).await.is_err());
    let back = Instant::now();
    client.call(&get_node()).await.expect("the server is back");
    assert_eq!(names(&next(&mut events).await), "listed p0");
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
    driver.abort();
}

#[tokio::test(start_paused = true)]
async fn one_bad_object_stands_as_it_was_and_garbage_is_survived() {
    let fake = fake();
    add_node(&fake);
    let line = |kind: &str, object: Value| format!("{}\n", json!({ "type": kind, "object": object }));
    let pod = |name: &str, version: &str, spec: Value| json!({ "metadata": { "name": name, "namespace": "d", "resourceVersion": version }, "spec": spec });
    let good = json!({ "containers": [] });
    let mark = json!({ "metadata": { "resourceVersion": "9", "annotations": { "k8s.io/initial-events-end": "true" } } });
    let body = [
        line("ADDED", pod("a", "1", good.clone())),
        line("ADDED", pod("bad", "2", json!(3))),
        "garbage\n\n".to_owned(),
        line("BOOKMARK", mark),
        line("MODIFIED", pod("a", "10", json!("broken"))),
        line("ADDED", pod("b", "11", good)),
        line("DELETED", pod("a", "12", json!("broken"))),
    ]
    .concat();
    fake.fail("sendInitialEvents", Fault::Raw(200, body.into_bytes()));
    fake.fail("resourceVersion=12", Fault::Endless(200, true));
    let (mut events, driver) = fake.node("n").watch_pods("n");
    let driver = tokio::spawn(driver);
    assert_eq!(names(&next(&mut events).await), "listed a");
    assert_eq!(names(&next(&mut events).await), "applied b");
    assert_eq!(names(&next(&mut events).await), "deleted a");
    // What follows is a stream of garbage without end: the client leaves it and lists again.
    assert_eq!(names(&next(&mut events).await), "lost");
    assert_eq!(names(&next(&mut events).await), "listed ");
    drop(events);
    timeout(Duration::from_secs(60), driver).await.expect("ends without a receiver").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_replaced_without_a_failed_request() {
    let fake = fake();
    add_node(&fake);
    let client = fake.node("n");
    let (mut events, watch) = client.watch_pods("n");
    let watch = tokio::spawn(watch);
    assert_eq!(names(&next(&mut events).await), "listed ");
    let running = client.clone();
    let load = tokio::spawn(async move {
        for _ in 0..500 {
            running.call(&get_node()).await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    for round in 0..5 {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        let access = fake.pki.access(fake.server(), "system:node:n", "system:nodes");
        assert!(client.set_access(access.clone()).unwrap());
        assert!(!client.set_access(access).unwrap(), "the same again is nothing new");
        add_pod(&fake, &format!("p{round}"));
        assert_eq!(names(&next(&mut events).await), format!("applied p{round}"));
    }
    load.await.unwrap();
    let mut open = fake.open_connections();
    timeout(Duration::from_secs(60), open.wait_for(|n| *n == 1))
        .await
        .expect("old connections close")
        .unwrap();
    assert!((2..=6).contains(&client.stats().connections), "{:?}", client.stats());
    assert!(events.try_recv().is_err(), "no list and no loss by a rotation");
    let lists = fake.seen().iter().filter(|s| s.path.contains("sendInitialEvents")).count();
    assert_eq!(lists, 1);
    watch.abort();
}

#[tokio::test(start_paused = true)]
async fn a_dead_connection_is_left_after_repeated_failures() {
    let fake = fake();
    add_node(&fake);
    let client = fake.node("n");
    for _ in 0..3 {
        fake.fail("/nodes/n", Fault::Silence);
        assert_eq!(client.call(&get_node()).await.unwrap_err().class, Class::DeadlineExceeded);
    }
    client.call(&get_node()).await.unwrap();
    assert_eq!(client.stats().connections, 2);
}

#[tokio::test]
async fn files_are_followed() {
    let (fake, dir) = (fake(), tempfile::tempdir().unwrap());
    add_node(&fake);
    let (path, pem) = (dir.path().join("kubeconfig"), dir.path().join("client.pem"));
    let write = |validity| {
        std::fs::write(&pem, fake.pki.client_pem("system:node:n", "system:nodes", validity)).unwrap()
    };
    write(Validity::default());
    let own = crate::kubeconfig::OwnKubeconfig {
        server: fake.server(),
        ca_pem: fake.pki.ca_pem.clone().into_bytes(),
        client_pem: pem.clone(),
    };
    crate::kubeconfig::write(&path, &own).unwrap();
    let access = crate::kubeconfig::Kubeconfig::read(&path).await.unwrap().access().await.unwrap();
    let client: ApiClient = fake.client_with(access);
    client.call(&get_node()).await.unwrap();
    assert!(matches!(client.refresh(&path).await, crate::Refreshed::Same));
    write(Validity(-10, 100));
    assert!(matches!(client.refresh(&path).await, crate::Refreshed::Changed));
    client.call(&get_node()).await.unwrap();
    std::fs::write(&pem, "half").unwrap();
    assert!(matches!(client.refresh(&path).await, crate::Refreshed::Unreadable(_)));
    client.call(&get_node()).await.unwrap();
    let another = TestPki::new();
    write(Validity::default());
    let own = crate::kubeconfig::OwnKubeconfig { ca_pem: another.ca_pem.clone().into_bytes(), ..own };
    crate::kubeconfig::write(&path, &own).unwrap();
    assert!(matches!(client.refresh(&path).await, crate::Refreshed::Changed));
    assert!(client.call(&get_node()).await.unwrap_err().message.contains("does not trust"));
    assert!(matches!(another.trust(), Trust::Certificates(_)));
}
