//! `orlopctl --serial` on this machine, through a virtio-serial port of the VM: healthy; then with the agent masked and the network card
//! gone it says why the node is not well, and makes a bundle. A client that is killed in the middle of an answer costs the next one
//! nothing. No server runs without a client.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::process::Guarded;
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;

use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, await_network, config_with_pod};

use super::status::kill_parts;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "manage/serial",
    300,
    "orlopctl --serial from the host: capture, killed clients; without agent and network card a status that says why, and a bundle",
    serial,
)];

const UNIT: &str = "orlop-node-api.service";
/// The program of the port.
const PORT_UNIT: &str = "orlop-serial.service";
/// A client follows for so long before it is killed.
const FOLLOWS: Duration = Duration::from_secs(8);
/// Takes the cards out of their slots, as a person does: their drivers cannot bring them back.
const UNPLUG: &str =
    "(for d in /sys/class/net/e*; do echo 1 > \"$(readlink -f $d/device)/../remove\" || exit 1; done)";

/// This machine's end of the port.
struct HostEnd {
    program: PathBuf,
    socket: PathBuf,
}

impl HostEnd {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--serial").arg(&self.socket).args(["--timeout", "60"]).args(words).stdin(Stdio::null());
        command
    }

    fn ask(&self, words: &[&str]) -> Result<Output> {
        self.command(words).output().with_context(|| format!("run orlopctl {}", words.join(" ")))
    }

    /// The answer of a call that ends well.
    fn must(&self, words: &[&str]) -> Result<String> {
        let output = self.ask(words)?;
        let (text, errors) = (lossy(&output.stdout), lossy(&output.stderr));
        ensure!(output.status.success(), "orlopctl {}: {}: {text}{errors}", words.join(" "), output.status);
        Ok(text)
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn serial(cx: &mut CaseContext<'_>) -> Result<()> {
    let program = built::ctl(&cx.run)?;
    let config = format!("{}api:\n  vsock: {{trustHost: true}}\n", config_with_pod());
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    let host = HostEnd { program, socket: lab.give_api_port()? };
    let mut vm = lab.boot(Firmware::Direct, Some(&config))?;
    vm.await_phase("pod.running", BOOT_LIMIT_S)?;
    await_network(&mut vm)?;
    let state = vm.shell()?.must(&format!("systemctl show -P ActiveState {UNIT} {PORT_UNIT}"))?;
    let states: Vec<&str> = state.split_whitespace().collect();
    ensure!(states == ["inactive", "active"], "server and program of the port are {states:?}");

    let healthy = host.must(&["status"])?;
    for words in ["slot A (vda2)", "addresses  10.0.2.15", "agent      running", "problems   none"] {
        ensure!(healthy.contains(words), "{words:?} is not in: {healthy}");
    }
    let memory = vm.shell()?.must(&format!("cat /sys/fs/cgroup/system.slice/{PORT_UNIT}/memory.peak"))?;
    say::line(format!("  memory of the port's program (peak): {}", memory.trim()));
    killed_client(cx, &host)?;
    captured(&host, &cx.artefacts)?;
    let audit = host.must(&["logs", UNIT, "--lines", "40"])?;
    for words in ["who=\"host\"", "role=\"admin\"", "door=serial", "peer=virtio-serial port"] {
        ensure!(audit.contains(words), "{words} is not in: {audit}");
    }
    dead(&mut vm, &host, &cx.artefacts).context("the agent is masked and the network card is gone")
}

/// One that follows the journal and is killed; the next one has its answer.
fn killed_client(cx: &CaseContext<'_>, host: &HostEnd) -> Result<()> {
    for _ in 0..3 {
        let mut command = host.command(&["logs", "--kernel", "-f"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut follower = Guarded::spawn(&cx.run, &mut command)?;
        let ended = follower.wait(FOLLOWS)?;
        ensure!(ended.is_none(), "the follower has ended by itself: {ended:?}");
        // That kills it.
        drop(follower);
        let kinds = host.must(&["kinds"])?;
        ensure!(kinds.contains("problems"), "{kinds}");
    }
    Ok(())
}

/// The server's sandbox lets it open a packet socket; the file begins as one of pcap.
fn captured(host: &HostEnd, artefacts: &Path) -> Result<()> {
    let file = artefacts.join("lo.pcap");
    let path = file.to_str().context("the path of the capture is no text")?;
    host.must(&["capture", "lo", path, "--seconds", "3"])?;
    let bytes = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    ensure!(bytes.starts_with(&[0xd4, 0xc3, 0xb2, 0xa1]), "{} bytes that are no capture", bytes.len());
    Ok(())
}

fn dead(vm: &mut Vm, host: &HostEnd, artefacts: &Path) -> Result<()> {
    kill_parts(vm)?;
    vm.shell()?.must(UNPLUG)?;
    let output = host.ask(&["status"])?;
    let text = lossy(&output.stdout);
    ensure!(output.status.code() == Some(1), "{}: {text}{}", output.status, lossy(&output.stderr));
    for words in [
        "kubelet.service: the node agent does not run: masked",
        "containerd.service: the container runtime does not run",
        "network: this machine has no address",
    ] {
        ensure!(text.contains(words), "{words:?} is not in: {text}");
    }
    let file = artefacts.join("serial.tar.gz");
    let path = file.to_str().context("the path of the bundle is no text")?;
    let made = host.ask(&["bundle", path, "--within", "100"])?;
    let listed = Command::new("tar").arg("-tzf").arg(&file).output().context("run tar")?;
    let names = lossy(&listed.stdout);
    for part in ["objects/problems.json", "objects/services.json", "journal/boot-0.log", "files/boot.json"] {
        ensure!(names.contains(part), "{part} is not in the bundle: {names}{}", lossy(&made.stderr));
    }
    Ok(())
}
