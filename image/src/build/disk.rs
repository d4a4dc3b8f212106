//! The last step: mkosi makes the root's file system, then UKI and disk around it and its verity tree; the ESP is written
//! again with a file for each slot.

use super::{Builder, esp, mkosi};
use crate::arch::Arch;
use crate::format::mbr;
use crate::format::verity::Tree;
use crate::host::run;
use crate::plan::BuildStep;
use crate::secure_boot::{BootSigner, SecureBootEnroll, sign_build};
use anyhow::{Context, Result, bail};
use orlop_config::slots::RING_BYTES;
use orlop_init::plan::gpt::read_table;
use orlop_init::plan::guid::{Guid, TYPE_BOOT_RECORD};
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Of the verity tree; no secret, and the same in every build of the same input.
pub const SALT: [u8; 32] = *b"the root file system of Orlop, 1";
/// Where the parts of slot A lie in the tree that the disk is made from; the partition definitions name them.
const SLOT: &str = "slot";
/// Logical sector of the disk, bytes (`mkosi/disk/mkosi.conf`).
const SECTOR: u32 = 512;
/// Configuration of systemd-boot. Without the editor nobody at the console can change the kernel's command line
/// (loader.conf(5)).
const LOADER_CONF: &str = "editor no\n";

/// Leaves mkosi's artefacts in `out`, and `orlop.roothash`.
pub(super) fn build(builder: &Builder, out: &Path) -> Result<String> {
    // Keys that cannot be used are better found here than minutes later.
    let signer = signer(builder)?;
    let (slot, hash) = slot(builder)?;
    let hash = hex::encode(hash);
    let base = builder.result(BuildStep::Base)?.join("base");
    let initrd = builder.result(BuildStep::Initrd)?.join("initrd");
    let boot = boot_tree(builder, &base)?;
    let mut command = command(builder, out)?;
    for tree in [&boot, &slot] {
        command.arg(format!("--extra-tree={}", tree.display()));
    }
    command.arg(format!("--initrd={}", initrd.display()));
    command.arg(format!("--repart-directory={}", definitions(builder, &hash)?.display()));
    command.arg(format!("--kernel-command-line={}", command_line(builder.dirs.arch, &hash)));
    mkosi::run(builder, command, "building the disk")?;
    let raw =
        File::options().read(true).write(true).open(out.join("orlop.raw")).context("opening the disk")?;
    esp::lay_out(&raw).context("giving each slot its file on the ESP")?;
    let mut signed = String::new();
    if let (Some(signer), Some(options)) = (&signer, &builder.options.secure_boot) {
        let enrolment = options.keys.enrolment()?;
        sign_build(signer, &raw, &find(out, ".efi")?, &enrolment).context("signing boot loader and UKI")?;
        signed = format!(", signed by {}", signer.certificate().name());
    }
    for image in [out.join("orlop.raw"), find(out, ".root.raw")?] {
        dig(builder, &image);
    }
    check_slots(builder.dirs.arch, &raw)?;
    if builder.dirs.arch.facts().has_bios {
        raw.write_all_at(&mbr::boot_code(), 0).context("writing the boot code of the disk")?;
    }
    fs::write(out.join("orlop.roothash"), &hash)?;
    Ok(format!("root hash {}{signed}", &hash[..16]))
}

/// The key that signs this build, if it is signed.
fn signer(builder: &Builder) -> Result<Option<BootSigner>> {
    let Some(options) = &builder.options.secure_boot else { return Ok(None) };
    let tools = builder.result(BuildStep::Tools)?.join("tools");
    BootSigner::new(&tools, &options.keys, &builder.dirs.work().join("secure-boot")).map(Some)
}

fn command(builder: &Builder, out: &Path) -> Result<Command> {
    let mut command = mkosi::command(builder, builder.dirs.arch, "disk", out)?;
    command.arg(format!("--tools-tree={}", builder.result(BuildStep::Tools)?.join("tools").display()));
    command.arg(format!("--base-tree={}", builder.result(BuildStep::Root)?.join("root").display()));
    command.arg(format!("--image-version={}", builder.options.version()));
    command.arg(format!("--source-date-epoch={}", builder.lock.epoch));
    Ok(command)
}

