//! One table: a change to a good pod, and the mistake it must give.

use serde_json::{Value, json};

use super::validate;
use crate::pod_source::defaults;

fn good() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-node", "namespace": "default", "uid": "u-1"},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/srv"}}],
            "initContainers": [{"name": "init", "image": "i"}],
            "containers": [{"name": "c", "image": "i", "securityContext": {},
                "ports": [{"name": "http", "containerPort": 80, "hostPort": 8080}],
                "env": [{"name": "A", "value": "x"}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1"}},
                "volumeMounts": [{"name": "v", "mountPath": "/tmp"}]}]}})
}

fn mistakes(pod: Value) -> Vec<String> {
    let mut pod = serde_json::from_value(pod).unwrap();
    defaults::apply(&mut pod);
    validate(&pod).iter().map(ToString::to_string).collect()
}

#[test]
fn a_good_pod_has_no_mistakes() {
    assert_eq!(mistakes(good()), Vec::<String>::new());
}

/// Sets `pointer` (creating the last key) to `value` in a good pod.
fn changed(pointer: &str, value: Value) -> Value {
    let mut pod = good();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = pod.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}"));
    match parent {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        other => other[key] = value,
    }
    pod
}

#[test]
fn pod_level_mistakes() {
    let table = [
        ("/metadata/name", json!(""), "metadata.name: Required value"),
        ("/metadata/name", json!("Web"), "metadata.name: Invalid value: \"Web\""),
        ("/metadata/namespace", json!("a.b"), "metadata.namespace: Invalid value"),
        ("/metadata/uid", json!("../x"), "metadata.uid: Invalid value: \"../x\""),
        ("/metadata/labels", json!({"-": "x"}), "metadata.labels: Invalid value: \"-\""),
        ("/metadata/labels", json!({"a": "-"}), "metadata.labels: Invalid value: \"-\""),
        ("/metadata/annotations", json!({"a b": "x"}), "metadata.annotations: Invalid value: \"a b\""),
        ("/metadata/annotations", json!({"a": "x".repeat(262_145)}), "at most 262144 bytes"),
        ("/spec/containers", json!([]), "spec.containers: Required value"),
        ("/spec/resources", json!({"claims": [{"name": "x"}]}), "spec.resources.claims: Forbidden"),
        (
            "/spec/resources",
            json!({"limits": {"ephemeral-storage": "1"}}),
            "must be cpu, memory or hugepages-<size>",
        ),
        ("/spec/resources", json!({"limits": {"cpu": "x"}}), "spec.resources.limits[cpu]: Invalid"),
        (
            "/spec/resources",
            json!({"requests": {"cpu": "3"}, "limits": {"cpu": "2"}}),
            "must be less than or equal to the limit",
        ),
        (
            "/spec/resources",
            json!({"requests": {"cpu": "500m"}}),
            "spec.resources.requests[cpu]: Invalid value: \"500m\": must be greater than or equal to aggregate container requests of 1",
        ),
        (
            "/spec/resources",
            json!({"limits": {"memory": "512Mi"}}),
            "spec.containers[0].resources.limits[memory]: Invalid value: \"1Gi\": must be less than or equal to pod limits of 512Mi",
        ),
        (
            "/spec/restartPolicy",
            json!("Sometimes"),
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\"",
        ),
        ("/spec/dnsPolicy", json!("x"), "spec.dnsPolicy: Unsupported value"),
        ("/spec/dnsPolicy", json!("None"), "spec.dnsConfig.nameservers: Required value"),
        (
            "/spec/dnsConfig",
            json!({"nameservers": ["x"]}),
            "spec.dnsConfig.nameservers[0]: Invalid value: \"x\"",
        ),
        ("/spec/dnsConfig", json!({"nameservers": ["::1", "::2", "::3", "::4"]}), "more than 3"),
        ("/spec/dnsConfig", json!({"searches": ["-"]}), "spec.dnsConfig.searches[0]"),
        ("/spec/dnsConfig", json!({"options": [{"value": "1"}]}), "spec.dnsConfig.options[0]: Required"),
        (
            "/spec/terminationGracePeriodSeconds",
            json!(-1),
            "spec.terminationGracePeriodSeconds: Invalid value: \"-1\"",
        ),
        ("/spec/activeDeadlineSeconds", json!(0), "spec.activeDeadlineSeconds"),
        ("/spec/hostname", json!("a.b"), "spec.hostname"),
        ("/spec/subdomain", json!("A"), "spec.subdomain"),
        ("/spec/hostnameOverride", json!("a..b"), "spec.hostnameOverride: Invalid"),
        ("/spec/runtimeClassName", json!("K"), "spec.runtimeClassName: Invalid value: \"K\""),
        ("/spec/overhead", json!({"cpu": "-1"}), "spec.overhead[cpu]: Invalid value: \"-1\""),
        ("/spec/overhead", json!({"memory": "x"}), "spec.overhead[memory]: Invalid value"),
        ("/spec/hostAliases", json!([{"ip": "x", "hostnames": ["A"]}]), "spec.hostAliases[0].ip"),
        ("/spec/os", json!({"name": "plan9"}), "spec.os.name"),
        ("/spec/tolerations", json!([{"effect": "No"}]), "spec.tolerations[0].effect"),
        (
            "/spec/securityContext",
            json!({"runAsUser": -1}),
            "spec.securityContext.runAsUser: Invalid value: \"-1\"",
        ),
        (
            "/spec/securityContext",
            json!({"supplementalGroups": [4_294_967_296_i64]}),
            "supplementalGroups[0]",
        ),
        (
            "/spec/securityContext",
            json!({"seccompProfile": {"type": "Localhost"}}),
            "localhostProfile: Required",
        ),
        (
            "/spec/securityContext",
            json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}}),
            "must not contain '..'",
        ),
        (
            "/spec/securityContext",
            json!({"sysctls": [{"name": "a..b", "value": ""}]}),
            "sysctls[0].name: Invalid",
        ),
        (
            "/spec/securityContext",
            json!({"sysctls": [{"name": "a.b", "value": ""}, {"name": "a/b", "value": ""}]}),
            "sysctls[1].name: Duplicate",
        ),
        ("/spec/volumes/0", json!({"name": ""}), "spec.volumes[0].name: Required"),
        ("/spec/volumes/0", json!({"name": "../v"}), "spec.volumes[0].name: Invalid"),
        (
            "/spec/volumes/1",
            json!({"name": "v", "emptyDir": {}}),
            "spec.volumes[1].name: Duplicate value: \"v\"",
        ),
        (
            "/spec/volumes/1",
            json!({"name": "h", "emptyDir": {}, "hostPath": {"path": "/x"}}),
            "more than 1 volume type",
        ),
        ("/spec/volumes/1", json!({"name": "h", "hostPath": {"path": "/a/../b"}}), "hostPath.path: Invalid"),
        (
            "/spec/volumes/1",
            json!({"name": "h", "hostPath": {"path": "/a", "type": "x"}}),
            "hostPath.type: Unsupported",
        ),
        ("/spec/volumes/0", json!({"name": "v", "emptyDir": {"sizeLimit": "x"}}), "emptyDir.sizeLimit"),
        (
            "/spec/volumes/0",
            json!({"name": "v", "emptyDir": {"medium": "Tape"}}),
            "emptyDir.medium: Unsupported",
        ),
    ];
    for (pointer, value, expected) in table {
        let mistakes = mistakes(changed(pointer, value.clone()));
        assert!(mistakes.iter().any(|m| m.contains(expected)), "{pointer} = {value}: {mistakes:?}");
    }
}

