//! The old slot examines a trial that has ended: what the cluster did is not the version's fault.

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{await_event, event};
use orlop_harness::say;
use serde_json::json;

use super::bad_version::await_trial;
use super::cluster_trial::{ClusterTrial, VM};
use super::published::VERSION;
use super::trial::{RETURN_LIMIT_S, await_slot};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "update/examined",
    960,
    "the API server is away during a trial: the version is held, goes back, and is not refused, because the old slot finds the check green",
    examined,
)];

/// The hold ends four minutes after the boot. The machine has begun that boot when this is waited for.
const HOLD_LIMIT_S: u64 = 240 + RETURN_LIMIT_S;

fn examined(cx: &mut CaseContext<'_>) -> Result<()> {
    let trial = json!({"deadline": "3m", "soak": "1m", "holdMax": "4m"});
    let mut tried = ClusterTrial::begin(cx, &trial)?;
    tried.cluster.kill_apiserver()?;
    let vm = tried.vm()?;
    // Its agent may not be ready without an API server.
    await_trial(vm)?;
    vm.expect_restart()?;
    vm.restarted(HOLD_LIMIT_S).context("the version is held for longer than holdMax")?;
    // Nothing is wrong with the cluster when the old slot looks.
    tried.cluster.restart_apiserver()?;
    let vm = tried.vm()?;
    await_slot(vm, "slot A")?;
    let ends = ["the cluster may have been at fault", "the old version fails this check as well"];
    let said = vm.await_console(RETURN_LIMIT_S, "the end of the examination", |line| {
        line.contains("update: UpdateRolledBack: ") && ends.iter().any(|end| line.contains(end))
    })?;
    say::line(format!("  {said}"));
    ensure!(said.contains(VERSION) && said.contains("api"), "the agent says {said:?}");
    await_event(&tried.cluster, "UpdateRolledBack", VM, 120)?;
    tried.await_failed("api", 120)?;
    tried.await_as_before(240)?;
    let refused = event(&tried.cluster, "UpdateRefused")?;
    ensure!(refused.is_none(), "the version is refused for what the cluster did: {refused:?}");
    tried.cluster.ensure_nothing_forbidden()
}
