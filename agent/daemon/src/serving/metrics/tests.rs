//! Each observation, and its metrics.

use std::sync::Arc;
use std::time::Duration;

use agent_apiserver::RequestObserver;
use agent_core::admission::Rejection;
use agent_core::certs::CertFact;
use agent_core::pod_source::{PodOp, PodUpdate, Source};
use agent_core::probe::check::Check;
use agent_core::probe::{Kind, Outcome, ProbeCall};
use agent_core::resource_claims::api::ClaimsView;
use agent_cri::CallObserver;
use agent_types::api::WatchEvent;
use agent_types::ids::PodKey;
use agent_types::pod;
use agent_types::runtime::config::ImageMount;
use agent_types::runtime::observed::{ListedPod, PodSnapshot};
use agent_types::time::{Mono, Wall};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use orlop_config::kubelet::FeatureGates;
use serde_json::{Value, json};

use super::*;
use crate::pods::desired_pods::DesiredPods;
use crate::pods::status::{PodView, PodViews};
use crate::testing::VirtualClock;

const SECOND: Duration = Duration::from_secs(1);

fn metrics() -> Metrics {
    Metrics::new(Arc::new(VirtualClock::new()))
}

fn text_with(metrics: &Metrics, desired: &DesiredPods, statuses: &PodViews) -> String {
    let gates = FeatureGates::default();
    let version = "v1.36.0+orlop";
    let claims = &ClaimsView {
        in_use: [("<any>".to_owned(), 3), ("gpu.example.com".to_owned(), 2)].into(),
        ..ClaimsView::default()
    };
    let node_name = "n1";
    metrics.text(&Scrape { node_name, version, cgroup_version: 2, gates: &gates, desired, statuses, claims })
}

fn text(metrics: &Metrics) -> String {
    text_with(metrics, &DesiredPods::new(), &PodViews::new())
}

/// Panics unless all lines are there.
fn says(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|l| l == *line), "no {line:?} in\n{text}");
    }
}

