//! A healthy boot ends in a banner, on the serial port and on the screen of a machine with UEFI.

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::say;
use orlop_harness::vm::lab::Firmware;

use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, config_with_pod};
use crate::cases::console::{TOLD_LIMIT_S, await_told, lab_with_screen};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "console/banner",
    120,
    "a healthy boot ends in a banner on serial port and screen; pods' output, ledger and provenance can be read",
    banner,
)];

fn banner(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = lab_with_screen(cx)?;
    let mut vm = lab.boot(Firmware::Uefi, Some(&config_with_pod()))?;
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    await_told(&mut vm, lab.dir(), &["-- orlop-", " -- Orlop ", "slot A (", "root hash ", " -- up "])?;
    let screen = vm.screen(lab.dir()).context("the screen with the banner")?;
    screen
        .lines()
        .iter()
        .filter(|line| line.contains("orlop-agent: "))
        .for_each(|line| say::line(format!("  {line}")));
    for words in ["node agent: ready", "cluster: none, a standalone node", "no problem is known"] {
        await_told(&mut vm, lab.dir(), &[words])?;
    }
    // `console.podOutput`.
    vm.await_phase("pod.running", BOOT_LIMIT_S)?;
    vm.await_console(TOLD_LIMIT_S, "the pod's output on the serial port", |line| {
        line.contains("orlop-agent: default/hello-") && line.contains(" hello: ")
    })?;
    let consoles = vm.shell()?.must("cat /sys/class/tty/console/active")?;
    ensure!(consoles.split_whitespace().eq(["tty0", "ttyS0"]), "consoles: {consoles}");
    // What the API shows below /logs/ where there is no shell.
    for file in ["boot.json", "node-config.json"] {
        let mode = vm.shell()?.must(&format!("stat -c %a /var/log/orlop/{file}"))?;
        ensure!(mode.trim() == "644", "{file} has mode {mode}");
    }
    let same = "cmp() { [ \"$(cat $1)\" = \"$(cat $2)\" ]; }; cmp /run/orlop/node-config.json /var/log/orlop/node-config.json";
    vm.shell()?.must(same).context("the copy of node-config.json")?;
    let ledger = vm.shell()?.must("cat /var/log/orlop/boot.json")?;
    ensure!(ledger.contains("agent.ready") && ledger.contains("init.verity"), "{ledger}");
    Ok(())
}
