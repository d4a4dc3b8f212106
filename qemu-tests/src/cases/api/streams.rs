//! `kubectl exec`, `cp`, `attach`, `port-forward`: streams through the API server and the node to the runtime. Once
//! over WebSocket, which the node handles itself (the API server passes the stream on to a node that declares support),
//! and once over SPDY, which the node passes through. Counters of both ends show the protocol.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_harness::case::{Case, CaseContext, Level};
use orlop_harness::cluster::attach::{self, Listener};
use orlop_harness::cluster::fixture::{GROUP, Joined, STAYS, api_pod, await_pod_gone};
use orlop_harness::cluster::node_api::NodeApi;
use orlop_harness::cluster::terminal;
use orlop_harness::process::Guarded;
use orlop_harness::run::Run;
use orlop_harness::say;
use serde_json::json;

/// Cases of this file.
pub const CASES: &[Case] = &[Case {
    name: "api/streams",
    level: Level::L4n,
    expected_s: 40,
    about: "kubectl exec with input and exit code and at a terminal, cp, attach, port-forward; over WebSocket and over SPDY, as counters say",
    group: GROUP,
    run: streams,
}];

/// Protocols between kubectl and the API server, and kubectl's variables for them. Without variables kubectl uses
/// WebSocket, and SPDY if that fails: the node's counters must show that it did not fail.
const WAYS: [(&str, &[(&str, &str)]); 2] = [
    ("WebSocket", &[]),
    ("SPDY", &[("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"), ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")]),
];
const FIRST: &str = "172.30.0.10";

/// Output of a kubectl with input.
struct KubectlOutput {
    code: Option<i32>,
    output: Vec<u8>,
}

/// Runs kubectl with a file as its input, at most a minute.
fn kubectl(at: &KubectlContext<'_>, args: &[&str], input: &[u8]) -> Result<KubectlOutput> {
    let (run, dir) = (at.run, at.dir);
    fs::create_dir_all(dir)?;
    let (stdin, stdout) = (dir.join("stdin"), dir.join("stdout"));
    fs::write(&stdin, input)?;
    let mut command = at.joined.cluster.kubectl_command(args);
    command
        .envs(at.variables.iter().copied())
        .stdin(File::open(&stdin)?)
        .stdout(File::create(&stdout)?)
        .stderr(File::create(dir.join("stderr"))?);
    let mut guarded = Guarded::spawn(run, &mut command)?;
    let Some(status) = guarded.wait(Duration::from_secs(60))? else {
        bail!("kubectl {} does not end; it said {:.500}", args.join(" "), fs::read_to_string(&stdout)?);
    };
    Ok(KubectlOutput { code: status.code(), output: fs::read(&stdout)? })
}

/// Environment of kubectl, with the variables of the protocol.
struct KubectlContext<'a> {
    run: &'a Arc<Run>,
    dir: &'a Path,
    joined: &'a Joined,
    variables: &'a [(&'a str, &'a str)],
}

/// Number of the node's WebSocket streams: exec, attach, port-forward.
fn websockets(joined: &Joined) -> Result<[u32; 3]> {
    let admin = joined.cluster.pki().node_admin()?;
    let (status, text) = NodeApi::at(&joined.cluster, FIRST)?.get(Some(&admin), "/metrics")?;
    ensure!(status == 200, "/metrics of the node: {status} {text}");
    let of = |subresource: &str| {
        let sample = format!("kubelet_websocket_streaming_requests_total{{subresource=\"{subresource}\"}} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&sample));
        let whole = value.map(|value| value.split('.').next().unwrap_or_default().parse::<u32>());
        whole.unwrap_or(Ok(0)).context(sample)
    };
    Ok([of("exec")?, of("attach")?, of("portforward")?])
}

fn streams(cx: &mut CaseContext<'_>) -> Result<()> {
    let (run, dir) = (cx.run.clone(), cx.artefacts.clone());
    let joined = Joined::shared(cx)?;
    let node = joined.cluster.client().get::<Node>(&joined.cluster.client().all(), "first")?;
    let status = node.and_then(|node| node.status).context("a node with a status")?;
    let declared = status.declared_features.unwrap_or_default();
    ensure!(declared.iter().any(|f| f == "ExtendWebSocketsToKubelet"), "the node declares {declared:?}");
    let script = format!("mkdir /www; echo served > /www/index.html; httpd -p 8080 -h /www; {STAYS}");
    joined.run_pod(api_pod("streams", "first", &script, 1))?;
    for (way, variables) in WAYS {
        let before = websockets(joined)?;
        let place = KubectlContext { run: &run, dir: &dir, joined, variables };
        all_streams(&place).with_context(|| format!("over {way}"))?;
        let after = websockets(joined)?;
        let [exec, attach, ports] = [0, 1, 2].map(|n| after[n] - before[n]);
        if variables.is_empty() {
            // Copies are execs, too: one to the pod, one back, and one that looks at the file.
            ensure!(exec >= 5 && attach == 1 && ports == 1, "over {way}: {exec}, {attach}, {ports}");
        } else {
            ensure!([exec, attach, ports] == [0; 3], "over {way}: {exec}, {attach}, {ports} over WebSocket");
        }
        say::line(format!(
            "  over {way}: the node spoke WebSocket in {exec} exec, {attach} attach, {ports} port-forward"
        ));
    }
    let counted = joined.cluster.client().raw("/metrics")?;
    let translated = counted.lines().find(|line| line.contains("proxy_type=\"translated_at_apiserver\""));
    ensure!(translated.is_none(), "the API server translated a stream: {translated:?}");
    ensure!(counted.contains("proxy_type=\"proxied_to_kubelet\""), "the API server passed no stream on");
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "streams", None)?;
    await_pod_gone(&joined.cluster, "streams", 30)?;
    joined.cluster.ensure_nothing_forbidden()
}

fn all_streams(at: &KubectlContext<'_>) -> Result<()> {
    let ask = |args: &[&str], input: &[u8]| kubectl(at, args, input);
    let said = ask(&["exec", "streams", "--", "sh", "-c", "echo out; echo err >&2; exit 3"], b"")?;
    ensure!(said.output == b"out\n", "exec: {:?}", String::from_utf8_lossy(&said.output));
    ensure!(said.code == Some(3), "exec: exit code {:?}", said.code);
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 4]).collect();
    let said = ask(&["exec", "-i", "streams", "--", "cat"], &sent)?;
    ensure!(said.code == Some(0) && said.output == sent, "exec -i cat: {} bytes back", said.output.len());
    // More than the shim's pipe and the FIFO hold together, and more than all buffers on the way do.
    for input in [&sent[..300_000], &sent.repeat(10)] {
        let said = ask(&["exec", "-i", "streams", "--", "sh", "-c", "head -c 1; exit 7"], input)?;
        let (bytes, code) = (said.output.len(), said.code);
        ensure!(bytes == 1 && code == Some(7), "{} bytes of input unread: {bytes}, {code:?}", input.len());
    }
    let said = ask(&["exec", "streams", "-c", "other", "--", "true"], b"")?;
    ensure!(said.code != Some(0), "exec into a container that is not there");
    let said = ask(&["exec", "streams", "--", "/no/such/program"], b"")?;
    ensure!(said.code != Some(0), "exec of what is not there");
    at_a_terminal(at)?;
    let (there, back) = (at.dir.join("there"), at.dir.join("back"));
    fs::write(&there, &sent)?;
    for (from, to) in [
        (there.display().to_string(), "streams:/copied".to_owned()),
        ("streams:/copied".to_owned(), back.display().to_string()),
    ] {
        ensure!(ask(&["cp", &from, &to], b"")?.code == Some(0), "kubectl cp {from} {to}");
    }
    ensure!(fs::read(&back)? == sent, "kubectl cp there and back");
    port_forward(at)?;
    listen(at)
}

