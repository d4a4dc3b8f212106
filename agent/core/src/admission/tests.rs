//! Tables of admission.

use serde_json::{Value, json};

use super::*;

fn pod(name: &str, spec: Value) -> Pod {
    let meta = json!({"name": name, "namespace": "ns", "uid": name, "labels": {}});
    serde_json::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}))
        .unwrap()
}

fn node() -> AdmissionContext {
    let labels = [("kubernetes.io/os", "linux"), ("cores", "4")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    AdmissionContext {
        node_name: "n".to_owned(),
        node_labels: labels.into(),
        max_pods: Some(3),
        allocatable: [
            ("cpu".to_owned(), Quantity::from_milli(1000)),
            ("memory".to_owned(), Quantity::from_units(1 << 30)),
        ]
        .into(),
        kernel: (6, 12),
        ..AdmissionContext::default()
    }
}

fn reason(pod: &Pod, active: &[Pod], node: &AdmissionContext) -> Option<(String, String)> {
    admit(pod, active, node).err().map(|r| (r.reason, r.message))
}

fn container(requests: Value, ports: Value) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": requests}, "ports": ports}]})
}

#[test]
fn a_simple_pod_is_admitted() {
    let spec = json!({"nodeName": "n", "nodeSelector": {"cores": "4"}, "containers": [{"name": "c"}]});
    assert_eq!(reason(&pod("p", spec), &[], &node()), None);
}

#[test]
fn what_no_api_server_lets_through_is_refused_unless_it_is_static() {
    let empty = |source: &str| {
        let mut pod = pod("p", json!({"containers": []}));
        pod.metadata.annotations =
            Some([("kubernetes.io/config.source".to_owned(), source.to_owned())].into());
        pod
    };
    let (reason_, message) = reason(&empty("api"), &[], &node()).unwrap();
    assert_eq!(reason_, "FailedValidation");
    assert_eq!(message, "Pod cannot be run on any node: spec.containers: Required value");
    assert_eq!(reason(&empty("file"), &[], &node()), None);
}

