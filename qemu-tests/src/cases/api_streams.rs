//! `kubectl exec`, `cp`, `attach`, `port-forward`: streams through the API server and the node to the runtime.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::case::{Case, CaseContext, Level};
use crate::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone};
use crate::process::Guarded;
use crate::run::Run;

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "api/streams",
    level: Level::L4n,
    expected_s: 40,
    about: "kubectl exec with input and exit code, cp, attach, port-forward",
    group: GROUP,
    run: streams,
}];

/// What a kubectl with input said.
struct Said {
    code: Option<i32>,
    output: Vec<u8>,
}

/// Runs kubectl with a file as its input, at most a minute.
fn kubectl(run: &Arc<Run>, dir: &Path, joined: &Joined, args: &[&str], input: &[u8]) -> Result<Said> {
    fs::create_dir_all(dir)?;
    let (stdin, stdout) = (dir.join("stdin"), dir.join("stdout"));
    fs::write(&stdin, input)?;
    let mut command = joined.cluster.kubectl_command(args);
    command
        .stdin(File::open(&stdin)?)
        .stdout(File::create(&stdout)?)
        .stderr(File::create(dir.join("stderr"))?);
    let mut guarded = Guarded::spawn(run, &mut command)?;
    let Some(status) = guarded.wait(Duration::from_secs(60))? else {
        bail!("kubectl {} does not end; it said {:.500}", args.join(" "), fs::read_to_string(&stdout)?);
    };
    Ok(Said { code: status.code(), output: fs::read(&stdout)? })
}

fn streams(cx: &mut CaseContext<'_>) -> Result<()> {
    let (run, dir) = (cx.run.clone(), cx.artefacts.clone());
    let joined = Joined::shared(cx)?;
    let script = format!("mkdir /www; echo served > /www/index.html; httpd -p 8080 -h /www; {STAYS}");
    joined.run_pod(api_pod("streams", "first", &script, 1))?;
    let ask = |args: &[&str], input: &[u8]| kubectl(&run, &dir, joined, args, input);
    let said = ask(&["exec", "streams", "--", "sh", "-c", "echo out; echo err >&2; exit 3"], b"")?;
    ensure!(said.output == b"out\n", "exec: {:?}", String::from_utf8_lossy(&said.output));
    ensure!(said.code == Some(3), "exec: exit code {:?}", said.code);
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 4]).collect();
    let said = ask(&["exec", "-i", "streams", "--", "cat"], &sent)?;
    ensure!(said.code == Some(0) && said.output == sent, "exec -i cat: {} bytes back", said.output.len());
    let said = ask(&["exec", "streams", "-c", "other", "--", "true"], b"")?;
    ensure!(said.code != Some(0), "exec into a container that is not there");
    let (there, back) = (dir.join("there"), dir.join("back"));
    fs::write(&there, &sent)?;
    joined.cluster.kubectl(&["cp", &there.display().to_string(), "streams:/copied"])?;
    joined.cluster.kubectl(&["cp", "streams:/copied", &back.display().to_string()])?;
    ensure!(fs::read(&back)? == sent, "kubectl cp there and back");
    port_forward(&run, &dir, joined)?;
    attach(&run, &dir, joined)?;
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "streams", None)?;
    await_pod_gone(&joined.cluster, "streams", 30)?;
    joined.cluster.ensure_nothing_forbidden()
}

fn port_forward(run: &Arc<Run>, dir: &Path, joined: &Joined) -> Result<()> {
    let stdout = dir.join("port-forward");
    let mut command = joined.cluster.kubectl_command(&["port-forward", "pod/streams", ":8080"]);
    command.stdin(Stdio::null()).stdout(File::create(&stdout)?).stderr(File::create(dir.join("stderr"))?);
    let forwarding = Guarded::spawn(run, &mut command)?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let port: u16 = loop {
        let said = fs::read_to_string(&stdout)?;
        let port = said.split_once("127.0.0.1:").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        if let Some(port) = port {
            break port;
        }
        ensure!(Instant::now() < deadline, "port-forward does not say its port: {said}");
        joined.nodes[0].cri().view()?;
    };
    for _ in 0..3 {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).context("connect to the forwarded port")?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).context("read from the forwarded port")?;
        ensure!(answer.ends_with("served\n"), "through the forwarded port: {answer}");
    }
    drop(forwarding);
    Ok(())
}

fn attach(run: &Arc<Run>, dir: &Path, joined: &Joined) -> Result<()> {
    let mut pod = api_pod("listens", "first", "while read line; do echo got $line; done", 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    for field in ["stdin", "stdinOnce"] {
        pod["spec"]["containers"][0][field] = json!(true);
    }
    joined.run_pod(pod)?;
    let said = kubectl(run, dir, joined, &["attach", "-i", "listens"], b"one\ntwo\n")?;
    let text = String::from_utf8_lossy(&said.output).into_owned();
    ensure!(text.contains("got one\ngot two\n"), "attach: {text:?}");
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "listens", None)?;
    await_pod_gone(&joined.cluster, "listens", 30)
}
