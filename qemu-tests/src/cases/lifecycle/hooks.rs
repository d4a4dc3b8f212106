//! Lifecycle hooks on a real node: their order relative to start and stop, and their part of the grace period.
//!
//! Cases: `lifecycle/hooks-order`, `lifecycle/hooks-grace`.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, Level, human};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS};
use orlop_harness::cluster::ready;
use orlop_harness::say;
use serde_json::{Value, json};

use crate::cases::lifecycle::probes::{
    await_event, await_pod, container, create, delete, running, shared, sharing_pod,
};

/// Cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "lifecycle/hooks-order",
        level: Level::L4n,
        expected_s: 40,
        about: "postStart ends before the next container starts, preStop before TERM; failures are told and kill",
        group: GROUP,
        run: order,
    },
    Case {
        name: "lifecycle/hooks-grace",
        level: Level::L4n,
        expected_s: 30,
        about: "preStop eats the grace: one that lasts too long is cut off, and the stop follows at once",
        group: GROUP,
        run: grace,
    },
];

/// The node's directory that pods see as `/data`.
const SHARED: &str = "/var/log/e2e-hooks";

fn exec(script: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", script]}})
}

fn written(dir: &Path, file: &str) -> Result<String> {
    let path = dir.join(file);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

fn order(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let (cluster, node) = (&joined.cluster, &joined.nodes[0]);
    let dir = shared(node, SHARED)?;
    let script = "echo main >> /data/order; trap 'echo term >> /data/order; exit 0' TERM; \
                  while :; do sleep 3600 & wait; done";
    // The hook waits for the program's line and then for the test, so that neither depends on the other's speed.
    let post = "cd /data; while [ ! -e order ]; do sleep 1; done; echo begun >> order; \
                while [ ! -e go ]; do sleep 1; done; echo post >> order";
    let pre = "sleep 1; echo pre >> /data/order";
    let lifecycle = json!({"lifecycle": {"postStart": exec(post), "preStop": exec(pre)}});
    let mut pod = sharing_pod("orders", SHARED, script, 30, &lifecycle);
    let mut second = pod["spec"]["containers"][0].clone();
    second["name"] = json!("d");
    second["lifecycle"] = json!({});
    second["ports"] = json!([]);
    second["command"] = json!(["sh", "-c", format!("echo second >> /data/order; {STAYS}")]);
    pod["spec"]["containers"].as_array_mut().context("a list")?.push(second);
    create(cluster, pod)?;
    node.wait(60, "the postStart hook to run", |_| {
        written(&dir, "order").is_ok_and(|text| text.contains("begun")).then_some(())
    })?;
    let told = written(&dir, "order")?;
    ensure!(told == "main\nbegun\n", "{told:?}");
    fs::write(dir.join("go"), "")?;
    let pod = await_pod(cluster, "orders", "to be ready", ready::pod)?;
    ensure!(container(&pod).is_some_and(|c| c.started == Some(true) && c.restart_count == 0));
    delete(cluster, &["orders"])?;
    let told = written(&dir, "order")?;
    ensure!(told == "main\nbegun\npost\nsecond\npre\nterm\n", "{told:?}");

    let failing = json!({"lifecycle": {"postStart": exec("exit 3"), "preStop": exec("exit 4")}});
    create(cluster, sharing_pod("fails", SHARED, STAYS, 1, &failing))?;
    await_event(cluster, "fails", "FailedPostStartHook", "PostStartHook failed")?;
    await_event(cluster, "fails", "Killing", "FailedPostStartHook")?;
    await_event(cluster, "fails", "FailedPreStopHook", "PreStopHook failed")?;
    await_pod(cluster, "fails", "to be restarted", |p| container(p).is_some_and(|c| c.restart_count >= 1))?;
    delete(cluster, &["fails"])
}

fn grace(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let cluster = &joined.cluster;
    let dir = shared(&joined.nodes[0], SHARED)?;
    let hang = exec("echo in >> /data/late; sleep 600; echo out >> /data/late");
    // The pod, its hook, its grace period, and the shortest time of its end.
    let table = [
        ("sleeps", json!({"sleep": {"seconds": 3}}), 60, 3),
        ("sleeps-not", json!({"sleep": {"seconds": 0}}), 60, 0),
        ("hangs", hang, 3, 3),
    ];
    for (name, hook, grace_s, least) in table {
        let lifecycle = json!({ "lifecycle": { "preStop": hook } });
        create(cluster, sharing_pod(name, SHARED, STAYS, grace_s, &lifecycle))?;
        await_pod(cluster, name, "to run", running)?;
        let start = Instant::now();
        delete(cluster, &[name])?;
        let took = start.elapsed();
        say::line(format!("  {name}: {least} s of a grace of {grace_s} s; gone after {}", human(took)));
        ensure!((least..40).contains(&took.as_secs()), "{name}: gone after {}", human(took));
    }
    let told = written(&dir, "late")?;
    ensure!(told == "in\n", "{told:?}");
    Ok(())
}