// The root's file system and its verity tree, in a directory of their own, and the root hash. systemd-repart would
// make both, but with SHA-256 only.
fn slot(builder: &Builder) -> Result<(PathBuf, [u8; 32])> {
    let (made, tree) = (builder.dirs.work().join("root-disk"), builder.dirs.work().join("slot-tree"));
    let dir = tree.join(SLOT);
    fs::create_dir_all(&dir)?;
    let mut command = command(builder, &made)?;
    let definition = builder.dirs.source.join("mkosi/disk/root");
    command.arg("--bootable=no").arg(format!("--repart-directory={}", definition.display()));
    mkosi::run(builder, command, "building the root file system")?;
    let root = find(&made, ".root.raw")?;
    let file = File::open(&root).with_context(|| format!("opening {}", root.display()))?;
    let verity = Tree::over(&mut BufReader::with_capacity(1 << 20, file), &SALT)
        .with_context(|| format!("making the verity tree of {}", root.display()))?;
    dig(builder, &root);
    fs::rename(&root, dir.join("root")).context("keeping the root file system")?;
    fs::write(dir.join("verity"), &verity.bytes).context("writing the verity tree")?;
    Ok((tree, verity.root))
}

// Three quarters of a slot are zeros, which systemd-repart writes when it copies. Only space is saved: where files
// have no holes, they stay as they are.
fn dig(builder: &Builder, image: &Path) {
    let mut command = Command::new("fallocate");
    let _ = run::logged(command.arg("--dig-holes").arg(image), "digging holes", &builder.log);
}

// Kernel and boot loader, for the UKI and the ESP; the root was made without them.
fn boot_tree(builder: &Builder, base: &Path) -> Result<PathBuf> {
    let tree = builder.dirs.work().join("boot-tree");
    let modules = base.join("usr/lib/modules");
    for entry in fs::read_dir(&modules)? {
        let version = entry?.file_name();
        let to = tree.join("usr/lib/modules").join(&version);
        fs::create_dir_all(&to)?;
        fs::copy(modules.join(&version).join("vmlinuz"), to.join("vmlinuz")).context("copying the kernel")?;
    }
    const EFI: &str = "usr/lib/systemd/boot/efi";
    fs::create_dir_all(tree.join(EFI))?;
    let suffix = builder.dirs.arch.facts().efi;
    for name in [format!("systemd-boot{suffix}.efi"), format!("linux{suffix}.efi.stub")] {
        let path = Path::new(EFI).join(name);
        fs::copy(base.join(&path), tree.join(&path))
            .with_context(|| format!("copying {}", path.display()))?;
    }
    loader_conf(&tree, builder.options.secure_boot.as_ref().map(|options| options.enroll))?;
    Ok(tree)
}

/// The kernel command line of the UKI, to which mkosi adds nothing.
///
/// - The kernel writes to every console that is there: a screen, and the first serial port, which is `/dev/console`.
/// - No self-tests of the kernel's ciphers and hashes at each start (mainline's default; Debian turns them on).
/// - Modules without a signature of the kernel's own key are refused; Debian signs all that it ships (docs/internals/image.md).
/// - A kernel that dies before bringup has set kernel.panic restarts, too (Debian's kernel would stand still for ever).
pub(super) fn command_line(arch: Arch, roothash: &str) -> String {
    let console = arch.facts().console;
    format!(
        "console=tty0 console={console} cryptomgr.notests module.sig_enforce=1 panic=10 roothash={roothash}"
    )
}

