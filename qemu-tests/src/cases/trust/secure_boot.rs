//! A signed image in a firmware with Secure Boot, and UKIs that this firmware must not start.
//!
//! Case: `trust/secure-boot`. OVMF begins without keys; the boot loader of the signed disk enrols the image's and resets the machine.
//! Debian's OVMF_CODE_4M.fd does Secure Boot without SMM, which a test can do without.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_config::ledger::LedgerEntry;
use orlop_config::slots::SlotName;
use orlop_harness::case::{Case, CaseContext, CaseDefaults, Level};
use orlop_harness::run::cache_dir;
use orlop_harness::say;
use orlop_harness::vm::lab::{Firmware, Image, Lab};
use orlop_harness::vm::machine::Vm;
use orlop_image::arch::Arch;
use orlop_image::profile::{Dirs, Profile};
use orlop_image::secure_boot::{BootSigner, SecureBootKeys, sign_disk};
use orlop_init::plan::esp_names::EntryState;

use crate::cases::boot::shared_vm::BOOT_LIMIT_S;
use crate::cases::update::arbiter::{directory, open};

const ALONE: CaseDefaults = CaseDefaults { level: Level::L4v, group: None };

/// Cases of this file.
pub const CASES: &[Case] = &[ALONE.case(
    "trust/secure-boot",
    480,
    "a signed image enrols its keys and boots; a UKI with another byte, of another key or without a signature does not",
    secure_boot,
)];

/// Firmware and boot loader, on a slow machine.
const REFUSED_WITHIN: Duration = Duration::from_secs(180);

/// Keys of their own, with the tools tree of the built image.
pub(super) fn signer(lab: &Lab, name: &str) -> Result<(BootSigner, SecureBootKeys)> {
    let keys = SecureBootKeys::create(&lab.dir().join(name))?;
    let dirs = Dirs { source: PathBuf::new(), cache: cache_dir(), arch: Arch::HOST };
    let scratch = lab.dir().join(format!("{name}-scratch"));
    Ok((BootSigner::of_build(&dirs, Profile::Test, &keys, &scratch)?, keys))
}

/// Signs the boot loader and the UKI of the lab's disk, and puts the enrolment of the keys on it.
pub(super) fn sign(lab: &Lab, signer: &BootSigner, keys: &SecureBootKeys) -> Result<()> {
    let disk = File::options().read(true).write(true).open(lab.disk()).context("open the disk")?;
    sign_disk(&disk, &mut |program| signer.sign(program), &keys.enrolment()?).context("sign the disk")
}

/// Boots until the agent is ready; returns what the firmware's trust was.
fn boot(lab: &Lab) -> Result<(Vm, LedgerEntry)> {
    let vm = lab.boot(Firmware::Uefi, None)?;
    let trust = vm.await_phase("init.trust", BOOT_LIMIT_S)?;
    vm.await_phase("agent.ready", BOOT_LIMIT_S)?;
    say::line(format!("  {}", trust.detail));
    Ok((vm, trust))
}

/// The UKI of slot A on the disk.
struct DiskUki {
    disk: File,
    offset: u64,
    bytes: Vec<u8>,
    esp: u64,
}

impl DiskUki {
    fn read(lab: &Lab) -> Result<DiskUki> {
        let (disk, esp) = open(lab, "esp")?;
        let names = directory(&disk, esp)?;
        let entry = names.entry(SlotName::A).context("slot A has no entry")?;
        let offset = esp + names.geometry().offset(entry.first_cluster);
        let mut bytes = vec![0; usize::try_from(entry.bytes)?];
        disk.read_exact_at(&mut bytes, offset).context("read the UKI")?;
        Ok(DiskUki { disk, offset, bytes, esp })
    }

    /// Puts another UKI in its place.
    fn replace(&self, uki: &[u8]) -> Result<()> {
        let names = directory(&self.disk, self.esp)?;
        let (_, write) = names.renamed(SlotName::A, EntryState::Good, u32::try_from(uki.len())?)?;
        self.disk.write_all_at(&write.bytes, self.esp + write.offset).context("change its length")?;
        self.disk.write_all_at(uki, self.offset).context("write the UKI")
    }
}

/// The loader says that the firmware refuses the UKI, and no kernel starts.
fn ensure_refused(lab: &Lab, what: &str) -> Result<()> {
    let vm = lab.start_by_firmware()?;
    let (_, line) = vm.console.wait(0, REFUSED_WITHIN, "the firmware's verdict", |line| {
        let kernel = line.contains("Linux version") || line.contains("EFI stub:");
        (kernel || line.contains("Error loading")).then(|| line.to_owned())
    })?;
    ensure!(line.contains("Error loading"), "{what}: the firmware has started it: {line}");
    say::line(format!("  {what}: {}", line.trim()));
    Ok(())
}

fn secure_boot(cx: &mut CaseContext<'_>) -> Result<()> {
    let lab = Lab::new(&cx.run, &cx.artefacts)?;
    let ((own, keys), (foreign, _)) = (signer(&lab, "own")?, signer(&lab, "foreign")?);
    sign(&lab, &own, &keys)?;
    // The firmware has no keys yet: the loader enrols them, and the second start is the first one that counts.
    let (mut vm, trust) = boot(&lab).context("the signed image")?;
    let name = own.certificate().name();
    let want = format!("Secure Boot on (keys: {name})");
    ensure!(trust.ok && trust.detail == want, "init.trust says {:?}, not {want:?}", trust.detail);
    let shell = vm.shell()?;
    let lockdown = shell.must("cat /sys/kernel/security/lockdown")?;
    ensure!(lockdown.contains("[integrity]"), "the kernel is not locked down: {lockdown:?}");
    vm.power_off(120)?;

    let signed = DiskUki::read(&lab)?;
    let mut flipped = signed.bytes.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let unsigned = unsigned_uki()?;
    for (what, uki) in [
        ("a flipped byte", flipped),
        ("a foreign key", foreign.sign(&unsigned)?),
        ("no signature", unsigned.clone()),
    ] {
        signed.replace(&uki)?;
        ensure_refused(&lab, what)?;
    }

    // It was the UKI and nothing else.
    signed.replace(&signed.bytes)?;
    let (vm, _) = boot(&lab).context("the signed image once more")?;
    vm.power_off(120)
}

/// The UKI as the build has left it.
fn unsigned_uki() -> Result<Vec<u8>> {
    let path = Image::test()?.path("orlop.efi");
    fs::read(&path).with_context(|| format!("read {}", path.display()))
}