#[test]
fn container_mistakes() {
    let long_port = json!([{"containerPort": 80}, {"containerPort": 70_000}]);
    let file = |source: Value| json!([{"name": "A", "valueFrom": {"fileKeyRef": source}}]);
    let table = [
        ("name", json!(""), "spec.containers[0].name: Required value"),
        ("name", json!("a_b"), "spec.containers[0].name: Invalid value"),
        ("name", json!("init"), "spec.initContainers[0].name: Duplicate value: \"init\""),
        ("image", json!(""), "spec.containers[0].image: Required value"),
        ("image", json!(" i"), "spec.containers[0].image: Invalid value: \" i\""),
        ("imagePullPolicy", json!("x"), "imagePullPolicy: Unsupported value"),
        ("terminationMessagePolicy", json!("x"), "terminationMessagePolicy: Unsupported value"),
        ("restartPolicy", json!("x"), "restartPolicy: Unsupported value"),
        ("ports", long_port, "ports[1].containerPort: Invalid value: \"70000\""),
        (
            "ports",
            json!([{"containerPort": 80, "hostPort": 1}, {"containerPort": 81, "hostPort": 1}]),
            "ports[1].hostPort: Duplicate",
        ),
        (
            "ports",
            json!([{"name": "a", "containerPort": 80}, {"name": "a", "containerPort": 81}]),
            "ports[1].name: Duplicate",
        ),
        ("ports", json!([{"name": "A", "containerPort": 80}]), "ports[0].name: Invalid"),
        ("ports", json!([{"containerPort": 80, "protocol": "tcp"}]), "ports[0].protocol: Unsupported"),
        ("ports", json!([{"containerPort": 80, "hostPort": 80, "hostIP": "x"}]), "ports[0].hostIP"),
        ("env", json!([{"name": ""}]), "env[0].name: Required"),
        ("env", json!([{"name": "A=B"}]), "env[0].name: Invalid"),
        (
            "env",
            json!([{"name": "A", "valueFrom": {}}]),
            "env[0].valueFrom: Invalid value: \"\": must specify exactly one source",
        ),
        (
            "env",
            json!([{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
            "may not be specified when",
        ),
        (
            "env",
            json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}]),
            "fieldRef.fieldPath: Invalid",
        ),
        (
            "env",
            json!([{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.x"}}}]),
            "resourceFieldRef.resource: Invalid",
        ),
        (
            "env",
            json!([{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}}}]),
            "divisor: Invalid",
        ),
        ("env", file(json!({"key": "", "path": "x", "volumeName": "v"})), "fileKeyRef.key: Required"),
        ("env", file(json!({"key": "A=B", "path": "x", "volumeName": "v"})), "fileKeyRef.key: Invalid"),
        ("env", file(json!({"key": "A", "path": "", "volumeName": "v"})), "fileKeyRef.path: Required"),
        ("env", file(json!({"key": "A", "path": "a/../b", "volumeName": "v"})), "must not contain '..'"),
        ("env", file(json!({"key": "A", "path": "x", "volumeName": ""})), "fileKeyRef.volumeName: Required"),
        (
            "env",
            file(json!({"key": "A", "path": "x", "volumeName": "w"})),
            "fileKeyRef.volumeName: Not found",
        ),
        ("env", file(json!({"key": "A", "path": "x", "volumeName": "h"})), "must be of type emptyDir"),
        ("resources", json!({"limits": {"cpu": "x"}}), "resources.limits[cpu]: Invalid"),
        ("resources", json!({"limits": {"cpu": "-1"}}), "resources.limits[cpu]: Invalid value: \"-1\""),
        ("resources", json!({"limits": {"gpu": "1"}}), "resources.limits[gpu]: Invalid value: \"gpu\""),
        ("resources", json!({"limits": {"x.io/gpu": "0.5"}}), "must be an integer"),
        (
            "resources",
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
            "requests[cpu]: Invalid value: \"2\": must be less",
        ),
        ("resources", json!({"requests": {"hugepages-2Mi": "2Mi"}}), "limits[hugepages-2Mi]: Required"),
        (
            "volumeMounts",
            json!([{"name": "none", "mountPath": "/x"}]),
            "volumeMounts[0].name: Not found: \"none\"",
        ),
        (
            "volumeMounts",
            json!([{"name": "v", "mountPath": "/x"}, {"name": "v", "mountPath": "/x"}]),
            "must be unique",
        ),
        ("volumeMounts", json!([{"name": "v", "mountPath": "/x:/y"}]), "must not contain ':'"),
        (
            "volumeMounts",
            json!([{"name": "v", "mountPath": "/x", "mountPropagation": "Bidirectional"}]),
            "only to privileged",
        ),
        ("volumeMounts", json!([{"name": "v", "mountPath": "/x", "subPath": "../y"}]), "subPath: Invalid"),
        ("securityContext", json!({"runAsGroup": -1}), "securityContext.runAsGroup"),
        (
            "securityContext",
            json!({"privileged": true, "allowPrivilegeEscalation": false}),
            "cannot be false",
        ),
        (
            "securityContext",
            json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["SYS_ADMIN"]}}),
            "SYS_ADMIN",
        ),
        ("securityContext", json!({"procMount": "x"}), "procMount: Unsupported"),
        (
            "securityContext",
            json!({"procMount": "Unmasked"}),
            "procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
        ),
    ];
    for (field, value, expected) in table {
        let mistakes = mistakes(changed(&format!("/spec/containers/0/{field}"), value.clone()));
        assert!(mistakes.iter().any(|m| m.contains(expected)), "{field} = {value}: {mistakes:?}");
    }
}

