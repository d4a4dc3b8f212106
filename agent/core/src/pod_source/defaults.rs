//! Defaults of static pods, as the API server would set them.
//!
//! In: a decoded pod. Out: the same pod with defaults. Invariant: idempotent; a field that is set stays; fields
//! that admission of the API server fills in (`spec.priority`) stay empty, as upstream.
//! Upstream: pkg/apis/core/v1/defaults.go.

use std::collections::BTreeSet;

use agent_types::resources::requests::{
    CPU, HUGEPAGES_PREFIX, MEMORY, is_pod_level_set, peak_limit, peak_request,
};
use agent_types::{Quantity, pod, quantity_text};
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, Pod, PodSecurityContext, PodSpec, ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::images;

/// Fill in defaults.
pub fn apply(pod: &mut Pod) {
    let Some(spec) = pod.spec.as_mut() else { return };
    let text = |field: &mut Option<String>, value: &str| {
        if field.as_deref().unwrap_or("").is_empty() {
            *field = Some(value.to_owned());
        }
    };
    text(&mut spec.restart_policy, "Always");
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.scheduler_name, "default-scheduler");
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.enable_service_links.get_or_insert(true);
    spec.security_context.get_or_insert_with(PodSecurityContext::default);
    volumes(spec);
    let host_network = spec.host_network == Some(true);
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(spec.containers.iter_mut()) {
        container_defaults(container, host_network);
    }
    pod_level(pod);
}

