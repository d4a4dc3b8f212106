//! Devices of resource claims (dynamic resource allocation), with upstream's DRA driver for tests in the native node.
//!
//! In: the group's cluster with its scheduler and resource claim controller. Out: the driver's variables read inside containers, its CDI
//! files, the pod resources API, metrics, ResourceSlices, over a kill of the agent and an absence of the driver.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use nix::libc::SIGTERM;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{
    Joined, STAYS, api_pod, await_event, await_pod_gone, await_pod_ready, await_serving, named_container,
    uid_of,
};
use orlop_harness::cluster::node_api::NodeApi;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::{programs, ready};
use orlop_harness::native::pod_resources::PodResources;
use orlop_harness::say;
use serde_json::{Value, json};

use crate::cases::resources::{GROUP, NODE, cluster, look_until};
use crate::cases::volumes::csi_claims::restart;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "resources/claims",
    180,
    "containers have the devices of their claims, over a kill of the agent; a pod ends and another starts after the driver is back",
    claims,
)];

/// The address of the cluster's first node.
const ADDRESS: &str = "172.30.0.10";
pub(super) const DRIVER: &str = "test-driver.cdi.k8s.io";
/// Name of the driver's program in the node.
const PROGRAM: &str = "dra-driver";
pub(super) const CDI: &str = "/run/cdi";
const KUBECONFIG: &str = "/run/e2e/dra.kubeconfig";
const CLASS: &str = "e2e";
pub(super) const DEVICES: usize = 4;
const PREPARE_CALL: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";

/// Starts the driver with the admin's credentials; a driver in a pod has those of a service account.
fn start_driver(joined: &mut Joined, program: &Path) -> Result<()> {
    let kubeconfig = fs::read(joined.cluster.inside_kubeconfig()).context("read the kubeconfig")?;
    let node = &mut joined.nodes[0];
    fs::write(node.inside(KUBECONFIG), kubeconfig).context("write the driver's kubeconfig")?;
    // Of a pod of the driver the kubelet would make it (hostPath).
    let directory = node.inside(&format!("/var/lib/kubelet/plugins/{DRIVER}"));
    fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
    let argv = [
        node.bring(program)?,
        "kubelet-plugin".to_owned(),
        format!("--node-name={NODE}"),
        format!("--kubeconfig={KUBECONFIG}"),
        format!("--cdi-dir={CDI}"),
        format!("--num-devices={DEVICES}"),
    ];
    node.start_beside(PROGRAM, &argv, &[])
}

/// Waits until the driver's ResourceSlices fulfil the condition; returns their UIDs.
pub(super) fn await_slices(
    cluster: &Cluster,
    limit_s: u64,
    what: &str,
    wanted: impl Fn(&[&ResourceSlice]) -> bool,
) -> Result<BTreeSet<String>> {
    let client = cluster.client();
    client.wait::<ResourceSlice, _>(&client.all(), limit_s, what, |all| {
        let own: Vec<&ResourceSlice> = all.values().filter(|slice| slice.spec.driver == DRIVER).collect();
        wanted(&own).then(|| own.iter().filter_map(|slice| slice.metadata.uid.clone()).collect())
    })
}

/// All devices of the driver are published for the group's node.
fn are_whole(slices: &[&ResourceSlice]) -> bool {
    are_whole_on(NODE, slices)
}

/// All devices of the driver are published for this node.
pub(super) fn are_whole_on(node: &str, slices: &[&ResourceSlice]) -> bool {
    let of_node = slices.iter().filter(|slice| slice.spec.node_name.as_deref() == Some(node));
    of_node.map(|slice| slice.spec.devices.as_ref().map_or(0, Vec::len)).sum::<usize>() == DEVICES
}

fn request(name: &str) -> Value {
    json!({"name": name, "exactly": {"deviceClassName": CLASS}})
}

