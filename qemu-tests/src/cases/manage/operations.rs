//! Operations on a booted node: a service restarts, a reboot is called off, a reboot goes on after its client was killed and is finished
//! by the next boot with the end of the pods, and the node switches itself off.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;
use orlop_harness::vm::shell::Output;

use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, config_with_pod};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "manage/operations",
    240,
    "restart, cancel, reboot and shutdown by orlopctl: a killed client changes nothing, the next boot has the new boot id and the pods' end",
    operations,
)];

/// Where the program is in the guest: on the state partition, which has room.
const PROGRAM: &str = "/var/orlopctl";
const ID: &str = "01936f2e-0102-7fff-bfff-ffffffffffff";
/// An answer under TCG, with the start of the server.
const ANSWER: Duration = Duration::from_secs(60);
/// A restart of the agent, and its look.
const RESTART: Duration = Duration::from_secs(120);
/// From the request to the reset or the end of the machine, seconds.
const OFF_LIMIT_S: u64 = 120;

fn operations(cx: &mut CaseContext<'_>) -> Result<()> {
    let program = built::ctl(&cx.run)?;
    let disk = SecondDisk::make(&cx.artefacts, &[(program.as_path(), PROGRAM)], &[])?;
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    lab.attach(&[disk.file()]);
    let mut vm = lab.boot(Firmware::Direct, Some(&config_with_pod()))?;
    vm.await_phase("pod.running", BOOT_LIMIT_S)?;
    disk.unpack(vm.shell()?)?;
    restart(&mut vm).context("restart")?;
    called_off(&mut vm).context("cancel")?;
    reboot(&mut vm).context("reboot")?;
    vm.shell()?.tell(&format!("{PROGRAM} shutdown --no-wait"))?;
    vm.ended(OFF_LIMIT_S).context("shutdown")
}

fn ask(vm: &mut Vm, words: &str, limit: Duration) -> Result<Output> {
    vm.shell()?.run(&format!("{PROGRAM} --timeout 50 {words}"), limit)
}

fn must(vm: &mut Vm, words: &str) -> Result<String> {
    let output = ask(vm, words, ANSWER)?;
    ensure!(output.status == 0, "`orlopctl {words}` ended with {}: {}", output.status, output.text);
    Ok(output.text)
}

/// The agent has a new run; other services stay as they are.
fn restart(vm: &mut Vm) -> Result<()> {
    let invocation = |vm: &mut Vm| vm.shell()?.must("systemctl show -P InvocationID kubelet.service");
    let before = invocation(vm)?;
    let restarted = ask(vm, "restart kubelet", RESTART)?;
    ensure!(restarted.status == 0 && restarted.text.contains("finished"), "{}", restarted.text);
    ensure!(invocation(vm)? != before, "the agent has the same run");
    let refused = ask(vm, "restart orlop-node-api", ANSWER)?;
    ensure!(refused.status == 1 && refused.text.contains("NOT_RESTARTABLE"), "{}", refused.text);
    Ok(())
}

fn called_off(vm: &mut Vm) -> Result<()> {
    let waits = must(vm, "reboot --in 3600 --no-wait -o name")?;
    let id = waits.lines().find_map(|line| line.strip_prefix("operations/")).context("no identifier")?.trim();
    let busy = ask(vm, "shutdown --no-wait", ANSWER)?;
    ensure!(busy.status == 1 && busy.text.contains("OPERATION_RUNNING"), "{}", busy.text);
    let off = must(vm, &format!("cancel {id}"))?;
    ensure!(off.contains("cancelled"), "{off}");
    Ok(())
}

fn reboot(vm: &mut Vm) -> Result<()> {
    let boot_id = |vm: &mut Vm| vm.shell()?.must("cat /proc/sys/kernel/random/boot_id");
    let before = boot_id(vm)?;
    vm.restarts(&format!("timeout -s KILL 15 {PROGRAM} reboot --id {ID}"), OFF_LIMIT_S)?;
    vm.await_phase("pod.running", BOOT_LIMIT_S)?;
    let ended = must(vm, &format!("wait {ID} --for 30"))?;
    for line in ended.lines() {
        say::line(format!("  {line}"));
    }
    let after = boot_id(vm)?;
    let boots = format!("{}, before it {}", after.trim(), before.trim());
    for words in ["phase      finished", "pods       1 of 1 ended, in order", boots.as_str()] {
        ensure!(ended.contains(words), "{words:?} is not in: {ended}");
    }
    let all = must(vm, "get operations")?;
    for words in ["cancelled", "restart  kubelet.service", "uid 0 (operator, unix)"] {
        ensure!(all.contains(words), "{words:?} is not in: {all}");
    }
    let open = vm.shell()?.must("systemctl list-units --failed --no-legend --plain")?;
    ensure!(open.trim().is_empty(), "units have failed: {open}");
    Ok(())
}
