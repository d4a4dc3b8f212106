//! Eviction as a whole: courses of the machine, and helpers of the tests.

mod courses;
mod ranking;
mod words;

use std::sync::Arc;
use std::time::Duration;

use agent_types::time::Wall;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;

const MI: i64 = 1 << 20;

fn space(bytes: i64, inodes: u64) -> Space {
    Space { bytes: u64::try_from(bytes).unwrap(), inodes, ..Space::default() }
}

/// A pod with one container `c`.
fn pod_of(name: &str, priority: i32, requests: &Value) -> Arc<Pod> {
    pod_with(
        name,
        json!({"priority": priority, "containers": [{"name": "c", "resources": {"requests": requests}}]}),
    )
}

fn pod_with(name: &str, spec: Value) -> Arc<Pod> {
    let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn using(memory: i64, processes: u64, layer: Space) -> PodUse {
    let container = ContainerUse {
        name: "c".to_owned(),
        memory: u64::try_from(memory).ok(),
        layer: Some(layer),
        logs: Some(Space::default()),
    };
    PodUse {
        memory: u64::try_from(memory).ok(),
        processes: Some(processes),
        containers: vec![container],
        ..PodUse::default()
    }
}

fn uses<const N: usize>(of: [(&str, PodUse); N]) -> Uses {
    of.into_iter().map(|(uid, found)| (uid.into(), found)).collect()
}

fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
    pods.iter().map(|p| pod::name(p)).collect()
}

fn kubelet(value: Value) -> orlop_config::kubelet::KubeletConfiguration {
    serde_json::from_value(value).unwrap()
}