/// Completes the pod's own requests and limits (KEP-2837): for huge pages, with the limits of its containers;
/// for a limited resource, with its containers' requests, else with the limit.
fn pod_level(pod: &mut Pod) {
    if !is_pod_level_set(pod) {
        return;
    }
    let mut own = pod::spec(pod).resources.clone().unwrap_or_default();
    let requested =
        |own: &ResourceRequirements, name: &str| own.requests.as_ref().is_some_and(|r| r.contains_key(name));
    let containers =
        || pod::containers(pod).iter().chain(pod::init_containers(pod)).filter_map(|c| c.resources.as_ref());
    let spelled = |name: &str, q: Quantity| ApiQuantity(quantity_text::of_resource(name, q));
    let limited: BTreeSet<&String> =
        containers().filter_map(|r| r.limits.as_ref()).flat_map(|l| l.keys()).collect();
    for name in limited.into_iter().filter(|name| name.starts_with(HUGEPAGES_PREFIX)) {
        if !requested(&own, name) {
            let limits = own.limits.get_or_insert_default();
            limits.entry(name.clone()).or_insert_with(|| spelled(name, peak_limit(pod, name)));
        }
    }
    if let Some(limits) = own.limits.clone().filter(|l| !l.is_empty()) {
        let asked: BTreeSet<&String> =
            containers().filter_map(|r| r.requests.as_ref()).flat_map(|l| l.keys()).collect();
        let requests = own.requests.get_or_insert_default();
        for name in asked.into_iter().filter(|name| matches!(name.as_str(), CPU | MEMORY)) {
            requests.entry(name.clone()).or_insert_with(|| spelled(name, peak_request(pod, name)));
        }
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
    if let Some(spec) = &mut pod.spec {
        spec.resources = Some(own);
    }
}

/// A volume without a source is an emptyDir; an Azure disk has the unmanaged kind by default, which no driver
/// mounts.
fn volumes(spec: &mut PodSpec) {
    for volume in spec.volumes.iter_mut().flatten() {
        let bare = Volume { name: volume.name.clone(), ..Volume::default() };
        if *volume == bare {
            volume.empty_dir = Some(EmptyDirVolumeSource::default());
        }
        if let Some(disk) = &mut volume.azure_disk {
            disk.caching_mode.get_or_insert_with(|| "ReadWrite".to_owned());
            disk.fs_type.get_or_insert_with(|| "ext4".to_owned());
            disk.kind.get_or_insert_with(|| "Shared".to_owned());
            disk.read_only.get_or_insert(false);
        }
    }
}

fn container_defaults(container: &mut Container, host_network: bool) {
    if container.image_pull_policy.as_deref().unwrap_or("").is_empty() {
        let policy = images::default_pull_policy(container.image.as_deref().unwrap_or(""));
        container.image_pull_policy = Some(images::policy_name(policy).to_owned());
    }
    let text = |field: &mut Option<String>, value: &str| {
        if field.as_deref().unwrap_or("").is_empty() {
            *field = Some(value.to_owned());
        }
    };
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        text(&mut port.protocol, "TCP");
        if host_network && port.host_port.unwrap_or(0) == 0 {
            port.host_port = Some(port.container_port);
        }
    }
    for var in container.env.iter_mut().flatten() {
        if let Some(field) = var.value_from.as_mut().and_then(|from| from.field_ref.as_mut()) {
            text(&mut field.api_version, "v1");
        }
    }
    if let Some(resources) = container.resources.as_mut() {
        // A limit without a request is also the request.
        for (name, limit) in resources.limits.iter().flatten() {
            let requests = resources.requests.get_or_insert_default();
            requests.entry(name.clone()).or_insert_with(|| limit.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn defaulted(spec: Value) -> Value {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        apply(&mut pod);
        let once = pod.clone();
        apply(&mut pod);
        assert_eq!(once, pod, "idempotent");
        serde_json::to_value(pod).unwrap()["spec"].take()
    }

    #[test]
    fn an_empty_pod() {
        let spec =
            defaulted(json!({"containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "v"}]}));
        let expected = json!({
            "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
            "volumes": [{"name": "v", "emptyDir": {}}]});
        assert_eq!(spec, expected);
    }

    #[test]
    fn a_disk_of_azure() {
        let disk = |more: Value| {
            let mut disk = json!({"diskName": "d", "diskURI": "u"});
            disk.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let volumes = json!([{"name": "v", "azureDisk": disk}]);
            defaulted(json!({"containers": [{"name": "c"}], "volumes": volumes}))["volumes"][0]["azureDisk"]
                .take()
        };
        let expected = json!({"diskName": "d", "diskURI": "u", "kind": "Shared", "cachingMode": "ReadWrite",
            "fsType": "ext4", "readOnly": false});
        assert_eq!(disk(json!({})), expected);
        assert_eq!(disk(json!({"kind": "Managed"}))["kind"], "Managed");
    }

    #[test]
    fn what_a_pod_asks_for_itself() {
        let full = |resources: Value| {
            let spec = defaulted(json!({"resources": resources, "containers": [
                {"name": "a", "image": "i:1", "resources": {"requests": {"cpu": "100m"}, "limits": {"hugepages-2Mi": "2Mi"}}},
                {"name": "b", "image": "i:1", "resources": {"requests": {"cpu": "200m", "ephemeral-storage": "1Mi"}}}]}));
            spec["resources"].clone()
        };
        assert_eq!(full(json!({})), json!({}));
        let pages = json!({"hugepages-2Mi": "2Mi"});
        assert_eq!(
            full(json!({"requests": {"cpu": "1"}})),
            json!({"requests": {"cpu": "1", "hugepages-2Mi": "2Mi"}, "limits": pages})
        );
        assert_eq!(
            full(json!({"limits": {"cpu": "1", "memory": "1Gi"}})),
            json!({"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"},
                "requests": {"cpu": "300m", "memory": "1Gi", "hugepages-2Mi": "2Mi"}})
        );
    }

    #[test]
    fn what_is_set_stays_and_limits_become_requests() {
        let spec = defaulted(json!({
            "hostNetwork": true, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "priorityClassName": "system-node-critical",
            "volumes": [{"name": "v", "hostPath": {"path": "/x"}}],
            "initContainers": [{"name": "i", "image": "i:1"}],
            "containers": [{"name": "c", "image": "i:1",
                "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 82, "protocol": "UDP"}],
                "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}}]}));
        assert_eq!(spec["restartPolicy"], "Never");
        assert_eq!(spec["terminationGracePeriodSeconds"], 0);
        assert_eq!(spec.get("priority"), None, "admission of the API server fills it in, not the defaults");
        assert!(spec["volumes"][0].get("emptyDir").is_none());
        assert_eq!(spec["initContainers"][0]["imagePullPolicy"], "IfNotPresent");
        let container = &spec["containers"][0];
        assert_eq!(container["resources"]["requests"], json!({"cpu": "500m", "memory": "1Gi"}));
        assert_eq!(container["ports"][0], json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"}));
        assert_eq!(container["ports"][1], json!({"containerPort": 81, "hostPort": 82, "protocol": "UDP"}));
        assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
    }
}
