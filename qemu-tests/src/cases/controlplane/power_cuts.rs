//! Power cuts at random moments of the start: afterwards the same cluster is there, with what it had acknowledged.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use orlop_harness::case::{Case, CaseContext};
use orlop_harness::cluster::hosted_plane::{NODE, READY_LIMIT_S};
use orlop_harness::cluster::ready;
use orlop_harness::rng::Rng;
use orlop_harness::say;
use serde_json::json;

use super::{HERE, POD, await_pod, await_static_pods, plane};

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "controlplane/power-cuts",
    300,
    "power cuts at random moments: etcd has what it acknowledged, the node is the same and Ready again, its pods run",
    power_cuts,
)];

/// Number of cuts.
const CUTS_VARIABLE: &str = "ORLOP_E2E_POWER_CUTS";
/// Number of cuts without the variable: they and the last boot take five minutes.
const CUTS: u32 = 3;
/// A cut comes at most so long after the kernel has started init, milliseconds: later than etcd and the API server begin.
const WINDOW_MS: u32 = 60_000;
/// An object that the API server has acknowledged.
const KEPT: &str = "kept";
/// A pod that is made after the cuts.
const ANOTHER: &str = "another";

fn power_cuts(cx: &mut CaseContext<'_>) -> Result<()> {
    let cuts = std::env::var(CUTS_VARIABLE).map_or(Ok(CUTS), |n| n.parse::<u32>());
    let cuts = cuts.with_context(|| format!("{CUTS_VARIABLE} is a number of power cuts"))?;
    let mut rng = Rng::new(cx.seed);
    let plane = plane(cx)?;
    let client = plane.client();
    let before = client.get::<Node>(&client.all(), NODE)?.context("no node")?.metadata.uid;
    let value = format!("{:016x}", rng.bits());
    client.create::<ConfigMap>(
        &client.of("default"),
        json!({"metadata": {"name": KEPT}, "data": {"value": value}}),
    )?;
    await_pod(plane, POD)?;
    // Nothing announces a cut to the machine.
    plane.cut_power();
    for number in 1..=cuts {
        let time = Duration::from_millis(u64::from(rng.below(WINDOW_MS)));
        plane.boot()?;
        plane.run_for(time)?;
        plane.cut_power();
        say::line(format!("  cut {number} of {cuts} after {:.1} s", time.as_secs_f64()));
    }
    plane.boot()?;
    let node = plane.await_ready()?;
    ensure!(node.metadata.uid == before, "the node registered as another one");
    let client = plane.client();
    let kept =
        client.get::<ConfigMap>(&client.of("default"), KEPT)?.context("an acknowledged object is gone")?;
    let found = kept.data.and_then(|data| data.get("value").cloned());
    ensure!(found.as_deref() == Some(value.as_str()), "an acknowledged object has changed: {found:?}");
    let pods = client.of::<Pod>("default");
    client.wait(&pods, READY_LIMIT_S, "the pod to have been started again", |all| {
        let pod = all.get(POD)?;
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        (ready::pod(pod) && statuses.iter().all(|status| status.restart_count > 0)).then_some(())
    })?;
    // Scheduler and controllers work: what the API shows of their own pods may be from before the cuts.
    await_pod(plane, ANOTHER)?;
    await_static_pods(plane)?;
    client.delete::<Pod>(&pods, ANOTHER, None)?;
    client.delete::<ConfigMap>(&client.of("default"), KEPT, None)
}