/// Creates the class, a template with two requests, and two claims with one.
pub(super) fn lay(cluster: &Cluster) -> Result<()> {
    let client = cluster.client();
    let expression = format!("device.driver == {DRIVER:?}");
    let class =
        json!({"metadata": {"name": CLASS}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
    client.create::<DeviceClass>(&client.all(), class)?;
    let parameters = json!({"opaque": {"driver": DRIVER, "parameters": {"greeting": "hello"}}});
    let devices = json!({"requests": [request("one"), request("two")], "config": [parameters]});
    let template = json!({"metadata": {"name": "two"}, "spec": {"spec": {"devices": devices}}});
    client.create::<ResourceClaimTemplate>(&client.of("default"), template)?;
    for name in ["shared", "late"] {
        let devices = json!({"requests": [request("only")]});
        let claim = json!({"metadata": {"name": name}, "spec": {"devices": devices}});
        client.create::<ResourceClaim>(&client.of("default"), claim)?;
    }
    Ok(())
}

/// A container with these uses of claims.
fn container(name: &str, claims: &Value) -> Value {
    let mut container = named_container(name, STAYS);
    container["resources"] = json!({"claims": claims});
    container
}

/// The pod, whose first container uses the claim.
pub(super) fn using(mut pod: Value, claim: &str) -> Value {
    pod["spec"]["resourceClaims"] = json!([{"name": "device", "resourceClaimName": claim}]);
    pod["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "device"}]);
    pod
}

/// A pod whose container `c` uses the claim.
fn user(name: &str, claim: &str) -> Value {
    using(api_pod(name, NODE, STAYS, 1), claim)
}

/// A pod with a claim of its own: containers `a` and `b` use a request each, `c` uses none.
fn owner() -> Value {
    let mut pod = api_pod("owner", NODE, STAYS, 1);
    pod["spec"]["resourceClaims"] = json!([{"name": "devices", "resourceClaimTemplateName": "two"}]);
    let one = |name: &str, request: &str| container(name, &json!([{"name": "devices", "request": request}]));
    pod["spec"]["containers"] = json!([one("a", "one"), one("b", "two"), named_container("c", STAYS)]);
    pod
}

/// Variables that the driver gave the container, as a program in it has them.
fn variables(cluster: &Cluster, pod: &str, container: &str) -> Result<BTreeSet<String>> {
    let all = cluster.kubectl(&["exec", pod, "--container", container, "--", "env"])?;
    let is_drivers = |line: &&str| ["claim_", "user_", "admin_"].iter().any(|start| line.starts_with(start));
    Ok(all.lines().filter(is_drivers).map(str::to_owned).collect())
}

/// The driver's variable for a request of a claim.
pub(super) fn variable(claim: &str, request: &str) -> String {
    let name = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    format!("claim_{}_{}=true", name(claim), name(request))
}

pub(super) fn ensure_variables(
    cluster: &Cluster,
    pod: &str,
    container: &str,
    wanted: &[String],
) -> Result<()> {
    let found = variables(cluster, pod, container)?;
    let wanted: BTreeSet<String> = wanted.iter().cloned().collect();
    ensure!(found == wanted, "{pod}/{container} has {found:?}, expected {wanted:?}");
    Ok(())
}

/// Each container of the owner has the devices of its request.
fn ensure_owner(cluster: &Cluster, claim: &str) -> Result<()> {
    let greeting = "user_greeting=hello".to_owned();
    for (container, request) in [("a", "one"), ("b", "two")] {
        ensure_variables(cluster, "owner", container, &[greeting.clone(), variable(claim, request)])?;
    }
    ensure_variables(cluster, "owner", "c", &[])
}

/// The claim that was made from the owner's template.
fn claim_of(pod: &Pod) -> Result<String> {
    let statuses = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    let made = statuses.into_iter().flatten().find(|made| made.name == "devices");
    made.and_then(|made| made.resource_claim_name.clone()).context("the pod has no claim of its own")
}

pub(super) fn claim_uid(cluster: &Cluster, name: &str) -> Result<String> {
    let client = cluster.client();
    let claim = client.get::<ResourceClaim>(&client.of("default"), name)?;
    claim.and_then(|claim| claim.metadata.uid).with_context(|| format!("no claim {name}"))
}

/// The pod resources API shows each container the device of its request.
fn ensure_listed(joined: &Joined, claim: &str) -> Result<()> {
    let uid = claim_uid(&joined.cluster, claim)?;
    let api = PodResources::of(&joined.nodes[0])?;
    let pod = api.get("owner")?.context("the pod is not listed")?;
    ensure!(api.list()?.contains(&pod), "the list and the pod differ: {pod:?}");
    for (container, request) in [("a", Some("one")), ("b", Some("two")), ("c", None)] {
        let found = pod.containers.iter().find(|found| found.name == container).context("no container")?;
        let shown = found.dynamic_resources.iter().flat_map(|of_claim| {
            of_claim.claim_resources.iter().map(|device| {
                let cdi: Vec<&str> = device.cdi_devices.iter().map(|cdi| cdi.name.as_str()).collect();
                let (name, driver, pool) = (&of_claim.claim_name, &device.driver_name, &device.pool_name);
                format!("{}/{name} {driver} {pool} {}", of_claim.claim_namespace, cdi.join(","))
            })
        });
        let shown: Vec<String> = shown.collect();
        let device =
            |request: &str| format!("default/{claim} {DRIVER} {NODE} {DRIVER}/test=claim-{uid}-{request}");
        let wanted: Vec<String> = request.into_iter().map(device).collect();
        ensure!(shown == wanted, "{container} is shown with {shown:?}, expected {wanted:?}");
    }
    Ok(())
}

/// The numbers of `/metrics` of the group's node by name and labels.
fn metrics(joined: &Joined) -> Result<BTreeMap<String, f64>> {
    metrics_of(&joined.cluster, ADDRESS)
}

/// The numbers of `/metrics` of the node at this address by name and labels.
pub(super) fn metrics_of(cluster: &Cluster, address: &str) -> Result<BTreeMap<String, f64>> {
    let admin = cluster.pki().node_admin()?;
    let (status, body) = NodeApi::at(cluster, address)?.get(Some(&admin), "/metrics")?;
    ensure!(status == 200, "GET /metrics: {status}: {body}");
    let lines = body.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.rsplit_once(' '));
    Ok(lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))).collect())
}