fn pod(uid: &str, more: Value) -> Arc<Pod> {
    let mut pod = json!({"metadata": {"name": format!("p-{uid}"), "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "c"}]}});
    for (key, value) in more.as_object().into_iter().flatten() {
        pod[key] = value.clone();
    }
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn update(op: PodOp, pods: &[&Arc<Pod>]) -> PodUpdate {
    PodUpdate { source: Source::Api, op, pods: pods.iter().map(|p| Arc::clone(p)).collect() }
}

fn status(phase: &str) -> PodStatus {
    PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() }
}

#[tokio::test]
async fn the_node_the_process_and_what_has_not_happened_yet() {
    let text = text(&metrics());
    says(
        &text,
        &[
            "kubelet_node_name{node=\"n1\"} 1",
            "kubelet_cgroup_version 2",
            "kubelet_running_pods 0",
            "kubelet_running_containers{container_state=\"running\"} 0",
            "kubelet_desired_pods{static=\"true\"} 0",
            "kubelet_started_pods_total 0",
            "kubelet_pod_start_duration_seconds_count 0",
            "kubelet_restarted_pods_total{static=\"\"} 0",
            "kubelet_working_pods{lifecycle=\"sync\",config=\"runtime_only\",static=\"unknown\"} 0",
        ],
    );
    assert!(text.contains("kubernetes_build_info{major=\"1\",minor=\"36\",git_version=\"v1.36.0+orlop\""));
    assert!(text.contains("kubernetes_feature_enabled{name=\"AllowDNSOnlyNodeCSR\",stage=\"DEPRECATED\"} 0"));
    assert!(text.contains("\nprocess_open_fds ") && text.contains("\nprocess_cpu_seconds_total "));
    for absent in ["ttl_seconds", "renew_errors", "kubelet_node_startup", "rest_client_requests"] {
        assert!(!text.contains(absent), "{absent} without anything to tell");
    }
}

#[tokio::test]
async fn calls_requests_and_checks() {
    let metrics = metrics();
    metrics.called("PullImage", SECOND, true);
    metrics.called("PullImage", SECOND, false);
    metrics.event_stream(true);
    metrics.event_stream(false);
    metrics.event(metrics.now().wall.0 - 2_000_000_000);
    metrics.answered("GET", "api:6443", Some(200), SECOND);
    metrics.answered("GET", "api:6443", None, SECOND);
    metrics.waited("GET", "api:6443", SECOND);
    metrics.request_began("GET", "/exec/a/b/c");
    metrics.request_began("BREW", "/teapot");
    metrics.request_ended("BREW", "/teapot", SECOND);
    let uid = PodUid::from("v");
    metrics.volume_set_up(&uid, "s", Plugin::Secret, false, SECOND, false);
    metrics.volume_set_up(&uid, "t", Plugin::Secret, false, SECOND, true);
    metrics.volume_set_up(&uid, "t", Plugin::Secret, false, SECOND, true);
    metrics.volume_set_up(&uid, "c", Plugin::Csi, true, SECOND, false);
    metrics.hook_fell_back();
    metrics.sleep_cut_short();
    let labels = |method: &str, path: &str, long: bool| {
        format!("{{method=\"{method}\",path=\"{path}\",server_type=\"readwrite\",long_running=\"{long}\"}}")
    };
    let (exec, other) = (labels("GET", "exec", true), labels("other", "other", false));
    says(
        &text(&metrics),
        &[
            "kubelet_runtime_operations_total{operation_type=\"pull_image\"} 2",
            "kubelet_runtime_operations_errors_total{operation_type=\"pull_image\"} 1",
            "kubelet_runtime_operations_duration_seconds_sum{operation_type=\"pull_image\"} 2",
            "kubelet_evented_pleg_connection_success_count 1",
            "kubelet_evented_pleg_connection_error_count 1",
            "kubelet_evented_pleg_connection_latency_seconds_bucket{le=\"1\"} 0",
            "kubelet_evented_pleg_connection_latency_seconds_bucket{le=\"2.5\"} 1",
            "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"api:6443\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"GET\",host=\"api:6443\"} 1",
            "rest_client_request_duration_seconds_count{verb=\"GET\",host=\"api:6443\"} 2",
            "rest_client_rate_limiter_duration_seconds_count{verb=\"GET\",host=\"api:6443\"} 1",
            &format!("kubelet_http_inflight_requests{exec} 1"),
            &format!("kubelet_http_inflight_requests{other} 0"),
            &format!("kubelet_http_requests_duration_seconds_count{other} 1"),
            "kubelet_lifecycle_handler_http_fallbacks_total 1",
            "kubelet_sleep_action_terminated_early_total 1",
            "storage_operation_duration_seconds_count{volume_plugin=\"kubernetes.io/secret\",\
             operation_name=\"volume_mount\",status=\"fail-unknown\",migrated=\"false\"} 1",
            "storage_operation_duration_seconds_count{volume_plugin=\"kubernetes.io/csi\",\
             operation_name=\"volume_mount\",status=\"fail-unknown\",migrated=\"true\"} 1",
        ],
    );
    let wanted = json!({"spec": {"containers": [], "volumes": [{"name": "t", "secret": {}},
        {"name": "e", "emptyDir": {}}, {"name": "c", "persistentVolumeClaim": {"claimName": "x"}},
        {"name": "late", "persistentVolumeClaim": {"claimName": "y"}}]}});
    metrics.volume_set_up(&uid, "c", Plugin::Csi, false, SECOND, true);
    let desired: DesiredPods = [(uid.clone(), pod("v", wanted))].into();
    let volumes = |plugin: &str, state: &str| {
        format!(
            "volume_manager_total_volumes{{plugin_name=\"kubernetes.io/{plugin}\",state=\"{state}_state_of_world\"}} 1"
        )
    };
    let told = text_with(&metrics, &desired, &PodViews::new());
    says(
        &told,
        &[
            &volumes("secret", "desired"),
            &volumes("secret", "actual"),
            &volumes("empty-dir", "desired"),
            &volumes("csi", "desired"),
            &volumes("csi", "actual"),
        ],
    );
    metrics.volumes_gone(&uid);
    assert!(!text(&metrics).contains("volume_manager_total_volumes"));
    metrics.checked("ping", true);
    metrics.checked("syncloop", true);
    metrics.checked("syncloop", false);
    says(
        &metrics.slis_text(),
        &[
            "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1",
            "kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"} 0",
            "kubernetes_healthchecks_total{name=\"syncloop\",type=\"healthz\",status=\"error\"} 1",
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn certificates_and_their_remaining_lives() {
    let metrics = metrics();
    metrics.certificate(Certificate::Client, None);
    says(
        &text(&metrics),
        &[
            "kubelet_certificate_manager_client_ttl_seconds +Inf",
            "kubelet_certificate_manager_client_expiration_renew_errors 0",
        ],
    );
    let now = metrics.now().wall;
    let ends = |seconds: i64| Wall(now.0 + seconds * 1_000_000_000);
    metrics.certificate(Certificate::Serving, Some(ends(10)));
    let failed = CertFact::Failed { message: "no".to_owned() };
    metrics.certificate_fact(Certificate::Client, &failed);
    metrics.certificate_fact(Certificate::Client, &CertFact::Rotated { not_after: ends(45), lived_s: None });
    metrics.certificate_fact(Certificate::Serving, &failed);
    says(
        &text(&metrics),
        &[
            "kubelet_certificate_manager_client_ttl_seconds 45",
            "kubelet_certificate_manager_client_expiration_renew_errors 1",
            "kubelet_certificate_manager_server_ttl_seconds 10",
            "kubelet_server_expiration_renew_errors 1",
            "kubelet_certificate_manager_server_rotation_seconds_count 0",
        ],
    );
    let rotated = CertFact::Rotated { not_after: ends(3600), lived_s: Some(300) };
    metrics.certificate_fact(Certificate::Serving, &rotated);
    tokio::time::advance(Duration::from_secs(50)).await;
    says(
        &text(&metrics),
        &[
            "kubelet_certificate_manager_client_ttl_seconds -5",
            "kubelet_certificate_manager_server_ttl_seconds 3550",
            "kubelet_certificate_manager_server_rotation_seconds_bucket{le=\"60\"} 0",
            "kubelet_certificate_manager_server_rotation_seconds_bucket{le=\"3600\"} 1",
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_runtime_holds() {
    let metrics = metrics();
    let of = |uid: &str| PodKey { namespace: "default".into(), name: uid.into(), uid: uid.into() };
    let listed = |uid: &str, ready: bool, states: &[i32]| ListedPod {
        pod: of(uid),
        sandboxes: [(format!("s-{uid}").as_str().into(), ready)].into(),
        containers: states
            .iter()
            .enumerate()
            .map(|(n, s)| (format!("{uid}{n}").as_str().into(), *s))
            .collect(),
    };
    metrics.listed(Some(&[listed("a", true, &[1, 2, 7]), listed("b", false, &[0])]), SECOND);
    tokio::time::advance(Duration::from_secs(300)).await;
    metrics.listed(None, SECOND);
    metrics.looked_at(SECOND);
    let held = |counts: [u32; 4], pods: u32| {
        let names = ["created", "running", "exited", "unknown"];
        let line =
            |(name, n): (&str, u32)| format!("kubelet_running_containers{{container_state=\"{name}\"}} {n}");
        let mut lines: Vec<String> = names.into_iter().zip(counts).map(line).collect();
        lines.push(format!("kubelet_running_pods {pods}"));
        lines
    };
    let check = |lines: Vec<String>| {
        says(&text(&metrics), &lines.iter().map(String::as_str).collect::<Vec<_>>());
    };
    check(held([1, 1, 1, 1], 1));
    says(
        &text(&metrics),
        &[
            "kubelet_pleg_relist_duration_seconds_count 2",
            "kubelet_pleg_relist_interval_seconds_sum 300",
            "kubelet_pleg_pod_relist_duration_seconds_sum 1",
            "kubelet_pleg_last_seen_seconds 1.7e+09",
        ],
    );
    let gone = PodSnapshot {
        pod: of("a"),
        as_of: Mono(1),
        sandboxes: Vec::new(),
        containers: Vec::new().into(),
        actuated: None,
    };
    metrics.inspected(&gone);
    check(held([1, 0, 0, 0], 0));
    metrics.sandbox(&"u".into(), "kata", true, SECOND, true);
    metrics.sandbox(&"v".into(), "", false, SECOND, false);
    says(
        &text(&metrics),
        &[
            "kubelet_started_pods_total 2",
            "kubelet_started_pods_errors_total 1",
            "kubelet_started_user_namespaced_pods_total 1",
            "kubelet_started_user_namespaced_pods_errors_total 0",
            "kubelet_run_podsandbox_errors_total{runtime_handler=\"\"} 1",
            "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"kata\"} 1",
        ],
    );
}

/// The first container that fails in a new user namespace counts, once. A failure after a container has run does not
/// count, nor a failure without a user namespace.
#[tokio::test(start_paused = true)]
async fn what_fails_in_a_user_namespace() {
    let metrics = metrics();
    let of = |uid: &str| PodKey { namespace: "default".into(), name: uid.into(), uid: uid.into() };
    let status = |state: Value| -> PodStatus {
        let container = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": state});
        serde_json::from_value(json!({"containerStatuses": [container]})).unwrap()
    };
    let failed = status(json!({"waiting": {"reason": "CreateContainerError"}}));
    let runs = status(json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}));
    let waits = status(json!({"waiting": {"reason": "ContainerCreating"}}));
    let errors = || {
        let text = text(&metrics);
        let line = text.lines().find(|l| l.starts_with("kubelet_started_user_namespaced_pods_errors_total "));
        line.and_then(|l| l.rsplit_once(' ')).map(|(_, n)| n.to_owned()).unwrap()
    };
    for (uid, own_users, made, first, errors_then) in [
        ("fails", true, true, &failed, "1"),
        ("runs", true, true, &runs, "1"),
        ("shares", false, true, &failed, "1"),
        ("no-sandbox", true, false, &failed, "2"),
    ] {
        let pod = of(uid);
        metrics.sandbox(&pod.uid, "", own_users, SECOND, made);
        metrics.published(&pod, Some(&waits), first);
        assert_eq!(errors(), errors_then, "{uid}");
        metrics.published(&pod, Some(first), &waits);
        metrics.published(&pod, Some(&waits), &failed);
        assert_eq!(errors(), errors_then, "{uid}, again");
    }
    let gone = of("gone");
    metrics.sandbox(&gone.uid, "", true, SECOND, true);
    metrics.inspected(&PodSnapshot {
        pod: gone.clone(),
        as_of: Mono(1),
        sandboxes: Vec::new(),
        containers: Vec::new().into(),
        actuated: None,
    });
    metrics.published(&gone, Some(&waits), &failed);
    assert_eq!(errors(), "2", "of a pod that has gone");
}

#[tokio::test(start_paused = true)]
async fn a_pods_way() {
    let metrics = metrics();
    let created = metrics.now().wall.0 / 1_000_000_000;
    let created = k8s_openapi::jiff::Timestamp::from_second(created).unwrap().to_string();
    let of = |status: Value| {
        let metadata = json!({"name": "p", "namespace": "default", "uid": "u", "creationTimestamp": created});
        pod("u", json!({"metadata": metadata, "status": status}))
    };
    let new = of(json!({"phase": "Pending"}));
    let key = pod::key(&new);
    metrics.update(&update(PodOp::Add, &[&new]));
    tokio::time::advance(SECOND).await;
    metrics.worker_began(&key);
    metrics.wanted(&new);
    metrics.pulling(&key);
    tokio::time::advance(SECOND * 5).await;
    metrics.pulled(&key, Some(11 << 20), SECOND * 5);
    metrics.round(Round::Create, SECOND * 6);
    let started = k8s_openapi::jiff::Timestamp::from_nanosecond(metrics.now().wall.0.into()).unwrap();
    let runs = of(json!({"phase": "Running", "containerStatuses": [{"name": "c", "image": "", "imageID": "",
        "ready": true, "restartCount": 0, "containerID": "containerd://x",
        "state": {"running": {"startedAt": started.to_string()}}}]}));
    let status = runs.status.clone().unwrap();
    metrics.published(&key, None, &status);
    metrics.status_told(SECOND);
    tokio::time::advance(SECOND).await;
    metrics.watched(&WatchEvent::Applied(runs.clone()));
    let views: PodViews =
        [(key.uid.clone(), PodView { key: key.clone(), status: Arc::new(status.clone()) })].into();
    let desired: DesiredPods = [(key.uid.clone(), runs.clone())].into();
    says(
        &text_with(&metrics, &desired, &views),
        &[
            "kubelet_containers_per_pod_count_sum 1",
            "kubelet_pod_worker_start_duration_seconds_sum 1",
            "kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"10MB-100MB\"} 1",
            "kubelet_pod_worker_duration_seconds_sum{operation_type=\"create\"} 6",
            "kubelet_pod_start_duration_seconds_sum 6",
            "kubelet_pod_start_total_duration_seconds_sum 7",
            "kubelet_pod_start_sli_duration_seconds_sum 2",
            "kubelet_first_network_pod_start_sli_duration_seconds 2",
            "kubelet_pod_status_sync_duration_seconds_count 1",
            "kubelet_started_containers_total{container_type=\"container\"} 1",
            "kubelet_desired_pods{static=\"\"} 1",
            "kubelet_active_pods{static=\"\"} 1",
            "kubelet_working_pods{lifecycle=\"sync\",config=\"desired\",static=\"\"} 1",
        ],
    );
    // Removed and wanted again before its worker is done.
    metrics.update(&update(PodOp::Remove, &[&runs]));
    metrics.worker_is(&key.uid, Lifecycle::Terminating);
    let working = |config: &str, n: u8| {
        format!("kubelet_working_pods{{lifecycle=\"terminating\",config=\"{config}\",static=\"\"}} {n}")
    };
    says(&text(&metrics), &[&working("orphan", 1), &working("desired", 0)]);
    metrics.update(&update(PodOp::Add, &[&new]));
    metrics.wanted(&new);
    metrics.worker_ended(&key.uid);
    says(&text(&metrics), &["kubelet_restarted_pods_total{static=\"\"} 0"]);
    metrics.worker_began(&key);
    metrics.wanted(&new);
    says(&text(&metrics), &["kubelet_restarted_pods_total{static=\"\"} 1"]);
}

#[tokio::test]
async fn images_that_containers_mount() {
    let metrics = metrics();
    let mount = |image: &str| ImageMount {
        id: format!("sha256:{image}").as_str().into(),
        written: image.to_owned(),
        annotations: BTreeMap::new(),
        sub_path: String::new(),
    };
    let (a, b) = (mount("a"), mount("b"));
    metrics.images_mounted(&[&a, &b, &a], None);
    metrics.images_mounted(
        &[&a],
        Some("failed to mount image volume: ImageVolumeMountFailed: no such directory"),
    );
    metrics.images_mounted(&[], Some("another one's trouble"));
    let [wanted, mounted, failed] = [("requested", 3), ("mounted_succeed", 3), ("mounted_errors", 1)]
        .map(|(what, n)| format!("kubelet_image_volume_{what}_total {n}"));
    says(&text(&metrics), &[&wanted, &mounted, &failed]);
}

#[tokio::test]
async fn refusals_orphans_and_ends() {
    let metrics = metrics();
    let refused = Rejection { reason: "OutOfcpu".to_owned(), message: "no".to_owned() };
    metrics.rejected(&refused);
    metrics.preempted("memory");
    let key = PodKey { namespace: "default".into(), name: "o".into(), uid: "o".into() };
    metrics.worker_began(&key);
    metrics.orphan(&key.uid);
    // Only its directory is left of it.
    let nameless = PodKey { namespace: "".into(), name: "".into(), uid: "d".into() };
    metrics.worker_began(&nameless);
    metrics.orphan(&nameless.uid);
    says(
        &text(&metrics),
        &[
            "kubelet_admission_rejections_total{reason=\"OutOfcpu\"} 1",
            "kubelet_preemptions{preemption_signal=\"memory\"} 1",
            "kubelet_orphaned_runtime_pods_total 1",
            "kubelet_working_pods{lifecycle=\"sync\",config=\"runtime_only\",static=\"unknown\"} 2",
        ],
    );
    let failed = pod("f", json!({}));
    let static_pod = json!({"metadata": {"name": "s", "namespace": "default", "uid": "s",
        "annotations": {"kubernetes.io/config.source": "file"}}});
    let static_pod = pod("s", static_pod);
    let mirror = json!({"metadata": {"name": "s", "namespace": "default", "uid": "m",
        "annotations": {"kubernetes.io/config.mirror": "s"}}});
    metrics.watched(&WatchEvent::Listed(vec![pod("m", mirror.clone()), failed.clone()]));
    let view = PodView { key: pod::key(&failed), status: Arc::new(status("Failed")) };
    let views: PodViews = [("f".into(), view)].into();
    let desired: DesiredPods = [("f".into(), failed), ("s".into(), static_pod)].into();
    says(
        &text_with(&metrics, &desired, &views),
        &[
            "kubelet_desired_pods{static=\"\"} 1",
            "kubelet_active_pods{static=\"\"} 0",
            "kubelet_active_pods{static=\"true\"} 1",
            "kubelet_mirror_pods 1",
        ],
    );
    metrics.watched(&WatchEvent::Deleted(pod("m", mirror)));
    says(&text(&metrics), &["kubelet_mirror_pods 0"]);
}

#[tokio::test]
async fn series_of_probes_go_with_their_pod() {
    let metrics = metrics();
    let call = |kind| ProbeCall {
        container: "id".into(),
        name: "c".to_owned(),
        kind,
        check: Check::Exec { command: Vec::new() },
        timeout: SECOND,
    };
    let of = |name: &str| PodKey { namespace: "default".into(), name: name.into(), uid: name.into() };
    for name in ["a", "b"] {
        metrics.probed(&of(name), &call(Kind::Liveness), &Outcome::Success, SECOND);
        metrics.probed(&of(name), &call(Kind::Liveness), &Outcome::Failure(String::new()), SECOND);
        metrics.probed(&of(name), &call(Kind::Readiness), &Outcome::Error(String::new()), SECOND);
    }
    let line = |kind: &str, result: &str, name: &str| {
        format!(
            "prober_probe_total{{probe_type=\"{kind}\",result=\"{result}\",container=\"c\",pod=\"{name}\",\
             namespace=\"default\",pod_uid=\"{name}\"}} 1"
        )
    };
    let took = "prober_probe_duration_seconds_count{probe_type=\"Liveness\",container=\"c\",pod=\"a\",\
                namespace=\"default\"} 1";
    let text = metrics.probes_text();
    let lines = [
        line("Liveness", "successful", "a"),
        line("Liveness", "failed", "b"),
        line("Readiness", "unknown", "b"),
        took.to_owned(),
    ];
    says(&text, &lines.iter().map(String::as_str).collect::<Vec<_>>());
    metrics.probes_over(&of("a"));
    let text = metrics.probes_text();
    assert!(!text.contains("pod=\"a\"") && text.contains("pod=\"b\""), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_new_nodes_start() {
    let metrics = metrics();
    tokio::time::advance(SECOND).await;
    metrics.registering();
    tokio::time::advance(SECOND).await;
    metrics.registered();
    tokio::time::advance(SECOND).await;
    metrics.node_ready();
    says(
        &text(&metrics),
        &[
            "kubelet_node_startup_pre_kubelet_duration_seconds 1000",
            "kubelet_node_startup_pre_registration_duration_seconds 1",
            "kubelet_node_startup_registration_duration_seconds 1",
            "kubelet_node_startup_post_registration_duration_seconds 1",
            "kubelet_node_startup_duration_seconds 1003",
        ],
    );
}

#[tokio::test]
async fn claims_drivers_and_plugins() {
    let metrics = metrics();
    let path = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
    metrics.dra_called("gpu.example.com", path, "OK", SECOND);
    metrics.dra_operation(claims::PREPARE, false, SECOND);
    metrics.dra_operation(claims::UNPREPARE, true, SECOND);
    metrics.plugin_sockets(["/r/a.sock", "/r/b.sock"], ["/r/a.sock", "/r/b.sock"]);
    metrics.plugin_sockets(["/r/a.sock"], []);
    metrics.placed(Duration::from_millis(30));
    let text = text(&metrics);
    says(
        &text,
        &[
            "dra_resource_claims_in_use{driver_name=\"<any>\"} 3",
            "dra_resource_claims_in_use{driver_name=\"gpu.example.com\"} 2",
            "dra_operations_duration_seconds_count{operation_name=\"PrepareResources\",is_error=\"false\"} 1",
            "dra_operations_duration_seconds_count{operation_name=\"UnprepareResources\",is_error=\"true\"} 1",
            &format!(
                "dra_grpc_operations_duration_seconds_count{{driver_name=\"gpu.example.com\",method_name=\"{path}\",\
                 grpc_status_code=\"OK\"}} 1"
            ),
            "plugin_manager_total_plugins{socket_path=\"/r/a.sock\",state=\"desired_state_of_world\"} 1",
            "kubelet_topology_manager_admission_duration_ms_bucket{le=\"25.6\"} 0",
            "kubelet_topology_manager_admission_duration_ms_bucket{le=\"51.2\"} 1",
        ],
    );
    assert!(!text.contains("b.sock") && !text.contains("actual_state_of_world\"} 1"), "{text}");
}
