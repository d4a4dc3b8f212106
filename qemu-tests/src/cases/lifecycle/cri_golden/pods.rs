//! The pods whose configurations are compared: together they have every field that both kubelets pass to the runtime.
//!
//! They contain no random values: no tokens (their volumes have random names), and requests so small that the machine's
//! memory has no influence.

use orlop_harness::cluster::fixture::{STAYS, container};
use serde_json::{Value, json};

/// Name of the ConfigMap and of the Secret that pods refer to.
pub(super) const OBJECTS: &str = "golden";

/// A pod of containers on the group's first node.
fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": name, "labels": {"app": "golden"}, "annotations": {"example.org/note": "grüße"}},
        "spec": {"nodeName": "first", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1},
    });
    merge(&mut pod["spec"], spec);
    pod
}

/// A container that stays.
fn stays(name: &str, more: Value) -> Value {
    let mut found = container(STAYS);
    found["name"] = json!(name);
    merge(&mut found, more);
    found
}

fn merge(into: &mut Value, from: Value) {
    let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) else { return };
    into.extend(from);
}

/// All pods.
#[must_use]
pub(super) fn all() -> Vec<Value> {
    [plain(), resources(), security(), host(), names(), dns(), environment(), volumes()]
        .into_iter()
        .flatten()
        .collect()
}

fn plain() -> Vec<Value> {
    let ports = json!([
        {"name": "web", "containerPort": 80}, {"containerPort": 53, "protocol": "UDP", "hostPort": 15_353},
    ]);
    let hooks = json!({"preStop": {"exec": {"command": ["true"]}}});
    let more = json!({
        "ports": ports, "lifecycle": hooks, "terminationMessagePath": "/tmp/last", "workingDir": "/tmp", "tty": true,
        "stdin": true, "stdinOnce": true, "terminationMessagePolicy": "FallbackToLogsOnError", "args": ["$(NO)", "$$(B)"],
    });
    vec![
        pod("golden-plain", json!({"containers": [stays("c", json!({}))]})),
        pod("golden-full", json!({"containers": [stays("c", more)], "activeDeadlineSeconds": 600})),
    ]
}

fn resources() -> Vec<Value> {
    let of = |requests: Value, limits: Value| json!({"resources": {"requests": requests, "limits": limits}});
    let amounts = || json!({"cpu": "150m", "memory": "20Mi"});
    let ends = json!({"name": "init", "command": ["true"]});
    let side = json!({"name": "side", "restartPolicy": "Always"});
    let (mut init, mut sidecar) =
        (stays("init", of(json!({"cpu": "10m"}), json!({}))), stays("side", json!({})));
    merge(&mut init, ends);
    merge(&mut sidecar, side);
    vec![
        pod("golden-guaranteed", json!({"containers": [stays("c", of(amounts(), amounts()))]})),
        pod(
            "golden-burstable",
            json!({"initContainers": [init, sidecar], "containers": [
                stays("asks", of(json!({"cpu": "100m", "memory": "8Mi"}), json!({}))),
                stays("limited", of(json!({"memory": "8Mi"}), json!({"cpu": "1500m", "memory": "64Mi"}))),
                stays("free", json!({})),
            ]}),
        ),
        pod(
            "golden-critical",
            json!({"priorityClassName": "system-node-critical", "containers": [stays("c", json!({}))]}),
        ),
    ]
}

