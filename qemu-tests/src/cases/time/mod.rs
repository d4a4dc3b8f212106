//! The clock of a node: wrong ones, none that vouches for it, and NTP servers that are right or lie.

pub mod ntp;
pub mod wrong;

use anyhow::{Context, Result, ensure};
use orlop_config::ledger::HostMessage;
use orlop_harness::cluster::vm_node::VmNode;
use orlop_harness::say;

/// The clock may be this far from the host's, seconds: whole seconds of `Date`, and a slow shell.
const NEAR_S: i64 = 5;

/// Lines of the programs that know about the clock.
const JOURNAL: &str = "date; journalctl --no-pager -b -o short-monotonic -u kubelet -u systemd-timesyncd -u orlop-clock.service \
                       -u orlop-clock.path | grep -v 'GET\\|pod' | tail -n 80";

/// Waits until the node says something about its clock that contains `words`.
fn await_words(vm: &mut VmNode, words: &str, limit_s: u64) -> Result<String> {
    let said =
        vm.vm()?.await_message(
            &format!("words about the clock: {words}"),
            limit_s,
            |message| match message {
                HostMessage::Problem { source, message } if source == "join" && message.contains(words) => {
                    Some(message)
                }
                _ => None,
            },
        );
    if said.is_err() {
        // Who set the clock, and when, is in the journal alone.
        say::line(vm.vm()?.shell()?.must(JOURNAL)?);
    }
    said
}

/// The VM's clock shows the host's time.
fn ensure_right(vm: &mut VmNode) -> Result<()> {
    let shown: i64 = vm.vm()?.shell()?.must("date +%s")?.trim().parse().context("the VM's time")?;
    let now = jiff::Timestamp::now().as_second();
    ensure!((shown - now).abs() <= NEAR_S, "the clock shows {shown}, and it is {now}");
    Ok(())
}

/// Which certificate the node has.
fn certificate(vm: &mut VmNode) -> Result<String> {
    let link = vm.vm()?.shell()?.must("readlink /var/lib/kubelet/pki/kubelet-client-current.pem")?;
    Ok(link.trim().to_owned())
}
