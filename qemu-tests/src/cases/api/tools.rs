//! What people use to look into a node: its log directory, commands by `/run`, checkpoints, `/statusz` and `/flagz`.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone, uid};
use orlop_harness::cluster::flood::{Flood, takers_of_nothing, tokens};
use orlop_harness::cluster::kubeconfig::Credentials;
use orlop_harness::cluster::node_api::NodeApi;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::proxy::inside;
use orlop_harness::cluster::strangers::{endless_body, endless_head, silent_crowd, slow_head};
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;
use orlop_harness::usage::resident_kib;
use serde_json::Value;

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
        about: "commands by /run, a checkpoint that the runtime refuses, /statusz and /flagz, the log level, profiles",
        group: GROUP,
        run: tools,
    },
    Case {
        name: "api/strangers",
        level: Level::L4n,
        expected_s: 240,
        about: "silent connections, endless heads and bodies, tokens without end, answers that are not taken: node unmoved",
        group: GROUP,
        run: strangers,
    },
];

const FIRST: &str = "172.30.0.10";
/// Set: `api/strangers` floods the node with 1,000 connections of 250 streams for a minute.
const WHOLE_FLOOD: &str = "ORLOP_E2E_WHOLE_FLOOD";

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
    debugging(&node, &admin)?;
    let configz: Value = serde_json::from_str(&node.get(Some(&admin), "/configz")?.1)?;
    ensure!(configz["kubeletconfig"]["enableSystemLogQuery"] == true, "{configz}");
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "obeys", None)?;
    await_pod_gone(&joined.cluster, "obeys", 30)
}

/// The log level of the running agent, and profiles.
fn debugging(node: &NodeApi<'_>, admin: &Credentials) -> Result<()> {
    let set = |level: &str| node.send(Some(admin), "PUT", "/debug/flags/v", level);
    for (level, status, words) in [
        ("4", 200, "successfully set klog.logging.verbosity to 4\n"),
        ("much", 400, "strconv.ParseUint: parsing \"much\": invalid syntax\n"),
        ("2", 200, "successfully set klog.logging.verbosity to 2\n"),
    ] {
        let (is, said) = set(level)?;
        ensure!((is, said.as_str()) == (status, words), "level {level}: {is} {said}");
    }
    let (status, said) = set(&"9".repeat(1000))?;
    ensure!(status == 400 && said.starts_with("error reading request body"), "{status} {said}");
    let (status, said) = node.get(Some(admin), "/debug/pprof/cmdline")?;
    ensure!(status == 200 && said.contains("\0--kubeconfig="), "/debug/pprof/cmdline: {status} {said}");
    let (status, said) = node.get(Some(admin), "/debug/pprof/heap")?;
    ensure!(status == 501 && said.contains("keeps no record"), "/debug/pprof/heap: {status} {said}");
    Ok(())
}

fn strangers(cx: &mut CaseContext<'_>) -> Result<()> {
    const MIB: usize = 1024 * 1024;
    let joined = Joined::shared(cx)?;
    let pod = joined.run_pod(api_pod("unmoved", "first", &format!("echo here; {STAYS}"), 1))?;
    let (cluster, node) = (&joined.cluster, &joined.nodes[0]);
    let api = NodeApi::at(cluster, FIRST)?;
    let admin = cluster.pki().node_admin()?;
    api.await_healthy(&admin, 30)?;
    let before = resident_kib(node.agent_pid()?)? / 1024;
    let ready = ready_since(cluster)?;
    let address = SocketAddr::new(FIRST.parse()?, 10250);
    let ca = cluster.pki().ca.pem.clone();
    // The crowd comes last: of one source the node ends the oldest strangers in favour of newcomers.
    let all = inside(cluster.pid()?, async move || {
        let (slow, head, body) = tokio::join!(
            slow_head(address, &ca),
            endless_head(address, &ca, 1024 * MIB),
            endless_body(address, &ca, 1024 * MIB),
        );
        Ok((slow, head, body, silent_crowd(address, 10_000, Duration::from_secs(15)).await))
    });
    let (slow, head, body, crowd) = all?;
    let (slow, head, body, crowd) = (slow?, head?, body?, crowd?);
    say::line(format!(
        "a byte at a time: ended after {slow:.0?}; {head} bytes of a head, {} of a body",
        body.1
    ));
    // Buffers of the sockets take some beyond the limit.
    ensure!(head < 16 * MIB, "{head} bytes of a head without end were taken");
    ensure!(body.0 == 401 && body.1 < 16 * MIB, "a body without end: {body:?}");
    ensure!(crowd >= 1000, "only {crowd} of 10000 connections were taken");
    api.await_healthy(&admin, 60)?;
    let after = resident_kib(node.agent_pid()?)? / 1024;
    say::line(format!(
        "{crowd} of 10000 silent connections taken and ended; agent {before} MiB, then {after} MiB"
    ));
    ensure!(node.http_get(10248, "/healthz")? == "ok", "healthz on 10248");
    ensure!(ready_since(cluster)? == ready, "the node was not Ready all the time");
    let client = cluster.client();
    let same = client.get::<Pod>(&client.of("default"), "unmoved")?.context("the pod")?;
    ensure!(same.status == pod.status, "the pod was moved: {:?}", same.status);
    flood(cluster, address, node)?;
    ensure!(ready_since(cluster)? == ready, "the node was not Ready all the time");
    client.delete::<Pod>(&client.of("default"), "unmoved", None)?;
    await_pod_gone(cluster, "unmoved", 30)
}