fn security() -> Vec<Value> {
    let with = |name: &str, context: Value| stays(name, json!({"securityContext": context}));
    let drop =
        json!({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE", "CAP_CHOWN"]}, "runAsUser": 0});
    vec![
        pod(
            "golden-users",
            json!({
                "securityContext": {
                    "runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000, 5000],
                    "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"},
                    "seLinuxOptions": {"level": "s0:c1,c2"},
                },
                "containers": [
                    with("inherits", json!({})),
                    with("own", json!({"runAsUser": 1001, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true})),
                    with("unconfined", json!({"seccompProfile": {"type": "Unconfined"}, "seLinuxOptions": {"type": "t"}})),
                ],
            }),
        ),
        pod(
            "golden-rights",
            json!({
                "securityContext": {"sysctls": [
                    {"name": "kernel.shm_rmid_forced", "value": "1"},
                    {"name": "net.ipv4.ip_unprivileged_port_start", "value": "80"},
                ]},
                "containers": [with("caps", drop), with("privileged", json!({"privileged": true}))],
            }),
        ),
    ]
}

fn host() -> Vec<Value> {
    let mount = json!([{"name": "disk", "mountPath": "/disk"}]);
    vec![
        pod(
            "golden-users-own",
            json!({"hostUsers": false, "volumes": [{"name": "disk", "emptyDir": {}}], "containers": [
                stays("masked", json!({"volumeMounts": mount})),
                stays("unmasked", json!({"securityContext": {"procMount": "Unmasked"}})),
            ]}),
        ),
        pod(
            "golden-host",
            json!({"hostNetwork": true, "hostPID": true, "hostIPC": true, "dnsPolicy": "ClusterFirstWithHostNet",
                "containers": [stays("c", json!({}))]}),
        ),
        pod(
            "golden-shared",
            json!({"shareProcessNamespace": true, "containers": [stays("a", json!({})), stays("b", json!({}))]}),
        ),
    ]
}

fn names() -> Vec<Value> {
    let aliases = json!([{"ip": "192.0.2.7", "hostnames": ["seven", "sept"]}]);
    vec![
        pod(
            "golden-names",
            json!({"hostname": "own", "subdomain": "sub", "hostAliases": aliases, "containers": [stays("c", json!({}))]}),
        ),
        pod(
            "golden-fqdn",
            json!({"hostname": "own", "subdomain": "sub", "setHostnameAsFQDN": true,
                "containers": [stays("c", json!({}))]}),
        ),
    ]
}

fn dns() -> Vec<Value> {
    let config = json!({
        "nameservers": ["192.0.2.53"], "searches": ["example.org"], "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
    });
    let with = |name: &str, policy: &str| {
        pod(name, json!({"dnsPolicy": policy, "dnsConfig": config, "containers": [stays("c", json!({}))]}))
    };
    vec![
        with("golden-dns-none", "None"),
        with("golden-dns-cluster", "ClusterFirst"),
        with("golden-dns-node", "Default"),
    ]
}

fn environment() -> Vec<Value> {
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let resource =
        |name: &str, divisor: &str| json!({"resourceFieldRef": {"resource": name, "divisor": divisor}});
    let variables = [
        ("PLAIN", json!({"value": "v"})),
        ("MADE", json!({"value": "$(PLAIN)-$(LATER)-$$(PLAIN)-$(PREFIX_key)-$(KUBERNETES_SERVICE_HOST)"})),
        ("LATER", json!({"value": "l"})),
        ("NAME", json!({"valueFrom": field("metadata.name")})),
        ("NAMESPACE", json!({"valueFrom": field("metadata.namespace")})),
        ("LABEL", json!({"valueFrom": field("metadata.labels['app']")})),
        ("NOTE", json!({"valueFrom": field("metadata.annotations['example.org/note']")})),
        ("NODE", json!({"valueFrom": field("spec.nodeName")})),
        ("ACCOUNT", json!({"valueFrom": field("spec.serviceAccountName")})),
        ("HOST_IP", json!({"valueFrom": field("status.hostIP")})),
        ("POD_IPS", json!({"valueFrom": field("status.podIPs")})),
        ("CPU", json!({"valueFrom": resource("requests.cpu", "1m")})),
        ("CPUS", json!({"valueFrom": resource("limits.cpu", "0")})),
        ("MEMORY", json!({"valueFrom": resource("limits.memory", "1Ki")})),
        ("KEY", json!({"valueFrom": {"configMapKeyRef": {"name": OBJECTS, "key": "key"}}})),
        ("SECRET", json!({"valueFrom": {"secretKeyRef": {"name": OBJECTS, "key": "key"}}})),
        (
            "ABSENT",
            json!({"valueFrom": {"secretKeyRef": {"name": OBJECTS, "key": "none", "optional": true}}}),
        ),
    ];
    let variables: Vec<Value> = variables
        .into_iter()
        .map(|(name, mut value)| {
            value["name"] = json!(name);
            value
        })
        .collect();
    let more = json!({
        "env": variables,
        "envFrom": [{"prefix": "PREFIX_", "configMapRef": {"name": OBJECTS}}, {"secretRef": {"name": OBJECTS}}],
        "resources": {"requests": {"cpu": "25m"}, "limits": {"cpu": "1250m", "memory": "32Mi"}},
        "args": ["$(PLAIN)", "$(NONE)"],
    });
    let mut writes = stays("writes", json!({"volumeMounts": [{"name": "work", "mountPath": "/box"}]}));
    merge(&mut writes, json!({"command": ["sh", "-c", "echo \"KEY='of a file'\" > /box/env"]}));
    let source = |key: &str| json!({"volumeName": "work", "path": "env", "key": key, "optional": true});
    let of_files = json!([{"name": "KEY", "valueFrom": {"fileKeyRef": source("KEY")}},
        {"name": "NONE", "valueFrom": {"fileKeyRef": source("NONE")}}]);
    vec![
        pod("golden-environment", json!({"containers": [stays("c", more)]})),
        pod(
            "golden-files",
            json!({"volumes": [{"name": "work", "emptyDir": {}}], "initContainers": [writes],
                "containers": [stays("c", json!({"env": of_files}))]}),
        ),
        pod("golden-alone", json!({"enableServiceLinks": false, "containers": [stays("c", json!({}))]})),
    ]
}

fn volumes() -> Vec<Value> {
    let items = json!([{"key": "key", "path": "dir/file", "mode": 0o400}]);
    let kinds = json!([
        {"name": "disk", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "host", "hostPath": {"path": "/tmp", "type": "Directory"}},
        {"name": "map", "configMap": {"name": OBJECTS, "items": items}},
        {"name": "secret", "secret": {"secretName": OBJECTS}},
        {"name": "api", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "all", "projected": {"sources": [{"configMap": {"name": OBJECTS}}]}},
    ]);
    let mounts = json!([
        {"name": "disk", "mountPath": "/disk"},
        {"name": "memory", "mountPath": "/memory", "readOnly": true},
        {"name": "host", "mountPath": "/host"},
        {"name": "map", "mountPath": "/map"},
        {"name": "secret", "mountPath": "relative/secret"},
        {"name": "api", "mountPath": "/api"},
        {"name": "all", "mountPath": "/all", "subPath": "key"},
        {"name": "disk", "mountPath": "/part", "subPathExpr": "of/$(NAME)"},
    ]);
    let more = json!({"volumeMounts": mounts, "env": [{"name": "NAME", "value": "me"}]});
    vec![pod("golden-volumes", json!({"volumes": kinds, "containers": [stays("c", more)]}))]
}
