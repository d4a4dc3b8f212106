//! `bench peer --vm`: the agent, then the upstream kubelet in its place, in the same booted VM: start to Ready, memory
//! and CPU time without pods.
//!
//! The kubelet comes on a second disk. Both are started in the same way, with the configuration of the appliance.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::native::{Usage, parse_usage, report};
use super::peer::forget_ready;
use crate::cluster::fixture::await_ready;
use crate::cluster::flags::Settings;
use crate::cluster::plane::Cluster;
use crate::cluster::programs;
use crate::cluster::vm_node::{READY_LIMIT_S, VmNode};
use crate::run::Run;
use crate::say;
use crate::vm::shell::Shell;

/// The node's name, which `forget_ready` knows.
const NODE: &str = "peer";
/// What a start leaves behind is over by then.
const SETTLE: Duration = Duration::from_secs(30);
/// How long CPU time is counted.
const WINDOW: Duration = Duration::from_secs(60);
/// Disks have whole blocks.
const BLOCK: u64 = 1024 * 1024;

/// Where the second disk's files go.
const PROGRAM: &str = "/var/lib/kubelet/upstream";
const BOOTSTRAP: &str = "/var/lib/kubelet/bootstrap.kubeconfig";
/// The unit in which both run.
const UNIT: &str = "peer.service";

/// Measures both.
///
/// # Errors
/// If the VM does not become Ready with either.
pub fn run(run: &Arc<Run>) -> Result<()> {
    let kubelet = programs::kubelet(run)?;
    let artefacts = run.dir().join("bench-peer-vm");
    fs::create_dir_all(&artefacts)?;
    let mut cluster = Cluster::start(run, &artefacts, Settings::default())?;
    let disk = SecondDisk::make(&artefacts, &kubelet, &cluster.bootstrap_kubeconfig(cluster.token()))?;
    let mut node = VmNode::plug(&mut cluster, &artefacts, NODE)?;
    node.add_disk(disk.file.clone());
    node.boot(Some(cluster.token()))?;
    node.vm()?.await_phase("agent.ready", READY_LIMIT_S)?;
    node.give_range(&cluster)?;
    let ready = node.vm()?.await_phase("node.ready", READY_LIMIT_S)?;
    say::line(format!("the VM's kernel to Ready: {:.1} s", ready.at_ms as f64 / 1000.0));
    let shell = node.vm()?.shell()?;
    disk.unpack(shell)?;
    // The agent's flags, but for the one that only it has.
    let flags = shell.must("sed -n 's/^ORLOP_AGENT_ARGS=//p' /run/orlop/agent.env")?;
    let flags: Vec<&str> = flags.split_whitespace().filter(|flag| !flag.starts_with("--join")).collect();
    let flags = format!("--bootstrap-kubeconfig={BOOTSTRAP} {}", flags.join(" "));
    shell.must("systemctl stop orlop-agent")?;
    for (name, program) in [("agent", "/usr/bin/orlop-agent"), ("upstream", PROGRAM)] {
        let start = format!(
            "systemd-run --quiet --no-block --collect --unit={UNIT} {program} --config /run/orlop/kubelet.yaml {flags}"
        );
        shell.must("rm -rf /var/lib/kubelet/pki /var/lib/kubelet/kubeconfig")?;
        for how in ["with bootstrap", "with its certificate"] {
            forget_ready(&cluster)?;
            shell.must(&start)?;
            await_ready(&cluster, NODE, READY_LIMIT_S)?;
            say::line(format!("{name}, {how}: Ready after {:.1} s", lived(shell)?));
            if how == "with its certificate" {
                idle(shell, name)?;
            }
            shell.must(&format!("systemctl stop {UNIT}"))?;
        }
    }
    drop(node);
    drop(cluster);
    fs::remove_dir_all(&artefacts).context("remove the benchmark's logs")
}

/// The kubelet, and a way into the cluster, as a disk without a file system.
struct SecondDisk {
    file: PathBuf,
    program_blocks: u64,
    text_bytes: usize,
}

impl SecondDisk {
    fn make(artefacts: &Path, program: &Path, text: &str) -> Result<SecondDisk> {
        let file = artefacts.join("kubelet.raw");
        let bytes = fs::copy(program, &file).with_context(|| format!("copy {}", program.display()))?;
        let program_blocks = bytes.div_ceil(BLOCK);
        let disk = fs::OpenOptions::new().write(true).open(&file)?;
        disk.set_len((program_blocks + 1) * BLOCK)?;
        disk.write_all_at(text.as_bytes(), program_blocks * BLOCK)?;
        Ok(SecondDisk { file, program_blocks, text_bytes: text.len() })
    }

    fn unpack(&self, shell: &mut Shell) -> Result<()> {
        let SecondDisk { program_blocks, text_bytes, .. } = self;
        let command = format!(
            "dd if=/dev/vdb of={PROGRAM} bs={BLOCK} count={program_blocks} && chmod 755 {PROGRAM} && \
             dd if=/dev/vdb bs={BLOCK} skip={program_blocks} count=1 | head -c {text_bytes} > {BOOTSTRAP}"
        );
        let copied = shell.run(&command, Duration::from_secs(300))?;
        ensure!(copied.status == 0, "the second disk cannot be copied: {}", copied.text);
        Ok(())
    }
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

/// Seconds since the program was started, by the guest's own clock: what systemd and the shell take is not counted.
fn lived(shell: &mut Shell) -> Result<f64> {
    let uptime = shell.must("cat /proc/uptime")?;
    let pid = shell.must(&format!("systemctl show --property=MainPID --value {UNIT}"))?;
    let stat = shell.must(&format!("cat /proc/{}/stat", pid.trim()))?;
    // Field 22 of proc_pid_stat(5), in hundredths of a second on every Linux that there is an image for.
    let started =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19)?.parse::<f64>().ok());
    let now = uptime.split(' ').next().and_then(|seconds| seconds.parse::<f64>().ok());
    Ok(now.context("/proc/uptime")? - started.context("when the program was started")? / 100.0)
}

fn usage(shell: &mut Shell, unit: &str) -> Result<Usage> {
    let pid = shell.must(&format!("systemctl show --property=MainPID --value {unit}"))?;
    let mut read = |file: &str| shell.must(&format!("cat /proc/{}/{file}", pid.trim()));
    parse_usage(&read("stat")?, &read("status")?).with_context(|| format!("what {unit} uses"))
}
