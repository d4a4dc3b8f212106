//! `kubectl logs` with all its options.
//!
//! Cases: `api/logs`, `api/logs-follow`.

use std::fs::{self, File};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone};
use orlop_harness::cluster::node_api::NodeApi;
use orlop_harness::process::Guarded;
use orlop_proto::cri::v1::ReopenContainerLogRequest;
use serde_json::json;

/// Cases of this file.
pub const CASES: &[Case] = &[
    Case {
        name: "api/logs",
        level: Level::L4n,
        expected_s: 30,
        about: "kubectl logs: whole, --tail, --since, --since-time, --limit-bytes, --timestamps, --previous, long lines, one output alone",
        group: GROUP,
        run: logs,
    },
    Case {
        name: "api/logs-follow",
        level: Level::L4n,
        expected_s: 20,
        about: "kubectl logs -f goes through a rotation, loses no line, and ends with its container",
        group: GROUP,
        run: follow,
    },
];

const FIRST: &str = "172.30.0.10";

fn logs(cx: &mut CaseContext<'_>) -> Result<()> {
    let joined = Joined::shared(cx)?;
    // The runtime reads the two outputs apart: their order is that of their times.
    let script = "echo one; sleep 0.3; echo two >&2; sleep 0.3; echo three; sleep 2; echo new; \
                  head -c 40000 /dev/zero | tr '\\0' x; echo; ";
    joined.run_pod(api_pod("talks", "first", &format!("{script}{STAYS}"), 1))?;
    let kubectl = |args: &[&str]| joined.cluster.kubectl(&[&["logs", "talks"], args].concat());
    let long = "x".repeat(40_000);
    let all = format!("one\ntwo\nthree\nnew\n{long}");
    let deadline = Instant::now() + Duration::from_secs(20);
    while kubectl(&[])? != all {
        ensure!(Instant::now() < deadline, "kubectl logs: {:.300}", kubectl(&[])?);
    }
    // The long line is three records of the runtime's.
    ensure!(kubectl(&["--tail=4"])? == format!("new\n{long}"), "--tail=4: {:.100}", kubectl(&["--tail=4"])?);
    ensure!(kubectl(&["--tail=0"])?.is_empty(), "--tail=0");
    ensure!(kubectl(&["--limit-bytes=5"])? == "one\nt", "--limit-bytes=5");
    ensure!(kubectl(&["--since=1h"])? == all, "--since=1h");
    let timed = kubectl(&["--timestamps"])?;
    let times: Vec<jiff::Timestamp> = timed
        .lines()
        .map(|line| line.split(' ').next().unwrap_or_default().parse().context("a time before each line"))
        .collect::<Result<_>>()?;
    ensure!(times.len() == 5 && times.is_sorted(), "--timestamps: {timed:.300}");
    let since = format!("--since-time={}", times[3]);
    ensure!(kubectl(&[&since])? == format!("new\n{long}"), "{since}: {:.100}", kubectl(&[&since])?);
    ensure!(kubectl(&["-c", "other"]).is_err(), "a container that is not there has a log");
    ensure!(kubectl(&["--previous"]).is_err(), "a container that never ended has a previous log");
    // One output stream only; the API server's own gate is off, so the request goes to the node.
    let (node, admin) = (NodeApi::at(&joined.cluster, FIRST)?, joined.cluster.pki().node_admin()?);
    for (query, status, body) in [
        ("stream=Stderr", 200, "two\n".to_owned()),
        ("stream=Stdout", 200, format!("one\nthree\nnew\n{long}\n")),
        ("stream=All", 200, format!("{all}\n")),
        ("stream=Stdout&tailLines=1", 422, r#"{"message":"Invalid request."}"#.to_owned()),
    ] {
        let said = node.get(Some(&admin), &format!("/containerLogs/default/talks/c?{query}"))?;
        ensure!(said == (status, body), "{query}: {} {:.100}", said.0, said.1);
    }
    previous(joined)?;
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "talks", None)?;
    await_pod_gone(&joined.cluster, "talks", 30)?;
    joined.cluster.ensure_nothing_forbidden()
}

