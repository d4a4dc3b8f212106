//! The whole daemon over a fake runtime and a fake API server: registration, API pods, mirror pods, an outage of the
//! API server, a kill of the agent. Time is tokio's, paused.

// A test's helpers fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

mod support;

use agent_sim::fake_api::{Key, Requester, Resource, Verb};
use agent_types::time::Mono;
use orlop_agent::pods::status::PodViews;
use serde_json::{Value, json};

use support::Machine;
use support::api::TestApi;

fn machine() -> (Machine, TestApi) {
    let mut machine = Machine::new();
    let api = TestApi::new(machine.clock.clone());
    machine.api = Some(api.clone());
    (machine, api)
}

fn phase(object: Option<&Value>) -> &str {
    object.and_then(|o| o.pointer("/status/phase")).and_then(Value::as_str).unwrap_or("")
}

fn is_ready(node: Option<&Value>) -> bool {
    let conditions = node.and_then(|n| n.pointer("/status/conditions")).and_then(Value::as_array);
    conditions.is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

fn the_node() -> Key {
    Key::new(Resource::Nodes, "", "node")
}

#[tokio::test(start_paused = true)]
async fn a_node_registers_runs_a_pod_and_lets_it_go() {
    let (machine, api) = machine();
    let agent = machine.agent(Mono(0)).await;
    api.until("ready", &the_node(), is_ready).await;
    let lease = Key::new(Resource::Leases, "kube-node-lease", "node");
    api.until("there", &lease, |lease| lease.is_some()).await;

    let pod = api.run_pod("web");
    api.until("running", &pod, |pod| phase(pod) == "Running").await;
    assert_eq!(machine.running().len(), 1);
    api.with(|api, now| api.remove_object(now.wall, &pod, None)).unwrap();
    api.until("gone", &pod, |pod| pod.is_none()).await;
    assert!(machine.running().is_empty());
    agent.pass(30).await;
    assert!(machine.is_empty());
    assert_eq!(std::fs::read_dir(machine.path("kubelet/pods")).unwrap().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_has_a_mirror_that_comes_back() {
    let (machine, api) = machine();
    machine.write("web", "x");
    let mut agent = machine.agent(Mono(0)).await;
    let mirror = Key::new(Resource::Pods, "default", "web-node");
    api.until("running", &mirror, |pod| phase(pod) == "Running").await;
    let before = machine.running();
    api.with(|api, now| api.remove_object(now.wall, &mirror, Some(0))).unwrap();
    api.until("back", &mirror, |pod| phase(pod) == "Running").await;
    assert_eq!(machine.running(), before, "the static pod itself is not touched");
    machine.remove("web");
    agent.until("gone", PodViews::is_empty).await;
    api.until("gone", &mirror, |pod| pod.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_deleted_comes_back() {
    let (machine, api) = machine();
    let _agent = machine.agent(Mono(0)).await;
    api.until("ready", &the_node(), is_ready).await;
    api.with(|api, now| api.remove_object(now.wall, &the_node(), None)).unwrap();
    api.until("ready again", &the_node(), is_ready).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_api_server_pods_go_on_and_everything_converges() {
    let (machine, api) = machine();
    machine.write("web", "x");
    let mut agent = machine.agent(Mono(0)).await;
    let pod = api.run_pod("api");
    api.until("running", &pod, |pod| phase(pod) == "Running").await;
    agent.running(2).await;
    let before = machine.running();
    api.set_up(false);
    agent.pass(300).await;
    assert_eq!(machine.running(), before);
    machine.write("late", "x");
    agent.running(3).await;
    // During the outage, a restarted agent runs its pods and removes none.
    agent.kill().await;
    let agent = machine.agent(Mono(0)).await;
    agent.pass(120).await;
    assert_eq!(machine.running().len(), 3);
    api.with(|api, now| api.remove_object(now.wall, &pod, None)).unwrap();
    api.set_up(true);
    api.until("gone", &pod, |pod| pod.is_none()).await;
    let late = Key::new(Resource::Pods, "default", "late-node");
    api.until("running", &late, |pod| phase(pod) == "Running").await;
    assert_eq!(machine.running().len(), 2);
}

/// Writes a ConfigMap as a user does.
fn put_config_map(api: &TestApi, value: &str) {
    let key = Key::new(Resource::ConfigMaps, "default", "conf");
    let data = json!({ "k": value });
    let verb = if api.object(&key).is_some() {
        Verb::Patch(json!({ "data": data }))
    } else {
        Verb::Create(json!({ "metadata": { "name": "conf", "namespace": "default" }, "data": data }))
    };
    api.with(|api, now| api.serve(now.wall, &Requester::Admin, &key, &verb)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_config_map_and_sees_it_change() {
    let (machine, api) = machine();
    let agent = machine.agent(Mono(0)).await;
    api.until("ready", &the_node(), is_ready).await;
    let pod = api.run_pod_with("web", &json!([{ "name": "v", "configMap": { "name": "conf" } }]));
    agent.pass(5).await;
    assert!(machine.running().is_empty(), "a volume is missing");
    put_config_map(&api, "one");
    api.until("running", &pod, |pod| phase(pod) == "Running").await;
    let uid = api.object(&pod).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let file = machine.path(&format!("kubelet/pods/{uid}/volumes/kubernetes.io~configmap/v/k"));
    let read = || std::fs::read_to_string(&file).unwrap();
    assert_eq!(read(), "one");
    let before = machine.running();
    put_config_map(&api, "two");
    agent.pass(5).await;
    assert_eq!(read(), "two");

    agent.kill().await;
    put_config_map(&api, "three");
    let agent = machine.agent(Mono(0)).await;
    api.until("ready", &the_node(), is_ready).await;
    agent.pass(5).await;
    assert_eq!((read().as_str(), machine.running()), ("three", before));

    api.with(|api, now| api.remove_object(now.wall, &pod, None)).unwrap();
    api.until("gone", &pod, |pod| pod.is_none()).await;
    agent.pass(30).await;
    assert_eq!(std::fs::read_dir(machine.path("kubelet/pods")).unwrap().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_run_by_the_handler_of_its_class_and_waits_for_it() {
    let (machine, api) = machine();
    let agent = machine.agent(Mono(0)).await;
    api.until("ready", &the_node(), is_ready).await;
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  runtimeClassName: sealed\n  containers:\n  \
         - name: main\n    image: {}\n",
        support::IMAGE
    );
    support::put(&machine.path("manifests/web.yaml"), &text);
    agent.pass(5).await;
    assert!(machine.is_empty(), "its class is not there");
    let class = Key::new(Resource::RuntimeClasses, "", "sealed");
    let made = Verb::Create(json!({ "metadata": { "name": "sealed" }, "handler": "kata" }));
    api.with(|api, now| api.serve(now.wall, &Requester::Admin, &class, &made)).unwrap();
    let mirror = Key::new(Resource::Pods, "default", "web-node");
    api.until("running", &mirror, |pod| phase(pod) == "Running").await;
    let handlers =
        machine.driver.with(|r| r.sandboxes.values().map(|s| s.handler.clone()).collect::<Vec<_>>());
    assert_eq!(handlers, ["kata"]);
}

#[tokio::test(start_paused = true)]
async fn pods_that_no_validation_would_pass_hurt_nobody() {
    // The driver drops objects that are not pods (agent-apiserver's tests).
    let (machine, api) = machine();
    let agent = machine.agent(Mono(0)).await;
    api.until("ready", &the_node(), is_ready).await;
    let container = json!({"name": "c", "image": "i"});
    let hostile = [
        json!({"containers": []}),
        json!({"containers": [{"name": "../../etc", "image": "i"}]}),
        json!({"containers": [{"name": "c", "image": "::::@@@"}]}),
        json!({"containers": [container], "terminationGracePeriodSeconds": i64::MIN, "restartPolicy": "Perhaps"}),
        json!({"containers": [container], "activeDeadlineSeconds": i64::MAX, "hostname": "a/b\u{0}c"}),
        json!({"containers": [container], "initContainers": [container, container], "dnsPolicy": "Prayer"}),
        json!({"containers": [container], "securityContext": {"runAsUser": -1, "fsGroup": i64::MAX}}),
        json!({"containers": [container], "resources": {"limits": {"cpu": "NaN"}}, "overhead": {"cpu": "-1e400"}}),
        json!({"containers": [container], "volumes": [{"name": "v"}, {"name": "..", "hostPath": {"path": "../"}}]}),
    ];
    let mut bad = Vec::new();
    for (index, mut spec) in hostile.into_iter().enumerate() {
        spec["nodeName"] = json!("node");
        let name = format!("bad{index}");
        let key = Key::new(Resource::Pods, "default", &name);
        let pod = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        api.with(|api, now| api.serve(now.wall, &Requester::Admin, &key, &Verb::Create(pod))).unwrap();
        bad.push(key);
    }
    let good = api.run_pod("good");
    api.until("running", &good, |pod| phase(pod) == "Running").await;
    agent.pass(120).await;
    api.until("running still", &good, |pod| phase(pod) == "Running").await;
    for key in &bad {
        api.with(|api, now| api.remove_object(now.wall, key, Some(0))).unwrap();
    }
    agent.pass(120).await;
    assert_eq!(machine.running().len(), 1, "only the good one is left");
}
