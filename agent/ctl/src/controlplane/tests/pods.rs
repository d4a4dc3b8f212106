//! Static pods as the agent reads them, and objects as the API has them.

use std::collections::BTreeSet;

use agent_core::pod_source::api_refs::api_reference;
use agent_core::pod_source::decode::decode;
use agent_core::pod_source::validate::validate;
use agent_core::pod_source::{Source as PodSource, defaults, identity};
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};

use super::*;

const KUBERNETES: &str = "/etc/kubernetes/";

/// The pods of a node, as the agent takes them from their files.
fn pods(generated: &Generated, node: &str) -> Vec<Pod> {
    let config = taken(generated.text(&format!("{node}.yaml"))).config;
    let mut pods = Vec::new();
    for (name, text) in derive::static_pod_files(&config) {
        let decoded = decode(text.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(decoded.unknown_fields.is_empty(), "{name}: {:?}", decoded.unknown_fields);
        let mut pod = decoded.pod.clone();
        defaults::apply(&mut pod);
        identity::assign(&mut pod, &decoded.raw, PodSource::File, node, "/etc/kubernetes/manifests");
        let mistakes = validate(&pod);
        assert!(mistakes.is_empty(), "{name}: {mistakes:?}");
        assert_eq!(api_reference(&pod), None, "{name}: static pods name no objects of the API");
        pods.push(pod);
    }
    pods
}

fn containers(pod: &Pod) -> &[Container] {
    &pod.spec.as_ref().unwrap().containers
}

fn command(pod: &Pod) -> &[String] {
    containers(pod)[0].command.as_deref().unwrap()
}

/// Paths below /etc/kubernetes that a text names: `--x=/etc/kubernetes/a` and `/etc/kubernetes/a`.
fn named(word: &str) -> Option<&str> {
    word.find(KUBERNETES).map(|at| &word[at..])
}

#[test]
fn the_agent_takes_every_pod_and_each_file_that_it_names_is_there() {
    for (words, node) in [(SINGLE, "control-plane-1"), (HA, "cp-2")] {
        let generated = generated(words);
        let brought = placed(generated.text(&format!("{node}.yaml")));
        let is_directory = |path: &str| brought.keys().any(|file| file.starts_with(&format!("{path}/")));
        let pods = pods(&generated, node);
        assert_eq!(pods.len(), 5);
        let mut used = BTreeSet::new();
        for pod in &pods {
            let spec = pod.spec.as_ref().unwrap();
            for volume in spec.volumes.iter().flatten() {
                let host = volume.host_path.as_ref().unwrap();
                let is_there = match host.type_.as_deref() {
                    Some("File") => brought.contains_key(&host.path),
                    Some("Directory") => is_directory(&host.path),
                    Some("DirectoryOrCreate") => host.path == "/var/lib/etcd",
                    _ => false,
                };
                assert!(is_there, "{host:?}");
            }
            for container in containers(pod) {
                let mounts: Vec<&str> =
                    container.volume_mounts.iter().flatten().map(|mount| mount.mount_path.as_str()).collect();
                for path in container.command.iter().flatten().filter_map(|word| named(word)) {
                    assert!(brought.contains_key(path), "{path}");
                    let sees = |mount: &&str| path == *mount || path.starts_with(&format!("{mount}/"));
                    assert!(mounts.iter().any(sees), "{} does not see {path}", container.name);
                    used.insert(path.to_owned());
                }
            }
        }
        // What no pod reads is for the agent, or for a person's etcdctl.
        let unused: Vec<&str> =
            brought.keys().map(String::as_str).filter(|path| !used.contains(*path)).collect();
        assert_eq!(
            unused,
            [
                "/etc/kubernetes/bootstrap-kubelet.conf",
                "/etc/kubernetes/pki/etcd/healthcheck-client.crt",
                "/etc/kubernetes/pki/etcd/healthcheck-client.key",
            ]
        );
    }
}

#[test]
fn pods_are_critical_probed_and_without_privileges() {
    let generated = generated(SINGLE);
    for pod in pods(&generated, "control-plane-1") {
        let spec = pod.spec.as_ref().unwrap();
        let name = pod.metadata.name.as_deref().unwrap();
        assert_eq!(spec.priority_class_name.as_deref(), Some("system-node-critical"));
        assert_eq!((spec.priority, spec.host_network), (Some(2_000_001_000), Some(true)));
        let seccomp = spec.security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref());
        assert_eq!(seccomp.map(|profile| profile.type_.as_str()), Some("RuntimeDefault"), "{name}");
        let ends = spec.restart_policy.as_deref() == Some("OnFailure");
        assert_eq!(ends, name == "bootstrap-control-plane-1");
        for container in &spec.containers {
            let context = container.security_context.as_ref().unwrap();
            assert_eq!(context.allow_privilege_escalation, Some(false));
            assert_eq!(context.read_only_root_filesystem, Some(true));
            let capabilities = context.capabilities.as_ref().unwrap();
            assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
            let added = (container.name == "kube-apiserver").then(|| vec!["NET_BIND_SERVICE".to_owned()]);
            assert_eq!(capabilities.add, added, "{name}");
            assert!(container.resources.as_ref().unwrap().requests.as_ref().unwrap().contains_key("cpu"));
            let probes = [&container.liveness_probe, &container.readiness_probe, &container.startup_probe];
            assert!(probes.iter().all(|probe| probe.is_none() == ends), "{name}");
            for probe in probes.into_iter().flatten() {
                // Each is asked on the loopback, where strangers do not listen.
                assert_eq!(probe.http_get.as_ref().unwrap().host.as_deref(), Some("127.0.0.1"));
                assert_eq!(probe.timeout_seconds, Some(15), "{name}: slow machines answer late");
            }
            for (probe, patience_s) in [(&container.startup_probe, 600), (&container.liveness_probe, 80)] {
                let looks = probe.as_ref().map(|probe| (probe.failure_threshold, probe.period_seconds));
                let patience = looks.map(|(looks, every_s)| looks.unwrap() * every_s.unwrap());
                assert_eq!(patience, (!ends).then_some(patience_s), "{name}");
            }
        }
    }
}

