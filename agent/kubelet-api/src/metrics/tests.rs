//! Rendering, updates, and the durations of starts.

use std::collections::BTreeSet;
use std::time::Duration;

use agent_types::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};

use super::containers::{Change, changes};
use super::startup::{NodeStart, NodeStep, ObservedStartup, PodStarts};
use super::text::number;
use super::{Counter, Gauge, Histogram, Registry, families, words};

static REQUESTS: Counter<2> = Counter { name: "requests_total", help: "Requests.", labels: ["code", "path"] };
static DEPTH: Gauge<0> = Gauge { name: "depth", help: "Depth.", labels: [] };
static EMPTY: Counter<0> = Counter { name: "empty_total", help: "Nothing yet.", labels: [] };
static TOOK: Histogram<1> =
    Histogram { name: "took_seconds", help: "Seconds.", labels: ["what"], buckets: &[0.5, 2_592_000.0] };

#[test]
fn the_text_is_exact() {
    let mut registry = Registry::new();
    registry.begin(&EMPTY);
    registry.count(&REQUESTS, ["500", "a\\b\"c\nd"]);
    registry.add(&REQUESTS, ["200", "/"], 2.0);
    registry.add(&REQUESTS, ["200", "/"], -1.0);
    registry.add(&REQUESTS, ["200", "/"], f64::NAN);
    registry.set(&DEPTH, [], f64::INFINITY);
    registry.observe(&TOOK, ["x"], 0.5);
    registry.observe(&TOOK, ["x"], 0.6);
    registry.observe(&TOOK, ["x"], 1e9);
    registry.observe(&TOOK, ["x"], f64::NAN);
    let told = "\
# HELP depth Depth.
# TYPE depth gauge
depth +Inf
# HELP empty_total Nothing yet.
# TYPE empty_total counter
empty_total 0
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{code=\"200\",path=\"/\"} 2
requests_total{code=\"500\",path=\"a\\\\b\\\"c\\nd\"} 1
# HELP took_seconds Seconds.
# TYPE took_seconds histogram
took_seconds_bucket{what=\"x\",le=\"0.5\"} 1
took_seconds_bucket{what=\"x\",le=\"2.592e+06\"} 2
took_seconds_bucket{what=\"x\",le=\"+Inf\"} 3
took_seconds_sum{what=\"x\"} 1.0000000011e+09
took_seconds_count{what=\"x\"} 3
";
    assert_eq!(registry.text(), told);
    registry.forget(TOOK.name, &[("what", "x")]);
    registry.forget(REQUESTS.name, &[("code", "200"), ("path", "other")]);
    registry.forget(REQUESTS.name, &[("code", "200"), ("path", "/")]);
    registry.clear(DEPTH.name);
    assert_eq!(registry.text().lines().filter(|l| !l.starts_with('#')).count(), 2);
}

#[test]
fn numbers_as_go_writes_them() {
    for (value, text) in [
        (0.0, "0"),
        (-0.5, "-0.5"),
        (0.005, "0.005"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (604_800.0, "604800"),
        (1e6, "1e+06"),
        (124_416_000.0, "1.24416e+08"),
        (745.058_059_692_382_8, "745.0580596923828"),
        (1e21, "1e+21"),
        (1e100, "1e+100"),
        (f64::NEG_INFINITY, "-Inf"),
        (f64::NAN, "NaN"),
    ] {
        assert_eq!(number(value), text);
        assert!(value.is_nan() || number(value).replace("Inf", "inf").parse::<f64>() == Ok(value), "{text}");
    }
}

#[test]
fn gauges_move_and_totals_are_set() {
    let mut registry = Registry::new();
    registry.shift(&DEPTH, [], 2.0);
    registry.shift(&DEPTH, [], -1.0);
    registry.total(&EMPTY, [], 7.5);
    assert!(registry.text().contains("\ndepth 1\n") && registry.text().contains("\nempty_total 7.5\n"));
}

#[test]
fn words_are_bounded() {
    for (path, word, long) in [
        ("/metrics", "metrics", "false"),
        ("/metrics/cadvisor", "metrics/cadvisor", "false"),
        ("/metrics/cadvisor/", "metrics/cadvisor", "false"),
        ("/exec/a/b/c", "exec", "true"),
        ("/portForward/a/b", "portForward", "false"),
        ("/metrics/other", "other", "false"),
        ("/metrics/slis", "other", "false"),
        ("//pods", "other", "false"),
        ("", "other", "false"),
        ("/\u{fc}", "other", "false"),
    ] {
        assert_eq!(words::path(path), (word, long), "{path}");
    }
    assert_eq!((words::method("GET"), words::method("BREW")), ("GET", "other"));
    for (reason, word) in
        [("OutOfcpu", "OutOfcpu"), ("OutOfexample.com/gpu", "OutOfExtendedResources"), ("NodeName", "Other")]
    {
        assert_eq!(words::rejection(reason), word);
    }
    for (bytes, word) in [(0, "0-10MB"), (10 << 20, "10MB-100MB"), (100 << 30, "GT100GB")] {
        assert_eq!(words::image_size(bytes), word);
    }
    assert_eq!(
        (words::runtime_operation("PullImage"), words::runtime_operation("X")),
        ("pull_image", "other")
    );
}

fn at(seconds: u64) -> Now {
    let ns = i64::try_from(seconds).unwrap() * 1_000_000_000;
    Now { mono: Mono(u64::try_from(ns).unwrap()), wall: Wall(ns) }
}

fn pod(status: Value) -> Pod {
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "creationTimestamp": "1970-01-01T00:01:40Z"},
        "spec": {"containers": [{"name": "c"}], "volumes": [{"name": "v", "emptyDir": {}}]}, "status": status});
    serde_json::from_value(pod).unwrap()
}

fn running(started: &str) -> Value {
    json!({"phase": "Running", "startTime": "1970-01-01T00:01:45Z",
        "initContainerStatuses": [{"name": "i", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "startedAt": "1970-01-01T00:01:46Z",
                "finishedAt": "1970-01-01T00:01:48Z"}}}],
        "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": started}}}]})
}

