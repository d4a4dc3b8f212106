//! `orlop-image export`: the built disk in the form that a platform takes, with digests of all files.
//!
//! `form` says which files a platform gets (pure); this module makes them, with the host's programs where a format is
//! theirs. In: the published disk of a profile, maybe a NodeConfig. Out: a directory with the files, `manifest.json` and
//! `SHA256SUMS`. Invariant: the published disk is only read. See docs/howto/install.md.

mod esp;
mod form;
mod grow;
mod ovf;
mod vhd;

pub(crate) use esp::read_config;
pub use form::{DiskForm, DiskSectors, Platform};

use crate::arch::Arch;
use crate::build::{Artefact, read_manifest};
use crate::format::{digest, sectors};
use crate::host::{run, tools};
use crate::profile::{Dirs, Profile};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The disk as the platform's files hold it; the name is the one that GCE asks for.
const DISK: &str = "disk.raw";
/// Names inside of the archive of a virtual machine.
const OVA_DESCRIPTOR: &str = "orlop.ovf";
const OVA_DIGESTS: &str = "orlop.mf";
const OVA_DISK: &str = "orlop-disk1.vmdk";
/// What the descriptor gives the machine; a person may change it at the import.
const OVA_PROCESSORS: u32 = 2;
const OVA_MEMORY_MIB: u32 = 2048;

/// Arguments of `export`.
#[derive(clap::Args)]
pub struct ExportArgs {
    /// Where the disk is to run
    #[arg(long, value_enum)]
    platform: Platform,
    /// Which image, as it was last built
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
    /// Bytes of the drive's logical sectors: 4096 for a 4Kn drive of a machine
    #[arg(long, value_enum, default_value = "512")]
    sectors: DiskSectors,
    /// Directory for the files [default: export/PLATFORM below the image]
    #[arg(long)]
    out: Option<PathBuf>,
    /// A NodeConfig that is put on the ESP; the files then hold what it holds, tokens too
    #[arg(long)]
    config: Option<PathBuf>,
}

/// `manifest.json` of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ExportManifest {
    /// Of the image.
    version: String,
    profile: String,
    /// Of the machines that the disk is for.
    architecture: &'static str,
    platform: &'static str,
    /// Bytes of the disk's logical sectors.
    sectors: u32,
    roothash: String,
    /// A NodeConfig is on the ESP.
    configured: bool,
    /// The disk that all files hold, sector by sector.
    disk: Artefact,
    /// Name to size and digest.
    files: BTreeMap<String, Artefact>,
}

/// Runs it.
///
/// # Errors
/// The platform takes no disk of the architecture or with such sectors, the image was not built or is damaged, the
/// configuration has a mistake, or a program of the host is missing or fails.
pub fn run(dirs: &Dirs, args: &ExportArgs) -> Result<()> {
    if let Some(refusal) = args.platform.refusal(dirs.arch, args.sectors) {
        bail!("{refusal}");
    }
    let log = dirs.cache.join("image/host.log");
    let Some(manifest) = read_manifest(dirs, args.profile) else {
        bail!(no_image(dirs.arch, args.profile));
    };
    let config = args.config.as_deref().map(read_config).transpose()?;
    tools::ensure(&programs(args.platform, config.is_some()), &log)?;
    let published = dirs.output(args.profile).join("orlop.raw");
    let noted = manifest.outputs.get("orlop.raw").map(|artefact| artefact.sha256.as_str());
    if noted != Some(digest::file(&published)?.as_str()) {
        bail!("{} is not the disk that its manifest.json names: build it again", published.display());
    }
    let name = args.platform.name();
    let (platform, sectors) = (args.platform, args.sectors);
    let usual = || dirs.output(args.profile).join("export").join(format!("{name}{}", sectors.suffix()));
    let out = args.out.clone().unwrap_or_else(usual);
    let job = ExportJob { platform, sectors, out, version: &manifest.version, log: &log };
    let (disk, files) = job.export(&published, config.as_deref())?;
    let (version, profile) = (manifest.version.clone(), manifest.profile.clone());
    let (roothash, configured) = (manifest.roothash.clone(), config.is_some());
    let sectors = sectors.bytes();
    let exported = ExportManifest {
        version,
        profile,
        architecture: dirs.arch.name(),
        platform: name,
        sectors,
        roothash,
        configured,
        disk,
        files,
    };
    job.describe(&exported)
}

