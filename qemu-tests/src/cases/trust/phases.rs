//! A boot with a TPM: what init measures is what can be predicted from the UKI and from the node's configuration.
//!
//! Case: `trust/phases`.

use std::fs;

use anyhow::{Context, Result, ensure};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Image, Lab};
use orlop_harness::vm::tpm::{PcrValue, SoftTpm};
use orlop_init::plan::tpm::{ENTER_INITRD, LEAVE_INITRD, PCR_NODE, PCR_PHASES, config_events};

use crate::cases::boot::shared_vm::BOOT_LIMIT_S;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "trust/phases",
    150,
    "PCR 11 has the UKI, the initrd's beginning and its end; PCR 15 has the configuration that the node runs with",
    phases,
)];

const CONFIG: &str = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\nnode: {name: measured}\n";

fn phases(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    let tpm = SoftTpm::start(&cx.run, lab.dir())?;
    lab.give_tpm(&tpm);
    let path = Image::test()?.path("orlop.efi");
    let uki = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let mut vm = lab.boot(Firmware::Uefi, Some(CONFIG))?;
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    let shell = vm.shell()?;
    let mut pcr = |number: u32| -> Result<String> {
        let value = shell.must(&format!("cat /sys/class/tpm/tpm0/pcr-sha256/{number}"))?;
        Ok(value.trim().to_ascii_lowercase())
    };
    let (boot, node) = (pcr(PCR_PHASES)?, pcr(PCR_NODE)?);
    let in_initrd = PcrValue::of_uki(&uki)?.extended(ENTER_INITRD);
    let want = in_initrd.extended(LEAVE_INITRD).hex();
    say::line(format!("  PCR {PCR_PHASES} {boot}"));
    ensure!(boot == want, "PCR {PCR_PHASES} is {boot}, and {want} was predicted");
    // The node shows what it runs with; this configuration has no static pod.
    let text = shell.must("cat /run/orlop/node-config.json")?;
    let document: serde_json::Value = serde_json::from_str(&text).context("parse node-config.json")?;
    let measured = document["config"].to_string();
    ensure!(measured.contains("measured"), "the configuration was not taken: {measured}");
    let want =
        config_events(&measured).fold(PcrValue::default(), |value, event| value.extended(&event)).hex();
    say::line(format!("  PCR {PCR_NODE} {node}"));
    ensure!(node == want, "PCR {PCR_NODE} is {node}, and {want} was predicted");
    vm.power_off(120)
}
