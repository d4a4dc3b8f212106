//! Static pods of one node: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and the pod that applies the first objects.
//! Pure.
//!
//! Flags, probes, requests and priority are kubeadm's (cmd/kubeadm/app/phases/controlplane, etcd, util/staticpod). Differences, each with
//! its reason: docs/howto/control-plane.md. Invariant: a pod sees no directory without a file that its program reads, and nothing may gain
//! privileges.

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::kubeconfig::CLUSTER;
use super::plan::{API_PORT, CLUSTER_DOMAIN, ClusterPlan, Component, ControlPlaneNode};
use super::ranges::host_port;

/// Directory of keys and certificates.
pub(super) const PKI: &str = "/etc/kubernetes/pki";
/// Kubeconfig of the controller manager.
pub(super) const CONTROLLER_MANAGER: &str = "/etc/kubernetes/controller-manager.conf";
/// Kubeconfig of the scheduler.
pub(super) const SCHEDULER: &str = "/etc/kubernetes/scheduler.conf";
/// Kubeconfig of the pod that applies the first objects.
pub(super) const SUPER_ADMIN: &str = "/etc/kubernetes/super-admin.conf";
/// The first objects.
pub(super) const BOOTSTRAP: &str = "/etc/kubernetes/bootstrap.yaml";
/// Digest of the first objects.
const OBJECTS_ANNOTATION: &str = "orlop.org/objects-sha256";
/// Label by which `kubectl get nodes` shows the role.
const ROLE_LABEL: &str = "node-role.kubernetes.io/control-plane=";
/// Label by which load balancers of Services leave the node out.
const NO_BALANCER_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers=";
/// etcd's data.
const ETCD_DATA: &str = "/var/lib/etcd";
/// Flags of etcd 3.6 in the form that 3.5, which does not know them, passes over. The first is for reads from kube-apiserver's cache.
/// With the second a member compares itself with its peers before it serves.
const ETCD_ENVIRONMENT: [(&str, &str); 2] =
    [("ETCD_WATCH_PROGRESS_NOTIFY_INTERVAL", "5s"), ("ETCD_FEATURE_GATES", "InitialCorruptCheck=true")];
const LOOPBACK: &str = "127.0.0.1";
const ETCD_CLIENTS: u16 = 2379;
const ETCD_PEERS: u16 = 2380;
const ETCD_METRICS: u16 = 2381;
const CONTROLLER_MANAGER_PORT: u16 = 10257;
const SCHEDULER_PORT: u16 = 10259;
/// Of the class `system-node-critical`.
const PRIORITY: u32 = 2_000_001_000;
/// Looks of a startup probe, ten seconds apart: ten minutes for slow machines (kubeadm: four).
const STARTUP_LOOKS: u32 = 60;

/// A directory or file of the node in a pod.
struct HostMount {
    name: &'static str,
    path: &'static str,
    kind: &'static str,
    read_only: bool,
}

impl HostMount {
    const fn file(name: &'static str, path: &'static str) -> HostMount {
        HostMount { name, path, kind: "File", read_only: true }
    }

    const fn pki(path: &'static str) -> HostMount {
        HostMount { name: "pki", path, kind: "Directory", read_only: true }
    }
}

