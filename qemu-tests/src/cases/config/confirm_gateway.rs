//! A wrong gateway by `orlopctl config apply`: it is taken back at its deadline, without agent and management API, and by a power cut.
//! A confirmed change counts in the next boot.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_harness::built;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::cluster::second_disk::SecondDisk;
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Lab};

use super::managed::{KEY, ManagedVm, PROGRAM};
use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, config_with_pod};
use crate::cases::manage::status::administrator;

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "config/confirm-gateway",
    300,
    "a wrong gateway is taken back at its deadline without agent and API, and by a power cut; a confirmed change counts in the next boot",
    confirm_gateway,
)];

/// The candidate, in the guest.
const DOCUMENT: &str = "/var/new.yaml";
/// QEMU's gateway, and an address at which nobody is; as /proc/net/route has them.
const GATEWAY: (&str, &str) = ("10.0.2.2", "0202000A");
const WRONG: (&str, &str) = ("10.0.2.77", "4D02000A");
/// How long a change may be tried that is not confirmed, seconds.
const WINDOW_S: u32 = 60;
/// A change acts, or is taken back, within this, seconds.
const ACTS_S: u32 = 120;

fn confirm_gateway(cx: &mut CaseContext<'_>) -> Result<()> {
    let program = built::ctl(&cx.run)?;
    let (key, admin) = administrator(&program, &cx.artefacts)?;
    let disk = SecondDisk::make(&cx.artefacts, &[(program.as_path(), PROGRAM)], &[(key.as_str(), KEY)])?;
    let config = format!("{}api:\n  admins:\n  {admin}", config_with_pod());
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    lab.attach(&[disk.file()]);
    // A network without a way out has no gateway in its DHCP.
    lab.reach_host();
    let mut vm = lab.boot(Firmware::Direct, Some(&config))?;
    vm.await_phase("pod.running", BOOT_LIMIT_S)?;
    disk.unpack(vm.shell()?)?;
    // The power is going to be cut.
    vm.shell()?.must("sync")?;
    let mut node = ManagedVm::find(&mut vm)?;
    await_gateway(&mut node, GATEWAY).context("before any change")?;
    deadline(&mut node).context("deadline")?;
    confirmation(&mut node).context("confirmation")?;
    power_cut(&mut node).context("power cut")
}

/// Gives the node the static address that it has from DHCP anyway, and this gateway.
fn apply(node: &mut ManagedVm<'_>, gateway: (&str, &str), options: &str) -> Result<()> {
    let interface = format!("{{name: {}, addresses: [10.0.2.15/24], gateway: {}}}", node.card, gateway.0);
    let document =
        format!("apiVersion: orlop/v1alpha1\\nkind: NodeConfig\\nnetwork: {{interfaces: [{interface}]}}\\n");
    node.vm.shell()?.must(&format!("printf '{document}' > {DOCUMENT}"))?;
    node.apply(DOCUMENT, "network.interfaces", options, "confirm it within")
}

/// Waits until the default route has this gateway and no other.
fn await_gateway(node: &mut ManagedVm<'_>, gateway: (&str, &str)) -> Result<()> {
    let route = |value: &str| format!("grep -qE '^e[^[:space:]]+[[:space:]]+00000000[[:space:]]+{value}'");
    let is = format!("{} /proc/net/route", route(gateway.1));
    let count = "[ $(grep -cE '^e[^[:space:]]+[[:space:]]+00000000' /proc/net/route) = 1 ]";
    let wait = format!(
        "( i=0; until {is} && {count}; do i=$((i+1)); [ $i -lt {ACTS_S} ] || exit 1; sleep 1; done )"
    );
    let output = node.vm.shell()?.run(&wait, Duration::from_secs(u64::from(ACTS_S) * 3))?;
    if output.status != 0 {
        let routes = node.vm.shell()?.must("cat /proc/net/route")?;
        let history = node.ask("history")?.text;
        anyhow::bail!("the gateway is not {}:\n{routes}\n{history}", gateway.0);
    }
    Ok(())
}

fn deadline(node: &mut ManagedVm<'_>) -> Result<()> {
    apply(node, WRONG, &format!("--confirm {WINDOW_S}s"))?;
    await_gateway(node, WRONG)?;
    // What takes it back needs neither of them.
    node.vm.shell()?.must("systemctl stop orlop-node-api.service kubelet.service")?;
    let began = std::time::Instant::now();
    await_gateway(node, GATEWAY)?;
    say::line(format!("  taken back {:.0} s after agent and API had ended", began.elapsed().as_secs_f64()));
    node.vm.shell()?.must("systemctl start kubelet.service")?;
    let why = format!("it was not confirmed within {WINDOW_S} s");
    node.await_reverted("network.interfaces", &why, 1)
}

fn confirmation(node: &mut ManagedVm<'_>) -> Result<()> {
    apply(node, GATEWAY, "--confirm 20m")?;
    // Each try is a connection of its own; one before the change is applied is refused.
    let mut last = String::new();
    let confirmed = (0..30).any(|_| match node.ask("confirm") {
        Ok(output) if output.status == 0 => true,
        Ok(output) => {
            last = output.text;
            false
        }
        Err(error) => {
            last = format!("{error:#}");
            false
        }
    });
    ensure!(confirmed, "{last}");
    let explained = node.must("explain network.interfaces")?;
    ensure!(explained.trim_end().ends_with("node") && explained.contains(GATEWAY.0), "{explained}");
    await_gateway(node, GATEWAY)
}

fn power_cut(node: &mut ManagedVm<'_>) -> Result<()> {
    apply(node, WRONG, "--confirm 20m")?;
    await_gateway(node, WRONG)?;
    node.vm.reset()?;
    node.vm.await_phase("pod.running", BOOT_LIMIT_S)?;
    await_gateway(node, GATEWAY)?;
    let explained = node.must("explain network.interfaces")?;
    ensure!(explained.contains(GATEWAY.0) && !explained.contains(WRONG.0), "{explained}");
    ensure!(explained.trim_end().ends_with("node"), "the confirmed document does not count: {explained}");
    let history = node.must("history")?;
    let words = ["confirmed by ops-1 through tcp", "the node started again before it was confirmed"];
    ensure!(words.iter().all(|words| history.contains(words)), "{history}");
    Ok(())
}
