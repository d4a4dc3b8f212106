//! `bench peer --vm`: the agent, then the upstream kubelet in its place, in the same booted VM: start to Ready, memory
//! and CPU time without pods.
//!
//! A second disk has the kubelet, and the agent that `ORLOP_E2E_AGENT` names. Both start in the same way, with the
//! configuration of the appliance.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use orlop_harness::built;
use orlop_harness::cluster::fixture::await_ready;
use orlop_harness::cluster::flags::Settings;
use orlop_harness::cluster::plane::Cluster;
use orlop_harness::cluster::programs;
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::cluster::vm_node::{READY_LIMIT_S, VmNode};
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::usage::{Usage, parse_usage};
use orlop_harness::vm::lab::Image;
use orlop_harness::vm::shell::Shell;

use super::native::report;
use super::peer::{STARTS, Starts, forget_ready};

/// The node's name, which `forget_ready` knows.
const NODE: &str = "peer";
/// By then the work after a start is over.
const SETTLE: Duration = Duration::from_secs(30);
/// Window of the CPU time.
const WINDOW: Duration = Duration::from_secs(60);
/// Paths of the second disk's files in the guest.
pub(super) const PROGRAM: &str = "/var/lib/kubelet/upstream";
const OTHER_AGENT: &str = "/var/lib/kubelet/agent";
const BOOTSTRAP: &str = "/var/lib/kubelet/bootstrap.kubeconfig";
/// `--join` names the CA of the agent's clients; here both kubelets get it by the same flag instead.
const CLIENT_CA: &str = "/var/lib/kubelet/clients.crt";
/// The next kubelet has to ask for an identity.
pub(super) const FORGET_IDENTITY: &str = "rm -rf /var/lib/kubelet/pki /var/lib/kubelet/kubeconfig";
/// The unit in which both run.
pub(super) const UNIT: &str = "peer.service";
/// When it began, in seconds of the guest's life.
const STARTED: &str = "/run/peer.started";

/// Measures both in a VM of so many processors.
///
/// # Errors
/// If the VM does not become Ready with either.
pub fn run(run: &Arc<Run>, processors: u32) -> Result<()> {
    Image::as_released()?;
    let kubelet = programs::kubelet(run)?;
    let artefacts = run.dir().join("bench-peer-vm");
    fs::create_dir_all(&artefacts)?;
    let mut cluster = Cluster::start(run, &artefacts, Settings::default())?;
    let mut programs = vec![(kubelet.as_path(), PROGRAM)];
    // Another agent than the image's, if one is named.
    let other = std::env::var_os(built::AGENT_VARIABLE).map(PathBuf::from);
    programs.extend(other.as_deref().map(|other| (other, OTHER_AGENT)));
    let agent = programs.get(1).map_or("/usr/bin/orlop-agent", |(_, to)| *to);
    let disk = disk_of_kubelets(&artefacts, &cluster, &programs)?;
    let mut node = VmNode::plug(&mut cluster, &artefacts, NODE)?;
    node.give_processors(processors);
    node.add_disk(disk.file());
    node.boot(Some(cluster.token()))?;
    node.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    node.give_range(&cluster)?;
    let ready = node.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    say::line(format!("the VM's kernel to Ready: {:.1} s", ready.at_ms as f64 / 1000.0));
    let shell = node.vm()?.shell()?;
    disk.unpack(shell)?;
    shell.must("systemctl stop kubelet")?;
    for (name, program) in [("agent", agent), ("upstream", PROGRAM)] {
        let start = start_command(shell, program)?;
        shell.must(FORGET_IDENTITY)?;
        let mut starts = Vec::new();
        for _ in 0..=STARTS {
            if !starts.is_empty() {
                shell.must(&format!("systemctl stop {UNIT}"))?;
            }
            forget_ready(&cluster)?;
            shell.must(&start)?;
            await_ready(&cluster, NODE, READY_LIMIT_S)?;
            starts.push(lived(shell)?);
        }
        say::line(format!("{name}, with bootstrap: Ready after {} ms", starts.remove(0)));
        say::line(format!("{name}, with its certificate: Ready after {} ms", Starts(starts)));
        idle(shell, name)?;
        shell.must(&format!("systemctl stop {UNIT}"))?;
    }
    drop(node);
    drop(cluster);
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

/// Command that starts a kubelet in place of the appliance's agent: with its flags, except the one that only the agent
/// has. Its start time is in [`STARTED`]: the service manager's time before that is not the program's.
pub(super) fn start_command(shell: &mut Shell, program: &str) -> Result<String> {
    let flags = shell.must("sed -n 's/^ORLOP_AGENT_ARGS=//p' /run/orlop/agent.env")?;
    let flags: Vec<&str> = flags.split_whitespace().filter(|flag| !flag.starts_with("--join")).collect();
    Ok(format!(
        "systemd-run --quiet --no-block --collect --unit={UNIT} /bin/sh -c 'read now rest </proc/uptime; \
         echo $now >{STARTED}; exec {program} --config /run/orlop/kubelet.yaml --bootstrap-kubeconfig={BOOTSTRAP} \
         --client-ca-file={CLIENT_CA} {}'",
        flags.join(" ")
    ))
}

/// A second disk with kubelets, credentials for the cluster, and the client CA.
pub(super) fn disk_of_kubelets(
    artefacts: &Path,
    cluster: &Cluster,
    programs: &[(&Path, &str)],
) -> Result<SecondDisk> {
    let bootstrap = cluster.bootstrap_kubeconfig(cluster.token());
    SecondDisk::make(artefacts, programs, &[(&bootstrap, BOOTSTRAP), (&cluster.pki().ca.pem, CLIENT_CA)])
}

fn idle(shell: &mut Shell, name: &str) -> Result<()> {
    let rest = |shell: &mut Shell, moment: Duration| {
        shell.run(&format!("sleep {}", moment.as_secs()), moment + Duration::from_secs(60))
    };
    rest(shell, SETTLE)?;
    let units = [(name, UNIT), ("containerd", "containerd.service")];
    let mut before = Vec::new();
    for (_, unit) in units {
        before.push(usage(shell, unit)?);
    }
    let start = Instant::now();
    rest(shell, WINDOW)?;
    let window = start.elapsed();
    for ((name, unit), before) in units.into_iter().zip(before) {
        report("0 pods", name, before, usage(shell, unit)?, window)?;
    }
    Ok(())
}

/// Milliseconds since the program was started, by the guest's own clock. Nothing is started to read it.
fn lived(shell: &mut Shell) -> Result<u64> {
    let text = shell.must(&format!("read now rest </proc/uptime; read then <{STARTED}; echo $now $then"))?;
    let mut hundredths = text.split_whitespace().map(|seconds| seconds.replace('.', "").parse::<u64>().ok());
    let mut next = || hundredths.next().flatten().with_context(|| format!("no times in {text:?}"));
    let (now, then) = (next()?, next()?);
    Ok(now.saturating_sub(then) * 10)
}

pub(super) fn usage(shell: &mut Shell, unit: &str) -> Result<Usage> {
    let pid = shell.must(&format!("systemctl show --property=MainPID --value {unit}"))?;
    let mut read = |file: &str| shell.must(&format!("cat /proc/{}/{file}", pid.trim()));
    parse_usage(&read("stat")?, &read("status")?).with_context(|| format!("what {unit} uses"))
}