#[test]
fn stop_signals_want_an_operating_system_that_knows_them() {
    let with = |os: Value, signal: &str| {
        let mut pod = good();
        pod["spec"]["os"] = os;
        pod["spec"]["containers"][0]["lifecycle"] = json!({"stopSignal": signal});
        mistakes(pod).into_iter().filter(|m| m.contains("lifecycle.stopSignal")).collect::<Vec<_>>()
    };
    let linux = || json!({"name": "linux"});
    assert!(
        with(json!(null), "SIGUSR1")[0].contains("may not be set for containers with empty `spec.os.name`")
    );
    assert!(with(linux(), "USR1")[0].contains("Unsupported value: \"USR1\""));
    assert!(with(json!({"name": "windows"}), "SIGUSR1")[0].contains("Unsupported value"));
    for name in ["SIGUSR1", "SIGRTMIN+3", "SIGRTMAX-1"] {
        assert_eq!(with(linux(), name), Vec::<String>::new());
    }
}

#[test]
fn a_user_namespace_excludes_the_hosts_others() {
    let with = |field: &str, value: Value| {
        let mut pod = good();
        pod["spec"]["hostUsers"] = json!(false);
        pod["spec"]["containers"][0]["ports"] = json!([]);
        pod["spec"]["containers"][0]["securityContext"]["procMount"] = json!("Unmasked");
        *pod.pointer_mut(&format!("/spec{field}")).unwrap() = value;
        mistakes(pod)
    };
    assert_eq!(with("/hostUsers", json!(false)), Vec::<String>::new());
    let mut pod = good();
    pod["spec"]["hostUsers"] = json!(false);
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        let mut pod = pod.clone();
        pod["spec"]["containers"][0]["ports"] = json!([]);
        pod["spec"][field] = json!(true);
        assert_eq!(mistakes(pod), [format!("spec.{field}: Forbidden: when `hostUsers` is false")]);
    }
    pod["spec"]["containers"][0]["volumeDevices"] = json!([{"name": "v", "devicePath": "/dev/x"}]);
    assert!(mistakes(pod).iter().any(|m| m.contains("volumeDevices: Forbidden: when `hostUsers` is false")));
}