/// `kubectl exec -it`: the container's terminal has the size of kubectl's, and ends with the shell's exit code.
fn at_a_terminal(at: &KubectlContext<'_>) -> Result<()> {
    let mut command = at.joined.cluster.kubectl_command(&["exec", "-it", "streams", "--", "sh"]);
    command.envs(at.variables.iter().copied());
    let typed = format!("{}; tty; exit 5\n", terminal::ASK_SIZE);
    let (code, shown) = terminal::run(at.run, at.dir, &command, &typed, Duration::from_secs(60))?;
    ensure!(shown.contains(&format!("{}\r\n", terminal::SIZE)), "exec -it, stty size: {shown:?}");
    ensure!(shown.contains("/dev/pts/") && code == Some(5), "exec -it: {code:?}, {shown:?}");
    Ok(())
}

fn port_forward(at: &KubectlContext<'_>) -> Result<()> {
    let (dir, joined) = (at.dir, at.joined);
    let stdout = dir.join("port-forward");
    let mut command = joined.cluster.kubectl_command(&["port-forward", "pod/streams", ":8080"]);
    command.envs(at.variables.iter().copied()).stdin(Stdio::null());
    command.stdout(File::create(&stdout)?).stderr(File::create(dir.join("stderr"))?);
    let forwarding = Guarded::spawn(at.run, &mut command)?;
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

fn listen(at: &KubectlContext<'_>) -> Result<()> {
    let joined = at.joined;
    let mut pod = api_pod("listens", "first", attach::SCRIPT, 1);
    pod["spec"]["restartPolicy"] = json!("Never");
    for field in ["stdin", "stdinOnce"] {
        pod["spec"]["containers"][0][field] = json!(true);
    }
    joined.run_pod(pod)?;
    let who = Listener { pod: "listens", container: "c", variables: at.variables };
    attach::converse(at.run, at.dir, &joined.cluster, who, Duration::from_secs(60))?;
    let client = joined.cluster.client();
    client.delete::<Pod>(&client.of("default"), "listens", None)?;
    await_pod_gone(&joined.cluster, "listens", 30)
}
