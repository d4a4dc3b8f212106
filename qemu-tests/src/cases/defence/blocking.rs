//! Pods that block the node's threads: probes and NFS servers with names that no name server answers, and a path in a
//! volume that leads through a trap of links. Neither the node's own work nor another pod waits for them.
//!
//! The node keeps its pods on its own tmpfs ([`crate::cases::defence::eviction`]), and its resolver asks a socket
//! without a reader. On a native node memory is the whole machine's, so the disk runs out instead: the eviction manager
//! checks both in the same way. `volumes/nfs` tests a kernel with an NFS client, and a server that stops answering.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level, human};
use orlop_harness::cluster::fixture::{
    GROUP, Joined, STAYS, api_pod, await_pod_gone, await_pod_ready, await_ready, await_serving,
    named_container,
};
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::native::node::NativeNode;
use orlop_harness::say;
use serde_json::{Value, json};

use crate::cases::defence::eviction::{
    FULL, ROOM_MIB, await_failed, ensure_evicted, filler, hard, lay_full, start_agent,
};

const HERE: CaseDefaults = CaseDefaults { level: Level::L4n, group: GROUP };

/// Cases of this file.
pub const CASES: &[Case] = &[HERE.case(
    "defence/blocking",
    150,
    "20 probes and 4 NFS servers by names that nobody answers for, a subPath through a trap of links: another pod starts and ends, its log is read, who fills the disk goes",
    blocking,
)];

/// Pods with a readiness probe by name.
const PROBED: usize = 20;
/// Pods with an NFS server by name.
const REMOTE: usize = 4;
/// The name server that answers nothing, on the node's loopback.
const NAME_SERVER: &str = "127.0.0.2";
/// With these options a look-up of the system's resolver lasts 10 s.
const RESOLV_CONF: &str = "nameserver 127.0.0.2\noptions timeout:5 attempts:2\n";
/// The names end so.
const ZONE: &str = "dead.test";
/// Limit of a start under load, seconds, if twice the time without load is less: the machine may have other work.
const START_S_MIN: u64 = 30;

/// A socket on port 53 of the node's loopback. Questions stay in its queue.
fn name_server(node: &NativeNode) -> Result<UdpSocket> {
    let pid = node.pid();
    // A network namespace belongs to a thread, so a thread of its own makes the socket; the socket stays.
    let bind = move || -> Result<UdpSocket> {
        let path = format!("/proc/{pid}/ns/net");
        let namespace = fs::File::open(&path).with_context(|| format!("open {path}"))?;
        nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("enter {path}"))?;
        UdpSocket::bind((NAME_SERVER, 53)).with_context(|| format!("bind {NAME_SERVER}, port 53"))
    };
    let socket =
        std::thread::spawn(bind).join().map_err(|_| anyhow::anyhow!("the binding thread died"))??;
    socket.set_read_timeout(Some(Duration::from_secs(1))).context("limit a read")?;
    Ok(socket)
}

/// The name in a DNS question (RFC 1035, 4.1): labels after a head of 12 bytes. Pure.
fn asked(question: &[u8]) -> Option<String> {
    let (mut rest, mut labels) = (question.get(12..)?, Vec::new());
    while let Some((&length, more)) = rest.split_first()
        && length > 0
    {
        let (label, after) = more.split_at_checked(usize::from(length))?;
        labels.push(String::from_utf8_lossy(label).into_owned());
        rest = after;
    }
    Some(labels.join("."))
}

/// Waits until the name server has the questions for all names of the probes. It answered none.
fn await_asked(server: &UdpSocket, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    let mut seen = BTreeSet::new();
    let mut question = [0; 512];
    while seen.len() < PROBED {
        ensure!(Instant::now() < deadline, "after {} the name server was asked for {seen:?}", human(limit));
        // No question came within a second: the deadline decides.
        let Ok(length) = server.recv(&mut question) else { continue };
        let name = question.get(..length).and_then(asked).unwrap_or_default().to_lowercase();
        if name.starts_with("probe") && name.ends_with(ZONE) {
            seen.insert(name);
        }
    }
    Ok(())
}

fn probed(n: usize) -> Value {
    let mut pod = api_pod(&format!("probed-{n}"), FULL, STAYS, 1);
    pod["spec"]["containers"][0]["readinessProbe"] = json!({"periodSeconds": 1, "timeoutSeconds": 1,
        "tcpSocket": {"host": format!("probe{n}.{ZONE}"), "port": 80}});
    pod
}

fn remote(n: usize) -> Value {
    let mut pod = api_pod(&format!("remote-{n}"), FULL, STAYS, 1);
    pod["spec"]["volumes"] =
        json!([{"name": "v", "nfs": {"server": format!("nfs{n}.{ZONE}"), "path": "/export"}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    pod
}

/// 38 links, each of which leads through 800 times `a/..` to the next one, and a neighbour that renames without end: the
/// kernel answers EAGAIN whenever a rename falls into a walk with `..` (openat2(2), RESOLVE_BENEATH).
fn trap() -> Value {
    let plant = "cd /v; mkdir a sub; up=$(for i in $(seq 800); do printf a/../; done); ln -s ${up}x1 x; \
                 for i in $(seq 36); do ln -s ${up}x$((i + 1)) x$i; done; ln -s ${up}sub x37; : > r1";
    let renames = "trap 'exit 0' TERM; cd /v; while :; do mv r1 r2; mv r2 r1; done";
    let mount = json!([{"name": "v", "mountPath": "/v"}]);
    let mut plants = named_container("plants", plant);
    plants["volumeMounts"] = mount.clone();
    let mut renames = named_container("renames", renames);
    renames["volumeMounts"] = mount;
    renames["restartPolicy"] = json!("Always");
    renames["resources"] = json!({"limits": {"cpu": "200m"}});
    let mut pod = api_pod("trap", FULL, STAYS, 1);
    pod["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    pod["spec"]["initContainers"] = json!([plants, renames]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/x", "subPath": "x"}]);
    pod
}

/// Why the trap's container waits.
fn await_trap_told(cluster: &Cluster) -> Result<String> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), 90, "the pod with the trap to be told why it waits", |all| {
        let status = all.get("trap")?.status.as_ref()?;
        let container = status.container_statuses.as_ref()?.first()?;
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let is_told = waiting.reason.as_deref() == Some("CreateContainerConfigError");
        is_told.then(|| waiting.message.clone().unwrap_or_default())
    })
}