/// Polls the metrics: nothing else shows the event.
fn await_metrics(
    joined: &Joined,
    limit_s: u64,
    what: &str,
    wanted: impl Fn(&BTreeMap<String, f64>) -> bool,
) -> Result<()> {
    look_until(&joined.cluster, limit_s, what, || {
        let told = metrics(joined)?;
        let ours = told.iter().filter(|(name, _)| name.starts_with("dra_") || name.starts_with("plugin_"));
        ensure!(wanted(&told), "the metrics are {:#?}", ours.collect::<Vec<_>>());
        Ok(())
    })
}

fn in_use(driver: &str) -> String {
    format!("dra_resource_claims_in_use{{driver_name={driver:?}}}")
}

/// Operations for pods' claims.
fn operations(name: &str, is_error: bool) -> String {
    format!("dra_operations_duration_seconds_count{{operation_name={name:?},is_error=\"{is_error}\"}}")
}

/// The driver's registration socket in the metrics.
fn registered() -> String {
    let socket = format!("/var/lib/kubelet/plugins_registry/{DRIVER}-reg.sock");
    format!("plugin_manager_total_plugins{{socket_path={socket:?},state=\"actual_state_of_world\"}}")
}

/// Waits for this number of prepared claims, all of the driver.
fn await_in_use(joined: &Joined, claims: u32) -> Result<()> {
    await_metrics(joined, 30, &format!("{claims} claims in use"), |told| {
        let of = |driver: &str| told.get(&in_use(driver)).copied();
        // A driver without claims has no series.
        of("<any>") == Some(claims.into()) && of(DRIVER) == (claims > 0).then_some(claims.into())
    })
}

