//! A release into slot B of a running node: from a server, from a stick, after cuts, and no more of it than has changed.
//!
//! Cases: `update/https`, `update/delta`, `update/resume`, `update/usb`. Nothing boots the release: staged is the end. The built
//! image carries no keys, so a case lays a trust document over its root.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use orlop_config::slots::{SlotName, SlotState};
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Lab};
use orlop_harness::vm::machine::Vm;
use orlop_image::qemu::{Bus, Disk};
use orlop_init::plan::esp::UKI_CHAIN_BYTES;
use orlop_init::plan::esp_names::EntryState;

use super::arbiter::{directory, open, record};
use super::published::{Published, Server, VERSION, publish};
use crate::cases::boot::shared_vm::{BOOT_LIMIT_S, await_network};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[
    ALONE.case(
        "update/https",
        300,
        "a release of a web server is written into slot B and read back; slot A boots as before",
        https,
    ),
    ALONE.case(
        "update/delta",
        240,
        "a release of which 7.4 MiB have changed costs at most 10 MB from the network",
        delta,
    ),
    ALONE.case(
        "update/resume",
        420,
        "the source is cut off, then the machine is reset; what is in slot B is not fetched again",
        resume,
    ),
    ALONE.case(
        "update/usb",
        300,
        "a stick with a release is found, its release is staged, and a node without a network has it",
        usb,
    ),
];

/// Writing and reading back of a slot, on a slow machine.
pub(crate) const STAGE_LIMIT: Duration = Duration::from_secs(400);
/// Characters of a document that are typed at once.
const TYPED: usize = 800;
/// The updater, as a person calls it.
pub(crate) const PROGRAM: &str = "/usr/lib/orlop/orlop-update";

/// Lays the trust document over the image's root: a layer of the test, because the built image carries none.
pub(crate) fn trust(vm: &mut Vm, published: &Published) -> Result<()> {
    let shell = vm.shell()?;
    shell.must("mkdir -p /run/e2e/update && rm -f /run/e2e/text")?;
    let text = orlop_config::base64::encode(published.trust.as_bytes());
    for part in text.as_bytes().chunks(TYPED) {
        shell.must(&format!("printf %s '{}' >> /run/e2e/text", std::str::from_utf8(part)?))?;
    }
    shell.must("base64 -d < /run/e2e/text > /run/e2e/update/trust.json")?;
    shell.must("mount -t overlay overlay -o lowerdir=/run/e2e:/usr/share/orlop /usr/share/orlop")?;
    shell.must("test -s /usr/share/orlop/update/trust.json").map(|_| ())
}

/// A node that reaches the server.
pub(crate) fn boot(lab: &Lab, server: &Server, published: &Published) -> Result<Vm> {
    boot_with(lab, server, published, "")
}

/// The configuration of such a node.
pub(crate) fn node_config(server: &Server, update: &str) -> String {
    let authority = orlop_config::base64::encode(server.authority.as_bytes());
    format!(
        "apiVersion: orlop/v1alpha1\nkind: NodeConfig\ntrust: {{caCertificates: [{authority}]}}\nupdate: {{source: '{}'{update}}}\n",
        server.base
    )
}

/// A node that reaches the server, with further settings of updates.
pub(super) fn boot_with(lab: &Lab, server: &Server, published: &Published, update: &str) -> Result<Vm> {
    let mut vm = lab.boot(Firmware::Uefi, Some(&node_config(server, update)))?;
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    await_network(&mut vm)?;
    trust(&mut vm, published)?;
    Ok(vm)
}

/// Has the updater stage the channel's release, and returns what it says.
pub(super) fn take(vm: &mut Vm) -> Result<String> {
    let output = vm.shell()?.run(&format!("{PROGRAM} take"), STAGE_LIMIT)?;
    ensure!(output.status == 0, "the updater ended with {}: {}", output.status, output.text);
    let last = output.text.lines().rfind(|line| !line.is_empty()).unwrap_or_default().to_owned();
    ensure!(last.starts_with(&format!("{VERSION} is staged in slot B")), "the updater says {last:?}");
    say::line(format!("  {last}"));
    Ok(last)
}

/// What is on the disk of a node that is off.
pub(super) fn ensure_staged(lab: &Lab, published: &Published) -> Result<()> {
    let record = record(lab)?;
    ensure!((record.desired, record.a.state) == (SlotName::A, SlotState::Good), "{record:?}");
    ensure!((record.b.state, record.b.version.as_str()) == (SlotState::Staged, VERSION), "{record:?}");
    ensure!(record.b.roothash == published.release.root.hash.to_string(), "{record:?}");
    lab.partition(&format!("orlop_{VERSION}"))?;
    lab.partition(&format!("orlop_{VERSION}_verity"))?;
    let (disk, start) = open(lab, "esp")?;
    let names = directory(&disk, start)?;
    let entry = names.entry(SlotName::B).context("slot B has no entry")?;
    ensure!((entry.state, entry.bytes) == (EntryState::Hidden, UKI_CHAIN_BYTES), "{entry:?}");
    Ok(())
}

