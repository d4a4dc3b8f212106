//! The client against the fake server, clock paused: deadlines, lost replies, cancelled calls, a runtime that is
//! down, and what is idempotent.

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use agent_cri::testing::{FakeCri, Fault, container_config, sandbox_config};
use agent_cri::{CriClient, convert};
use agent_kubelet_api::drivers::{
    Amounts as _, Exec as _, ImageService as _, ImagesInUse as _, PodNetwork as _, Runtime as _,
    Sandboxes as _,
};
use agent_types::failure::{Class, DriverError};
use agent_types::ids::{ContainerId, PodUid, SandboxId};
use agent_types::runtime::config::{ImageMount, LinuxResources, Mount};
use agent_types::runtime::labels;
use agent_types::runtime::observed::ListedSandbox;
use tokio::time::Instant;
use tonic::Code;

use support::{TIMEOUT, pair, pod, until};

/// The call hangs, ends at `deadline` in gRPC's words, and had sent the runtime that deadline.
async fn expires<T: std::fmt::Debug>(
    fake: &FakeCri,
    verb: &'static str,
    deadline: Duration,
    call: impl Future<Output = Result<T, DriverError>>,
) {
    fake.inject(verb, Fault::Hang);
    let start = Instant::now();
    let error = call.await.expect_err("a call that hangs");
    let took = start.elapsed();
    assert_eq!(error.class, Class::DeadlineExceeded, "{verb}: {error}");
    assert!(error.message.ends_with("context deadline exceeded"), "{verb}: {error}");
    assert!(
        took >= deadline && took < deadline + Duration::from_millis(5),
        "{verb}: {took:?} for {deadline:?}"
    );
    until("the runtime sees the call end", || fake.seen(verb).last().is_some_and(|s| s.cancelled)).await;
    assert_eq!(fake.seen(verb).last().and_then(|s| s.deadline), Some(deadline), "{verb}");
}

#[tokio::test(start_paused = true)]
async fn every_call_ends_at_its_deadline() {
    let (fake, client) = pair().await;
    let (sandbox, container) = pod("web");
    let (s, c) = (SandboxId::from("s"), ContainerId::from("c"));
    expires(&fake, "Version", TIMEOUT, client.version()).await;
    expires(&fake, "Status", TIMEOUT, client.status()).await;
    expires(&fake, "RuntimeConfig", TIMEOUT, client.cgroup_driver()).await;
    let cidrs = ["10.1.0.0/24".to_owned(), "fd00::/64".to_owned()];
    client.update_pod_cidr(&cidrs).await.expect("both families in one text");
    assert_eq!(client.update_pod_cidr(&[]).await.expect_err("no family").class, Class::Invalid);
    expires(&fake, "UpdateRuntimeConfig", TIMEOUT, client.update_pod_cidr(&cidrs)).await;
    expires(&fake, "RunPodSandbox", TIMEOUT * 2, client.run_sandbox(&sandbox)).await;
    expires(&fake, "StopPodSandbox", TIMEOUT, client.stop_sandbox(&s)).await;
    expires(&fake, "RemovePodSandbox", TIMEOUT, client.remove_sandbox(&s)).await;
    expires(&fake, "CreateContainer", TIMEOUT, client.create_container(&s, &container, &sandbox)).await;
    expires(&fake, "StartContainer", TIMEOUT, client.start_container(&c)).await;
    expires(&fake, "StopContainer", TIMEOUT + Duration::from_secs(30), client.stop_container(&c, 30)).await;
    expires(&fake, "RemoveContainer", TIMEOUT, client.remove_container(&c)).await;
    expires(&fake, "ListPodSandbox", TIMEOUT, client.list()).await;
    expires(&fake, "ListContainers", TIMEOUT, client.inspect(&PodUid::from("u"))).await;
    expires(&fake, "ImageStatus", TIMEOUT, client.image_status("x")).await;
    expires(&fake, "ListImages", TIMEOUT, client.list_images()).await;
    expires(&fake, "RemoveImage", TIMEOUT, client.remove_image("x")).await;
    let (command, ten) = (["true".to_owned()], Duration::from_secs(10));
    expires(&fake, "ExecSync", TIMEOUT + ten, client.exec_sync(&c, &command, Some(ten))).await;
}

