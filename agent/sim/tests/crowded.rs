//! A node with many pods and without faults: all of them run, and the next agent adopts them all.

use std::sync::Arc;
use std::time::Duration;

use agent_core::pod_worker::WorkerContext;
use agent_sim::fake_runtime::image;
use agent_sim::faults::Faults;
use agent_sim::world::World;
use agent_types::node_context::NodeContext;
use agent_types::restart;
use agent_types::runtime::observed::ContainerState;
use agent_types::time::Now;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

const IMAGE: &str = "docker.io/library/image:1";
/// Pods that come at the same time.
const AT_ONCE: usize = 10;

/// Number of pods: `ORLOP_SIM_PODS`, or the number of a CI run.
fn pods() -> usize {
    std::env::var("ORLOP_SIM_PODS").ok().and_then(|n| n.parse().ok()).unwrap_or(200)
}

fn context() -> Arc<WorkerContext> {
    Arc::new(WorkerContext {
        specs: Arc::new(NodeContext::new("node")),
        request_timeout: Duration::from_secs(120),
        cpus_again: Duration::from_secs(10),
        crash_loop: restart::SERIES,
        runtime_name: "fake".to_owned(),
        host_ips: vec!["192.0.2.1".to_owned()],
        ipv6_first: false,
        agent_started: Now::default(),
    })
}

fn pod(number: usize) -> Arc<Pod> {
    let uid = format!("uid-{number}");
    let annotations = json!({"kubernetes.io/config.source": "file", "kubernetes.io/config.hash": uid});
    let pod = json!({
        "metadata": {"name": format!("pod{number}-node"), "namespace": "default", "uid": uid, "annotations": annotations},
        "spec": {
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "dnsPolicy": "Default", "nodeName": "node",
            "containers": [{
                "name": format!("app{number}"), "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            }],
        },
    });
    Arc::new(serde_json::from_value(pod).expect("the literals are a pod"))
}

fn pass(world: &mut World, length: Duration) {
    if let Err(violation) = world.run_for(length) {
        panic!("{violation}\n{}", world.trace.tail());
    }
}

fn running(world: &World) -> usize {
    world.runtime.containers.values().filter(|c| c.observed.state == ContainerState::Running).count()
}

#[test]
fn all_pods_of_a_crowded_node_run_and_are_adopted() {
    let count = pods();
    let mut world = World::new(1, Faults::default(), context(), None);
    world.runtime.images.insert(IMAGE.to_owned(), image(IMAGE));
    for number in 0..count {
        world.user_adds(&pod(number));
        if number % AT_ONCE == AT_ONCE - 1 {
            pass(&mut world, Duration::from_millis(500));
        }
    }
    pass(&mut world, Duration::from_secs(300));
    assert_eq!(running(&world), count);
    world.crash_at_rest();
    pass(&mut world, Duration::from_secs(600));
    assert_eq!((running(&world), world.runtime.containers.len()), (count, count));
}