fn https(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    let published = publish(lab.dir(), 4000)?;
    let server = Server::start(lab.dir(), &published.dir)?;
    lab.reach_host();
    let mut vm = boot(&lab, &server, &published)?;
    let said = take(&mut vm)?;
    ensure!(said.contains("nothing boots it yet"), "the updater says {said:?}");
    let shell = vm.shell()?;
    let peak = shell.must("cat /sys/fs/cgroup/system.slice/orlop-update.service/memory.peak")?;
    say::line(format!("  the updater's memory at most {} KiB", peak.trim().parse::<u64>()? >> 10));
    // Asked again, it has nothing to do, and the source is asked for documents only.
    let before = server.given();
    let again = shell.must(&format!("{PROGRAM} take"))?;
    ensure!(again.contains(&format!("{VERSION} was staged in slot B before")), "the updater says {again:?}");
    ensure!(server.given() - before < 1 << 16, "files were fetched again");
    vm.power_off(120)?;
    ensure_staged(&lab, &published)?;
    // Slot A boots as before, and nothing has become of the staged slot.
    let vm = lab.boot(Firmware::Uefi, None)?;
    let slot = vm.await_phase("init.slot", BOOT_LIMIT_S)?;
    ensure!(slot.ok && slot.detail.contains("slot A"), "init.slot says {:?}", slot.detail);
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    vm.power_off(120)?;
    ensure_staged(&lab, &published)
}

fn delta(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    let published = publish(lab.dir(), 1900)?;
    let server = Server::start(lab.dir(), &published.dir)?;
    lab.reach_host();
    let mut vm = boot(&lab, &server, &published)?;
    take(&mut vm)?;
    let given = server.given();
    say::line(format!("  {given} bytes from the network"));
    ensure!(given <= 10_000_000, "{given} bytes from the network for 7.4 MiB that have changed");
    vm.power_off(120)?;
    ensure_staged(&lab, &published)
}

/// Bytes that the server has sent and the node has not received when a connection is cut: buffers of this machine and of QEMU.
const IN_FLIGHT: u64 = 2 << 20;

fn resume(cx: &mut CaseContext<'_>) -> Result<()> {
    let mut lab = Lab::new(&cx.run, &cx.artefacts)?;
    let published = publish(lab.dir(), 6000)?;
    let server = Server::start(lab.dir(), &published.dir)?;
    lab.reach_host();
    let mut vm = boot(&lab, &server, &published)?;
    // The source is cut off.
    let _cut = server.stop_at(8 << 20);
    let shell = vm.shell()?;
    let failed = shell.run(&format!("{PROGRAM} take"), STAGE_LIMIT)?;
    ensure!(failed.status != 0 && failed.text.contains("left for 10 min"), "{}", failed.text);
    let left = shell.run(&format!("{PROGRAM} take"), Duration::from_secs(60))?;
    ensure!(left.status != 0 && left.text.contains("is left for"), "{}", left.text);
    // The updater forgets it when it ends: ten minutes are too long for a case.
    shell.must("systemctl stop orlop-update.service")?;
    // The machine is reset in the middle.
    let cut = server.stop_at(16 << 20);
    shell.tell(&format!("{PROGRAM} take >/dev/null 2>&1 &"))?;
    cut.recv_timeout(STAGE_LIMIT).context("the node fetches nothing")?;
    vm.reset()?;
    server.go_on();
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    await_network(&mut vm)?;
    trust(&mut vm, &published)?;
    take(&mut vm)?;
    let given = server.given();
    let files = &published.release.files;
    let lists: u64 = files.iter().filter(|file| file.name.ends_with(".blocks")).map(|file| file.size).sum();
    let tree: u64 = files.iter().filter(|file| file.name.ends_with(".gz")).map(|file| file.size).sum();
    // The tree once, the UKI's list once, 6001 blocks, and what was in flight twice.
    let wanted = 6001 * 4096 + tree + lists;
    say::line(format!("  {given} bytes from the network, {wanted} are new"));
    ensure!(
        given <= wanted + 2 * IN_FLIGHT + (1 << 20),
        "{given} bytes for {wanted}: some were fetched twice"
    );
    vm.power_off(120)?;
    ensure_staged(&lab, &published)
}

/// A file system with the published directory, labelled for updates.
pub(super) fn write_stick(path: &Path, published: &Path) -> Result<()> {
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-L", "ORLOP-UPDATE", "-d"]).arg(published).arg(path).arg("400M");
    let output = mkfs.output().context("run mkfs.ext4")?;
    if !output.status.success() {
        bail!("mkfs.ext4: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

fn usb(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let published = publish(lab.dir(), 500)?;
    let stick = lab.dir().join("stick");
    write_stick(&stick, &published.dir)?;
    let disks = [(lab.disk(), Bus::Virtio), (stick, Bus::UsbXhci)];
    let disks = disks.map(|(file, bus)| Disk { file, format: "raw", bus });
    let mut vm = lab.boot_from(Firmware::Uefi, &disks)?;
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    // udev has found it; this image has no keys, so nothing was done.
    let unit = "orlop-update-stick.service";
    let shell = vm.shell()?;
    // udev looks at devices while the agent starts.
    let asked = format!(
        "(for n in $(seq 60); do [ $(systemctl show -P ConditionTimestampMonotonic {unit}) != 0 ] && exit 0; sleep 1; done; \
         udevadm info -q property /dev/sda 2>&1; exit 1)"
    );
    shell.must(&asked).with_context(|| format!("udev has not started {unit}"))?;
    trust(&mut vm, &published)?;
    let shell = vm.shell()?;
    let started = shell.run(&format!("systemctl start {unit}"), STAGE_LIMIT)?;
    let journal =
        shell.must(&format!("journalctl -b -u {unit} -u orlop-update.service -o cat --no-pager"))?;
    ensure!(started.status == 0, "{unit}: {}\n{journal}", started.text);
    ensure!(journal.contains("the drive may be pulled out"), "{journal}");
    let gone = "mountpoint -q /run/orlop/stick || exit 0";
    shell
        .must(&format!("(for n in $(seq 30); do {gone}; sleep 1; done; exit 1)"))
        .context("the stick is still mounted")?;
    vm.power_off(120)?;
    ensure_staged(&lab, &published)
}
