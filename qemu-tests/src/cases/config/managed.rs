//! A booted node whose configuration is changed by `orlopctl`, from inside and by TCP.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use orlop_harness::vm::machine::Vm;
use orlop_harness::vm::shell::Output;

/// Where the program is in the guest.
pub(super) const PROGRAM: &str = "/var/orlopctl";
/// The key of the administrator, in the guest.
pub(super) const KEY: &str = "/var/ops-1.key";
/// An answer under TCG, with the start of the server.
const ANSWER: Duration = Duration::from_secs(60);
/// The driver notes the end of a change after the services have their files again: so many looks, with a pause, seconds.
const LOOKS: u32 = 30;
const PAUSE_S: u32 = 3;

/// The node, and the way to its management API.
pub(super) struct ManagedVm<'a> {
    pub(super) vm: &'a mut Vm,
    /// Name of the network card.
    pub(super) card: String,
    /// Arguments that lead to the node by TCP.
    way: String,
}

impl<'a> ManagedVm<'a> {
    /// Waits for the network card, and asks the node for its key.
    pub(super) fn find(vm: &'a mut Vm) -> Result<ManagedVm<'a>> {
        let card = vm.await_network()?;
        let version = vm.shell()?.run(&format!("{PROGRAM} --timeout 50 version"), ANSWER)?;
        let pin = version.text.lines().find_map(|line| line.strip_prefix("server key"));
        let pin = pin.with_context(|| format!("no server key: {}", version.text))?.trim();
        let way = format!("--timeout 50 --tcp 127.0.0.1 --key {KEY} --node-key {pin}");
        Ok(ManagedVm { vm, card, way })
    }

    /// Runs a verb of `orlopctl config`.
    pub(super) fn ask(&mut self, words: &str) -> Result<Output> {
        let command = format!("{PROGRAM} {} config {words}", self.way);
        self.vm.shell()?.run(&command, ANSWER)
    }

    /// The same; it has to succeed.
    pub(super) fn must(&mut self, words: &str) -> Result<String> {
        let output = self.ask(words)?;
        ensure!(output.status == 0, "`config {words}` ended with {}: {}", output.status, output.text);
        Ok(output.text)
    }

    /// Applies a document of the guest, which has to change `key`; `next` is what the answer says about its end.
    pub(super) fn apply(&mut self, document: &str, key: &str, options: &str, next: &str) -> Result<()> {
        let diff = self.must(&format!("diff {document}"))?;
        ensure!(diff.contains(key), "{diff}");
        let begun = self.must(&format!("apply {document} {options}"))?;
        ensure!(begun.contains(next), "{begun}");
        Ok(())
    }

    /// Number of changes of `key` that were taken back for this reason.
    pub(super) fn reverted(&mut self, key: &str, why: &str) -> Result<usize> {
        let history = self.must("history")?;
        let is_it = |line: &&str| ["reverted", key, why].iter().all(|words| line.contains(words));
        Ok(history.lines().filter(is_it).count())
    }

    /// Waits until so many changes of `key` were taken back for this reason.
    pub(super) fn await_reverted(&mut self, key: &str, why: &str, count: usize) -> Result<()> {
        for _ in 0..LOOKS {
            if self.reverted(key, why)? == count {
                return Ok(());
            }
            self.vm.shell()?.run(&format!("sleep {PAUSE_S}"), ANSWER)?;
        }
        bail!("not {count} changes of {key} were taken back because {why:?}: {}", self.must("history")?)
    }
}
