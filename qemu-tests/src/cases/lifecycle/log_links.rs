//! Links to containers' logs, in the directory that log collectors read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::pods::Pod;

use crate::cases::lifecycle::static_pods::{await_gone, ready_node, run_pod};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "lifecycle/log-links",
    20,
    "/var/log/containers has a link for each container, through restarts and a kill of the agent, and loses it with it",
    log_links,
)];

const DIRECTORY: &str = "/var/log/containers";

fn links(node: &NativeNode) -> Result<BTreeMap<String, PathBuf>> {
    let mut links = BTreeMap::new();
    for entry in fs::read_dir(node.inside(DIRECTORY)).context("read the directory of links")? {
        let entry = entry?;
        let target = fs::read_link(entry.path()).with_context(|| format!("{:?} is no link", entry.path()))?;
        links.insert(entry.file_name().to_string_lossy().into_owned(), target);
    }
    Ok(links)
}

/// Waits until there is exactly one link for each container that the runtime has of the pod, leading to its log.
fn await_links(node: &NativeNode, pod: &str, containers: usize) -> Result<()> {
    let mut seen = String::new();
    let found = node.wait(30, &format!("{containers} links for {pod}"), |v| {
        let of_pod = v.of(pod);
        let expected = of_pod.iter().map(|c| {
            let status = node.cri().status(&c.id).ok()?;
            Some((format!("{pod}_default_c-{}.log", c.id), PathBuf::from(status.log_path)))
        });
        let expected: Option<BTreeMap<_, _>> = expected.collect();
        let there = links(node).ok()?;
        seen = format!("{there:?} instead of {expected:?}");
        let of_pod: BTreeMap<_, _> =
            there.into_iter().filter(|(name, _)| name.starts_with(&format!("{pod}_"))).collect();
        expected.filter(|e| *e == of_pod && of_pod.len() == containers).map(|_| of_pod)
    });
    for target in found.with_context(|| seen.clone())?.values() {
        let path = target.to_str().context("path of a log")?;
        ensure!(Path::new(&node.inside(path)).is_file(), "{path} is no file");
    }
    Ok(())
}

fn log_links(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut node = ready_node(cx)?;
    let stays = Pod::staying("stays");
    run_pod(&node, &stays)?;
    await_links(&node, "stays-native", 1)?;
    // Ends once, then stays: the ended instance is kept for its log, and so is its link.
    let again = Pod::script("again", "trap 'exit 0' TERM; [ -e /dev/termination-log ] && exit 1");
    let text = again.manifest().replace("restartPolicy: Always", "restartPolicy: OnFailure");
    node.write_manifest(&again.file(), &text)?;
    node.wait(60, "the second restart", |v| {
        let newest = v.of("again-native").iter().filter_map(|c| c.metadata.as_ref().map(|m| m.attempt)).max();
        newest.filter(|attempt| *attempt >= 2)
    })?;
    await_links(&node, "again-native", node.cri().view()?.of("again-native").len())?;

    node.kill_agent()?;
    for name in links(&node)?.into_keys() {
        fs::remove_file(node.inside(DIRECTORY).join(name))?;
    }
    let left = node.inside(DIRECTORY).join("left_default_c-0123456789.log");
    std::os::unix::fs::symlink("/var/log/pods/default_left_u-1/c/0.log", &left)?;
    let goes = Pod::staying("goes");
    node.write_manifest(&goes.file(), &goes.manifest())?;
    node.start_agent_ready()?;
    node.wait(30, "the pod that came meanwhile", |v| v.one_running("goes-native"))?;
    await_links(&node, "goes-native", 1)?;
    await_links(&node, "stays-native", 1)?;
    ensure!(fs::symlink_metadata(&left).is_err(), "the link to nothing is left");

    node.remove_manifest(&goes.file())?;
    node.remove_manifest(&again.file())?;
    await_gone(&node, 60, "goes-native")?;
    await_gone(&node, 60, "again-native")?;
    node.wait(10, "their links to be gone", |_| links(&node).ok().filter(|l| l.len() == 1))?;
    await_links(&node, "stays-native", 1)
}
