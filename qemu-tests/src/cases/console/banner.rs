//! A healthy boot ends in a banner, on the serial port and on the screen of a machine with UEFI; it has the node's own
//! address, and says so when there is none.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::say;
use orlop_harness::vm::lab::Firmware;
use orlop_harness::vm::machine::Vm;

use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, config_with_pod};
use crate::cases::console::{TOLD_LIMIT_S, await_told, lab_with_screen};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// What QEMU's own network gives to a guest by DHCP.
const OWN_ADDRESS: &str = "10.0.2.15";

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "console/banner",
    150,
    "a healthy boot ends in a banner on serial port and screen; pods' output, ledger and provenance can be read; without a \
     network the banner says that, and shows no bridge of pods",
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
    addresses(&mut vm, lab.dir())
}

/// The pod's bridge stays when the network card goes down.
fn addresses(vm: &mut Vm, lab_dir: &Path) -> Result<()> {
    await_told(vm, lab_dir, &[&format!("addresses: {OWN_ADDRESS}")])?;
    let none = "dmesg | grep -c 'addresses: none: this machine has no address' || true";
    let before: u32 = vm.shell()?.must(none)?.trim().parse().context("lines about no address")?;
    vm.shell()?.must("(for d in /sys/class/net/e*; do networkctl down ${d##*/} || exit 1; done)")?;
    // Banners that follow each other have pauses.
    let told = format!(
        "(for n in $(seq 50); do [ $({none}) -gt {before} ] && exit 0; sleep 1; done; dmesg | grep addresses: ; exit 1)"
    );
    vm.shell()?.must(&told).context("the banner of a node without an address")?;
    let bridge = vm.shell()?.must("dmesg | grep -c 'addresses: .*10[.]88[.]' || true")?;
    ensure!(bridge.trim() == "0", "the bridge of the pods is in {bridge} banners");
    Ok(())
}