/// What a person reads who has not built the image.
fn no_image(arch: Arch, profile: Profile) -> String {
    let (profile, name) = (profile.name(), arch.name());
    let (of_arch, option) = if arch == Arch::HOST {
        (String::new(), String::new())
    } else {
        (format!(" for {name}"), format!(" --arch {name}"))
    };
    format!(
        "there is no {profile} image{of_arch} yet: build it with \
         `cargo run --bin orlop-image -- build --profile {profile}{option}`"
    )
}

fn programs(platform: Platform, configured: bool) -> Vec<(&'static str, &'static str)> {
    let of_forms = platform.forms().iter().flat_map(|form| form.programs());
    of_forms.chain(form::ESP_PROGRAMS.iter().filter(|_| configured)).copied().collect()
}

/// An export under way.
struct ExportJob<'a> {
    platform: Platform,
    sectors: DiskSectors,
    /// Where the files go.
    out: PathBuf,
    version: &'a str,
    log: &'a Path,
}

impl ExportJob<'_> {
    /// Makes all files; returns what the disk is and what the files are.
    fn export(
        &self,
        published: &Path,
        config: Option<&str>,
    ) -> Result<(Artefact, BTreeMap<String, Artefact>)> {
        let work = self.out.join("work");
        fs::create_dir_all(&work).with_context(|| format!("making {}", work.display()))?;
        // A configuration has secrets: no other user can read a file before it has its mode.
        fs::set_permissions(&work, Permissions::from_mode(0o700))?;
        let raw = work.join(DISK);
        let made = self.prepare(published, &raw, config).and_then(|()| {
            let mut files = BTreeMap::new();
            for form in self.platform.forms() {
                let name = form.file_name(self.platform, self.sectors);
                let progress = run::Progress::begin(&name);
                let (made, path) = (work.join(&name), self.out.join(&name));
                self.write(*form, &raw, &made)?;
                if config.is_some() {
                    fs::set_permissions(&made, Permissions::from_mode(0o600))?;
                }
                fs::rename(&made, &path).with_context(|| format!("writing {}", path.display()))?;
                files.insert(name, artefact(&path)?);
                progress.done("");
            }
            Ok((artefact(&raw)?, files))
        });
        let removed = fs::remove_dir_all(&work).with_context(|| format!("removing {}", work.display()));
        let made = made?;
        removed?;
        Ok(made)
    }

    /// The disk with its configuration, as long as the platform wants it, in the drive's sectors.
    fn prepare(&self, published: &Path, raw: &Path, config: Option<&str>) -> Result<()> {
        let mut copy = Command::new("cp");
        copy.args(["--sparse=always", "--reflink=auto"]).arg(published).arg(raw);
        run::logged(&mut copy, "copying the disk", self.log)?;
        fs::set_permissions(raw, Permissions::from_mode(0o600))?;
        grow::to_multiple(raw, self.platform.granule())?;
        config.map_or(Ok(()), |text| esp::put(raw, text, self.log))?;
        match self.sectors {
            DiskSectors::B512 => Ok(()),
            DiskSectors::B4096 => {
                let disk = File::options().read(true).write(true).open(raw);
                let disk = disk.with_context(|| format!("opening {}", raw.display()))?;
                sectors::to_4096(&disk).context("giving the disk sectors of 4096 bytes")
            }
        }
    }

    fn write(&self, form: DiskForm, raw: &Path, to: &Path) -> Result<()> {
        let _ = fs::remove_file(to);
        match form {
            DiskForm::Raw => self.copy(raw, to),
            DiskForm::Gzip => filtered(Command::new("gzip").args(["-n", "-6", "-c"]).arg(raw), to),
            DiskForm::Zstd => {
                // One thread: the number of threads would decide about the bytes.
                let mut zstd = Command::new("zstd");
                zstd.args(["-q", "-f", "-10", "-T1"]).arg(raw).arg("-o").arg(to);
                run::logged(&mut zstd, "zstd", self.log)
            }
            DiskForm::Qcow2 => self.convert(raw, to, "qcow2", "compat=1.1"),
            DiskForm::Vhdx => self.convert(raw, to, "vhdx", "subformat=dynamic"),
            DiskForm::Vmdk => {
                self.convert(raw, to, "vmdk", "subformat=streamOptimized,adapter_type=lsilogic")
            }
            DiskForm::FixedVhd => self.vhd(raw, to),
            DiskForm::Ova => self.ova(raw, to),
            DiskForm::GceTar => self.gce_tar(raw, to),
        }
    }

    fn copy(&self, raw: &Path, to: &Path) -> Result<()> {
        let mut copy = Command::new("cp");
        copy.args(["--sparse=always", "--reflink=auto", "--no-preserve=mode"]).arg(raw).arg(to);
        run::logged(&mut copy, "copying the disk", self.log)
    }

    fn convert(&self, raw: &Path, to: &Path, format: &str, options: &str) -> Result<()> {
        let mut qemu_img = Command::new("qemu-img");
        qemu_img.args(["convert", "-m", "1", "-f", "raw", "-O", format, "-o", options]).arg(raw).arg(to);
        run::logged(&mut qemu_img, "qemu-img convert", self.log)
    }

    fn vhd(&self, raw: &Path, to: &Path) -> Result<()> {
        self.copy(raw, to)?;
        let digest = hex::decode(digest::file(raw)?).context("a digest")?;
        let identifier: [u8; 16] = digest.get(..16).unwrap_or_default().try_into().context("a digest")?;
        let file = File::options().write(true).open(to)?;
        let bytes = file.metadata()?.len();
        file.write_all_at(&vhd::footer(bytes, identifier), bytes).context("writing the footer")
    }

    /// Descriptor and digests stand before the disk, so that a reader of the stream has them.
    fn ova(&self, raw: &Path, to: &Path) -> Result<()> {
        let dir = raw.parent().context("the disk has a directory")?;
        let disk = dir.join(OVA_DISK);
        let made = self.out.join(DiskForm::Vmdk.file_name(self.platform, self.sectors));
        if fs::hard_link(&made, &disk).is_err() {
            fs::copy(&made, &disk).with_context(|| format!("copying {}", made.display()))?;
        }
        let description = ovf::MachineDescription {
            version: self.version,
            disk_file: OVA_DISK,
            file_bytes: fs::metadata(&disk)?.len(),
            disk_bytes: fs::metadata(raw)?.len(),
            processors: OVA_PROCESSORS,
            memory_mib: OVA_MEMORY_MIB,
        };
        let descriptor = ovf::descriptor(&description);
        fs::write(dir.join(OVA_DESCRIPTOR), &descriptor)?;
        let (of_descriptor, of_disk) = (digest::bytes(descriptor.as_bytes()), digest::file(&disk)?);
        fs::write(
            dir.join(OVA_DIGESTS),
            ovf::digests(&[(OVA_DESCRIPTOR, of_descriptor.as_str()), (OVA_DISK, of_disk.as_str())]),
        )?;
        let mut tar = tar("ustar", dir, to);
        run::logged(tar.args([OVA_DESCRIPTOR, OVA_DIGESTS, OVA_DISK]), "tar", self.log)
    }

    fn gce_tar(&self, raw: &Path, to: &Path) -> Result<()> {
        let dir = raw.parent().context("the disk has a directory")?;
        let mut tar = tar("oldgnu", dir, to);
        // Holes by content: those of the file depend on what it was copied by.
        tar.args(["--sparse", "--hole-detection=raw", "--use-compress-program=gzip -n -6", DISK]);
        run::logged(&mut tar, "tar", self.log)
    }

    /// Writes the digests, and says what there is.
    fn describe(&self, exported: &ExportManifest) -> Result<()> {
        let text = serde_json::to_string_pretty(exported)? + "\n";
        fs::write(self.out.join("manifest.json"), text)?;
        let sums: String = exported.files.iter().map(|(name, a)| format!("{}  {name}\n", a.sha256)).collect();
        fs::write(self.out.join("SHA256SUMS"), sums)?;
        for (name, artefact) in &exported.files {
            println!("{} ({} MiB)", self.out.join(name).display(), artefact.size.div_ceil(1 << 20));
        }
        if exported.configured {
            println!("the files hold the configuration with its secrets: keep them like these");
        }
        Ok(())
    }
}

/// An archive of files of `dir`, the same for the same files.
fn tar(format: &str, dir: &Path, to: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--force-local",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=0644",
        "--mtime=@0",
    ]);
    tar.arg(format!("--format={format}")).arg("--file").arg(to).arg("--directory").arg(dir);
    tar
}

/// Runs a program whose standard output is the file.
fn filtered(command: &mut Command, to: &Path) -> Result<()> {
    let file = File::create(to).with_context(|| format!("making {}", to.display()))?;
    let program = command.get_program().to_string_lossy().into_owned();
    let ended = command.stdin(Stdio::null()).stdout(file).output();
    let ended = ended.with_context(|| format!("starting {program}"))?;
    if !ended.status.success() {
        bail!("{program}: {}: {}", ended.status, String::from_utf8_lossy(&ended.stderr).trim());
    }
    Ok(())
}

fn artefact(path: &Path) -> Result<Artefact> {
    let size = fs::metadata(path).with_context(|| format!("looking at {}", path.display()))?.len();
    Ok(Artefact { size, sha256: digest::file(path)? })
}

#[cfg(test)]
mod tests;