#[test]
fn a_pods_start_is_told_once() {
    let mut starts = PodStarts::new(at(50).wall);
    let (new, uid) = (pod(json!({"phase": "Pending"})), "u".into());
    assert!(starts.seen(&new, at(102).mono) && !starts.seen(&new, at(103).mono));
    assert_eq!(starts.working(&uid, at(103).mono), Some(Duration::from_secs(1)));
    assert_eq!(starts.working(&uid, at(104).mono), None);
    // Two pulls of 4 s that overlap by 1 s.
    starts.pulling(&uid, at(104).mono);
    starts.pulling(&uid, at(107).mono);
    starts.pulled(&uid, at(108).mono);
    starts.pulled(&uid, at(111).mono);
    let runs = pod(running("1970-01-01T00:02:00Z"));
    assert_eq!(starts.watched(&runs, at(120)), None, "its worker did not say so yet");
    let status = runs.status.clone().unwrap();
    assert_eq!(starts.published(&uid, new.status.as_ref().unwrap(), at(119).mono), None);
    assert_eq!(starts.published(&uid, &status, at(120).mono), Some(Duration::from_secs(18)));
    assert_eq!(starts.published(&uid, &status, at(121).mono), None);
    assert_eq!(starts.watched(&new, at(121)), None);
    // 22 s, 7 of them pulls, 2 an init container.
    let (total, sli) = (Duration::from_secs(22), Some(Duration::from_secs(13)));
    assert_eq!(starts.watched(&runs, at(122)), Some(ObservedStartup { total, sli, first_network: true }));
    assert_eq!(starts.watched(&runs, at(123)), None);
    starts.forget(&uid);
    assert!(starts.is_empty());
}

#[test]
fn what_ran_before_has_no_start() {
    let mut starts = PodStarts::new(at(200).wall);
    let runs = pod(running("1970-01-01T00:02:00Z"));
    let status = runs.status.clone().unwrap();
    assert!(starts.seen(&runs, at(201).mono));
    assert_eq!(starts.published(&"u".into(), &status, at(202).mono), None);
    assert_eq!(starts.watched(&runs, at(202)), None);
    // A static pod's file has no status.
    starts.forget(&"u".into());
    starts.seen(&pod(json!({})), at(201).mono);
    assert_eq!(starts.published(&"u".into(), &status, at(202).mono), None);
    assert_eq!(starts.watched(&runs, at(202)), None);
    assert_eq!(starts.working(&"other".into(), at(202).mono), None);
}

#[test]
fn pods_that_keep_state_have_no_sli() {
    let mut starts = PodStarts::new(at(50).wall);
    let mut runs = pod(running("1970-01-01T00:02:00Z"));
    runs.spec.as_mut().unwrap().volumes =
        serde_json::from_value(json!([{"name": "v", "hostPath": {"path": "/"}}])).unwrap();
    starts.seen(&pod(json!({})), at(102).mono);
    starts.published(&"u".into(), runs.status.as_ref().unwrap(), at(120).mono);
    let shown = starts.watched(&runs, at(122)).unwrap();
    assert_eq!((shown.sli, shown.first_network), (None, false));
}

