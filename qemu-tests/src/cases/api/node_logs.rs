//! The log directory of a node by the node API: files by path and by query, and nothing outside of the directory.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone, uid};
use orlop_harness::cluster::node_api::NodeApi;

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "api/node-logs",
    level: Level::L4n,
    expected_s: 15,
    about: "files of /var/log by path and by query, links inside of it, and nothing outside of it",
    group: GROUP,
    run: node_logs,
}];

const FIRST: &str = "172.30.0.10";

fn node_logs(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let pod = joined.run_pod(api_pod("writes", "first", &format!("echo a line; {STAYS}"), 1))?;
    let uid = uid(&pod)?;
    let log = |path: &str| joined.nodes[0].inside(&format!("/var/log/{path}"));
    fs::write(log("cron.log"), "at noon\n").context("write a log")?;
    symlink("/etc/passwd", log("passwd")).context("make a link that leads out")?;
    let raw = |path: &str| {
        joined.cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/first/proxy/logs/{path}")])
    };
    let page = raw("")?;
    for name in ["containers/", "pods/", "cron.log"] {
        ensure!(page.contains(&format!("<a href=\"{name}\">{name}</a>")), "no {name} on {page}");
    }
    let by_path = format!("pods/default_writes_{uid}/c/0.log");
    ensure!(raw(&by_path)?.ends_with(" stdout F a line"), "{by_path}: {}", raw(&by_path)?);
    let linked = raw("containers/")?;
    let link =
        linked.split('"').find(|name| name.starts_with("writes_default_c-")).context("a link to the log")?;
    let link = format!("containers/{link}");
    ensure!(raw(&link)?.ends_with(" stdout F a line"), "{link}: {}", raw(&link)?);
    ensure!(raw("cron.log")? == "at noon", "by path");
    for query in ["?query=cron", "?query=/cron.log", "?query=cron.log"] {
        ensure!(raw(query)?.trim() == "at noon", "{query}: {}", raw(query)?);
    }
    // This node has no journal; `join/vm` tests one in a VM.
    ensure!(raw("?query=nobody")?.contains("log not found for nobody"), "{}", raw("?query=nobody")?);
    let node = NodeApi::at(&joined.cluster, FIRST)?;
    let admin = joined.cluster.pki().node_admin()?;
    for (path, status) in [
        ("/logs/passwd", 404),
        ("/logs/../../etc/passwd", 404),
        ("/logs/..%2f..%2fetc%2fpasswd", 404),
        ("/logs/%2e%2e/%2e%2e/etc/passwd", 404),
        ("/logs/?query=/passwd", 406),
        ("/logs/?query=/../../etc/passwd", 406),
        ("/logs/?query=passwd", 200),
        ("/logs/pods", 301),
    ] {
        let (is, body) = node.get(Some(&admin), path)?;
        ensure!(is == status && !body.contains("root:"), "{path}: {is} {body}");
    }
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "writes", None)?;
    await_pod_gone(&joined.cluster, "writes", 30)?;
    joined.cluster.ensure_nothing_forbidden()
}
