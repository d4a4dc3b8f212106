//! Plugins of the Node Resource Interface: containerd asks them about each container (docs/decisions/nri.md).

use std::fs;

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::nri::Plugin;
use orlop_harness::native::pods::Pod;

use crate::cases::lifecycle::static_pods::{ready_node, run_pod};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "lifecycle/nri",
    12,
    "a plugin of the runtime hears of the agent's containers and changes them; with its end all goes on without it",
    nri,
)];

/// containerd's default is the second one, and where `/var/run` is a link, as in the image, that is the first one.
const SOCKETS: [&str; 2] = ["/run/nri/nri.sock", "/var/run/nri/nri.sock"];
const VARIABLE: (&str, &str) = ("E2E_NRI", "was-here");

/// A pod that prints the plugin's variable.
fn pod(name: &str) -> Pod {
    Pod::script(name, "trap 'exit 0' TERM; echo \"nri:$E2E_NRI.\"; while :; do sleep 3600 & wait; done")
}

/// The pod's output.
fn says(node: &NativeNode, name: &str) -> Result<String> {
    let id = run_pod(node, &pod(name))?;
    let path = node.inside(&node.cri().status(&id)?.log_path);
    node.wait(20, &format!("{name} to say something"), |_| {
        let text = fs::read_to_string(&path).ok()?;
        text.lines().find_map(|l| Some(l.split_once("nri:")?.1.trim_end_matches('.').to_owned()))
    })
}

fn nri(cx: &mut CaseContext<'_>) -> Result<()> {
    let node = ready_node(cx)?;
    let before = says(&node, "before")?;
    ensure!(before.is_empty(), "without a plugin the variable is {before:?}");
    let socket = SOCKETS.map(|path| node.inside(path)).into_iter().find(|path| path.exists());
    let plugin =
        Plugin::register(&socket.context("no socket of NRI")?, VARIABLE).context("register a plugin")?;
    let with = says(&node, "with")?;
    ensure!(with == VARIABLE.1, "with the plugin the variable is {with:?}");
    ensure!(plugin.seen() == ["c"], "the plugin has heard of {:?}", plugin.seen());
    drop(plugin);
    let after = says(&node, "after")?;
    ensure!(after.is_empty(), "after the plugin has left the variable is {after:?}");
    // The agent has not taken any of this for a change of the pod.
    for name in ["before", "with", "after"] {
        let name = pod(name).full_name();
        let attempts = node.wait(10, &format!("{name} to run"), |v| {
            v.one_running(&name)?;
            Some(v.of(&name).len())
        })?;
        ensure!(attempts == 1, "{name} has had {attempts} containers");
    }
    Ok(())
}
