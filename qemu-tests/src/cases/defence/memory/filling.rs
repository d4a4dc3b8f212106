//! Fills a guest's memory outside of any pod until a threshold is crossed; pods that hold memory.
//!
//! In: a VM with busybox in [`PROGRAMS`]. Out: the amounts, and the time when a victim was gone, by the guest's own
//! clock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use orlop_harness::cluster::fixture::await_pod_gone;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::ready;
use orlop_harness::cluster::vm_node::LABEL;
use orlop_harness::say;
use orlop_harness::vm::shell::Shell;
use serde_json::{Value, json};

use crate::cases::join::vm::tools::PROGRAMS;

/// Memory that a guest touches first is its host's to find, which may take as long as a disk.
const FILLING: Duration = Duration::from_secs(180);
/// How often a node is tried for a pod, and the pause between.
const TRIES: u32 = 30;
const AGAIN: Duration = Duration::from_secs(2);

/// A pod that holds so many MiB and is ready then.
pub(crate) fn holder(name: &str, mebi: u32, resources: &Value) -> Value {
    let script = format!(
        ": holds-{name}; trap 'exit 0' TERM; dd if=/dev/zero of=/hold/x bs=1M count={mebi}; touch /hold/ready; \
         while :; do sleep 1000 & wait $!; done"
    );
    scripted(name, &script, resources)
}

/// A pod that runs this script and is ready when the script has made `/hold/ready`.
pub(crate) fn scripted(name: &str, script: &str, resources: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeSelector": {LABEL.0: LABEL.1}, "terminationGracePeriodSeconds": 5,
        "automountServiceAccountToken": false,
        "volumes": [
            {"name": "bin", "hostPath": {"path": PROGRAMS}},
            {"name": "hold", "emptyDir": {"medium": "Memory"}},
        ],
        "containers": [{
            "name": "c", "image": "localhost/orlop/hello:1", "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script], "securityContext": {"runAsUser": 0},
            "resources": resources,
            "volumeMounts": [{"name": "bin", "mountPath": "/bin"}, {"name": "hold", "mountPath": "/hold"}],
            // Ends with its success: a command each second in each of these pods would be most of the VM's work.
            "startupProbe": {
                "exec": {"command": ["/bin/cat", "/hold/ready"]}, "periodSeconds": 2, "failureThreshold": 100,
            },
        }],
    }})
}

/// Starts the pod and waits until it is Ready. A node that was short of something (`MemoryPressure`) until a moment ago
/// refuses it first.
pub(crate) fn start(cluster: &Cluster, pod: &Value, short_of: &str) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
    let client = cluster.client();
    let pods = client.of::<Pod>("default");
    for _ in 0..TRIES {
        client.create::<Pod>(&pods, pod.clone())?;
        let status =
            client.wait::<Pod, _>(&pods, 180, &format!("{name} to run or to be refused"), |all| {
                let pod = all.get(name)?;
                let status = pod.status.clone()?;
                (ready::pod(pod) || status.phase.as_deref() == Some("Failed")).then_some(status)
            })?;
        if status.phase.as_deref() != Some("Failed") {
            return Ok(());
        }
        let message = status.message.unwrap_or_default();
        ensure!(message.contains(short_of), "{name}: {message}");
        client.delete::<Pod>(&pods, name, Some(0))?;
        await_pod_gone(cluster, name, 60)?;
        std::thread::park_timeout(AGAIN);
    }
    bail!("{short_of} all the time: {name} is refused")
}

/// Uses `mebi` MiB outside of any pod.
pub(crate) fn fill(shell: &mut Shell, name: &str, mebi: i64) -> Result<()> {
    shell.must("mkdir -p /run/fill; [ -e /run/fill/on ] || mount -t tmpfs -o size=90% fill /run/fill; true > /run/fill/on")?;
    let start = Instant::now();
    let written = shell.run(&format!("dd if=/dev/zero of=/run/fill/{name} bs=1M count={mebi}"), FILLING)?;
    ensure!(written.status == 0, "{}", written.text);
    say::line(format!("  {mebi} MiB written in {:.1} s", start.elapsed().as_secs_f64()));
    Ok(())
}

/// Available memory by the agent's rule, MiB.
pub(crate) fn left(shell: &mut Shell) -> Result<i64> {
    counted(shell, "MemFree:|'Inactive(file):'|SReclaimable:", "MemNothing:")
}

/// Available memory by the upstream kubelet's rule, MiB: the kernel's own memory counts as available.
pub(crate) fn left_of_upstream(shell: &mut Shell) -> Result<i64> {
    counted(shell, "MemTotal:|'Inactive(file):'", "AnonPages:|Cached:|Buffers:|SwapCached:")
}

fn counted(shell: &mut Shell, plus: &str, less: &str) -> Result<i64> {
    let text = shell.must(&format!(
        "n=0; while read k v u; do case $k in {plus}) n=$((n + v));; {less}) n=$((n - v));; esac; done < /proc/meminfo; \
         echo $((n / 1024))",
    ))?;
    text.trim().parse().with_context(|| format!("MiB left: {text:?}"))
}

/// Moments of the guest's life, seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossing {
    /// Time when the available memory reached the threshold.
    pub(crate) crossed: f64,
    /// Time when all memory was used.
    pub(crate) filled: f64,
    /// The first process of the victim was gone.
    pub(crate) ended: f64,
}

/// Uses `margin` MiB, which reaches the threshold, then `beyond` MiB, and waits until the holder `victim` is gone.
pub(crate) fn cross(shell: &mut Shell, victim: &str, margin: i64, beyond: i64) -> Result<Crossing> {
    let crossing = format!(
        "for d in /proc/[0-9]*; do mapfile -d '' -t of < $d/cmdline; \
         case ${{of[*]}} in *holds-{victim}*) p=$d;; esac; done 2>/dev/null; [ -n \"$p\" ] || exit 1; \
         dd if=/dev/zero of=/run/fill/b bs=1M count={margin} 2>/dev/null; read t1 rest < /proc/uptime; \
         dd if=/dev/zero of=/run/fill/c bs=1M count={beyond} 2>/dev/null; read t2 rest < /proc/uptime; \
         while [ -d $p ]; do sleep 0.02; done; read t3 rest < /proc/uptime; echo $t1 $t2 $t3"
    );
    let took = shell.run(&format!("({crossing})"), FILLING)?;
    let times: Vec<f64> = took.text.split_whitespace().filter_map(|t| t.parse().ok()).collect();
    let [crossed, filled, ended] = times[..] else { bail!("times: {took:?}") };
    Ok(Crossing { crossed, filled, ended })
}

/// Frees the used memory.
pub(crate) fn empty(shell: &mut Shell) -> Result<()> {
    shell.must("[ ! -e /run/fill/on ] || umount /run/fill").map(drop)
}
