//! The static CPU policy on the native node: a container has a processor for itself, through a kill of the agent and until it ends.
//!
//! In: a host with two processors or more. Out: processors as the kernel has them, the state file, the pod resources API.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::pod_resources::PodResources;
use orlop_harness::native::pods::Pod;
use orlop_harness::say;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "resources/processors",
    15,
    "a container has a processor for itself, the others leave it; the agent is killed: the same; its end: it is shared again",
    processors,
)];

/// The CPU manager's state file.
pub(super) const STATE: &str = "/var/lib/kubelet/cpu_manager_state";
/// Prints its processors again and again.
const SCRIPT: &str =
    "trap 'exit 0' TERM; while :; do grep Cpus_allowed_list /proc/self/status; sleep 0.2; done";
const GUARANTEED: &str =
    "    resources: {requests: {cpu: 1, memory: 16Mi}, limits: {cpu: 1, memory: 16Mi}}\n";

pub(super) fn configure(node: &NativeNode, policy: &str) -> Result<()> {
    let path = node.inside("/run/e2e/kubelet.yaml");
    let text = fs::read_to_string(&path).context("read the agent's configuration")?;
    let ours = ["cpuManager", "kubeReserved"];
    let kept = text.lines().filter(|line| !ours.iter().any(|word| line.starts_with(word)));
    let mut text: String = kept.flat_map(|line| [line, "\n"]).collect();
    text += &format!("cpuManagerPolicy: {policy}\nkubeReserved: {{cpu: 500m}}\n");
    fs::write(&path, text).context("write the agent's configuration")
}

/// The container's processors, by its own last word.
fn allowed(node: &NativeNode, id: &str) -> Option<String> {
    let path = node.cri().status(id).ok()?.log_path;
    let log = fs::read_to_string(node.inside(&path)).ok()?;
    let (_, list) = log.lines().last()?.split_once("Cpus_allowed_list:")?;
    Some(list.trim().to_owned())
}

/// Waits until the container is allowed on these processors.
fn await_allowed(node: &NativeNode, id: &str, cpus: &str) -> Result<()> {
    node.wait(15, &format!("{id} to run on {cpus}"), |_| (allowed(node, id)? == cpus).then_some(()))
        .with_context(|| format!("it runs on {:?}", allowed(node, id)))
}

fn start(node: &NativeNode, pod: &Pod, resources: &str) -> Result<String> {
    node.write_manifest(&pod.file(), &(pod.manifest() + resources))?;
    let name = pod.full_name();
    node.wait(30, &format!("pod {name} to run"), |v| v.one_running(&name))
}

fn state(node: &NativeNode) -> Result<String> {
    fs::read_to_string(node.inside(STATE)).context("read the state file")
}

/// Processors that the containers of a pod have for themselves.
fn own_cpus(node: &NativeNode, pod: &Pod) -> Result<Vec<i64>> {
    let (listed, name) = (PodResources::of(node)?.list()?, pod.full_name());
    let found =
        listed.iter().find(|found| found.name == name).with_context(|| format!("{name}: {listed:?}"))?;
    Ok(found.containers.iter().flat_map(|container| container.cpu_ids.clone()).collect())
}

fn processors(cx: &mut CaseContext<'_>) -> Result<()> {
    let agent = built::agent(&cx.run, false)?;
    let mut node = NativeNode::start(&cx.run, &cx.artefacts, agent)?;
    configure(&node, "static")?;
    node.start_agent_ready()?;
    let (own, other) = (Pod::script("own", SCRIPT), Pod::script("other", SCRIPT));
    let second = start(&node, &other, "")?;
    let first = start(&node, &own, GUARANTEED)?;
    let [cpu] = own_cpus(&node, &own)?[..] else { bail!("{:?} are its own", own_cpus(&node, &own)?) };
    let all = PodResources::of(&node)?.allocatable()?.cpu_ids;
    ensure!(all.contains(&cpu) && !all.contains(&0), "allocatable: {all:?}");
    ensure!(own_cpus(&node, &other)?.is_empty(), "a container that shares has nothing of its own");
    await_allowed(&node, &first, &cpu.to_string())?;
    node.wait(15, "the other container to leave that processor", |_| {
        (!cpu_list(&allowed(&node, &second)?).contains(&cpu)).then_some(())
    })?;
    say::line(format!("  its own: {cpu}, shared: {}", allowed(&node, &second).unwrap_or_default()));
    let before = state(&node)?;
    ensure!(before.contains(&format!(r#""c":"{cpu}""#)), "{before}");
    // A pod that finds no free processor is refused, and nothing else happens.
    let refused = Pod::script("refused", SCRIPT);
    node.write_manifest(&refused.file(), &(refused.manifest() + &GUARANTEED.replace("cpu: 1", "cpu: 4000")))?;
    node.pass(std::time::Duration::from_secs(2))?;
    ensure!(node.cri().view()?.of(&refused.full_name()).is_empty(), "it runs");
    ensure!(state(&node)? == before, "{}", state(&node)?);
    node.kill_agent()?;
    node.start_agent_ready()?;
    ensure!(state(&node)? == before, "{}", state(&node)?);
    let running = node.cri().view()?.one_running(&own.full_name());
    ensure!(running.as_ref() == Some(&first), "the container was restarted: {running:?}");
    await_allowed(&node, &first, &cpu.to_string())?;
    node.remove_manifest(&own.file())?;
    node.wait(30, "the processor to be shared again", |_| {
        cpu_list(&allowed(&node, &second)?).contains(&cpu).then_some(())
    })?;
    other_policy(&mut node)
}

/// The agent does not start with the state of another policy, as upstream.
fn other_policy(node: &mut NativeNode) -> Result<()> {
    node.kill_agent()?;
    configure(node, "none")?;
    node.start_agent()?;
    ensure!(node.await_agent_exit()? != 0, "the agent starts with the state of another policy");
    fs::remove_file(node.inside(STATE)).context("remove the state file")?;
    node.start_agent_ready()?;
    let text = state(node)?;
    ensure!(text == r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#, "{text}");
    Ok(())
}

/// The kernel's list of processors.
pub(super) fn cpu_list(text: &str) -> Vec<i64> {
    let number = |text: &str| text.trim().parse::<i64>().ok();
    let range = |part: &str| match part.split_once('-') {
        Some((from, to)) => Some((number(from)?..=number(to)?).collect::<Vec<_>>()),
        None => Some(vec![number(part)?]),
    };
    text.split(',').filter_map(range).flatten().collect()
}
