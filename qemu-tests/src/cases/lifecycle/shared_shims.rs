//! Pods that share shims (`runtime.podsPerShim`): the number of shims, a first pod that goes before the others, a shim that dies
//! with all of its pods, a restart of the agent.
//!
//! Case: `lifecycle/shared-shims`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::client::ClusterClient;
use orlop_harness::cluster::crowd::statuses;
use orlop_harness::cluster::fixture::{Joined, STAYS, api_pod, await_pod_gone};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, start_kubelet};
use orlop_harness::cluster::ready;
use orlop_harness::native::cri::View;
use orlop_harness::native::held::shims;
use orlop_harness::native::node::NativeNode;
use orlop_proto::cri::v1 as cri;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "lifecycle/shared-shims",
    320,
    "20 pods with 16 for each shim: two shims; the first pod of a shim may go; a killed shim's pods start again, no others, and \
     nothing of the old ones runs on",
    shared_shims,
)];

const NODE: &str = "sharing";
const PODS: usize = 20;
const PODS_PER_SHIM: u32 = 16;
/// Annotation of sandboxes with the name of their group.
const GROUP: &str = "io.containerd.runc.v2.group";
/// Within this time the agent would end a shim that it takes for a lost one: it looks once a minute, and 10 s later again.
const LOST_SHIMS: Duration = Duration::from_secs(85);
/// The agent ends a dead shim's containers within the same time; the rest is for the work itself, seconds.
const LEFT_LIMIT_S: u64 = 150;
/// What the agent says of a shim that it ends, and of what the shim held.
const ENDED: &str = "the runtime had forgotten";

/// The pods that run, and the ids of their containers.
type Ids = BTreeMap<String, String>;
/// The pods that run, by the groups of their sandboxes.
type Groups = BTreeMap<String, BTreeSet<String>>;

fn shared_shims(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut joined =
        Joined::start_sharing(&cx.run, &cx.artefacts, Settings::default(), &[NODE], PODS_PER_SHIM)?;
    let client = joined.cluster.client();
    for n in 0..PODS {
        create(client, &format!("sharing-{n:02}"))?;
    }
    let ids = await_pods(client, PODS, &Ids::new(), &BTreeSet::new())?;
    let node = &mut joined.nodes[0];
    let groups = groups(&node.cri().view()?);
    ensure!(sizes(&groups) == [4, 16], "20 pods are in these groups: {groups:?}");
    await_shims(node, 2)?;
    let shims_of = shims_by_group(node)?;
    ensure!(shims_of.keys().eq(groups.keys()), "shims {shims_of:?}, groups {groups:?}");
    let of_size = |pods: usize| {
        let found = groups.iter().find(|(_, members)| members.len() == pods);
        found.map(|(group, _)| group.as_str()).context("no such group")
    };
    let (small, large) = (of_size(4)?, of_size(16)?);

    let first = pod_of(&node.cri().view()?, &founder(shims_of[small])?)?;
    client.delete::<Pod>(&client.of("default"), &first, None)?;
    await_pod_gone(&joined.cluster, &first, 60)?;
    node.pass(LOST_SHIMS)?;
    let left = await_pods(client, PODS - 1, &Ids::new(), &BTreeSet::new())?;
    unchanged(&ids, &left, &BTreeSet::from([first]))?;
    ensure!(shims(node)?.contains(&shims_of[small]), "the shim ended with its first pod");
    let log = fs::read_to_string(node.logs().join("agent.log")).context("the agent's log")?;
    ensure!(!log.contains(ENDED), "the agent ended a shim, or something of it");

    let victims = &groups[large];
    let held = held_by(shims_of[large])?;
    ensure!(held.len() >= 2 * victims.len(), "the shim of 16 pods holds {held:?}");
    kill(Pid::from_raw(shims_of[large]), Signal::SIGKILL).context("kill a shim")?;
    let again = await_pods(client, PODS - 1, &left, victims)?;
    unchanged(&left, &again, victims)?;
    let now = self::groups(&node.cri().view()?);
    ensure!(now.values().all(|members| members.len() <= PODS_PER_SHIM as usize), "groups: {now:?}");
    await_shims(node, now.len())?;

    let is_gone = |pid: &i32| !Path::new(&format!("/proc/{pid}")).exists();
    node.wait(LEFT_LIMIT_S, "what the dead shim held to end", |_| held.iter().all(is_gone).then_some(()))?;

    node.kill_agent()?;
    start_kubelet(node, JoinMethod::BootstrapKubeconfig)?;
    create(client, "late")?;
    let late = BTreeSet::from(["late".to_owned()]);
    let with_late = await_pods(client, PODS, &again, &late)?;
    unchanged(&again, &with_late, &late)?;
    let joined_by = self::groups(&node.cri().view()?);
    ensure!(joined_by.keys().eq(now.keys()), "a pod after the agent's restart: {joined_by:?} after {now:?}");

    restart_a_container(client, node, &with_late)?;
    await_shims(node, now.len())?;

    for name in with_late.keys() {
        client.delete::<Pod>(&client.of("default"), name, None)?;
    }
    await_shims(node, 0)
}