#[tokio::test(start_paused = true)]
async fn pulls_and_endless_commands_have_no_deadline() {
    let (fake, client) = pair().await;
    let hours = Duration::from_secs(10 * 3600);
    let image = fake.with(|s| s.images.get("sha256:fake").cloned()).unwrap();
    fake.with(|s| s.registry.insert("localhost/slow:1".to_owned(), image));
    fake.inject("PullImage", Fault::Delay(hours));
    let start = Instant::now();
    let pulled = client.pull("localhost/slow:1", None).await.unwrap();
    assert_eq!((pulled.id.as_str(), pulled.size_bytes), ("sha256:fake", 42));
    assert!(start.elapsed() >= hours);
    for none in [None, Some(Duration::ZERO)] {
        fake.inject("ExecSync", Fault::Delay(hours));
        client.exec_sync(&ContainerId::from("c"), &["sleep".to_owned()], none).await.unwrap();
    }
    for verb in ["PullImage", "ExecSync"] {
        assert!(fake.seen(verb).iter().all(|s| s.deadline.is_none() && s.answered), "{verb}");
    }
}

#[tokio::test(start_paused = true)]
async fn images_that_containers_mount_are_in_use() {
    let (fake, client) = pair().await;
    let (sandbox, mut container) = pod("web");
    let image = ImageMount {
        id: "sha256:model".into(),
        written: "model:1".into(),
        annotations: [].into(),
        sub_path: String::new(),
    };
    container.mounts.push(Mount { readonly: true, image: Some(image), ..Mount::default() });
    let home = client.run_sandbox(&sandbox).await.unwrap();
    let made = client.create_container(&home, &container, &sandbox).await.unwrap();
    let uses = |all: &BTreeSet<String>| ["sha256:model", "sha256:fake"].map(|id| all.contains(id));
    let asked = |fake: &FakeCri| fake.seen("ContainerStatus").len();
    let before = asked(&fake);
    for _ in 0..3 {
        assert_eq!(uses(&client.images_in_use().await.unwrap()), [true, true]);
    }
    assert_eq!(asked(&fake) - before, 1, "what a container mounts does not change");
    fake.inject("ListContainers", Fault::Refuse(Code::Unavailable, "away".to_owned()));
    client.images_in_use().await.expect_err("nobody knows what is in use");
    client.remove_container(&made).await.unwrap();
    assert_eq!(uses(&client.images_in_use().await.unwrap()), [false, false]);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_pull_cancels_it_at_the_runtime() {
    let (fake, client) = pair().await;
    fake.inject("PullImage", Fault::Hang);
    let pull = client.pull("localhost/slow:1", None);
    assert!(tokio::time::timeout(Duration::from_secs(3600), pull).await.is_err());
    until("the pull is cancelled", || fake.seen("PullImage").iter().any(|s| s.cancelled)).await;
}

#[tokio::test(start_paused = true)]
async fn a_repeat_after_a_lost_reply_finds_what_the_first_call_made() {
    let (fake, client) = pair().await;
    let (sandbox, container) = pod("web");
    fake.inject("RunPodSandbox", Fault::LoseReply);
    assert_eq!(client.run_sandbox(&sandbox).await.unwrap_err().class, Class::DeadlineExceeded);
    let id = client.run_sandbox(&sandbox).await.unwrap();
    assert_eq!(fake.with(|s| s.sandboxes.keys().cloned().collect::<Vec<_>>()), [id.to_string()]);
    fake.inject("CreateContainer", Fault::LoseReply);
    let create = || client.create_container(&id, &container, &sandbox);
    assert_eq!(create().await.unwrap_err().class, Class::DeadlineExceeded);
    let made = create().await.unwrap();
    assert_eq!(fake.with(|s| s.containers.keys().cloned().collect::<Vec<_>>()), [made.to_string()]);
}

#[tokio::test(start_paused = true)]
async fn existing_objects_are_told_apart_by_attempt() {
    let (_fake, client) = pair().await;
    let (first, container) = pod("web");
    let old = client.run_sandbox(&first).await.unwrap();
    let second = sandbox_config("web", 1);
    let new = client.run_sandbox(&second).await.unwrap();
    assert_ne!(old, new);
    assert_eq!(client.run_sandbox(&first).await.unwrap(), old);
    assert_eq!(client.run_sandbox(&second).await.unwrap(), new);
    let c0 = client.create_container(&old, &container, &first).await.unwrap();
    let error = client.create_container(&new, &container, &second).await.unwrap_err();
    assert_eq!(error.class, Class::AlreadyExists, "{error}");
    assert!(error.message.contains(c0.as_str()) && error.message.contains(old.as_str()), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_reserved_name_without_an_object_is_a_creation_in_progress() {
    let (fake, client) = pair().await;
    let words = r#"failed to reserve sandbox name "a": name "a" is reserved for "b""#;
    for code in [Code::Unknown, Code::FailedPrecondition] {
        fake.inject("RunPodSandbox", Fault::Refuse(code, words.to_owned()));
        let error = client.run_sandbox(&pod("web").0).await.unwrap_err();
        assert_eq!(error.class, Class::Retryable { after_ms: 1000 }, "{error}");
        assert!(error.message.contains("in progress"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn gone_is_success_for_stop_and_remove_and_not_found_for_start() {
    let (fake, client) = pair().await;
    let gone = || Fault::Refuse(Code::NotFound, "not found".to_owned());
    for verb in ["StopPodSandbox", "RemovePodSandbox", "StopContainer", "RemoveContainer", "RemoveImage"] {
        fake.inject(verb, gone());
    }
    let (s, c) = (SandboxId::from("s"), ContainerId::from("c"));
    client.stop_sandbox(&s).await.unwrap();
    client.remove_sandbox(&s).await.unwrap();
    client.stop_container(&c, 2).await.unwrap();
    client.remove_container(&c).await.unwrap();
    client.remove_image("x").await.unwrap();
    fake.inject("ImageStatus", gone());
    assert_eq!(client.image_status("x").await.unwrap(), None);
    assert_eq!(client.start_container(&c).await.unwrap_err().class, Class::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_down_fails_calls_at_once_and_is_found_again() {
    let (mut fake, client) = pair().await;
    fake.stop();
    // The broken connection may be noticed by the first call only; after that nothing is sent.
    let _ = client.version().await;
    let start = Instant::now();
    for _ in 0..20 {
        let error = client.version().await.unwrap_err();
        assert_eq!(error.class, Class::Unavailable, "{error}");
        assert!(error.message.contains("cri.sock"), "{error}");
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "no caller waits for a runtime that is down");
    fake.listen().unwrap();
    assert_eq!(client.version().await.unwrap_err().class, Class::Unavailable, "backing off");
    tokio::time::advance(Duration::from_secs(3)).await;
    client.version().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_lost_while_waiting_may_have_applied_the_call() {
    let (fake, client) = pair().await;
    fake.inject("StopPodSandbox", Fault::Hang);
    let start = Instant::now();
    let broken = async {
        until("the call arrives", || !fake.seen("StopPodSandbox").is_empty()).await;
        fake.break_connections();
    };
    let stopped = SandboxId::from("s");
    let (outcome, ()) = tokio::join!(client.stop_sandbox(&stopped), broken);
    let error = outcome.unwrap_err();
    assert_eq!(error.class, Class::Interrupted, "{error}");
    assert!(error.message.contains("connection lost"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1), "it does not wait for the deadline");
    client.version().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn answers_up_to_16_mib_are_read() {
    let (fake, client) = pair().await;
    let pad = |mib: usize| {
        let (mut sandbox, _) = pod(&format!("pod-{mib}"));
        sandbox.annotations.insert("pad".to_owned(), "x".repeat(mib << 20));
        sandbox
    };
    // Containerd's own limit for requests does not matter here, so the test makes the state directly.
    let put = |mib| {
        let config = Some(convert::sandbox::config(&pad(mib)));
        let request = orlop_proto::cri::v1::RunPodSandboxRequest { config, runtime_handler: String::new() };
        fake.with(|s| s.insert_sandbox(request)).unwrap();
    };
    put(3);
    put(12);
    assert_eq!(client.list().await.unwrap().len(), 2);
    put(2);
    let error = client.list().await.unwrap_err();
    assert_eq!(error.class, Class::Retryable { after_ms: 0 }, "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_vanishes_while_looking_is_left_out_and_other_failures_fail() {
    let (fake, client) = pair().await;
    let (sandbox, container) = pod("web");
    let id = client.run_sandbox(&sandbox).await.unwrap();
    client.create_container(&id, &container, &sandbox).await.unwrap();
    let other = container_config(&sandbox, "other", 0, &container.image);
    client.create_container(&id, &other, &sandbox).await.unwrap();
    let uid = &sandbox.pod.uid;
    fake.inject("ContainerStatus", Fault::Refuse(Code::NotFound, "gone".to_owned()));
    let (key, seen) = client.inspect(uid).await.unwrap();
    assert_eq!((key.as_ref(), seen.sandboxes.len(), seen.containers.len()), (Some(&sandbox.pod), 1, 1));
    tokio::time::advance(KEPT).await;
    fake.inject("PodSandboxStatus", Fault::Refuse(Code::NotFound, "gone".to_owned()));
    let (key, seen) = client.inspect(uid).await.unwrap();
    assert_eq!((key.as_ref(), seen.sandboxes.len(), seen.containers.len()), (Some(&sandbox.pod), 0, 2));
    fake.inject("ContainerStatus", Fault::Refuse(Code::Unknown, "disk on fire".to_owned()));
    assert!(client.inspect(uid).await.unwrap_err().message.contains("disk on fire"));
}

/// An answer of the runtime is good for so long.
const KEPT: Duration = Duration::from_secs(30);

/// A look at a pod asks only for what may have changed since the last one.
#[tokio::test(start_paused = true)]
async fn what_a_list_shows_unchanged_is_not_asked_for_again() {
    let (fake, client) = pair().await;
    let (sandbox, container) = pod("web");
    let id = client.run_sandbox(&sandbox).await.unwrap();
    let web = client.create_container(&id, &container, &sandbox).await.unwrap();
    let other = container_config(&sandbox, "other", 0, &container.image);
    let other = client.create_container(&id, &other, &sandbox).await.unwrap();
    let uid = &sandbox.pod.uid;
    let asked = || (fake.seen("PodSandboxStatus").len(), fake.seen("ContainerStatus").len());
    client.inspect(uid).await.unwrap();
    assert_eq!(asked(), (1, 2));
    client.inspect(uid).await.unwrap();
    assert_eq!(asked(), (1, 4), "what is created is about to be started");
    client.start_container(&web).await.unwrap();
    client.start_container(&other).await.unwrap();
    let (_, first) = client.inspect(uid).await.unwrap();
    assert_eq!(asked(), (1, 6));
    assert_eq!(client.inspect(uid).await.unwrap().1, first);
    assert_eq!(asked(), (1, 6), "nothing has changed");

    fake.with(|s| s.end(web.as_str(), 3));
    for (secs, calls) in [(0, 7), (9, 8), (2, 9), (1, 9)] {
        tokio::time::advance(Duration::from_secs(secs)).await;
        let (_, seen) = client.inspect(uid).await.unwrap();
        let ended = seen.containers.iter().find(|c| c.id == web).map(|c| c.exit_code);
        assert_eq!((ended, asked().1), (Some(3), calls), "the reason of an end may come later than the end");
    }
    tokio::time::advance(KEPT).await;
    client.inspect(uid).await.unwrap();
    assert_eq!(asked(), (2, 11), "others may have changed something");

    let _ = client.update_container(&other, &LinuxResources::default()).await;
    client.inspect(uid).await.unwrap();
    assert_eq!(asked(), (2, 12), "we have");
    client.remove_container(&web).await.unwrap();
    let left: Vec<_> = client.inspect(uid).await.unwrap().1.containers.into_iter().map(|c| c.id).collect();
    assert_eq!((left, asked()), (vec![other], (2, 12)));
    // Each new stream of events may be another runtime's.
    let (mut signals, stream) = client.events();
    tokio::spawn(stream);
    assert!(signals.recv().await.is_some(), "it is up");
    client.inspect(uid).await.unwrap();
    assert_eq!(asked(), (3, 13));
}

/// What is asked for while a container is being changed may show it as it was before.
#[tokio::test(start_paused = true)]
async fn an_answer_that_a_change_overtook_is_not_kept() {
    let (fake, client) = pair().await;
    let (sandbox, container) = pod("web");
    let id = client.run_sandbox(&sandbox).await.unwrap();
    let web = client.create_container(&id, &container, &sandbox).await.unwrap();
    client.start_container(&web).await.unwrap();
    let uid = &sandbox.pod.uid;
    fake.inject("ContainerStatus", Fault::Delay(Duration::from_secs(1)));
    let (looked, ()) = tokio::join!(client.inspect(uid), async {
        until("the look asks", || !fake.seen("ContainerStatus").is_empty()).await;
        let _ = client.update_container(&web, &LinuxResources::default()).await;
    });
    looked.unwrap();
    client.inspect(uid).await.unwrap();
    assert_eq!(fake.seen("ContainerStatus").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn objects_without_the_kubelets_labels_are_not_ours() {
    let (_fake, client) = pair().await;
    let (mut foreign, _) = pod("foreign");
    foreign.labels.clear();
    client.run_sandbox(&foreign).await.unwrap();
    assert_eq!(client.list().await.unwrap(), []);
    client.run_sandbox(&pod("ours").0).await.unwrap();
    let listed: Vec<String> = client.list().await.unwrap().iter().map(|p| p.pod.name.to_string()).collect();
    assert_eq!(listed, ["ours"]);
}

#[tokio::test(start_paused = true)]
async fn sandboxes_are_listed_with_the_shim_that_they_share() {
    let (_fake, client) = pair().await;
    let (mut foreign, _) = pod("foreign");
    foreign.labels.clear();
    client.run_sandbox(&foreign).await.unwrap();
    let (mut sandbox, _) = pod("web");
    sandbox.annotations.insert(labels::SHIM_GROUP.to_owned(), "group".to_owned());
    let id = client.run_sandbox(&sandbox).await.unwrap();
    let listed = ListedSandbox {
        id: id.clone(),
        uid: sandbox.pod.uid.clone(),
        attempt: sandbox.attempt,
        ready: true,
        shim_group: Some("group".to_owned()),
    };
    assert_eq!(client.sandboxes().await.unwrap(), std::slice::from_ref(&listed));
    client.stop_sandbox(&id).await.unwrap();
    assert_eq!(client.sandboxes().await.unwrap(), [ListedSandbox { ready: false, ..listed }]);
}

#[tokio::test(start_paused = true)]
async fn what_the_runtime_gets_is_the_whole_configuration() {
    let (fake, client) = pair().await;
    let (mut sandbox, container) = pod("web");
    sandbox.runtime_handler = "kata".to_owned();
    let id = client.run_sandbox(&sandbox).await.unwrap();
    client.create_container(&id, &container, &sandbox).await.unwrap();
    fake.with(|s| {
        let request = &s.sandboxes.values().next().unwrap().request;
        assert_eq!(request.config, Some(convert::sandbox::config(&sandbox)));
        assert_eq!(request.runtime_handler, "kata");
        let request = &s.containers.values().next().unwrap().request;
        assert_eq!(request.config, Some(convert::container::config(&container)));
        assert_eq!(request.sandbox_config, Some(convert::sandbox::config(&sandbox)));
        assert_eq!(request.pod_sandbox_id, id.as_str());
    });
}

#[tokio::test(start_paused = true)]
async fn the_cgroup_driver_is_optional() {
    let (fake, client) = pair().await;
    assert!(client.cgroup_driver().await.unwrap().is_some());
    fake.inject("RuntimeConfig", Fault::Refuse(Code::Unimplemented, "no".to_owned()));
    assert_eq!(client.cgroup_driver().await.unwrap(), None);
    fake.inject("RuntimeConfig", Fault::Refuse(Code::Internal, "no".to_owned()));
    assert!(client.cgroup_driver().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn connecting_waits_for_the_runtime() {
    let mut fake = FakeCri::stopped().unwrap();
    let endpoint = fake.endpoint();
    let late = async {
        tokio::time::advance(Duration::from_secs(60)).await;
        fake.listen().unwrap();
    };
    let (client, ()) = tokio::join!(CriClient::connect(&endpoint, TIMEOUT), late);
    client.unwrap().status().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn connecting_gives_up_after_the_request_timeout() {
    let fake = FakeCri::stopped().unwrap();
    let start = Instant::now();
    let error = CriClient::connect(&fake.endpoint(), TIMEOUT).await.unwrap_err().to_string();
    assert!(start.elapsed() <= TIMEOUT && start.elapsed() > TIMEOUT - Duration::from_secs(4), "{error}");
    assert!(error.contains("cri.sock") && error.contains("does not answer"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn another_cri_version_is_refused() {
    let fake = FakeCri::start().unwrap();
    fake.set_version("0.2.0");
    let error = CriClient::connect(&fake.endpoint(), TIMEOUT).await.unwrap_err().to_string();
    assert!(error.contains("0.2.0") && error.contains("0.1.0"), "{error}");
    assert!(CriClient::connect("tcp://127.0.0.1:1", TIMEOUT).await.is_err());
}