#[test]
fn the_nodes_start_is_told_of_a_new_node_only() {
    let mut start = NodeStart::new(at(10).mono);
    assert_eq!(start.ready(at(11).mono), None, "an old Node");
    assert_eq!(start.registered(at(11).mono), None);
    start.trying(at(12).mono);
    start.trying(at(13).mono);
    let seconds = Duration::from_secs;
    let step = NodeStep::Registered(seconds(10), seconds(2), seconds(3));
    assert_eq!(start.registered(at(15).mono), Some(step));
    assert_eq!(start.registered(at(16).mono), None);
    assert_eq!(start.ready(at(20).mono), Some(NodeStep::Ready(seconds(5), seconds(20))));
    assert_eq!(start.ready(at(21).mono), None);
}

fn of_containers(containers: Value) -> PodStatus {
    serde_json::from_value(json!({"containerStatuses": containers})).unwrap()
}

fn container(id: Option<&str>, restarts: i32, state: Value, last: Value) -> PodStatus {
    of_containers(json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": restarts,
        "containerID": id, "state": state, "lastState": last}]))
}

fn ended(id: &str, code: i32, second: u8) -> Value {
    let at = format!("1970-01-01T00:01:{second:02}Z");
    json!({"terminated": {"exitCode": code, "reason": "Error", "containerID": id, "startedAt": at, "finishedAt": at}})
}

#[test]
fn what_happens_to_containers_is_counted_once() {
    let (kind, began) = ("container", at(90).wall);
    let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
    let running = json!({"running": {"startedAt": "1970-01-01T00:01:35Z"}});
    let steps = [
        container(None, 0, waiting("ContainerCreating"), json!({})),
        container(None, 0, waiting("ErrImagePull"), json!({})),
        container(None, 0, waiting("ErrImagePull"), json!({})),
        container(Some("a"), 0, running.clone(), json!({})),
        container(Some("a"), 0, ended("a", 3, 36), json!({})),
        container(Some("a"), 0, waiting("CrashLoopBackOff"), ended("a", 3, 36)),
        container(Some("c"), 2, running.clone(), ended("b", 4, 38)),
    ];
    let mut all: Vec<Change<'_>> = changes(None, &steps[0], began);
    for pair in steps.windows(2) {
        all.extend(changes(Some(&pair[0]), &pair[1], began));
    }
    let expected = [
        Change::Tried { kind, times: 1 },
        Change::Failed { kind, code: "ErrImagePull" },
        Change::Tried { kind, times: 1 },
        Change::Ended { kind, exit_code: 3, reason: "Error" },
        Change::Tried { kind, times: 2 },
        Change::Ended { kind, exit_code: 4, reason: "Error" },
    ];
    assert_eq!(all, expected);
    // A new incarnation looks at what it finds.
    let old =
        container(Some("a"), 0, json!({"running": {"startedAt": "1970-01-01T00:01:00Z"}}), ended("z", 1, 0));
    assert_eq!(changes(None, &old, began), []);
    assert_eq!(changes(None, &steps[3], began), [Change::Tried { kind, times: 1 }]);
}

#[test]
fn buckets_grow_and_families_are_told_with_their_kind() {
    let mut registry = Registry::new();
    registry.begin_histogram(&families::POD_START);
    registry.begin_histogram(&families::SERVER_ROTATION);
    registry.observe(&families::RUNTIME_OPERATIONS_DURATION, ["version"], 0.2);
    registry.observe(&families::STORAGE_OPERATION, ["p", "o", "success", "false"], 0.2);
    registry.observe(&families::REST_DURATION, ["GET", "h"], 0.2);
    let text = registry.text();
    for (family, buckets) in [
        ("kubelet_pod_start_duration_seconds", 26),
        ("kubelet_certificate_manager_server_rotation_seconds", 11),
        ("kubelet_runtime_operations_duration_seconds", 15),
        ("storage_operation_duration_seconds", 14),
        ("rest_client_request_duration_seconds", 13),
    ] {
        let bounds: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with(&format!("{family}_bucket")))
            .filter_map(|line| line.split("le=\"").nth(1)?.split('"').next())
            .collect();
        assert_eq!(bounds.len(), buckets, "{family}");
        assert_eq!(bounds.iter().collect::<BTreeSet<_>>().len(), buckets, "{family}");
        let numbers: Vec<f64> = bounds.iter().map(|b| b.replace("+Inf", "inf").parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "{family}: {numbers:?}");
    }
}
