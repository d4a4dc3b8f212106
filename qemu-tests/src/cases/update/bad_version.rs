//! Bad versions of the built image on one VM: each is published under a version of its own, staged by the node itself, and tried.
//!
//! A version is made bad in its UKI before it is signed, or in its trial through the debug shell. The shell begins with systemd
//! ([`BreakAt::Start`]), while containerd and the agent start.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_harness::run::Run;
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;
use orlop_image::update::KeyDirectory;

use super::published::{
    Published, Server, new_keys, publish_bootable_release, publish_spoilt_release, published,
};
use super::staging::{PROGRAM, STAGE_LIMIT, node_config, trust};
use super::trial::{RESTART_LIMIT_S, RETURN_LIMIT_S, await_slot};
use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, await_network};

/// Units are stopped while the machine starts.
const BREAK_LIMIT: Duration = Duration::from_secs(150);
/// A short trial.
const SETTINGS: &str = ", policy: automatic, trial: {deadline: 3m, soak: 1m}";

/// The node that a group shares: slot A runs, whatever became of the other one.
pub(super) struct ReturnsNode {
    // Dropped first: QEMU must end before its disk is removed.
    vm: Option<Vm>,
    lab: Lab,
    keys: KeyDirectory,
    /// The first trust document, and where the versions are published.
    trust: Published,
    /// Versions so far.
    versions: u64,
    // Its thread serves what is published.
    _server: Server,
}

impl ReturnsNode {
    /// Boots it. `prepare` changes the machine, and returns what its NodeConfig has in addition.
    pub(super) fn start(
        run: &Arc<Run>,
        artefacts: &Path,
        prepare: impl FnOnce(&mut Lab) -> Result<String>,
    ) -> Result<ReturnsNode> {
        let mut lab = Lab::new(run, artefacts)?;
        let keys = new_keys(lab.dir())?;
        let release = publish_bootable_release(lab.dir(), &keys, "0.9.0", 1)?;
        let trust = published(lab.dir(), release)?;
        let server = Server::start(lab.dir(), &trust.dir)?;
        lab.reach_host();
        let more = prepare(&mut lab)?;
        let config = format!("{}{more}", node_config(&server, SETTINGS));
        let vm = lab.boot(Firmware::Uefi, Some(&config))?;
        vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
        Ok(ReturnsNode { vm: Some(vm), lab, keys, trust, versions: 0, _server: server })
    }

    /// The VM, until [`ReturnsNode::keep`] has it again.
    pub(super) fn vm(&mut self) -> Result<Vm> {
        self.vm.take().context("the VM is off: an earlier case of the group failed")
    }

    pub(super) fn keep(&mut self, vm: Vm) {
        self.vm = Some(vm);
    }

    /// Publishes the next version, whose UKI is changed by `spoil`, and has the node stage it; the node restarts into its trial. Returns the
    /// version.
    pub(super) fn boot_trial(
        &mut self,
        vm: &mut Vm,
        spoil: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<String> {
        self.versions += 1;
        let version = format!("0.9.{}", self.versions);
        publish_spoilt_release(self.lab.dir(), &self.keys, &version, 1 + self.versions, spoil)?;
        await_network(vm)?;
        trust(vm, &self.trust)?;
        vm.expect_restart()?;
        let output = vm.shell()?.run(&format!("{PROGRAM} take"), STAGE_LIMIT)?;
        let is_staged = output.status == 0 && output.text.contains(&format!("{version} is staged in slot B"));
        ensure!(is_staged, "the updater says {:?}", output.text);
        vm.restarted(RESTART_LIMIT_S).context("the node does not try what it has staged")?;
        Ok(version)
    }
}

/// When a version breaks in its trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakAt {
    /// As soon as systemd runs, before containerd and the agent are ready.
    Start,
    /// With a ready agent and a network card that has an address.
    Network,
}

impl BreakAt {
    fn reached(self, vm: &mut Vm) -> Result<()> {
        match self {
            BreakAt::Start => {
                await_trial(vm)?;
                // The agent starts behind the unit that stamps this.
                vm.await_phase("systemd.started", BOOT_LIMIT_S).map(drop)
            }
            BreakAt::Network => {
                await_slot(vm, "slot B is on trial, boot 1 of 3")?;
                await_network(vm)
            }
        }
    }
}

/// Waits until the version in slot B begins its first trial.
pub(super) fn await_trial(vm: &Vm) -> Result<()> {
    let booted = vm.await_phase("init.slot", BOOT_LIMIT_S)?;
    let is_it = booted.ok && booted.detail.contains("slot B is on trial, boot 1 of 3");
    ensure!(is_it, "init.slot says {:?}", booted.detail);
    Ok(())
}

/// A version that this command breaks in its trial: it goes back, and slot A refuses it because of one of these checks.
pub(super) fn returns(node: &mut ReturnsNode, at: BreakAt, command: &str, checks: &[&str]) -> Result<()> {
    let mut vm = node.vm()?;
    let version = node.boot_trial(&mut vm, |_| Ok(()))?;
    at.reached(&mut vm)?;
    vm.expect_restart()?;
    let broken = vm.shell()?.run(command, BREAK_LIMIT)?;
    ensure!(broken.status == 0, "`{command}` ended with {}: {}", broken.status, broken.text);
    vm.restarted(RETURN_LIMIT_S).context("the version does not go back")?;
    await_slot(&vm, "slot A")?;
    // The console has the lines of earlier versions as well.
    let begins = format!("update: UpdateRefused: {version} ");
    let said = vm.await_console(RETURN_LIMIT_S, &begins, |line| line.contains(&begins))?;
    say::line(format!("  {said}"));
    let named = checks.iter().any(|check| said.contains(&format!("{begins}{check}: ")));
    ensure!(named, "the agent says {said:?}, and none of {checks:?}");
    node.keep(vm);
    Ok(())
}

/// The next boot is that of slot A, whose arbiter says this.
pub(super) fn await_home(vm: &Vm, said: &str) -> Result<()> {
    // The panic's pause, and the firmware once more.
    let booted = vm.await_phase("init.slot", 2 * BOOT_LIMIT_S)?;
    let detail = &booted.detail;
    ensure!(detail.contains("slot A") && detail.contains(said), "init.slot says {detail:?}");
    say::line(format!("  {detail}"));
    vm.await_phase("agent.ready", BOOT_LIMIT_S).map(drop)
}
