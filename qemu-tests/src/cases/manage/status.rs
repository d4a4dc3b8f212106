//! `orlopctl` on a booted node: healthy; then with agent, containerd and network dead it says why, without any of them. The server
//! runs only while somebody asks.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;
use orlop_harness::vm::shell::Output;

use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, await_network, config_with_pod};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "manage/status",
    180,
    "orlopctl says what runs, also by TCP with a key; with agent, containerd and network dead it says why and shows logs; no process without a client",
    status,
)];

/// Where the program is in the guest: on the state partition, which has room.
pub(crate) const PROGRAM: &str = "/var/orlopctl";
/// The key of the administrator, in the guest.
const KEY: &str = "/var/ops-1.key";
const UNIT: &str = "orlop-node-api.service";
/// An answer under TCG, with the start of the server.
const ANSWER: Duration = Duration::from_secs(60);

fn status(cx: &mut CaseContext<'_>) -> Result<()> {
    let program = built::ctl(&cx.run)?;
    let (key, admin) = administrator(&program, &cx.artefacts)?;
    let disk = SecondDisk::make(&cx.artefacts, &[(program.as_path(), PROGRAM)], &[(key.as_str(), KEY)])?;
    let config = format!("{}api:\n  admins:\n  {admin}", config_with_pod());
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    lab.attach(&[disk.file()]);
    let mut vm = lab.boot(Firmware::Direct, Some(&config))?;
    vm.await_phase("pod.running", BOOT_LIMIT_S)?;
    await_network(&mut vm)?;
    disk.unpack(vm.shell()?)?;
    let state = vm.shell()?.must(&format!("systemctl show -P ActiveState {UNIT}"))?;
    ensure!(state.trim() == "inactive", "the server runs without a client: {state}");

    let healthy = ask(&mut vm, "status")?;
    for line in healthy.text.lines() {
        say::line(format!("  {line}"));
    }
    ensure!(healthy.status == 0, "{}", healthy.text);
    for words in ["Orlop ", "slot A (vda2)", "addresses  10.0.2.15", "agent      running", "problems   none"]
    {
        ensure!(healthy.text.contains(words), "{words:?} is not in: {}", healthy.text);
    }
    objects(&mut vm)?;
    logs(&mut vm)?;
    network(&mut vm)?;
    memory(&mut vm)?;
    dead(&mut vm).context("agent, containerd and network are dead")
}

fn ask(vm: &mut Vm, words: &str) -> Result<Output> {
    vm.shell()?.run(&format!("{PROGRAM} --timeout 50 {words}"), ANSWER)
}

fn must(vm: &mut Vm, words: &str) -> Result<String> {
    let output = ask(vm, words)?;
    ensure!(output.status == 0, "`orlopctl {words}` ended with {}: {}", output.status, output.text);
    Ok(output.text)
}

/// Every kind has an answer from inside the sandbox.
fn objects(vm: &mut Vm) -> Result<()> {
    let kinds = must(vm, "kinds -o name")?;
    let kinds: Vec<&str> = kinds.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    ensure!(kinds.contains(&"problems") && kinds.contains(&"time"), "{kinds:?}");
    must(vm, &format!("get {}", kinds.join(",")))?;
    let mounts = must(vm, "get mounts")?;
    // The sandbox shows it as read-only; PID 1's table does not.
    let var = mounts.lines().find(|line| line.starts_with("/var ")).context("no /var")?;
    ensure!(var.trim_end().ends_with(" rw") && var.contains("ext4"), "{mounts}");
    let disks = must(vm, "get disks")?;
    ensure!(disks.contains("vda7"), "{disks}");
    let services = must(vm, "get services kubelet.service -o yaml")?;
    ensure!(services.contains("active: active"), "{services}");
    let boot = must(vm, "get boot")?;
    ensure!(boot.contains("init.verity") && boot.contains("agent.ready"), "{boot}");
    Ok(())
}

