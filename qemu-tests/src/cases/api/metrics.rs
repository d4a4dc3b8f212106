//! The node's metrics for Prometheus, compared with the upstream kubelet's on the same node.
//!
//! ```text
//! pods that start, fail, are refused, are probed ──► agent ──► /metrics* ──► families: kind, labels, buckets ──► compared
//! golden/metrics.json ◄── the same, with the upstream kubelet in the agent's place and RECORD set
//! ```
//! In: a node of its own, whose certificates live for less than a minute. Out: each difference. Invariant: every family
//! is upstream's, with the same kind and labels; the values match the case's actions.

pub(in crate::cases) mod families;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{Joined, STAYS, api_pod, await_event, await_pod_gone, await_pod_ready};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::identities::LIFETIME;
use orlop_harness::cluster::kubeconfig::Credentials;
use orlop_harness::cluster::node_api::NodeApi;
use orlop_harness::native::pod_resources::PodResources;
use orlop_harness::say;
use serde_json::{Value, json};

use crate::cases::api::metrics::families::{Families, Text};

/// If set, the result is recorded and not compared.
const RECORD: &str = "ORLOP_E2E_RECORD_METRICS";
const NODE: &str = "first";
const ADDRESS: &str = "172.30.0.10";
const PATHS: [&str; 3] = ["/metrics", "/metrics/probes", "/metrics/slis"];

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "api/metrics",
    level: Level::L4n,
    expected_s: 110,
    about: "metrics have upstream's names, kinds, labels and buckets, and say what happened",
    group: None,
    run: metrics,
}];

/// Families that common dashboards and alerts read, as far as they are built here.
const EXPECTED: [&str; 17] = [
    "kubelet_node_name",
    "kubelet_running_pods",
    "kubelet_running_containers",
    "kubelet_pleg_relist_duration_seconds",
    "kubelet_pod_worker_duration_seconds",
    "kubelet_certificate_manager_client_ttl_seconds",
    "kubelet_certificate_manager_server_ttl_seconds",
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "kubelet_server_expiration_renew_errors",
    "kubelet_runtime_operations_total",
    "kubelet_runtime_operations_errors_total",
    "kubelet_pod_start_duration_seconds",
    "storage_operation_duration_seconds",
    "rest_client_requests_total",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "kubernetes_build_info",
];

fn metrics(cx: &mut CaseContext<'_>) -> Result<()> {
    let settings = Settings { certificate_lifetime: LIFETIME, ..Settings::default() };
    let mut joined = Joined::start(&cx.run, &cx.artefacts, settings, &[NODE])?;
    let admin = joined.cluster.pki().node_admin()?;
    live(&joined)?;
    let node = NodeApi::at(&joined.cluster, ADDRESS)?;
    let told = ask(&node, &admin)?;
    if env::var_os(RECORD).is_some() {
        let all: BTreeMap<&str, Value> =
            told.iter().map(|(path, text)| (*path, text.families().to_json())).collect();
        let text = format!("{:#}\n", json!(all));
        fs::write(record(), text).with_context(|| format!("write {}", record().display()))?;
        say::line(format!("  written to {}", record().display()));
        return Ok(());
    }
    compare(&told)?;
    numbers(&told)?;
    drop(node);
    certificates(&mut joined, &admin)?;
    joined.cluster.ensure_nothing_forbidden()
}