#[test]
fn host_network_ports_must_match() {
    let mut pod = good();
    pod["spec"]["hostNetwork"] = json!(true);
    assert!(mistakes(pod)[0].contains("must match `containerPort`"));
}

#[test]
fn init_containers_may_reuse_host_ports_but_sidecars_may_not() {
    let init = |policy: Value| {
        let mut pod = good();
        pod["spec"]["initContainers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 8080}]);
        pod["spec"]["initContainers"][0]["restartPolicy"] = policy;
        mistakes(pod)
    };
    assert_eq!(init(Value::Null), Vec::<String>::new());
    assert!(init(json!("Always"))[0].contains("spec.initContainers[0].ports[0].hostPort: Duplicate"));
}

#[test]
fn a_pod_without_spec_is_told_so() {
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b", "uid": "c"}});
    assert_eq!(mistakes(pod), ["spec: Required value"]);
}

/// The pod `good` with one annotation of container `c` (or `other`) and one field, and what is wrong then.
#[test]
fn apparmor_mistakes() {
    let profile =
        |kind: &str, name: Value| json!({"appArmorProfile": {"type": kind, "localhostProfile": name}});
    let types = "apparmor type in annotation and field must match";
    let table = [
        ("c", "", json!({}), None),
        ("c", "runtime/default", json!({}), None),
        ("c", "localhost/a", profile("Localhost", json!("a")), None),
        ("c", "unconfined", profile("Unconfined", Value::Null), None),
        ("other", "unconfined", json!({}), Some("Invalid value: \"other\": container not found")),
        ("c", "what", json!({}), Some("invalid AppArmor profile name: \"what\"")),
        ("c", "unconfined", profile("RuntimeDefault", Value::Null), Some(types)),
        ("c", "runtime/default", profile("Unconfined", Value::Null), Some(types)),
        ("c", "unconfined", profile("Localhost", json!("a")), Some(types)),
        (
            "c",
            "localhost/a",
            profile("Localhost", json!("b")),
            Some("apparmor profile in annotation and field must match"),
        ),
        ("c", "", profile("", Value::Null), Some("appArmorProfile.type: Required value: type is required")),
        ("c", "", profile("Localhost", Value::Null), Some("must be set when AppArmor type is Localhost")),
        ("c", "localhost/ a", profile("Localhost", json!(" a")), Some("must not be padded with whitespace")),
        ("c", "", profile("Localhost", json!("a".repeat(4096))), Some("may not be more than 4095 bytes")),
        (
            "c",
            "unconfined",
            profile("Unconfined", json!("a")),
            Some("can only be set when AppArmor type is Localhost"),
        ),
    ];
    for (container, annotation, context, expected) in table {
        let mut pod = good();
        if !annotation.is_empty() {
            let key = format!("container.apparmor.security.beta.kubernetes.io/{container}");
            pod["metadata"]["annotations"] = json!({key: annotation});
        }
        pod["spec"]["containers"][0]["securityContext"] = context.clone();
        let mistakes = mistakes(pod);
        match expected {
            None => assert_eq!(mistakes, Vec::<String>::new(), "{annotation} {context}"),
            Some(text) => {
                assert!(mistakes.iter().any(|m| m.contains(text)), "{annotation} {context}: {mistakes:?}")
            }
        }
    }
}