/// Checks that the slots of the disk are those of the architecture, and that the boot record has room: init looks for no
/// others.
fn check_slots(arch: Arch, raw: &File) -> Result<()> {
    let read = |offset: u64, length: usize| -> Option<Vec<u8>> {
        let mut bytes = vec![0u8; length];
        raw.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    };
    let table = read_table(raw.metadata()?.len(), SECTOR, read).context("the disk's partition table")?;
    let count = |wanted: Guid| table.partitions.iter().filter(|p| p.type_guid == wanted).count();
    let types = arch.facts().root_types;
    let found = [count(types.root), count(types.verity)];
    if found != [2, 2] {
        bail!(
            "the disk has {} roots and {} verity trees of {}, not two of each",
            found[0],
            found[1],
            arch.name()
        );
    }
    let mut records = table.partitions.iter().filter(|p| p.type_guid == TYPE_BOOT_RECORD);
    match (records.next(), records.next()) {
        (Some(record), None) if record.length >= RING_BYTES as u64 => Ok(()),
        _ => {
            bail!("the disk has not exactly one partition for the boot record, of {RING_BYTES} bytes or more")
        }
    }
}

// bootctl writes a file of comments in its place if there is none.
fn loader_conf(tree: &Path, enroll: Option<SecureBootEnroll>) -> Result<()> {
    let dir = tree.join("efi/loader");
    fs::create_dir_all(&dir)?;
    let mut text = LOADER_CONF.to_owned();
    if let Some(enroll) = enroll {
        text.push_str(&format!("secure-boot-enroll {}\n", enroll.name()));
    }
    fs::write(dir.join("loader.conf"), text).context("writing the configuration of the boot loader")
}

// The partition definitions with slot A's identity filled in: the halves of the root hash, by which init finds its
// partitions (discoverable partitions specification).
fn definitions(builder: &Builder, hash: &str) -> Result<PathBuf> {
    let to = builder.dirs.work().join("repart");
    fs::create_dir_all(&to)?;
    let (root, verity) = hash.split_at(hash.len() / 2);
    for entry in fs::read_dir(builder.dirs.source.join("mkosi/disk/repart"))? {
        let entry = entry?;
        let text = fs::read_to_string(entry.path())?;
        let text = text.replace("@root-uuid@", root).replace("@verity-uuid@", verity);
        fs::write(to.join(entry.file_name()), text)?;
    }
    Ok(to)
}

/// The one file in `dir` whose name ends with `suffix`.
pub(super) fn find(dir: &Path, suffix: &str) -> Result<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(dir)?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().ends_with(suffix)))
        .collect();
    found.sort();
    found.into_iter().next().with_context(|| format!("mkosi left no file *{suffix} in {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_names_the_architectures_serial_port_last() {
        assert_eq!(
            command_line(Arch::Amd64, "0f"),
            "console=tty0 console=ttyS0,115200 cryptomgr.notests module.sig_enforce=1 panic=10 roothash=0f"
        );
        let arm64 = command_line(Arch::Arm64, "0f");
        assert!(arm64.starts_with("console=tty0 console=ttyAMA0,115200 "), "{arm64}");
        // mkosi has none of its own to put before it.
        assert!(!include_str!("../../../mkosi/disk/mkosi.conf").contains("KernelCommandLine"));
    }

    #[test]
    fn the_loader_has_no_editor() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        for (enroll, want) in [
            (None, None),
            (Some(SecureBootEnroll::IfSafe), Some("if-safe")),
            (Some(SecureBootEnroll::Force), Some("force")),
        ] {
            loader_conf(dir.path(), enroll).expect("written");
            let text = fs::read_to_string(dir.path().join("efi/loader/loader.conf")).expect("there");
            let settings: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(' ')).collect();
            let setting =
                |key: &str| settings.iter().find(|(known, _)| *known == key).map(|(_, value)| *value);
            assert_eq!((setting("editor"), setting("secure-boot-enroll")), (Some("no"), want), "{text}");
        }
    }

    /// The disk's partition definitions copy that tree to the ESP.
    #[test]
    fn the_esp_gets_the_loaders_configuration() {
        let esp = include_str!("../../../mkosi/disk/repart/00-esp.conf");
        assert!(esp.lines().any(|line| line == "CopyFiles=/efi:/"), "{esp}");
    }
}