fn await_running(cluster: &Cluster, names: &[String], limit_s: u64) -> Result<()> {
    let client = cluster.client();
    client.wait::<Pod, _>(&client.of("default"), limit_s, "the probed pods to run", |all| {
        let runs = |name: &String| all.get(name).is_some_and(|pod| ready::phase(pod) == "Running");
        names.iter().all(runs).then_some(())
    })
}

/// Starts a pod that writes a line to its log; returns how long the start took.
fn start(cluster: &Cluster, name: &str, limit_s: u64) -> Result<Duration> {
    let client = cluster.client();
    let begun = Instant::now();
    client.create::<Pod>(
        &client.of("default"),
        api_pod(name, FULL, &format!("echo here is {name}; {STAYS}"), 1),
    )?;
    await_pod_ready(cluster, name, limit_s)?;
    Ok(begun.elapsed())
}

fn blocking(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut node = lay_full(cx, hard)?;
    let server = name_server(&node)?;
    fs::write(node.inside("/etc/resolv.conf"), RESOLV_CONF).context("write the node's resolv.conf")?;
    start_agent(&mut node)?;
    let joined = Joined::shared(cx)?;
    let (cluster, client) = (&joined.cluster, joined.cluster.client());
    let pods = client.of::<Pod>("default");
    await_ready(cluster, FULL, 90)?;
    await_serving(cluster, FULL, 60)?;

    // The node's first pod pulls the image.
    start(cluster, "warms-up", 90)?;
    let usual = start(cluster, "usual", 90)?;
    let burden: Vec<Value> = (0..PROBED).map(probed).chain((0..REMOTE).map(remote)).chain([trap()]).collect();
    for pod in burden {
        client.create::<Pod>(&pods, pod)?;
    }
    let waiting: Vec<String> = (0..PROBED).map(|n| format!("probed-{n}")).collect();
    await_running(cluster, &waiting, 180)?;
    await_asked(&server, Duration::from_secs(120))?;
    let told = await_trap_told(cluster)?;
    ensure!(told.contains("it leads through more than 1024 names"), "the pod with the trap is told {told:?}");

    let limit_s = START_S_MIN.max(2 * usual.as_secs());
    let burdened = start(cluster, "other", limit_s)?;
    say::line(format!("  a pod started in {}, under the burden in {}", human(usual), human(burdened)));
    let log = cluster.kubectl(&["logs", "other", "--request-timeout=20s"])?;
    ensure!(log.contains("here is other"), "its log is {log:?}");
    client.delete::<Pod>(&pods, "other", None)?;
    await_pod_gone(cluster, "other", 60)?;
    let fills = format!("head -c {}m /dev/zero > /data/file", ROOM_MIB + 50);
    let begun = Instant::now();
    client.create::<Pod>(&pods, filler("fills", &fills))?;
    let status = await_failed(cluster, "fills", 60)?;
    ensure_evicted(&status, "The node was low on resource: ephemeral-storage. Threshold quantity: ")?;
    say::line(format!("  {} from its creation to its eviction", human(begun.elapsed())));

    // The burden was there all the time: no question was answered.
    for name in &waiting {
        let pod = client.get::<Pod>(&pods, name)?.with_context(|| format!("no pod {name}"))?;
        ensure!(ready::phase(&pod) == "Running" && !ready::pod(&pod), "{name} was not to become Ready");
    }
    let now = client.get::<Node>(&client.all(), FULL)?.context("the Node")?;
    ensure!(ready::node(&now), "not Ready: {now:?}");
    let own = ["warms-up", "usual", "fills", "trap"].map(str::to_owned);
    let remote = (0..REMOTE).map(|n| format!("remote-{n}"));
    let all: Vec<String> = waiting.into_iter().chain(remote).chain(own).collect();
    for name in &all {
        client.delete::<Pod>(&pods, name, None)?;
    }
    for name in &all {
        await_pod_gone(cluster, name, 90)?;
    }
    cluster.ensure_nothing_forbidden()?;
    drop(node);
    client.delete::<Node>(&client.all(), FULL, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_has_a_name() {
        let question = |name: &[u8]| [&[7; 12][..], name, &[0, 1, 0, 1]].concat();
        assert_eq!(asked(&question(b"\x06probe1\x04dead\x04test\0")), Some("probe1.dead.test".to_owned()));
        assert_eq!(asked(&question(b"\0")), Some(String::new()));
        assert_eq!(asked(b"\x01\x02"), None);
        assert_eq!(asked(&[&[7; 12][..], b"\x09short"].concat()), None);
    }
}