fn ensure_counted(joined: &Joined) -> Result<()> {
    let told = metrics(joined)?;
    let labels = format!("driver_name={DRIVER:?},method_name={PREPARE_CALL:?},grpc_status_code=\"OK\"");
    let calls = format!("dra_grpc_operations_duration_seconds_count{{{labels}}}");
    // The shared claim is prepared for the first pod that uses it.
    for (name, least) in [(calls, 2.0), (operations("PrepareResources", false), 3.0), (registered(), 1.0)] {
        let value = told.get(&name).copied();
        ensure!(value.is_some_and(|value| value >= least), "{name} is {value:?}");
    }
    Ok(())
}

/// Identities and restarts of the pod's containers.
fn instances(pod: &Pod) -> BTreeMap<String, (Option<String>, i32)> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses
        .map(|status| (status.name.clone(), (status.container_id.clone(), status.restart_count)))
        .collect()
}

fn get(cluster: &Cluster, name: &str) -> Result<Pod> {
    let client = cluster.client();
    client.get::<Pod>(&client.of("default"), name)?.with_context(|| format!("no pod {name}"))
}

fn delete(cluster: &Cluster, name: &str) -> Result<()> {
    let client = cluster.client();
    client.delete::<Pod>(&client.of("default"), name, None)
}

/// The agent is killed: the pods go on, the drivers publish again, and a container that starts again has the devices of before.
fn kill_agent(joined: &mut Joined, claim: &str) -> Result<()> {
    let slices = await_slices(&joined.cluster, 10, "slices", are_whole)?;
    let before = instances(&get(&joined.cluster, "owner")?);
    joined.nodes[0].kill_agent()?;
    restart(joined)?;
    await_serving(&joined.cluster, NODE, 60)?;
    let cluster = &joined.cluster;
    let after = instances(&get(cluster, "owner")?);
    ensure!(after == before, "the agent was killed: {after:?}, before: {before:?}");
    ensure_owner(cluster, claim)?;
    ensure_listed(joined, claim)?;
    // The container may be gone before the answer.
    let _ = cluster.kubectl(&["exec", "owner", "--container", "a", "--", "kill", "1"]);
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 60, "a container to start again", |all| {
        let now = instances(all.get("owner")?);
        let (id, restarts) = now.get("a")?;
        (*restarts == 1 && *id != before.get("a")?.0 && ready::pod(all.get("owner")?)).then_some(())
    })?;
    ensure_owner(cluster, claim)?;
    // An agent that starts deletes all slices of its node; the driver's library publishes them again after 30 s.
    let is_new = |now: &[&ResourceSlice]| {
        are_whole(now)
            && now.iter().all(|slice| slice.metadata.uid.as_ref().is_some_and(|uid| !slices.contains(uid)))
    };
    await_slices(cluster, 90, "slices that are published anew", is_new).map(drop)
}

/// The claim that two pods share is given back when the second of them ends.
fn end_sharing(joined: &Joined) -> Result<()> {
    let cluster = &joined.cluster;
    let uid = claim_uid(cluster, "shared")?;
    let file: PathBuf = joined.nodes[0].inside(&format!("{CDI}/{DRIVER}-{uid}-only.json"));
    delete(cluster, "shares-1")?;
    await_pod_gone(cluster, "shares-1", 60)?;
    ensure!(file.exists(), "the claim was taken from the pod that still uses it");
    ensure_variables(cluster, "shares-2", "c", &[variable("shared", "only")])?;
    delete(cluster, "shares-2")?;
    await_pod_gone(cluster, "shares-2", 60)?;
    ensure!(!file.exists(), "the driver still has the claim of pods that are gone");
    Ok(())
}