fn previous(joined: &Joined) -> Result<()> {
    let script = "[ -e /d/x ] && { echo second run; trap 'exit 0' TERM; while :; do sleep 3600 & wait; done; }; \
                  touch /d/x; echo first run; exit 1";
    let mut pod = api_pod("fails-once", "first", script, 1);
    pod["spec"]["volumes"] = json!([{"name": "d", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "d", "mountPath": "/d"}]);
    let client = joined.cluster.client();
    client.create::<Pod>(&client.of("default"), pod)?;
    client.wait::<Pod, _>(&client.of("default"), 60, "the second run", |all| {
        let status = all.get("fails-once")?.status.as_ref()?;
        let container = status.container_statuses.as_ref()?.first()?;
        (container.restart_count == 1 && container.state.as_ref()?.running.is_some()).then_some(())
    })?;
    let kubectl = |args: &[&str]| joined.cluster.kubectl(&[&["logs", "fails-once"], args].concat());
    ensure!(kubectl(&["--previous"])? == "first run", "--previous: {}", kubectl(&["--previous"])?);
    let deadline = Instant::now() + Duration::from_secs(10);
    while kubectl(&[])? != "second run" {
        ensure!(Instant::now() < deadline, "the second run's log: {}", kubectl(&[])?);
    }
    client.delete::<Pod>(&client.of("default"), "fails-once", None)?;
    await_pod_gone(&joined.cluster, "fails-once", 30)
}

fn follow(cx: &mut CaseContext<'_>) -> Result<()> {
    let (run, artefacts) = (cx.run.clone(), cx.artefacts.clone());
    let joined = Joined::shared(cx)?;
    // The container ends after five hundred lines in about ten seconds.
    let script = "i=0; while [ $i -lt 500 ]; do echo $i; i=$((i+1)); sleep 0.02; done";
    let mut pod = api_pod("counts", "first", script, 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    joined.run_pod(pod)?;
    fs::create_dir_all(&artefacts)?;
    let output = artefacts.join("follow.log");
    let mut command = joined.cluster.kubectl_command(&["logs", "-f", "counts"]);
    command
        .stdin(Stdio::null())
        .stdout(File::create(&output)?)
        .stderr(File::create(artefacts.join("stderr"))?);
    let mut following = Guarded::spawn(&run, &mut command)?;
    let seen = || fs::read_to_string(&output).unwrap_or_default();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !seen().contains("\n20\n") {
        ensure!(Instant::now() < deadline, "nothing is followed: {}", seen());
        joined.nodes[0].pass(Duration::from_millis(50))?;
    }
    rotate(joined)?;
    if following.wait(Duration::from_secs(60))?.is_none() {
        bail!(
            "kubectl logs -f does not end with its container; its last line is {:?}",
            seen().lines().last()
        );
    }
    let expected: String = (0..500).map(|n| format!("{n}\n")).collect();
    ensure!(seen() == expected, "lines are missing or out of order:\n{}", seen());
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "counts", None)?;
    await_pod_gone(&joined.cluster, "counts", 30)?;
    joined.cluster.ensure_nothing_forbidden()
}

/// Renames the log and lets the runtime make a new one, as a kubelet rotates logs.
fn rotate(joined: &Joined) -> Result<()> {
    let node = &joined.nodes[0];
    let id = node.wait(5, "the container", |v| v.one_running("counts"))?;
    let path = node.cri().status(&id)?.log_path;
    let (from, to) = (node.inside(&path), node.inside(&format!("{path}.20261121-000000")));
    fs::rename(&from, &to).with_context(|| format!("move {}", from.display()))?;
    let mut client = node.cri().runtime_client();
    node.cri()
        .block_on(client.reopen_container_log(ReopenContainerLogRequest { container_id: id }))
        .context("ReopenContainerLog")?;
    Ok(())
}
