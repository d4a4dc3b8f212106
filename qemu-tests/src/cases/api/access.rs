//! The node's HTTPS API: its certificate, authentication and authorization.
//!
//! Cases: `api/healthz-auth`, `api/refused`, `api/serving-certificate`.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::kubeconfig::Credentials;
use orlop_harness::cluster::node_api::NodeApi;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::wires::Wire;
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;
use serde_json::json;

/// Cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "api/healthz-auth",
        level: Level::L4n,
        expected_s: 15,
        about: "nobody 401, somebody 403, who was granted it 200, the admin everything; without the API server too",
        group: GROUP,
        run: healthz_auth,
    },
    Case {
        name: "api/refused",
        level: Level::L4n,
        expected_s: 20,
        about: "every path with every verb, asked by nobody, by a stranger and by one who may see metrics; four impostors",
        group: GROUP,
        run: refused,
    },
    Case {
        name: "api/serving-certificate",
        level: Level::L4n,
        expected_s: 90,
        about: "the serving certificate names the node's address, and its new one when the node is renumbered",
        group: None,
        run: serving_certificate,
    },
];

const FIRST: &str = "172.30.0.10";

fn healthz_auth(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    {
        let cluster = &joined.cluster;
        let node = NodeApi::at(cluster, FIRST)?;
        let expect = |who: Option<&Credentials>, path: &str, status: u16| -> Result<String> {
            let (is, body) = node.get(who, path)?;
            ensure!(is == status, "GET {path}: {is} instead of {status}: {body}");
            Ok(body)
        };
        for path in ["/healthz", "/pods", "/metrics", "/configz", "/exec/a/b/c", "/nothing"] {
            let body = expect(None, path, 401)?;
            ensure!(body == "Unauthorized", "{path}: {body}");
        }
        expect(Some(&Credentials::Token("made-up".to_owned())), "/healthz", 401)?;
        let stranger = cluster.pki().client("stranger", "stranger", None)?.credentials()?;
        let body = expect(Some(&stranger), "/healthz", 403)?;
        let words = "Forbidden (user=stranger, verb=get, resource=nodes, subresource(s)=[healthz proxy])";
        ensure!(body.trim() == words, "{body}");
        expect(Some(&stranger), "/containerLogs/default/x/c", 403)?;
        let admin = cluster.pki().node_admin()?;
        for path in
            ["/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop", "/healthz/device-plugin"]
        {
            ensure!(expect(Some(&admin), path, 200)? == "ok", "{path}");
        }
        let configz: serde_json::Value = serde_json::from_str(&expect(Some(&admin), "/configz", 200)?)?;
        ensure!(configz["kubeletconfig"]["serverTLSBootstrap"] == true, "{configz}");
        // Fine-grained: a service account that may see pods, and nothing else.
        let token = cluster.kubectl(&["create", "token", "default"])?;
        let robot = Credentials::Token(token.trim().to_owned());
        expect(Some(&robot), "/healthz", 403)?;
        let client = cluster.client();
        client.create::<ClusterRole>(
            &client.all(),
            json!({"metadata": {"name": "node-pods"},
                "rules": [{"apiGroups": [""], "resources": ["nodes/pods"], "verbs": ["get"]}]}),
        )?;
        client.create::<ClusterRoleBinding>(
            &client.all(),
            json!({"metadata": {"name": "node-pods"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "node-pods"},
                "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]}),
        )?;
        await_granted(cluster, "pods", "default")?;
        let pods: serde_json::Value = serde_json::from_str(&expect(Some(&robot), "/pods", 200)?)?;
        ensure!(pods["kind"] == "PodList", "{pods}");
        expect(Some(&robot), "/configz", 403)?;
        // The usual way, through the API server.
        let through = cluster.kubectl(&["get", "--raw", "/api/v1/nodes/first/proxy/healthz"])?;
        ensure!(through == "ok", "through the API server: {through}");
        ensure!(joined.nodes[0].http_get(10248, "/healthz")? == "ok", "healthz on 10248");
    }
    without_api_server(joined)
}

/// The authoriser learns of a new binding by a watch of its own.
fn await_granted(cluster: &Cluster, subresource: &str, account: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let subresource = format!("--subresource={subresource}");
    let account = format!("--as=system:serviceaccount:default:{account}");
    let ask = ["auth", "can-i", "get", "nodes", &subresource, &account, "-q"];
    while cluster.kubectl(&ask).is_err() {
        ensure!(Instant::now() < deadline, "the new role is not in force after 20 s");
    }
    Ok(())
}

/// Paths, and the subresources of `nodes` that allow them, in the order of the checks.
const PATHS: &[(&str, &str)] = &[
    ("/healthz", "healthz proxy"),
    ("/healthz/syncloop", "healthz proxy"),
    ("/pods", "pods proxy"),
    ("/runningpods/", "pods proxy"),
    ("/configz", "configz proxy"),
    ("/statusz", "statusz"),
    ("/flagz", "configz"),
    ("/metrics", "metrics"),
    ("/metrics/cadvisor", "metrics"),
    ("/metrics/resource", "metrics"),
    ("/metrics/probes", "metrics"),
    ("/metrics/node", "metrics"),
    ("/stats/summary", "stats"),
    ("/logs/", "log"),
    ("/logs/?query=kubelet", "log"),
    ("/checkpoint/default/x/c", "checkpoint"),
    ("/containerLogs/default/x/c", "proxy"),
    ("/exec/default/x/c?command=ls&output=1", "proxy"),
    ("/attach/default/x/c?output=1", "proxy"),
    ("/portForward/default/x", "proxy"),
    ("/run/default/x/c?cmd=ls", "proxy"),
    ("/debug/pprof/", "proxy"),
    ("/debug/pprof/heap", "proxy"),
    ("/debug/flags/v", "proxy"),
    ("/%68ealthz", "proxy"),
    ("//pods", "proxy"),
    ("/metricsandmore", "proxy"),
    ("/nothing", "proxy"),
];
/// Methods, and their verbs.
const VERBS: &[(&str, &str)] =
    &[("GET", "get"), ("POST", "create"), ("PUT", "update"), ("PATCH", "patch"), ("DELETE", "delete")];

fn refused(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let cluster = &joined.cluster;
    let node = NodeApi::at(cluster, FIRST)?;
    node.await_healthy(&cluster.pki().node_admin()?, 30)?;
    for account in ["gone", "watcher"] {
        cluster.kubectl(&["create", "serviceaccount", account])?;
    }
    let token = |account: &str| -> Result<Credentials> {
        let token = cluster.kubectl(&["create", "token", account])?;
        Ok(Credentials::Token(token.trim().to_owned()))
    };
    let (gone, watcher) = (token("gone")?, token("watcher")?);
    cluster.kubectl(&["delete", "serviceaccount", "gone"])?;
    let role = "--verb=get --resource=nodes/metrics".split(' ').collect::<Vec<_>>();
    cluster.kubectl(&[&["create", "clusterrole", "sees-metrics"][..], &role].concat())?;
    let binding = [
        "clusterrolebinding",
        "sees-metrics",
        "--clusterrole=sees-metrics",
        "--serviceaccount=default:watcher",
    ];
    cluster.kubectl(&[&["create"][..], &binding].concat())?;
    await_granted(cluster, "metrics", "watcher")?;
    let stranger = cluster.pki().client("stranger", "stranger", None)?.credentials()?;
    let [ended, unknown] = cluster.pki().unknown_clients("first")?;
    let impostors = [
        ("a made-up token", Credentials::Token("made-up".to_owned())),
        ("a token of an account that is gone", gone),
        ("a certificate of another authority", unknown.credentials()?),
        ("a certificate that ended", ended.credentials()?),
    ];
    for (path, subresources) in PATHS {
        for (who, credentials) in &impostors {
            let (status, body) = node.get(Some(credentials), path)?;
            ensure!((status, body.as_str()) == (401, "Unauthorized"), "{who}: {path}: {status} {body}");
        }
        for (method, verb) in VERBS {
            let (status, body) = node.ask(None, method, path)?;
            ensure!((status, body.as_str()) == (401, "Unauthorized"), "{method} {path}: {status} {body}");
            let words = |user: &str| {
                format!(
                    "Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{subresources}])"
                )
            };
            let (status, body) = node.ask(Some(&stranger), method, path)?;
            ensure!(
                (status, body.trim()) == (403, words("stranger").as_str()),
                "{method} {path}: {status} {body}"
            );
            let (status, body) = node.ask(Some(&watcher), method, path)?;
            if (*method, *subresources) == ("GET", "metrics") {
                ensure!(![401, 403, 500].contains(&status), "the watcher: {method} {path}: {status} {body}");
            } else {
                let user = "system:serviceaccount:default:watcher";
                ensure!(
                    (status, body.trim()) == (403, words(user).as_str()),
                    "{method} {path}: {status} {body}"
                );
            }
        }
    }
    Ok(())
}

/// Earlier decisions stay valid without the API server, new ones are refused. A certificate is a new decision: as
/// upstream's, the review includes its fingerprint.
fn without_api_server(joined: &mut Joined) -> Result<()> {
    let admin = joined.cluster.pki().node_admin()?;
    let late = joined.cluster.pki().client("late", "late", Some("system:masters"))?.credentials()?;
    let node = NodeApi::at(&joined.cluster, FIRST)?;
    ensure!(node.get(Some(&admin), "/healthz")?.0 == 200, "an admin with a new certificate");
    joined.cluster.kill_apiserver()?;
    let asked = || -> Result<_> {
        let node = NodeApi::at(&joined.cluster, FIRST)?;
        Ok((node.get(Some(&admin), "/healthz")?.0, node.get(Some(&late), "/healthz")?.0))
    };
    let codes = asked();
    joined.cluster.restart_apiserver()?;
    ensure!(codes? == (200, 500), "without the API server");
    let node = NodeApi::at(&joined.cluster, FIRST)?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while node.get(Some(&late), "/healthz")?.0 != 200 {
        ensure!(Instant::now() < deadline, "still refused a minute after the API server came back");
        joined.nodes[0].cri().view()?;
    }
    joined.cluster.ensure_nothing_forbidden()
}

/// Target of `kubelet-server-current.pem`.
fn current(node: &NativeNode) -> Result<PathBuf> {
    let link = node.inside("/var/lib/kubelet/pki/kubelet-server-current.pem");
    fs::read_link(&link).with_context(|| format!("read the link {}", link.display()))
}

fn serving_certificate(cx: &mut CaseContext<'_>) -> Result<()> {
    const NEW: &str = "172.30.0.61";
    let joined = Joined::start(&cx.run, &cx.artefacts, Settings::default(), &["moves"])?;
    let admin = joined.cluster.pki().node_admin()?;
    NodeApi::at(&joined.cluster, FIRST)?.await_healthy(&admin, 30)?;
    let first = current(&joined.nodes[0])?;
    joined.run_pod(api_pod("says", "moves", &format!("echo here; {STAYS}"), 1))?;
    ensure!(joined.cluster.kubectl(&["logs", "says"])? == "here", "kubectl logs before the move");
    let start = Instant::now();
    Wire::new(0)?.renumber(joined.cluster.pid()?, joined.nodes[0].agent_pid()?, NEW)?;
    let client = joined.cluster.client();
    client.wait::<Node, _>(&client.all(), 120, "the node's new address", |all| {
        let status = all.get("moves")?.status.as_ref()?;
        status.addresses.iter().flatten().any(|a| a.address == NEW).then_some(())
    })?;
    say::line(format!("  the Node has its new address after {:.1} s", start.elapsed().as_secs_f64()));
    NodeApi::at(&joined.cluster, NEW)?.await_healthy(&admin, 60)?;
    say::line(format!("  and a certificate for it after {:.1} s", start.elapsed().as_secs_f64()));
    ensure!(current(&joined.nodes[0])? != first, "the certificate is still the first one");
    ensure!(joined.cluster.kubectl(&["logs", "says"])? == "here", "kubectl logs after the move");
    joined.cluster.kubectl(&["delete", "pod", "says"])?;
    await_pod_gone(&joined.cluster, "says", 30)?;
    joined.cluster.ensure_nothing_forbidden()
}
