//! The whole daemon with a device plugin on a real socket, from its registration to the container that has its devices.

// A test's helpers fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

mod support;

use agent_types::time::Mono;
use futures_util::future::join_all;
use orlop_proto::device_plugin::v1beta1::{Device, NumaNode, TopologyInfo};

use support::device_plugin::{ANNOTATION, ScriptedPlugin, healthy_device, register};
use support::{Agent, IMAGE, Machine, SOON, put};

const GPU: &str = "example.com/gpu";
const VERSION: &str = "v1beta1";

fn write(machine: &Machine, name: &str, count: u32) {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: main\n    image: {IMAGE}\n    \
         resources:\n      limits:\n        {GPU}: {count}\n      requests:\n        {GPU}: {count}\n"
    );
    put(&machine.path(&format!("manifests/{name}.yaml")), &text);
}

/// Devices of running containers, as their plugin named them.
fn annotated(machine: &Machine) -> Vec<String> {
    machine.driver.with(|runtime| {
        let of = |c: &agent_sim::fake_runtime::FakeContainer| c.observed.annotations.get(ANNOTATION).cloned();
        runtime.containers.values().filter_map(of).collect()
    })
}

/// Waits until the node has so many healthy devices.
async fn healthy(agent: &Agent, count: i64) {
    let mut views = agent.node.resources();
    let seen = views.wait_for(|view| view.node_devices.allocatable.get(GPU) == Some(&count));
    let seen = tokio::time::timeout(SOON, seen).await.is_ok();
    assert!(seen, "not {count}: {:?}", agent.node.resources().borrow().node_devices);
}

/// Waits until the checkpoint has this text.
async fn checkpoint_has(machine: &Machine, agent: &Agent, text: &str) {
    let path = machine.path("device-plugins/kubelet_internal_checkpoint");
    for _ in 0..60 {
        if std::fs::read_to_string(&path).is_ok_and(|found| found.contains(text)) {
            return;
        }
        agent.pass(1).await;
    }
    panic!("no {text} in {:?}", std::fs::read_to_string(&path));
}

#[tokio::test(start_paused = true)]
async fn a_container_has_the_devices_that_its_plugin_prefers_and_keeps_them_over_a_restart() {
    let machine = Machine::new();
    let mut agent = machine.agent(Mono(0)).await;
    let kubelet = machine.path("device-plugins/kubelet.sock");
    let plugin = ScriptedPlugin::serve(&machine.path("device-plugins/gpu.sock"), &["a", "b", "c"], false);
    register(&kubelet, VERSION, "gpu.sock", GPU).await.unwrap();
    healthy(&agent, 3).await;
    checkpoint_has(&machine, &agent, "\"RegisteredDevices\":{\"example.com/gpu\":[\"a\",\"b\",\"c\"]}").await;
    write(&machine, "p", 2);
    agent.running(1).await;
    assert_eq!(annotated(&machine), ["b,c"]);
    assert_eq!(*plugin.calls.lock().unwrap(), ["prefer a,b,c", "allocate b,c", "pre-start b,c"]);
    checkpoint_has(&machine, &agent, "\"DeviceIDs\":{\"-1\":[\"b\",\"c\"]}").await;
    let before = machine.running();

    agent.kill().await;
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(1).await;
    assert_eq!(machine.running(), before, "a running pod is admitted while its plugin is away");
    assert!(
        kubelet.exists() && !machine.path("device-plugins/gpu.sock").exists(),
        "the plugin sees the restart"
    );
    let _plugin = ScriptedPlugin::serve(&machine.path("device-plugins/gpu.sock"), &["a", "b", "c"], false);
    register(&kubelet, VERSION, "gpu.sock", GPU).await.unwrap();
    healthy(&agent, 3).await;
    write(&machine, "q", 1);
    agent.running(2).await;
    let mut all = annotated(&machine);
    all.sort();
    assert_eq!(all, ["a", "b,c"], "no device has two pods");
    assert!(agent.node.stop().await);
}