fn create(client: &ClusterClient, name: &str) -> Result<()> {
    client.create::<Pod>(&client.of("default"), api_pod(name, NODE, STAYS, 1)).map(drop)
}

/// A container that starts again does so in its sandbox's shim, also after a restart of the agent: the last pod by name is older than
/// that.
fn restart_a_container(client: &ClusterClient, node: &NativeNode, ids: &Ids) -> Result<()> {
    let (name, id) = ids.last_key_value().context("no pod runs")?;
    let container_id = id.trim_start_matches("containerd://").to_owned();
    let mut runtime = node.cri().runtime_client();
    let request = cri::StopContainerRequest { container_id, timeout: 0 };
    node.cri().block_on(runtime.stop_container(request)).context("StopContainer")?;
    let stopped = BTreeSet::from([name.clone()]);
    let after = await_pods(client, ids.len(), ids, &stopped)?;
    unchanged(ids, &after, &stopped)
}

/// Waits until there are so many pods and all are Ready, those of `ended` with another container than before.
fn await_pods(client: &ClusterClient, pods: usize, before: &Ids, ended: &BTreeSet<String>) -> Result<Ids> {
    client.wait::<Pod, _>(&client.of("default"), 240, "all pods to run", |all| {
        let ready = all.iter().filter(|(_, pod)| ready::pod(pod));
        let ids: Ids = ready.filter_map(|(name, pod)| Some((name.clone(), container(pod)?))).collect();
        let is_new = |name: &String| ids.get(name).is_some_and(|id| before.get(name) != Some(id));
        let settled = all.len() == pods && ids.len() == pods && ended.iter().all(is_new);
        settled.then_some(ids)
    })
}

fn container(pod: &Pod) -> Option<String> {
    statuses(pod).next()?.container_id.clone()
}

/// The pods but `except` have the containers that they had.
fn unchanged(before: &Ids, now: &Ids, except: &BTreeSet<String>) -> Result<()> {
    for (name, id) in before.iter().filter(|(name, _)| !except.contains(*name)) {
        ensure!(now.get(name) == Some(id), "{name} was {id} and is {:?}", now.get(name));
    }
    Ok(())
}

fn groups(view: &View) -> Groups {
    let mut groups = Groups::new();
    for sandbox in &view.sandboxes {
        if sandbox.state() == cri::PodSandboxState::SandboxReady {
            let name = sandbox.metadata.as_ref().map(|of| of.name.clone()).unwrap_or_default();
            groups.entry(group(sandbox)).or_default().insert(name);
        }
    }
    groups
}

fn group(sandbox: &cri::PodSandbox) -> String {
    sandbox.annotations.get(GROUP).cloned().unwrap_or_default()
}

fn sizes(groups: &Groups) -> Vec<usize> {
    let mut sizes: Vec<usize> = groups.values().map(BTreeSet::len).collect();
    sizes.sort_unstable();
    sizes
}

fn await_shims(node: &NativeNode, count: usize) -> Result<()> {
    node.wait(100, &format!("{count} shims"), |_| (shims(node).ok()?.len() == count).then_some(()))
}

/// The sandbox that the shim was started for.
fn founder(shim: i32) -> Result<String> {
    let path = format!("/proc/{shim}/cmdline");
    let command = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let sandbox = command.split('\0').skip_while(|word| *word != "-id").nth(1);
    sandbox.map(str::to_owned).with_context(|| format!("{path} names no sandbox: {command:?}"))
}

/// The processes that the shim has made.
fn held_by(shim: i32) -> Result<Vec<i32>> {
    let tasks = format!("/proc/{shim}/task");
    let mut held = Vec::new();
    for task in fs::read_dir(&tasks).with_context(|| format!("list {tasks}"))? {
        // A thread may have ended meanwhile.
        let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        held.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Ok(held)
}

/// The shims by the groups of the sandboxes that they were started for.
fn shims_by_group(node: &NativeNode) -> Result<BTreeMap<String, i32>> {
    let view = node.cri().view()?;
    let mut found = BTreeMap::new();
    for shim in shims(node)? {
        let group = group(sandbox(&view, &founder(shim)?)?);
        ensure!(found.insert(group, shim).is_none(), "two shims for one group: {found:?} and {shim}");
    }
    Ok(found)
}

fn sandbox<'a>(view: &'a View, id: &str) -> Result<&'a cri::PodSandbox> {
    view.sandboxes.iter().find(|of| of.id == id).with_context(|| format!("sandbox {id} is not listed"))
}

fn pod_of(view: &View, id: &str) -> Result<String> {
    let metadata = sandbox(view, id)?.metadata.as_ref();
    metadata.map(|of| of.name.clone()).with_context(|| format!("sandbox {id} has no metadata"))
}