/// The program of a pod.
struct PlaneProgram {
    component: Component,
    flags: Vec<String>,
    cpu: &'static str,
    mounts: Vec<HostMount>,
    /// Port and scheme of its probes.
    probed: (u16, &'static str),
    liveness: &'static str,
    readiness: &'static str,
    startup: &'static str,
}

/// The node's pods. `objects` is the text of the first objects.
pub(super) fn pods(plan: &ClusterPlan, node: &ControlPlaneNode, objects: &str) -> Vec<Value> {
    let programs = [etcd(plan, node), apiserver(plan, node), controller_manager(plan), scheduler(plan)];
    let mut pods: Vec<Value> = programs.iter().map(|program| pod(plan, program)).collect();
    pods.push(bootstrap(plan, node, objects));
    pods
}

fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

fn pki(name: &str, file: &str) -> String {
    flag(name, format_args!("{PKI}/{file}"))
}

fn etcd(plan: &ClusterPlan, node: &ControlPlaneNode) -> PlaneProgram {
    let url = |host: &str, port: u16| format!("https://{}", host_port(host, port));
    // Alone, it is there for the loopback only.
    let host = |node: &ControlPlaneNode| match node.address {
        Some(ip) if !plan.is_single() => ip.to_string(),
        _ => LOOPBACK.to_owned(),
    };
    let own = host(node);
    let clients = match own.as_str() {
        LOOPBACK => url(LOOPBACK, ETCD_CLIENTS),
        other => format!("{},{}", url(LOOPBACK, ETCD_CLIENTS), url(other, ETCD_CLIENTS)),
    };
    let member = |node: &ControlPlaneNode| format!("{}={}", node.name, url(&host(node), ETCD_PEERS));
    let members: Vec<String> = plan.nodes.iter().map(member).collect();
    let flags = vec![
        flag("name", &node.name),
        flag("data-dir", ETCD_DATA),
        flag("listen-client-urls", clients),
        flag("advertise-client-urls", url(&own, ETCD_CLIENTS)),
        flag("listen-peer-urls", url(&own, ETCD_PEERS)),
        flag("initial-advertise-peer-urls", url(&own, ETCD_PEERS)),
        flag("initial-cluster", members.join(",")),
        flag("initial-cluster-state", "new"),
        flag("listen-metrics-urls", format_args!("http://{LOOPBACK}:{ETCD_METRICS}")),
        flag("client-cert-auth", true),
        pki("trusted-ca-file", "etcd/ca.crt"),
        pki("cert-file", "etcd/server.crt"),
        pki("key-file", "etcd/server.key"),
        flag("peer-client-cert-auth", true),
        pki("peer-trusted-ca-file", "etcd/ca.crt"),
        pki("peer-cert-file", "etcd/peer.crt"),
        pki("peer-key-file", "etcd/peer.key"),
        flag("snapshot-count", 10_000),
    ];
    PlaneProgram {
        component: Component::Etcd,
        flags,
        cpu: "100m",
        mounts: vec![
            HostMount { name: "data", path: ETCD_DATA, kind: "DirectoryOrCreate", read_only: false },
            HostMount::pki("/etc/kubernetes/pki/etcd"),
        ],
        probed: (ETCD_METRICS, "HTTP"),
        liveness: "/livez",
        readiness: "/readyz",
        startup: "/readyz",
    }
}

fn apiserver(plan: &ClusterPlan, node: &ControlPlaneNode) -> PlaneProgram {
    let mut flags = vec![
        flag("secure-port", API_PORT),
        flag("allow-privileged", true),
        flag("authorization-mode", "Node,RBAC"),
        flag("enable-admission-plugins", "NodeRestriction"),
        flag("enable-bootstrap-token-auth", true),
        flag("profiling", false),
        flag("service-cluster-ip-range", &plan.services),
        flag("etcd-servers", format_args!("https://{LOOPBACK}:{ETCD_CLIENTS}")),
        pki("etcd-cafile", "etcd/ca.crt"),
        pki("etcd-certfile", "apiserver-etcd-client.crt"),
        pki("etcd-keyfile", "apiserver-etcd-client.key"),
        pki("client-ca-file", "ca.crt"),
        pki("tls-cert-file", "apiserver.crt"),
        pki("tls-private-key-file", "apiserver.key"),
        pki("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        pki("kubelet-client-key", "apiserver-kubelet-client.key"),
        flag("kubelet-preferred-address-types", "InternalIP,ExternalIP,Hostname"),
        flag("service-account-issuer", format_args!("https://kubernetes.default.svc.{CLUSTER_DOMAIN}")),
        pki("service-account-key-file", "sa.pub"),
        pki("service-account-signing-key-file", "sa.key"),
        pki("requestheader-client-ca-file", "front-proxy-ca.crt"),
        flag("requestheader-allowed-names", "front-proxy-client"),
        flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        flag("requestheader-group-headers", "X-Remote-Group"),
        flag("requestheader-username-headers", "X-Remote-User"),
        pki("proxy-client-cert-file", "front-proxy-client.crt"),
        pki("proxy-client-key-file", "front-proxy-client.key"),
    ];
    // Without it the program takes the address of the default route.
    flags.extend(node.address.map(|ip| flag("advertise-address", ip)));
    PlaneProgram {
        component: Component::ApiServer,
        flags,
        cpu: "250m",
        mounts: vec![HostMount::pki(PKI)],
        probed: (API_PORT, "HTTPS"),
        liveness: "/livez",
        readiness: "/readyz",
        startup: "/livez",
    }
}

fn controller_manager(plan: &ClusterPlan) -> PlaneProgram {
    let mut flags = connected(plan, CONTROLLER_MANAGER);
    flags.extend([
        flag("controllers", "*,bootstrap-signer-controller,token-cleaner-controller"),
        flag("cluster-name", CLUSTER),
        flag("allocate-node-cidrs", true),
        flag("cluster-cidr", &plan.pods),
        flag("service-cluster-ip-range", &plan.services),
        pki("client-ca-file", "ca.crt"),
        pki("requestheader-client-ca-file", "front-proxy-ca.crt"),
        pki("root-ca-file", "ca.crt"),
        pki("cluster-signing-cert-file", "ca.crt"),
        pki("cluster-signing-key-file", "ca.key"),
        pki("service-account-private-key-file", "sa.key"),
        flag("use-service-account-credentials", true),
    ]);
    PlaneProgram {
        component: Component::ControllerManager,
        flags,
        cpu: "200m",
        mounts: vec![HostMount::pki(PKI), HostMount::file("kubeconfig", CONTROLLER_MANAGER)],
        probed: (CONTROLLER_MANAGER_PORT, "HTTPS"),
        liveness: "/healthz",
        readiness: "/healthz",
        startup: "/healthz",
    }
}

fn scheduler(plan: &ClusterPlan) -> PlaneProgram {
    PlaneProgram {
        component: Component::Scheduler,
        flags: connected(plan, SCHEDULER),
        cpu: "100m",
        mounts: vec![HostMount::file("kubeconfig", SCHEDULER)],
        probed: (SCHEDULER_PORT, "HTTPS"),
        liveness: "/livez",
        readiness: "/readyz",
        startup: "/livez",
    }
}

/// Flags of a client of the API server.
fn connected(plan: &ClusterPlan, kubeconfig: &str) -> Vec<String> {
    vec![
        flag("bind-address", LOOPBACK),
        flag("kubeconfig", kubeconfig),
        flag("authentication-kubeconfig", kubeconfig),
        flag("authorization-kubeconfig", kubeconfig),
        // Of one there is nobody to elect, and a power cut needs no lease to run out.
        flag("leader-elect", !plan.is_single()),
        flag("profiling", false),
    ]
}

fn pod(plan: &ClusterPlan, program: &PlaneProgram) -> Value {
    let name = program.component.name();
    let (port, scheme) = program.probed;
    let probe = |path: &str, delay_s: u32, looks: u32, period_s: u32| {
        json!({
            "httpGet": {"host": LOOPBACK, "path": path, "port": port, "scheme": scheme},
            "initialDelaySeconds": delay_s,
            "failureThreshold": looks,
            "periodSeconds": period_s,
            "timeoutSeconds": 15,
        })
    };
    let mut command = vec![name.to_owned()];
    command.extend(program.flags.iter().cloned());
    let mut requests = json!({"cpu": program.cpu});
    if program.component == Component::Etcd {
        requests["memory"] = json!("100Mi");
    }
    let mut container = json!({
        "name": name,
        "image": plan.image(program.component),
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "resources": {"requests": requests},
        "livenessProbe": probe(program.liveness, 10, 8, 10),
        "readinessProbe": probe(program.readiness, 0, 3, 5),
        "startupProbe": probe(program.startup, 10, STARTUP_LOOKS, 10),
        "securityContext": security(program.component),
        "volumeMounts": program.mounts.iter().map(mount).collect::<Vec<_>>(),
    });
    if program.component == Component::Etcd {
        let env = ETCD_ENVIRONMENT.map(|(name, value)| json!({"name": name, "value": value}));
        container["env"] = json!(env);
    }
    static_pod(name, "Always", &[container], &program.mounts)
}

/// It has no probes: its containers end.
fn bootstrap(plan: &ClusterPlan, node: &ControlPlaneNode, objects: &str) -> Value {
    let mounts = [HostMount::file("kubeconfig", SUPER_ADMIN), HostMount::file("objects", BOOTSTRAP)];
    let container = |name: &str, words: &[&str]| {
        let mut command = vec!["kubectl".to_owned(), flag("kubeconfig", SUPER_ADMIN)];
        command.extend(words.iter().map(|word| (*word).to_owned()));
        json!({
            "name": name,
            "image": plan.image(Component::Kubectl),
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "resources": {"requests": {"cpu": "10m"}},
            "securityContext": security(Component::Kubectl),
            "volumeMounts": mounts.iter().map(mount).collect::<Vec<_>>(),
        })
    };
    // An object that is so already does not change.
    let apply = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=orlop-bootstrap",
        "--filename",
        BOOTSTRAP,
    ];
    // A node may not give itself these labels.
    let mut role = vec!["label", "node", node.name.as_str(), "--overwrite", ROLE_LABEL];
    if !plan.is_single() {
        // The taint keeps servers of Services away.
        role.push(NO_BALANCER_LABEL);
    }
    let containers = [container("objects", &apply), container("role", &role)];
    let mut pod = static_pod("bootstrap", "OnFailure", &containers, &mounts);
    // Other objects make it another pod: one that has succeeded never runs again.
    let sha256: String =
        digest(&SHA256, objects.as_bytes()).as_ref().iter().map(|b| format!("{b:02x}")).collect();
    pod["metadata"]["annotations"] = json!({OBJECTS_ANNOTATION: sha256});
    pod
}

fn static_pod(name: &str, restart: &str, containers: &[Value], mounts: &[HostMount]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "kube-system",
            "labels": {"component": name, "tier": "control-plane"},
        },
        "spec": {
            "hostNetwork": true,
            "priorityClassName": "system-node-critical",
            "priority": PRIORITY,
            "restartPolicy": restart,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": containers,
            "volumes": mounts.iter().map(volume).collect::<Vec<_>>(),
        },
    })
}

/// The user is root, because the files are root's; but root without capabilities.
fn security(component: Component) -> Value {
    let mut capabilities = json!({"drop": ["ALL"]});
    if component == Component::ApiServer {
        // The published program has this one as its file's: the kernel refuses to start it without.
        capabilities["add"] = json!(["NET_BIND_SERVICE"]);
    }
    json!({
        "runAsUser": 0,
        "runAsGroup": 0,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": capabilities,
    })
}

fn mount(mount: &HostMount) -> Value {
    json!({"name": mount.name, "mountPath": mount.path, "readOnly": mount.read_only})
}

fn volume(mount: &HostMount) -> Value {
    json!({"name": mount.name, "hostPath": {"path": mount.path, "type": mount.kind}})
}