fn logs(vm: &mut Vm) -> Result<()> {
    let agent = must(vm, "logs kubelet.service --lines 5")?;
    ensure!(agent.contains("kubelet.service: "), "{agent}");
    let kernel = must(vm, "logs --kernel --grep 'Linux version'")?;
    ensure!(kernel.contains("Linux version"), "{kernel}");
    let ledger = must(vm, "logs --file boot.json")?;
    ensure!(ledger.contains("init.verity"), "{ledger}");
    // Every call is on record, this one's predecessors, too.
    let audit = must(vm, &format!("logs {UNIT}"))?;
    for words in ["method=\"Node.Get\"", "method=\"Logs.Read\"", "role=\"operator\"", "verdict=\"OK\""] {
        ensure!(audit.contains(words), "{words} is not in: {audit}");
    }
    Ok(())
}

/// A key of an administrator, and its line for the configuration.
pub(crate) fn administrator(program: &Path, artefacts: &Path) -> Result<(String, String)> {
    let file = artefacts.join("ops-1.key");
    let made = Command::new(program).args(["key", "new", "--name", "ops-1"]).arg(&file).output();
    let made = made.with_context(|| format!("run {}", program.display()))?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let shown = Command::new(program).args(["key", "show", "--name", "ops-1"]).arg(&file).output();
    let shown = shown.with_context(|| format!("run {}", program.display()))?;
    ensure!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let key = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    Ok((key, String::from_utf8_lossy(&shown.stdout).into_owned()))
}

/// By TCP: the node's key is kept, an administrator is one, a key of nobody is none.
fn network(vm: &mut Vm) -> Result<()> {
    let version = must(vm, "version")?;
    let pin =
        version.lines().find_map(|line| line.strip_prefix("server key")).context("no server key")?.trim();
    ensure!(pin.starts_with("SHA256:"), "{version}");
    let kept = vm.shell()?.must("stat -c %a /var/lib/orlop/api/key")?;
    ensure!(kept.trim() == "600", "the node's key has mode {kept}");
    let by_tcp = |key: &str| format!("--tcp 127.0.0.1 --key {key} --node-key {pin} get time -o name");
    let answer = must(vm, &by_tcp(KEY))?;
    ensure!(answer.trim() == "time/clock", "{answer}");
    must(vm, "key new /var/nobody.key")?;
    let refused = ask(vm, &by_tcp("/var/nobody.key"))?;
    ensure!(refused.status == 4 && refused.text.contains("UNKNOWN_KEY"), "{}", refused.text);
    let audit = must(vm, &format!("logs {UNIT} --grep UNKNOWN_KEY"))?;
    ensure!(audit.contains("stranger") && audit.contains("127.0.0.1:"), "{audit}");
    Ok(())
}

fn memory(vm: &mut Vm) -> Result<()> {
    let cgroup = Path::new("/sys/fs/cgroup/system.slice").join(UNIT);
    let read = format!("cd {} && cat memory.peak && grep -E '^(anon|file) ' memory.stat", cgroup.display());
    let amounts = vm.shell()?.must(&read)?;
    say::line(format!("  memory of the server (peak, anon, file): {}", amounts.replace('\n', " ")));
    Ok(())
}

/// Ends agent, containerd and network, and the server with them.
pub(crate) fn kill_parts(vm: &mut Vm) -> Result<()> {
    let shell = vm.shell()?;
    shell.must(
        "systemctl mask --runtime kubelet.service && systemctl stop kubelet.service containerd.service",
    )?;
    shell.must("(for d in /sys/class/net/e*; do networkctl down ${d##*/} || exit 1; done)")?;
    shell.must(&format!("systemctl stop {UNIT}"))?;
    Ok(())
}

fn dead(vm: &mut Vm) -> Result<()> {
    kill_parts(vm)?;
    let began = std::time::Instant::now();
    let output = ask(vm, "status")?;
    say::line(format!("  first answer after {:.1} s", began.elapsed().as_secs_f64()));
    ensure!(output.status == 1, "exit {}: {}", output.status, output.text);
    for words in [
        "kubelet.service: the node agent does not run: masked",
        "containerd.service: the container runtime does not run",
        "network: this machine has no address",
    ] {
        ensure!(output.text.contains(words), "{words:?} is not in: {}", output.text);
    }
    let last = must(vm, "logs kubelet.service --lines 3")?;
    ensure!(last.contains("kubelet.service: "), "{last}");
    let refused = ask(vm, "get pods")?;
    ensure!(refused.status == 1 && refused.text.contains("UNKNOWN_KIND"), "{}", refused.text);
    Ok(())
}
