//! `kubectl top` with the real metrics-server, which requests `/metrics/resource` from the nodes as its service
//! account.

use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, await_pod_gone, burner, holder};
use orlop_harness::cluster::metrics_server;
use orlop_harness::say;
use serde_json::{Value, json};

/// Cases of this file.
pub const CASES: &[Case] = &[CaseDefaults { level: Level::L4n, group: GROUP }.case(
    "api/top",
    60,
    "metrics-server and kubectl top show both nodes, and a pod that burns and holds, with the right figures",
    top,
)];

const POD: &str = "top";
/// CPU limit of the container that burns, in thousandths.
const BURNS_MILLI: u64 = 200;
/// Memory of the other container, MiB.
const HOLDS_MIB: u64 = 64;

fn top(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    joined.run_pod(pod())?;
    metrics_server::start(&mut joined.cluster)?;
    let start = Instant::now();
    for (what, judge) in [("pods", pods as fn(&str) -> Result<()>), ("nodes", nodes)] {
        let text = await_right(joined, what, judge)?;
        text.lines().for_each(|line| say::line(format!("  {line}")));
    }
    say::line(format!("  right {:.1} s after metrics-server was ready", start.elapsed().as_secs_f64()));
    metrics_server::stop(&mut joined.cluster)?;
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), POD, Some(0))?;
    await_pod_gone(&joined.cluster, POD, 60)
}

fn pod() -> Value {
    json!({"metadata": {"name": POD}, "spec": {
        "nodeSelector": {"kubernetes.io/hostname": "first"},
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "containers": [burner(BURNS_MILLI), holder(HOLDS_MIB)],
    }})
}

/// The output of `kubectl top` when it is right: metrics-server has no values before its second request.
fn await_right(joined: &mut Joined, what: &str, judge: fn(&str) -> Result<()>) -> Result<String> {
    let args = match what {
        "pods" => vec!["top", "pods", "--containers", "--no-headers", POD],
        _ => vec!["top", what, "--no-headers"],
    };
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let shown = joined.cluster.kubectl(&args).and_then(|text| judge(&text).map(|()| text));
        match shown {
            Ok(text) => return Ok(text),
            Err(error) if Instant::now() >= deadline => return Err(error.context("after two minutes")),
            Err(_) => joined.nodes[0].pass(Duration::from_secs(1))?,
        }
    }
}

fn pods(text: &str) -> Result<()> {
    // POD NAME CPU(cores) MEMORY(bytes)
    let row = |name: &str| row(text, 1, name);
    within("processor of burns", row("burns")?[2], "m", BURNS_MILLI / 2, BURNS_MILLI * 5 / 4)?;
    within("memory of holds", row("holds")?[3], "Mi", HOLDS_MIB, HOLDS_MIB * 3 / 2)
}

fn nodes(text: &str) -> Result<()> {
    let most = available_parallelism().context("count the processors")?.get() as u64 * 1100;
    for name in ["first", "second"] {
        // NAME CPU(cores) CPU(%) MEMORY(bytes) MEMORY(%)
        let row = row(text, 0, name)?;
        // Native nodes share the machine and its processors.
        within(&format!("processor of {name}"), row[1], "m", BURNS_MILLI / 2, most)?;
        within(&format!("memory of {name}"), row[3], "Mi", HOLDS_MIB, u64::MAX)?;
        within(&format!("part of the memory of {name}"), row[4], "%", 1, 100)?;
    }
    Ok(())
}

fn row<'a>(text: &'a str, column: usize, name: &str) -> Result<Vec<&'a str>> {
    let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = rows.find(|row| row.get(column) == Some(&name) && row.len() >= 4);
    found.with_context(|| format!("no {name}:\n{text}"))
}

fn within(what: &str, found: &str, unit: &str, low: u64, high: u64) -> Result<()> {
    let amount = found.strip_suffix(unit).and_then(|number| number.parse().ok());
    let fits = amount.is_some_and(|amount: u64| (low..=high).contains(&amount));
    ensure!(fits, "{what} is {found}, not {low} to {high} {unit}");
    Ok(())
}