/// Tokens that nobody has issued, then connections that take nothing of their answers: heartbeats and an admin's
/// `kubectl logs` do not suffer.
fn flood(cluster: &Cluster, address: SocketAddr, node: &NativeNode) -> Result<()> {
    // The whole of it takes a host with more processors than this one.
    let whole = std::env::var_os(WHOLE_FLOOD).is_some();
    let flood = match whole {
        true => Flood { connections: 1000, streams: 250, lasts: Duration::from_secs(60) },
        false => Flood { connections: 200, streams: 100, lasts: Duration::from_secs(20) },
    };
    let before = resident_kib(node.agent_pid()?)? / 1024;
    let (flooded, heartbeats) = while_asked(cluster, async |ca: String| tokens(address, &ca, flood).await)?;
    let after = resident_kib(node.agent_pid()?)? / 1024;
    say::line(format!("{flood:?}: {flooded:?}; {heartbeats}; agent {before} MiB, then {after} MiB"));
    ensure!(after < before + 128, "the agent grew from {before} to {after} MiB");
    let (lived, heartbeats) = while_asked(cluster, async |ca: String| {
        takers_of_nothing(address, &ca, 1000, Duration::from_secs(120)).await
    })?;
    say::line(format!("1000 connections that take nothing lived {lived:.0?} at most; {heartbeats}"));
    Ok(())
}

/// Runs strangers in the plane's network; meanwhile the lease must be renewed and a log be shown.
fn while_asked<T: Send>(
    cluster: &Cluster,
    strangers: impl AsyncFnOnce(String) -> Result<T> + Send,
) -> Result<(T, String)> {
    let (pid, ca) = (cluster.pid()?, cluster.pki().ca.pem.clone());
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || inside(pid, async move || strangers(ca).await));
        let (mut oldest, mut slowest, mut logs) = (Duration::ZERO, Duration::ZERO, 0);
        while !thread.is_finished() {
            oldest = oldest.max(lease_age(cluster)?);
            let asked = Instant::now();
            let said = cluster.kubectl(&["logs", "unmoved"])?;
            ensure!(said == "here", "the log of the pod: {said}");
            slowest = slowest.max(asked.elapsed());
            logs += 1;
        }
        let came = thread.join().map_err(|_| anyhow::anyhow!("the strangers' thread panicked"))??;
        ensure!(logs >= 3, "only {logs} logs were shown");
        // It is renewed every 10 s, and Ready ends after 40 s without.
        ensure!(oldest < Duration::from_secs(20), "the lease was {oldest:?} old");
        Ok((came, format!("lease {oldest:.0?} old at most, {logs} logs, the slowest after {slowest:.1?}")))
    })
}

fn lease_age(cluster: &Cluster) -> Result<Duration> {
    let path = "jsonpath={.spec.renewTime}";
    let renewed = cluster.kubectl(&["get", "lease", "-n", "kube-node-lease", "first", "-o", path])?;
    let renewed: Timestamp = renewed.parse().context("the lease's renewTime")?;
    let age = Timestamp::now().duration_since(renewed);
    Ok(Duration::try_from(age).unwrap_or_default())
}

/// Since when the node has been Ready.
fn ready_since(cluster: &Cluster) -> Result<String> {
    let path = "{.status.conditions[?(@.type==\"Ready\")]['status','lastTransitionTime']}";
    let said = cluster.kubectl(&["get", "node", "first", "-o", &format!("jsonpath={path}")])?;
    ensure!(said.starts_with("True "), "the node is not Ready: {said}");
    Ok(said)
}