/// While the driver is away a pod does not end, another one does not start, and after 30 s the slices are removed.
fn without_driver(joined: &mut Joined) -> Result<()> {
    let since = Instant::now();
    joined.nodes[0].end_beside(PROGRAM, SIGTERM)?;
    await_metrics(joined, 20, "the driver to be unregistered", |told| !told.contains_key(&registered()))?;
    let cluster = &joined.cluster;
    let client = cluster.client();
    client.create::<Pod>(&client.of("default"), user("late", "late"))?;
    delete(cluster, "owner")?;
    let event = await_event(cluster, "FailedPrepareDynamicResources", "late", 60)?;
    let words = format!(
        "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver {DRIVER} is not registered"
    );
    ensure!(event.message.as_deref() == Some(words.as_str()), "the event says {:?}", event.message);
    await_metrics(joined, 30, "a failure to give the claims back", |told| {
        told.get(&operations("UnprepareResources", true)).is_some_and(|failures| *failures >= 1.0)
    })?;
    if since.elapsed() < Duration::from_secs(25) {
        await_slices(cluster, 2, "slices of a driver that has just gone", are_whole)?;
    }
    await_slices(cluster, 60, "the slices to be removed", |own| own.is_empty())?;
    let took = since.elapsed();
    ensure!(took >= Duration::from_secs(29), "the slices were removed after {took:?}");
    let owner = get(cluster, "owner")?;
    let phase = ready::phase(&owner);
    ensure!(
        owner.metadata.deletion_timestamp.is_some() && !matches!(phase, "Succeeded" | "Failed"),
        "the pod ended without its driver: {owner:?}"
    );
    say::line(format!("  the slices of the driver were removed {:.0} s after its end", took.as_secs_f64()));
    Ok(())
}

fn claims(cx: &mut CaseContext<'_>) -> Result<()> {
    let program = programs::claims_driver(&cx.run)?;
    let joined = cluster(cx)?;
    start_driver(joined, &program)?;
    await_slices(&joined.cluster, 60, "the driver's slices", are_whole)?;
    await_metrics(joined, 30, "the driver to be registered", |told| told.contains_key(&registered()))?;
    lay(&joined.cluster)?;
    let claim = claim_of(&joined.run_pod(owner())?)?;
    ensure_owner(&joined.cluster, &claim)?;
    for name in ["shares-1", "shares-2"] {
        joined.run_pod(user(name, "shared"))?;
        ensure_variables(&joined.cluster, name, "c", &[variable("shared", "only")])?;
    }
    ensure_listed(joined, &claim)?;
    await_in_use(joined, 2)?;
    ensure_counted(joined)?;

    kill_agent(joined, &claim)?;
    end_sharing(joined)?;
    let uid = uid_of(&joined.cluster, "owner")?;
    without_driver(joined)?;
    ensure!(uid_of(&joined.cluster, "owner")? == uid, "another pod of the name");

    start_driver(joined, &program)?;
    await_pod_gone(&joined.cluster, "owner", 150)?;
    await_pod_ready(&joined.cluster, "late", 150)?;
    ensure_variables(&joined.cluster, "late", "c", &[variable("late", "only")])?;
    await_slices(&joined.cluster, 60, "the driver's slices", are_whole)?;
    await_in_use(joined, 1)?;
    delete(&joined.cluster, "late")?;
    await_pod_gone(&joined.cluster, "late", 60)?;
    await_in_use(joined, 0)?;
    clean_up(joined)
}

/// The group's next case finds neither objects nor a driver.
fn clean_up(joined: &mut Joined) -> Result<()> {
    joined.nodes[0].end_beside(PROGRAM, SIGTERM)?;
    let client = joined.cluster.client();
    for name in ["shared", "late"] {
        client.delete::<ResourceClaim>(&client.of("default"), name, None)?;
    }
    client.delete::<ResourceClaimTemplate>(&client.of("default"), "two", None)?;
    client.delete::<DeviceClass>(&client.all(), CLASS, None)?;
    joined.cluster.ensure_nothing_forbidden()
}