/// Pods that cause every countable event.
fn live(joined: &Joined) -> Result<()> {
    let client = joined.cluster.client();
    let data = json!({"metadata": {"name": "metrics"}, "data": {"key": "value"}});
    client.create::<ConfigMap>(&client.of("default"), data)?;
    let mut probed = api_pod("probed", NODE, STAYS, 1);
    let exec = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let spec = &mut probed["spec"];
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        spec["containers"][0][probe] = exec.clone();
    }
    let mut first = spec["containers"][0].clone();
    first["name"] = json!("init");
    first["command"] = json!(["true"]);
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        first.as_object_mut().context("a container")?.remove(probe);
    }
    spec["initContainers"] = json!([first]);
    spec["volumes"] = json!([{"name": "data", "configMap": {"name": "metrics"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    joined.run_pod(probed)?;
    let resources = PodResources::of(&joined.nodes[0])?;
    let (listed, one) = (resources.list()?, resources.get("probed")?);
    ensure!(listed.iter().any(|pod| Some(pod) == one.as_ref()), "{one:?} is not one of {listed:?}");
    resources.allocatable()?;
    resources.list_of_old()?;
    ensure!(resources.get("nobody").is_err(), "a pod that there is not");

    let mut ends = api_pod("ends", NODE, "exit 3", 1);
    ends["spec"]["restartPolicy"] = json!("Never");
    let mut without_image = api_pod("without-image", NODE, STAYS, 1);
    without_image["spec"]["containers"][0]["image"] = json!("127.0.0.1:5001/e2e/nothing:1");
    let mut too_large = api_pod("too-large", NODE, STAYS, 1);
    too_large["spec"]["nodeName"] = json!(NODE);
    too_large["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1000"}});
    for pod in [ends, without_image, too_large, api_pod("gone", NODE, STAYS, 1)] {
        client.create::<Pod>(&client.of("default"), pod)?;
    }
    await_event(&joined.cluster, "OutOfcpu", "too-large", 30)?;
    await_event(&joined.cluster, "Failed", "without-image", 60)?;
    await_pod_ready(&joined.cluster, "gone", 60)?;
    client.delete::<Pod>(&client.of("default"), "gone", None)?;
    await_pod_gone(&joined.cluster, "gone", 60)?;
    client.wait::<Pod, _>(&client.of("default"), 60, "pod ends to have ended", |all| {
        let phase = all.get("ends")?.status.as_ref()?.phase.clone()?;
        (phase == "Failed").then_some(())
    })
}

fn ask(node: &NodeApi<'_>, who: &Credentials) -> Result<BTreeMap<&'static str, Text>> {
    let mut told = BTreeMap::new();
    for path in PATHS {
        let (status, body) = node.get(Some(who), path)?;
        ensure!(status == 200, "GET {path}: {status}: {body}");
        told.insert(path, Text::parse(&body).with_context(|| path.to_owned())?);
    }
    Ok(told)
}

fn record() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/metrics.json")
}

/// Every family is upstream's, and the families of dashboards are present.
fn compare(told: &BTreeMap<&str, Text>) -> Result<()> {
    let text = fs::read_to_string(record()).with_context(|| format!("read {}", record().display()))?;
    let upstream: Value = serde_json::from_str(&text).context("the record")?;
    let mut wrong = Vec::new();
    for (path, text) in told {
        let (ours, theirs) = (text.families(), Families::of_json(&upstream[*path])?);
        say::line(format!("  {path}: {} families of upstream's {}", ours.len(), theirs.len()));
        wrong.extend(ours.not_in(&theirs).into_iter().map(|what| format!("{path}: {what}")));
    }
    let ours = told["/metrics"].families();
    wrong.extend(EXPECTED.iter().filter(|name| !ours.has(name)).map(|name| format!("{name} is not told")));
    ensure!(wrong.is_empty(), "told otherwise than upstream tells it:\n{}", wrong.join("\n"));
    Ok(())
}

/// The numbers are those of the pods above.
fn numbers(told: &BTreeMap<&str, Text>) -> Result<()> {
    let metrics = &told["/metrics"];
    let mut wrong = Vec::new();
    let mut is = |name: &str, labels: &[(&str, &str)], good: &dyn Fn(f64) -> bool| {
        let value = metrics.sum(name, labels);
        if !value.is_some_and(good) {
            wrong.push(format!("{name}{labels:?} is {value:?}"));
        }
    };
    is("kubelet_node_name", &[("node", NODE)], &|v| v == 1.0);
    is("kubelet_running_pods", &[], &|v| v >= 1.0);
    is("kubelet_running_containers", &[("container_state", "running")], &|v| v >= 1.0);
    is("kubelet_running_containers", &[("container_state", "exited")], &|v| v >= 2.0);
    is("kubelet_desired_pods", &[("static", "")], &|v| v >= 4.0);
    is("kubelet_active_pods", &[("static", "")], &|v| v >= 2.0);
    is("kubelet_working_pods", &[("lifecycle", "sync"), ("config", "desired")], &|v| v >= 2.0);
    is("kubelet_started_pods_total", &[], &|v| v >= 4.0);
    is("kubelet_started_containers_total", &[("container_type", "init_container")], &|v| v >= 1.0);
    is("kubelet_started_containers_errors_total", &[("code", "ErrImagePull")], &|v| v >= 1.0);
    is("kubelet_admission_rejections_total", &[("reason", "OutOfcpu")], &|v| v == 1.0);
    is("kubelet_runtime_operations_total", &[("operation_type", "run_podsandbox")], &|v| v >= 4.0);
    is("kubelet_runtime_operations_errors_total", &[("operation_type", "pull_image")], &|v| v >= 1.0);
    is("kubelet_pod_start_duration_seconds_count", &[], &|v| v >= 2.0);
    is("kubelet_pod_start_sli_duration_seconds_count", &[], &|v| v >= 2.0);
    is("kubelet_pod_worker_start_duration_seconds_count", &[], &|v| v >= 4.0);
    is("kubelet_pod_worker_duration_seconds_count", &[("operation_type", "create")], &|v| v >= 3.0);
    is("kubelet_pod_status_sync_duration_seconds_count", &[], &|v| v >= 4.0);
    is("kubelet_image_pull_duration_seconds_count", &[], &|v| v >= 1.0);
    is("kubelet_pleg_relist_duration_seconds_count", &[], &|v| v >= 1.0);
    is("kubelet_pleg_last_seen_seconds", &[], &|v| {
        SystemTime::now().duration_since(UNIX_EPOCH).is_ok_and(|now| (now.as_secs_f64() - v).abs() < 600.0)
    });
    for state in ["desired_state_of_world", "actual_state_of_world"] {
        let of = [("plugin_name", "kubernetes.io/configmap"), ("state", state)];
        is("volume_manager_total_volumes", &of, &|v| v == 1.0);
    }
    is("rest_client_requests_total", &[("code", "201"), ("method", "POST")], &|v| v >= 3.0);
    is("kubelet_http_requests_total", &[("method", "GET"), ("path", "healthz")], &|v| v >= 1.0);
    is("kubelet_pod_resources_endpoint_requests_total", &[], &|v| v == 5.0);
    is("kubelet_pod_resources_endpoint_errors_get", &[("server_api_version", "v1")], &|v| v == 1.0);
    is("kubelet_started_user_namespaced_pods_total", &[], &|v| v == 0.0);
    is("process_open_fds", &[], &|v| v > 5.0);
    is("process_resident_memory_bytes", &[], &|v| v > 1e6);
    let probes = &told["/metrics/probes"];
    for probe in ["Startup", "Liveness", "Readiness"] {
        let of = [("probe_type", probe), ("result", "successful"), ("pod", "probed"), ("container", "c")];
        if probes.sum("prober_probe_total", &of).is_none_or(|v| v < 1.0) {
            wrong.push(format!("no successful {probe} probe of the pod"));
        }
    }
    ensure!(wrong.is_empty(), "the numbers are not those of what happened:\n{}", wrong.join("\n"));
    Ok(())
}

/// After a renewal the certificates' remaining times are those of the new ones.
fn certificates(joined: &mut Joined, admin: &Credentials) -> Result<()> {
    let ttl = |name: &str| format!("kubelet_certificate_manager_{name}_ttl_seconds");
    let deadline = Instant::now() + LIFETIME * 3;
    let client = joined.cluster.client();
    let mut again = client.block_on(async { tokio::time::interval(Duration::from_secs(1)) });
    let mut first = None;
    loop {
        client.block_on(again.tick());
        let node = NodeApi::at(&joined.cluster, ADDRESS)?;
        let (status, body) = node.get(Some(admin), "/metrics")?;
        ensure!(status == 200, "GET /metrics: {status}: {body}");
        let told = Text::parse(&body)?;
        for name in ["client", "server"] {
            let value = told.sum(&ttl(name), &[]).with_context(|| ttl(name))?;
            let most = LIFETIME.as_secs_f64() + 1.0;
            ensure!((-1.0..=most).contains(&value), "{}: {value} of {most} s", ttl(name));
        }
        let rotated = told
            .sum("kubelet_certificate_manager_server_rotation_seconds_count", &[])
            .context("no count of renewals")?;
        if rotated > *first.get_or_insert(rotated) {
            // Seen within a second or two of the renewal: nearly all of the new one's life is left.
            let left = told.sum(&ttl("server"), &[]).unwrap_or_default();
            say::line(format!("  the serving certificate was renewed and ends in {left:.1} s"));
            ensure!(left > LIFETIME.as_secs_f64() / 2.0, "{left} s left of a certificate that is new");
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "no serving certificate was renewed: {rotated}");
    }
}
