//! The agent killed, the runtime restarted: running containers go on, and changes of the meantime are applied.
//!
//! Cases: `lifecycle/agent-killed-50`, `lifecycle/containerd-restart`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::native::cri::View;
use orlop_harness::native::node::NativeNode;
use orlop_harness::native::pods::Pod;
use orlop_harness::rng::Rng;

use crate::cases::lifecycle::static_pods::{await_gone, ready_node, run_pod};

/// Cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "lifecycle/agent-killed-50",
        level: Level::L4n,
        expected_s: 60,
        about: "kill -9 of the agent at 50 random moments: no container restarted, none left behind",
        group: None,
        run: agent_killed,
    },
    Case {
        name: "lifecycle/containerd-restart",
        level: Level::L4n,
        expected_s: 10,
        about: "containerd is killed and comes back: pods run on, and what was asked meanwhile is done",
        group: None,
        run: containerd_restart,
    },
];

const KILLS: u32 = 50;
const STABLE: u32 = 4;
const FLEETING: u32 = 6;

fn stable(n: u32) -> Pod {
    Pod::staying(&format!("stable{n}"))
}

fn fleeting(n: u32) -> Pod {
    Pod::staying(&format!("fleeting{n}"))
}

/// Pods that are created and deleted.
#[derive(Clone, Copy, Default)]
struct Fleeting {
    wanted: bool,
    /// Number of its manifests so far.
    came: u32,
}

fn last_attempt(view: &View, pod: &str) -> u32 {
    view.of(pod).into_iter().filter_map(|c| c.metadata.as_ref()).map(|m| m.attempt).max().unwrap_or(0)
}

/// Checks that must hold at any time: at most one live container of each pod, and no second attempt. If a manifest is
/// back before all of its pod was gone, that pod's attempts go on counting.
fn check(view: &View, ids: &BTreeMap<String, String>, fleeting_pods: &[Fleeting]) -> Result<()> {
    for (pod, id) in ids {
        let running = view.running(pod);
        ensure!(
            running.len() == 1 && running[0].id == *id,
            "{pod} was to run on as {id}; instead:\n{}",
            view.describe()
        );
        ensure!(last_attempt(view, pod) == 0, "{pod} was restarted:\n{}", view.describe());
    }
    for (n, pod) in (0..).zip(fleeting_pods) {
        let name = fleeting(n).full_name();
        ensure!(view.running(&name).len() <= 1, "{name} runs twice:\n{}", view.describe());
        ensure!(last_attempt(view, &name) < pod.came.max(1), "{name} was restarted:\n{}", view.describe());
    }
    Ok(())
}

fn agent_killed(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut node = ready_node(cx)?;
    let mut rng = Rng::new(cx.seed);
    let mut ids = BTreeMap::new();
    for n in 0..STABLE {
        ids.insert(stable(n).full_name(), run_pod(&node, &stable(n))?);
    }
    let mut pods = [Fleeting::default(); FLEETING as usize];
    for _ in 0..KILLS {
        // One or two changes, then the agent dies at some point of its work on them.
        for _ in 0..=rng.below(2) {
            toggle(&node, &mut pods, rng.below(FLEETING))?;
        }
        node.pass(Duration::from_millis(u64::from(rng.below(400))))?;
        node.kill_agent()?;
        check(&node.cri().view()?, &ids, &pods)?;
        if rng.below(4) == 0 {
            // The agent must also find changes of the time in which it was dead.
            toggle(&node, &mut pods, rng.below(FLEETING))?;
        }
        node.start_agent()?;
    }
    node.await_agent_ready()?;
    for (n, Fleeting { wanted, .. }) in (0..).zip(pods) {
        let name = fleeting(n).full_name();
        if wanted {
            node.wait(60, &format!("{name} to run"), |v| v.one_running(&name))?;
        } else {
            await_gone(&node, 60, &name)?;
        }
    }
    let left = STABLE as usize + pods.iter().filter(|pod| pod.wanted).count();
    let view = node.wait(60, "nothing but the wanted pods", |v| {
        (v.containers.len() == left && v.sandboxes.len() == left).then(|| v.clone())
    })?;
    check(&view, &ids, &pods)
}

fn toggle(node: &NativeNode, pods: &mut [Fleeting; FLEETING as usize], n: u32) -> Result<()> {
    let pod = fleeting(n);
    let state = &mut pods[n as usize];
    state.wanted = !state.wanted;
    if state.wanted {
        state.came += 1;
        node.write_manifest(&pod.file(), &pod.manifest())
    } else {
        node.remove_manifest(&pod.file())
    }
}

fn containerd_restart(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut node = ready_node(cx)?;
    let stays = run_pod(&node, &Pod::staying("stays"))?;
    let goes = Pod::staying("goes");
    run_pod(&node, &goes)?;
    let agent = node.agent_pid()?;
    node.kill_containerd()?;
    // Changes while containerd is dead.
    node.write_manifest("comes.yaml", &Pod::staying("comes").manifest())?;
    node.remove_manifest(&goes.file())?;
    ensure!(node.http_get(10248, "/healthz")?.trim() == "ok", "healthz while the runtime is down");
    node.start_containerd()?;
    node.wait(60, "the pod asked for meanwhile", |v| v.one_running("comes-native"))?;
    await_gone(&node, 60, "goes-native")?;
    let view = node.cri().view()?;
    ensure!(view.one_running("stays-native") == Some(stays), "the pod was restarted:\n{}", view.describe());
    ensure!(node.agent_pid()? == agent, "the agent did not have to be restarted");
    run_pod(&node, &Pod::staying("after"))?;
    Ok(())
}
