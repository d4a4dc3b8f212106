//! What people use to look into a node: its log directory, commands by `/run`, checkpoints, `/statusz` and `/flagz`.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::case::{Case, CaseContext, Level};
use crate::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone};
use crate::cluster::node_api::NodeApi;

/// Cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "api/node-logs",
        level: Level::L4n,
        expected_s: 15,
        about: "files of /var/log by path and by query, links inside of it, and nothing outside of it",
        group: GROUP,
        run: node_logs,
    },
    Case {
        name: "api/tools",
        level: Level::L4n,
        expected_s: 15,
        about: "commands by /run, a checkpoint that the runtime refuses, /statusz and /flagz",
        group: GROUP,
        run: tools,
    },
];

const FIRST: &str = "172.30.0.10";

fn node_logs(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    let pod = joined.run_pod(api_pod("writes", "first", &format!("echo a line; {STAYS}"), 1))?;
    let uid = pod.metadata.uid.context("a UID")?;
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
    // Nothing writes a journal on this node; in the VM something does (join/vm).
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

fn tools(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    joined.run_pod(api_pod("obeys", "first", STAYS, 1))?;
    let node = NodeApi::at(&joined.cluster, FIRST)?;
    let admin = joined.cluster.pki().node_admin()?;
    let post = |path: &str| node.post(&admin, path);
    let (status, said) = post("/run/default/obeys/c?cmd=echo+it+is+done")?;
    ensure!((status, said.as_str()) == (200, "it is done\n"), "/run: {status} {said}");
    let (status, said) = post("/run/default/obeys/c?cmd=ls+/nothing")?;
    let words = "command 'ls /nothing' exited with 1: ls: /nothing: No such file or directory";
    ensure!(status == 500 && said.trim() == words, "/run of a command that fails: {status} {said}");
    ensure!(post("/run/default/obeys/other?cmd=ls")?.0 == 500, "/run in a container that is not there");
    ensure!(post("/run/default/nobody/c?cmd=ls")?.0 == 404, "/run in a pod that is not there");
    ensure!(node.get(Some(&admin), "/run/default/obeys/c?cmd=ls")?.0 == 405, "GET of /run");
    // The image has no criu: the runtime's refusal is what people see.
    let (status, said) = post("/checkpoint/default/obeys/c")?;
    ensure!(
        status == 500 && said.starts_with("checkpointing of default/obeys/c failed ("),
        "{status} {said}"
    );
    ensure!(post("/checkpoint/default/obeys/none")?.0 == 404, "a checkpoint of nothing");
    let stranger = joined.cluster.pki().client("stranger", "stranger", None)?.credentials()?;
    for (path, subresource) in
        [("/run/default/obeys/c?cmd=id", "proxy"), ("/checkpoint/default/obeys/c", "checkpoint")]
    {
        let (status, said) = node.post(&stranger, path)?;
        ensure!(
            status == 403
                && said.contains(&format!("verb=create, resource=nodes, subresource(s)=[{subresource}")),
            "{said}"
        );
    }
    let (status, page) = node.get(Some(&admin), "/statusz")?;
    ensure!(
        status == 200 && page.contains("kubelet statusz") && page.contains("Emulation version: 1.36"),
        "{page}"
    );
    let (status, flags) = node.get(Some(&admin), "/flagz")?;
    ensure!(status == 200 && flags.contains("\nkubeconfig="), "{flags}");
    let configz: Value = serde_json::from_str(&node.get(Some(&admin), "/configz")?.1)?;
    ensure!(configz["kubeletconfig"]["enableSystemLogQuery"] == true, "{configz}");
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "obeys", None)?;
    await_pod_gone(&joined.cluster, "obeys", 30)
}