#[tokio::test(start_paused = true)]
async fn a_pod_fails_if_its_plugin_refuses() {
    let machine = Machine::new();
    let mut agent = machine.agent(Mono(0)).await;
    let _plugin = ScriptedPlugin::serve(&machine.path("device-plugins/gpu.sock"), &["a"], true);
    register(&machine.path("device-plugins/kubelet.sock"), VERSION, "gpu.sock", GPU).await.unwrap();
    healthy(&agent, 1).await;
    write(&machine, "p", 1);
    agent.until("failed", |pods| pods.values().any(|pod| pod.phase() == "Failed")).await;
    let view = agent.pods.borrow().values().next().unwrap().clone();
    let message = view.status.message.clone().unwrap_or_default();
    assert!(
        message.contains("Allocate failed due to rpc error: code = Unknown desc = no such luck"),
        "{message}"
    );
    assert!(machine.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_list_that_takes_too_much_memory_ends_its_connection() {
    let machine = Machine::new();
    let agent = machine.agent(Mono(0)).await;
    let plugin = ScriptedPlugin::serve(&machine.path("device-plugins/gpu.sock"), &["a"], false);
    register(&machine.path("device-plugins/kubelet.sock"), VERSION, "gpu.sock", GPU).await.unwrap();
    healthy(&agent, 1).await;
    // One device, whose nodes take two bytes each in the message.
    let nodes = vec![NumaNode::default(); 600_000];
    let topology = Some(TopologyInfo { nodes });
    plugin.lists.send_replace(vec![Device { id: "a".to_owned(), health: "Healthy".to_owned(), topology }]);
    healthy(&agent, 0).await;
    drop(agent);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_plugin_waits_for_none_of_its_lists() {
    let machine = Machine::new();
    let agent = machine.agent(Mono(0)).await;
    // Each list differs from the one before; the last one has three devices.
    let list =
        |number: usize| (0..=number % 7).map(|id| healthy_device(&format!("d{id}"))).collect::<Vec<Device>>();
    let script = (0..1000).map(list).chain([list(2)]).collect();
    let _plugin = ScriptedPlugin::serve_lists(&machine.path("device-plugins/gpu.sock"), script);
    register(&machine.path("device-plugins/kubelet.sock"), VERSION, "gpu.sock", GPU).await.unwrap();
    let mut views = agent.node.resources();
    let ended = views.wait_for(|view| {
        let of = &view.node_devices;
        of.capacity.get(GPU) == Some(&3) && of.allocatable.get(GPU) == Some(&0)
    });
    // Time passes while sockets are read; one list a second would take far longer than this.
    let seen = tokio::time::timeout(SOON, ended).await.is_ok();
    assert!(seen, "the last list and the end: {:?}", agent.node.resources().borrow().node_devices);
    drop(agent);
}

#[tokio::test(start_paused = true)]
async fn all_resources_of_a_large_node_register_at_the_same_moment() {
    let machine = Machine::new();
    let agent = machine.agent(Mono(0)).await;
    let kubelet = machine.path("device-plugins/kubelet.sock");
    let _plugin = ScriptedPlugin::serve(&machine.path("device-plugins/gpu.sock"), &["a"], false);
    let names: Vec<String> = (0..24).map(|number| format!("example.com/gpu-{number}")).collect();
    let registered = join_all(names.iter().map(|name| register(&kubelet, VERSION, "gpu.sock", name))).await;
    assert!(registered.iter().all(Result::is_ok), "{registered:?}");
    let mut views = agent.node.resources();
    let all = views.wait_for(|view| view.node_devices.allocatable.len() == 24);
    assert!(tokio::time::timeout(SOON, all).await.is_ok());
    drop(agent);
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_is_wrong_is_refused_in_upstreams_words() {
    let machine = Machine::new();
    let agent = machine.agent(Mono(0)).await;
    let kubelet = machine.path("device-plugins/kubelet.sock");
    let error = async |version, endpoint, resource| {
        register(&kubelet, version, endpoint, resource).await.unwrap_err()
    };
    assert_eq!(
        error("v1alpha", "gpu.sock", GPU).await,
        "requested API version \"v1alpha\" is not supported by kubelet. Supported version is [\"v1beta1\"]"
    );
    assert_eq!(error(VERSION, "gpu.sock", "gpu").await, "the ResourceName \"gpu\" is invalid");
    let none = error(VERSION, "none.sock", GPU).await;
    assert!(none.starts_with("failed to dial device plugin: ") && none.contains("none.sock"), "{none}");
    let outside = machine.path("outside.sock");
    let _plugin = ScriptedPlugin::serve(&outside, &["a"], false);
    let escapes = error(VERSION, "../outside.sock", GPU).await;
    assert!(escapes.starts_with("failed to dial device plugin: "), "{escapes}");
    std::os::unix::fs::symlink(&outside, machine.path("device-plugins/link.sock")).unwrap();
    let link = error(VERSION, "link.sock", GPU).await;
    assert!(link.starts_with("failed to dial device plugin: "), "{link}");
    drop(agent);
}