#[test]
fn rejections_and_their_words() {
    let affinity = |term: Value| {
        json!({"containers": [{"name": "c"}], "affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}})
    };
    let expression = |key: &str, operator: &str, value: &str| {
        affinity(json!({"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]}))
    };
    let mismatch = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    let table = [
        (
            json!({"os": {"name": "windows"}}),
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ),
        (
            json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}}),
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        (
            json!({"nodeName": "other"}),
            "NodeName",
            "Predicate NodeName failed: node(s) didn't match the requested node name",
        ),
        (json!({"nodeSelector": {"cores": "8"}}), "NodeAffinity", mismatch),
        (affinity(json!({})), "NodeAffinity", mismatch),
        (expression("cores", "In", "8"), "NodeAffinity", mismatch),
        (expression("cores", "NotIn", "4"), "NodeAffinity", mismatch),
        (expression("cores", "DoesNotExist", ""), "NodeAffinity", mismatch),
        (expression("missing", "Exists", ""), "NodeAffinity", mismatch),
        (expression("cores", "Gt", "4"), "NodeAffinity", mismatch),
        (expression("cores", "Lt", "4"), "NodeAffinity", mismatch),
        (
            json!({"containers": [{"name": "c", "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}]}),
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ),
        (
            container(json!({"deviceclass.resource.kubernetes.io/x": "2"}), json!([])),
            "OutOfdeviceclass.resource.kubernetes.io/x",
            "Node didn't have enough resource: deviceclass.resource.kubernetes.io/x, requested: 2, used: 0, capacity: 0",
        ),
        (
            container(json!({"cpu": "1001m"}), json!([])),
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 1001, used: 0, capacity: 1000",
        ),
        (
            container(json!({"memory": "2Gi"}), json!([])),
            "OutOfmemory",
            "Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824",
        ),
    ];
    for (mut spec, expected, message) in table {
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{"name": "c"}]);
        }
        let expected = Some((expected.to_owned(), message.to_owned()));
        assert_eq!(reason(&pod("p", spec.clone()), &[], &node()), expected, "{spec}");
    }
    for spec in [
        expression("cores", "Gt", "3"),
        expression("cores", "Lt", "5"),
        expression("x", "NotIn", "y"),
        affinity(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})),
    ] {
        assert_eq!(reason(&pod("p", spec.clone()), &[], &node()), None, "{spec}");
    }
}

#[test]
fn apparmor_is_asked_of_new_pods_only() {
    let spec = |profile: Value| json!({"containers": [{"name": "c"}], "securityContext": {"appArmorProfile": profile}});
    let local = |name: &str| pod("p", spec(json!({"type": "Localhost", "localhostProfile": name})));
    let with = AdmissionContext { apparmor_enabled: true, ..node() };
    assert_eq!(reason(&local("a"), &[], &with), None);
    let nameless = reason(&local(" "), &[], &with).unwrap();
    assert_eq!(nameless.1, "Cannot enforce AppArmor: invalid empty AppArmor profile name: \" \"");
    let without = reason(&local("a"), &[], &node()).unwrap();
    assert_eq!(without.1, "Cannot enforce AppArmor: AppArmor is not enabled on the host");
    assert_eq!(reason(&pod("p", spec(json!({"type": "Unconfined"}))), &[], &node()), None);
    for (phase, refused) in [("Pending", true), ("Running", false), ("Failed", false)] {
        let mut known = local("a");
        known.status.get_or_insert_default().phase = Some(phase.to_owned());
        assert_eq!(reason(&known, &[], &node()).is_some(), refused, "{phase}");
    }
}

#[test]
fn sysctls() {
    let spec = |name: &str, more: Value| {
        let mut spec = json!({"containers": [{"name": "c"}], "securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        pod("p", spec)
    };
    let mut node = node();
    node.allowed_unsafe_sysctls =
        vec!["kernel.msg*".into(), "net.core.somaxconn".into(), "vm.swappiness".into()];
    let table = [
        ("net.ipv4.tcp_syncookies", json!({}), None),
        ("net/ipv4/tcp_syncookies", json!({}), None),
        ("kernel.shm_rmid_forced", json!({}), None),
        ("kernel.msgmax", json!({}), None),
        ("net.core.somaxconn", json!({}), None),
        ("kernel.sem", json!({}), Some("forbidden sysctl: \"kernel.sem\" not allowlisted")),
        // Allowed by the list, but of the whole machine.
        ("vm.swappiness", json!({}), Some("forbidden sysctl: \"vm.swappiness\" not allowlisted")),
        (
            "net.ipv4.tcp_syncookies",
            json!({"hostNetwork": true}),
            Some("forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"),
        ),
        (
            "kernel.msgmax",
            json!({"hostIPC": true}),
            Some("forbidden sysctl: \"kernel.msgmax\" not allowed with host IPC enabled"),
        ),
    ];
    for (name, more, message) in table {
        let expected = message.map(|m: &str| ("SysctlForbidden".to_owned(), m.to_owned()));
        assert_eq!(reason(&spec(name, more), &[], &node), expected, "{name}");
    }
    node.kernel = (4, 4);
    assert!(reason(&spec("net.ipv4.tcp_rmem", json!({})), &[], &node).is_some());
}

#[test]
fn room_beside_others() {
    let active = [
        pod("a", container(json!({"cpu": "600m"}), json!([{"containerPort": 1, "hostPort": 80}]))),
        pod("b", container(json!({}), json!([{"containerPort": 1, "hostPort": 81, "hostIP": "192.0.2.1"}]))),
    ];
    let ports = |list: Value| pod("p", container(json!({}), list));
    let table = [
        (pod("p", container(json!({"cpu": "400m"}), json!([]))), None),
        (pod("p", container(json!({"cpu": "401m"}), json!([]))), Some("OutOfcpu")),
        (ports(json!([{"containerPort": 1, "hostPort": 80}])), Some("NodePorts")),
        (ports(json!([{"containerPort": 1, "hostPort": 80, "hostIP": "192.0.2.7"}])), Some("NodePorts")),
        (ports(json!([{"containerPort": 1, "hostPort": 80, "protocol": "UDP"}])), None),
        (ports(json!([{"containerPort": 1, "hostPort": 81, "hostIP": "192.0.2.7"}])), None),
        (ports(json!([{"containerPort": 1, "hostPort": 81}])), Some("NodePorts")),
        (ports(json!([{"containerPort": 80}])), None),
    ];
    for (pod, expected) in table {
        assert_eq!(reason(&pod, &active, &node()).map(|(reason, _)| reason).as_deref(), expected, "{pod:?}");
    }
    let full: Vec<Pod> =
        (0..3).map(|i| pod(&i.to_string(), json!({"containers": [{"name": "c"}]}))).collect();
    let (reason, message) =
        reason(&pod("p", json!({"containers": [{"name": "c"}]})), &full, &node()).unwrap();
    assert_eq!(reason, "OutOfpods");
    assert_eq!(message, "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3");
}

/// Only the Node object has the amounts of extended resources. Admission does not judge a resource that the Node
/// does not have.
#[test]
fn extended_resources_are_counted_as_the_node_object_has_them() {
    let asks = |name: &str, amount: &str| pod("p", container(json!({name: amount}), json!([])));
    let dongle = "example.com/dongle";
    assert_eq!(reason(&asks(dongle, "1"), &[], &node()), None, "the node does not know it");
    let object = |amount: &str| -> Node {
        let amounts = json!({dongle: amount, "cpu": "64", "hugepages-2Mi": "1Gi"});
        serde_json::from_value(
            json!({"metadata": {"labels": {"a": "b"}}, "status": {"allocatable": amounts}}),
        )
        .unwrap()
    };
    let marks = NodeMarks::of(&object("4"));
    assert_eq!(marks.extended, [(dongle.to_owned(), Quantity::from_units(4))].into());
    let marked = node().marked(marks);
    let beside = [asks(dongle, "3")];
    assert_eq!(reason(&asks(dongle, "1"), &beside, &marked), None);
    let message = format!("Node didn't have enough resource: {dongle}, requested: 2, used: 3, capacity: 4");
    assert_eq!(reason(&asks(dongle, "2"), &beside, &marked), Some((format!("OutOf{dongle}"), message)));
    assert_eq!(reason(&asks("example.com/other", "9"), &beside, &marked), None);
    let gone = marked.marked(NodeMarks::default());
    assert_eq!(reason(&asks(dongle, "5"), &[], &gone), None, "it was taken off again");
    assert_eq!(gone.allocatable, node().allocatable);
}

#[test]
fn of_several_shortages_the_best_known_is_told_first() {
    let mut node = node();
    node.allocatable.insert("ephemeral-storage".to_owned(), Quantity::from_units(1));
    node.allocatable.insert("hugepages-2Mi".to_owned(), Quantity::from_units(1));
    let mut asked = json!({"hugepages-1Gi": "1Gi", "hugepages-2Mi": "2Mi", "ephemeral-storage": "2", "memory": "2Gi", "cpu": "2"});
    for first in ["cpu", "memory", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi"] {
        let (reason, _) = reason(&pod("p", container(asked.clone(), json!([]))), &[], &node).unwrap();
        assert_eq!(reason, format!("OutOf{first}"));
        asked.as_object_mut().unwrap().remove(first);
    }
}

#[test]
fn huge_pages_of_a_size_that_the_node_lacks_are_none() {
    let asks = pod("p", container(json!({"hugepages-1Gi": "1Gi"}), json!([])));
    let message =
        "Node didn't have enough resource: hugepages-1Gi, requested: 1073741824, used: 0, capacity: 0";
    assert_eq!(reason(&asks, &[], &node()), Some(("OutOfhugepages-1Gi".to_owned(), message.to_owned())));
}

#[test]
fn a_rejection_fails_the_pod() {
    let rejection = Rejection::new("OutOfcpu", "no room");
    let expected = KillReason::Failed {
        reason: "OutOfcpu".into(),
        message: "Pod was rejected: no room".into(),
        disruption: None,
    };
    assert_eq!(KillReason::from(rejection), expected);
}

#[test]
fn a_node_that_is_gone_leaves_its_marks() {
    let node = Arc::new(Node::default());
    let marks = Some(Some(NodeMarks::default()));
    assert_eq!(NodeMarks::heard(&WatchEvent::Listed(vec![node.clone()])), marks);
    assert_eq!(NodeMarks::heard(&WatchEvent::Applied(node.clone())), marks);
    assert_eq!(NodeMarks::heard(&WatchEvent::Listed(Vec::new())), Some(None));
    assert_eq!(NodeMarks::heard(&WatchEvent::Deleted(node)), None);
    assert_eq!(NodeMarks::heard(&WatchEvent::Lost("x".into())), None);
}

/// Devices of the claim's driver serve the request: the node's own amount of the resource does not matter.
#[test]
fn what_a_claim_provides_is_not_counted() {
    let (gpu, class) = ("example.com/gpu", "deviceclass.resource.kubernetes.io/x");
    let mut node = node();
    node.allocatable.insert(gpu.to_owned(), Quantity::from_units(1));
    let amounts = json!({"requests": {gpu: "2", class: "1", "cpu": "2"}});
    let spec = |cpu: &str| {
        let mut amounts = amounts.clone();
        amounts["requests"]["cpu"] = json!(cpu);
        json!({"containers": [{"name": "c", "resources": amounts}]})
    };
    let claimed = |spec: Value| {
        let mut p = pod("p", spec);
        let mapping =
            |resource: &str| json!({"containerName": "c", "resourceName": resource, "requestName": "r"});
        let status = json!({"extendedResourceClaimStatus": {"resourceClaimName": "x",
            "requestMappings": [mapping(gpu), mapping(class), mapping("cpu")]}});
        p.status = Some(serde_json::from_value(status).unwrap());
        p
    };
    let out_of = |p: &Pod, node: &AdmissionContext| reason(p, &[], node).map(|(reason, _)| reason);
    assert_eq!(
        out_of(&pod("p", spec("1m")), &node).as_deref(),
        Some("OutOfdeviceclass.resource.kubernetes.io/x")
    );
    assert_eq!(out_of(&claimed(spec("1m")), &node), None);
    assert_eq!(
        out_of(&claimed(spec("2")), &node).as_deref(),
        Some("OutOfcpu"),
        "no claim provides processors"
    );
    node.no_extended_claims = true;
    let p = node.with_known_claims(Arc::new(claimed(spec("1m"))));
    assert_eq!(out_of(&p, &node).as_deref(), Some("OutOfdeviceclass.resource.kubernetes.io/x"));
}
