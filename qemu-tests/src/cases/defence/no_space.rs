//! The kubelet's file system repeatedly refuses every write, for lack of bytes or of inodes, while pods of many kinds
//! are created and deleted and the agent is killed. Logs of pods and containerd are on another file system with room.
//!
//! The file system is a tmpfs whose size is set to its usage, and later increased again: the kernel itself returns
//! ENOSPC for any write of the agent at that moment.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::statvfs::statvfs;
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, human};
use orlop_harness::cluster::fixture::{Joined, await_ready, await_serving};
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::join::{JoinMethod, kubelet_configuration_with, start_kubelet};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::native::held::HostLeftovers;
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;

use crate::cases::lifecycle::churn::Crowd;

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "defence/no-space",
    90,
    "every write fails now and then while pods come and go and the agent is killed: nothing ends, nothing is lost or left",
    no_space,
)];

const NODE: &str = "starved";
const ROOT_DIR: &str = "/var/lib/kubelet";
const PODS: u32 = 32;
const STORM: Duration = Duration::from_secs(40);
/// Longest phase in which writes fail, and longest phase in which they do not.
const PHASE_MS_MAX: u32 = 2500;
/// Enough for all.
const ROOMY: &str = "size=1g,nr_inodes=1m";

/// The missing resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissingSpace {
    Nothing,
    Bytes,
    Inodes,
}

/// mount(8) in the node.
fn mount(node: &NativeNode, arguments: &[&str]) -> Result<bool> {
    let status = Command::new("nsenter")
        .args(["--target", &node.pid().to_string(), "--mount", "mount"])
        .args(arguments)
        .stderr(std::process::Stdio::null())
        .status()
        .context("run nsenter (util-linux)")?;
    Ok(status.success())
}

fn make_scarce(node: &NativeNode, want: MissingSpace) -> Result<()> {
    for _ in 0..20 {
        let disk = statvfs(&node.inside(ROOT_DIR)).context("the kubelet's file system")?;
        // In whole pages: a file may still grow to the end of its last page.
        let pages = (disk.blocks() - disk.blocks_free()) * disk.fragment_size() / 4096;
        let inodes = disk.files() - disk.files_free();
        let size = match want {
            MissingSpace::Nothing => ROOMY.to_owned(),
            MissingSpace::Bytes => format!("size={},nr_inodes=1m", pages.max(1) * 4096),
            MissingSpace::Inodes => format!("size=1g,nr_inodes={}", inodes.max(1)),
        };
        // The usage grew meanwhile: repeat.
        if mount(node, &["-o", &format!("remount,{size}"), ROOT_DIR])? {
            return Ok(());
        }
    }
    anyhow::bail!("{ROOT_DIR} does not become scarce of {want:?}")
}

fn start(cx: &CaseContext<'_>) -> Result<Joined> {
    let agent = built::agent(&cx.run, false)?;
    let mut cluster = Cluster::start(&cx.run, &cx.artefacts, Settings::default())?;
    let mut node = cluster.start_node(&cx.artefacts, NODE, agent)?;
    // The files that a node has before its agent starts are copied to the new file system.
    let root = node.inside(ROOT_DIR);
    let given = fs::read_dir(&root)?.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>>>()?;
    let given = given.into_iter().map(|name| Ok((fs::read(root.join(&name))?, name)));
    let given = given.collect::<Result<Vec<_>>>().context("files of the kubelet's directory")?;
    ensure!(
        mount(&node, &["-t", "tmpfs", "-o", ROOMY, "kubelet", ROOT_DIR])?,
        "{ROOT_DIR} cannot be mounted"
    );
    for (text, name) in given {
        fs::write(root.join(name), text).context("the kubelet's directory")?;
    }
    // No pod is evicted for it.
    let configuration = kubelet_configuration_with(["0%", "0%"]);
    fs::write(node.inside("/run/e2e/kubelet.yaml"), configuration).context("write the configuration")?;
    start_kubelet(&mut node, JoinMethod::BootstrapKubeconfig)?;
    await_ready(&cluster, NODE, 90)?;
    await_serving(&cluster, NODE, 60)?;
    Ok(Joined { nodes: vec![node], cluster })
}

fn no_space(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = start(cx)?;
    let before = HostLeftovers::by(&joined.nodes[0])?;
    let mut crowd = Crowd::begin(joined, cx.seed, PODS)?;
    let ids = crowd.stable_ids()?;
    let (mut scarce, mut kills, mut changes) = (0, 0, 0);
    let end = Instant::now() + STORM;
    while Instant::now() < end {
        let want = [MissingSpace::Bytes, MissingSpace::Inodes][crowd.rng.below(2) as usize];
        make_scarce(crowd.node(), want)?;
        scarce += 1;
        for _ in 0..4 {
            crowd.toggle()?;
            changes += 1;
        }
        if crowd.rng.below(3) == 0 {
            // The agent must still run: a dead agent could not be killed.
            crowd.node().kill_agent()?;
            start_kubelet(crowd.node(), JoinMethod::BootstrapKubeconfig)?;
            kills += 1;
        }
        for want in [want, MissingSpace::Nothing] {
            make_scarce(crowd.node(), want)?;
            let phase = Duration::from_millis(u64::from(crowd.rng.below(PHASE_MS_MAX)));
            crowd.node().pass(phase)?;
            crowd.look()?;
        }
    }
    make_scarce(crowd.node(), MissingSpace::Nothing)?;
    let began = Instant::now();
    crowd.at_rest()?;
    let rest = human(began.elapsed());
    ensure!(crowd.stable_ids()? == ids, "what ran before does not run any more: {ids:?}");
    let log = fs::read_to_string(crowd.node().logs().join("agent.log")).context("the agent's log")?;
    let refused = log.lines().filter(|line| line.contains("os error 28")).count();
    ensure!(refused > 0, "no write was refused");
    ensure!(!log.contains("panicked at"), "the agent panicked");
    let lost = crowd.end(&before)?;
    say::line(format!(
        "  {scarce} times without space, agent killed {kills} times, {changes} pods made or deleted, {refused} refusals \
         logged; all as wanted after {rest}"
    ));
    lost.say();
    crowd.joined.cluster.ensure_nothing_forbidden()
}