#[test]
fn other_objects_make_another_bootstrap_pod_and_leave_the_others() {
    let all = |generated: &Generated| -> Vec<(String, String)> {
        let of = |pod: &Pod| (pod.metadata.name.clone().unwrap(), pod.metadata.uid.clone().unwrap());
        pods(generated, "control-plane-1").iter().map(of).collect()
    };
    let (one, other) = (all(&generated(SINGLE)), all(&generated(SINGLE)));
    let changed: Vec<&str> = one
        .iter()
        .zip(&other)
        .filter(|(one, other)| one != other)
        .map(|((name, _), _)| name.as_str())
        .collect();
    assert_eq!(changed, ["bootstrap-control-plane-1"], "each output has another token");
}

#[test]
fn members_of_etcd_know_each_other_and_a_single_one_stays_on_the_loopback() {
    let flag = |generated: &Generated, node: &str, start: &str| {
        let pods = pods(generated, node);
        let etcd = pods.iter().find(|pod| command(pod)[0] == "etcd").unwrap();
        let found = command(etcd).iter().find_map(|word| word.strip_prefix(start));
        found.unwrap_or_else(|| panic!("no {start}")).to_owned()
    };
    let single = generated(SINGLE);
    for start in ["--listen-client-urls=", "--advertise-client-urls="] {
        assert_eq!(flag(&single, "control-plane-1", start), "https://127.0.0.1:2379");
    }
    assert_eq!(flag(&single, "control-plane-1", "--listen-peer-urls="), "https://127.0.0.1:2380");
    let ha = generated(HA);
    let all = "cp-1=https://192.0.2.11:2380,cp-2=https://192.0.2.12:2380,cp-3=https://192.0.2.13:2380";
    for node in ["cp-1", "cp-2", "cp-3"] {
        assert_eq!(flag(&ha, node, "--initial-cluster="), all);
        assert_eq!(flag(&ha, node, "--name="), node);
    }
    assert_eq!(flag(&ha, "cp-2", "--listen-peer-urls="), "https://192.0.2.12:2380");
    assert_eq!(flag(&ha, "cp-2", "--listen-client-urls="), "https://127.0.0.1:2379,https://192.0.2.12:2379");
}

#[test]
fn load_balancers_leave_out_nodes_with_a_taint_alone() {
    for (words, node, is_left_out) in [(SINGLE, "control-plane-1", false), (HA, "cp-1", true)] {
        let pods = pods(&generated(words), node);
        let bootstrap = pods.iter().find(|pod| containers(pod).len() == 2).unwrap();
        let role = containers(bootstrap)[1].command.as_deref().unwrap();
        assert!(role.contains(&"node-role.kubernetes.io/control-plane=".to_owned()), "{role:?}");
        let label = "node.kubernetes.io/exclude-from-external-load-balancers=".to_owned();
        assert_eq!(role.contains(&label), is_left_out, "{role:?}");
    }
}

#[test]
fn several_elect_a_leader_and_one_does_not() {
    for (words, node, elects) in [(SINGLE, "control-plane-1", "false"), (HA, "cp-1", "true")] {
        let generated = generated(words);
        let flag = format!("--leader-elect={elects}");
        let pods = pods(&generated, node);
        let with: Vec<&str> = pods
            .iter()
            .filter(|pod| command(pod).contains(&flag))
            .map(|pod| command(pod)[0].as_str())
            .collect();
        assert_eq!(with, ["kube-controller-manager", "kube-scheduler"]);
    }
}

/// The object as its type writes it.
macro_rules! typed {
    ($kind:ty, $value:expr) => {{
        let object: $kind = serde_json::from_value($value.clone()).unwrap();
        serde_json::to_value(object).unwrap()
    }};
}

#[test]
fn the_first_objects_are_of_the_api_and_bind_what_kubeadm_binds() {
    let documents = generated(SINGLE).documents();
    for value in &documents {
        let read = match value["kind"].as_str().unwrap() {
            "ClusterRole" => typed!(ClusterRole, value),
            "ClusterRoleBinding" => typed!(ClusterRoleBinding, value),
            "Role" => typed!(Role, value),
            "RoleBinding" => typed!(RoleBinding, value),
            "ConfigMap" => typed!(ConfigMap, value),
            "Secret" => typed!(Secret, value),
            other => panic!("{other}"),
        };
        // A field that the type does not have would be missing.
        assert_eq!(read, *value);
    }
    let bound = |subject: &str, role: &str| {
        documents.iter().any(|value| {
            value["subjects"][0]["name"] == json!(subject) && value["roleRef"]["name"] == json!(role)
        })
    };
    let token = "system:bootstrappers:kubeadm:default-node-token";
    let of_nodes = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
    let of_oneself = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient";
    for (subject, role) in [
        ("kubeadm:cluster-admins", "cluster-admin"),
        ("kube-apiserver-kubelet-client", "system:kubelet-api-admin"),
        (token, "system:node-bootstrapper"),
        (token, of_nodes),
        ("system:nodes", of_oneself),
        (token, "kubeadm:get-nodes"),
        ("system:anonymous", "kubeadm:bootstrap-signer-clusterinfo"),
    ] {
        assert!(bound(subject, role), "{subject} {role}");
    }
    assert_eq!(documents.len(), 11);
}
