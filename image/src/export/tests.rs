//! A small disk in every form, read back by other programs. Forms whose program this machine lacks are left out, and named.

use super::grow::read_exact;
use super::grow::tests::small_disk;
use super::*;
use crate::format::fat::{self, FatEntry};
use crate::format::sectors::tests::write_disk as disk_of_small_sectors;
use crate::host::tools::missing;
use clap::ValueEnum;
use orlop_init::plan::gpt::read_table;
use orlop_init::plan::guid::TYPE_ESP;

const MIB: u64 = 1 << 20;

fn lacks(needs: &[(&str, &'static str)]) -> bool {
    let packages = missing(needs);
    if !packages.is_empty() {
        println!("left out without {}", packages.join(", "));
    }
    !packages.is_empty()
}

fn said(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Exports a disk of 8 MiB and some sectors; the result, if this machine has the programs.
fn exported(dir: &Path, platform: Platform) -> Option<(PathBuf, Artefact, BTreeMap<String, Artefact>)> {
    if lacks(&programs(platform, false)) {
        return None;
    }
    let (published, log) = (dir.join("orlop.raw"), dir.join("log"));
    small_disk(&published, 8 * MIB + 512 * 77);
    let out = dir.join(platform.name());
    let job =
        ExportJob { platform, sectors: DiskSectors::B512, out: out.clone(), version: "0.1.0", log: &log };
    let (disk, files) = job.export(&published, None).expect("exported");
    assert!(!out.join("work").exists());
    for (name, artefact) in &files {
        assert_eq!(artefact.sha256, digest::file(&out.join(name)).expect("digest"), "{name}");
    }
    assert_eq!(files.len(), platform.forms().len());
    Some((out, disk, files))
}

/// The disk as the platform's files have to hold it.
fn expected(dir: &Path, platform: Platform) -> PathBuf {
    let raw = dir.join("expected.raw");
    fs::copy(dir.join("orlop.raw"), &raw).expect("copied");
    grow::to_multiple(&raw, platform.granule()).expect("grown");
    raw
}

#[test]
fn formats_of_qemu_img_hold_the_same_disk() {
    let table = [
        (Platform::Openstack, DiskForm::Qcow2, "qcow2"),
        (Platform::Qemu, DiskForm::Qcow2, "qcow2"),
        (Platform::Hyperv, DiskForm::Vhdx, "vhdx"),
        (Platform::Vmware, DiskForm::Vmdk, "vmdk"),
        (Platform::Azure, DiskForm::FixedVhd, "vpc"),
        (Platform::Aws, DiskForm::Raw, "raw"),
    ];
    if lacks(DiskForm::Qcow2.programs()) {
        return;
    }
    for (platform, form, format) in table {
        let dir = tempfile::tempdir().expect("temporary directory");
        let Some((out, disk, _)) = exported(dir.path(), platform) else { continue };
        let (file, raw) =
            (out.join(form.file_name(platform, DiskSectors::B512)), expected(dir.path(), platform));
        assert_eq!(disk, artefact(&raw).expect("digest"), "{format}");
        let compare = ["compare", "-f", "raw", "-F", format];
        said(Command::new("qemu-img").args(compare).arg(&raw).arg(&file));
        let info = said(Command::new("qemu-img").args(["info", "--output=json", "-f", format]).arg(&file));
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        assert_eq!(info["virtual-size"], disk.size, "{format}: {info}");
        if form == DiskForm::Vmdk {
            assert_eq!(info["format-specific"]["data"]["create-type"], "streamOptimized");
        }
    }
}

#[test]
fn a_fixed_vhd_has_whole_mib_and_its_footer() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (out, disk, files) = exported(dir.path(), Platform::Azure).expect("needs no program");
    assert_eq!((disk.size % MIB, files["orlop-azure.vhd"].size), (0, disk.size + 512));
    let file = File::open(out.join("orlop-azure.vhd")).expect("the file");
    let footer: [u8; 512] =
        read_exact(&file, disk.size, 512).expect("the footer").try_into().expect("512 bytes");
    assert_eq!(footer[..8], *b"conectix");
    assert_eq!(footer[48..56], disk.size.to_be_bytes());
    assert_eq!(footer[64..68], vhd::checksum(&footer).to_be_bytes());
}

#[test]
fn compressed_disks_unpack_to_the_disk() {
    for (platform, program) in
        [(Platform::Digitalocean, "gzip"), (Platform::Metal, "zstd"), (Platform::Hetzner, "zstd")]
    {
        let dir = tempfile::tempdir().expect("temporary directory");
        let Some((out, disk, files)) = exported(dir.path(), platform) else { continue };
        for (name, artefact) in &files {
            let output = Command::new(program).arg("-dc").arg(out.join(name)).output().expect("it starts");
            assert!(output.status.success(), "{name}");
            assert_eq!(digest::bytes(&output.stdout), disk.sha256, "{name}");
            assert!(artefact.size < disk.size / 8, "{name} has {} bytes", artefact.size);
        }
    }
}

#[test]
fn gce_gets_whole_gib_in_a_sparse_archive_of_the_old_format() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let Some((out, disk, files)) = exported(dir.path(), Platform::Gce) else { return };
    assert_eq!(disk.size, 1 << 30);
    let path = out.join("orlop-gce.tar.gz");
    let listed = said(Command::new("tar").arg("-tvzf").arg(&path));
    assert!(listed.contains(" 1073741824 ") && listed.trim_end().ends_with("disk.raw"), "{listed}");
    let bytes = said_bytes(Command::new("gzip").arg("-dc").arg(&path));
    // Type `S` is a sparse file of GNU's old format, whose magic ends with two blanks and a NUL.
    assert_eq!((bytes[156], &bytes[257..265]), (b'S', &b"ustar  \0"[..]));
    assert!(bytes.len() < 1 << 20, "{} bytes", bytes.len());
    let again = tempfile::tempdir().expect("temporary directory");
    said(Command::new("tar").arg("-xzf").arg(&path).arg("-C").arg(again.path()));
    assert_eq!(digest::file(&again.path().join("disk.raw")).expect("unpacked"), disk.sha256);
    assert_eq!(files.len(), 1);
}

fn said_bytes(command: &mut Command) -> Vec<u8> {
    let output = command.output().expect("it starts");
    assert!(output.status.success());
    output.stdout
}

#[test]
fn a_machine_for_vsphere_has_descriptor_digests_and_disk() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let Some((out, disk, files)) = exported(dir.path(), Platform::Vmware) else { return };
    let ova = out.join("orlop-vmware.ova");
    assert_eq!(said(Command::new("tar").arg("-tf").arg(&ova)), "orlop.ovf\norlop.mf\norlop-disk1.vmdk\n");
    let part = |name: &str| said_bytes(Command::new("tar").arg("-xOf").arg(&ova).arg(name));
    let descriptor = String::from_utf8(part(OVA_DESCRIPTOR)).expect("UTF-8");
    assert!(descriptor.contains(&format!("ovf:capacity=\"{}\"", disk.size)), "{descriptor}");
    let digests = String::from_utf8(part(OVA_DIGESTS)).expect("UTF-8");
    for name in [OVA_DESCRIPTOR, OVA_DISK] {
        assert!(digests.contains(&format!("SHA256({name})= {}\n", digest::bytes(&part(name)))), "{digests}");
    }
    assert_eq!(digest::bytes(&part(OVA_DISK)), files["orlop-vmware.vmdk"].sha256);
}

#[test]
fn the_same_disk_gives_the_same_files() {
    // Not those of vhdx and vmdk, which have random identifiers.
    for platform in [Platform::Azure, Platform::Digitalocean, Platform::Metal, Platform::Openstack] {
        let (a, b) = (tempfile::tempdir().expect("directory"), tempfile::tempdir().expect("directory"));
        let Some((_, disk, files)) = exported(a.path(), platform) else { continue };
        // sfdisk gives random GUIDs: the same disk, not another one of the same shape.
        let (published, log) = (a.path().join("orlop.raw"), b.path().join("log"));
        let (sectors, out) = (DiskSectors::B512, b.path().join("out"));
        let job = ExportJob { platform, sectors, out, version: "0.1.0", log: &log };
        assert_eq!(job.export(&published, None).expect("exported"), (disk, files), "{}", platform.name());
    }
}

#[test]
fn a_configuration_is_checked_before_it_is_put_on_a_disk() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("node.yaml");
    let write = |body: &str| {
        fs::write(&path, format!("apiVersion: orlop/v1alpha1\nkind: NodeConfig\n{body}\n")).expect("fixture");
        read_config(&path)
    };
    assert!(write("node: {name: a}").expect("valid").contains("name: a"));
    let error = write("nod: {name: a}\nkubelet: {maxPods: many}").expect_err("two mistakes").to_string();
    assert!(error.contains("nod") && error.contains("maxPods"), "{error}");
    assert!(write(&"#".repeat(1 << 20)).is_err());
    assert!(read_config(&dir.path().join("none")).is_err());
}

#[test]
fn a_configuration_reaches_the_esp() {
    if lacks(form::ESP_PROGRAMS) || lacks(&[("/usr/bin/mformat", "mtools")]) {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let (published, log) = (dir.path().join("orlop.raw"), dir.path().join("log"));
    small_disk(&published, 8 * MIB);
    let start = esp::esp_start(&published).expect("an ESP");
    assert_eq!(start, MIB);
    // 2 MiB in 4096 sectors.
    let image = format!("{}@@{start}", published.display());
    said(Command::new("mformat").args(["-i", &image, "-T", "4096", "-h", "16", "-s", "63", "::"]));
    let (platform, sectors, out) = (Platform::Vultr, DiskSectors::B512, dir.path().join("out"));
    let job = ExportJob { platform, sectors, out, version: "0.1.0", log: &log };
    let before = digest::file(&published).expect("digest");
    let text = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\n";
    job.export(&published, Some(text)).expect("exported");
    assert_eq!(digest::file(&published).expect("digest"), before, "the published disk is only read");
    let made = dir.path().join("out/orlop-vultr.raw");
    let mode = fs::metadata(&made).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let image = format!("{}@@{start}", made.display());
    assert_eq!(said(Command::new("mtype").args(["-i", &image, "::/orlop/node-config.yaml"])), text);
}

#[test]
fn a_disk_of_large_sectors_has_its_table_there_and_the_configuration() {
    if lacks(&programs(Platform::Metal, true)) || lacks(&[("/usr/bin/mformat", "mtools")]) {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let (published, log, out) =
        (dir.path().join("orlop.raw"), dir.path().join("log"), dir.path().join("out"));
    let options = File::options().read(true).write(true).create_new(true).clone();
    disk_of_small_sectors(&options.open(&published).expect("the disk"));
    // FAT32 of 264 MiB, as mtools reads it.
    let image = format!("{}@@{}", published.display(), esp::esp_start(&published).expect("an ESP"));
    let form = ["-F", "-c", "1", "-T", "540672", "-h", "16", "-s", "63", "::"];
    said(Command::new("mformat").args(["-i", &image]).args(form));
    let before = digest::file(&published).expect("digest");

    let (platform, sectors) = (Platform::Metal, DiskSectors::B4096);
    let job = ExportJob { platform, sectors, out: out.clone(), version: "0.1.0", log: &log };
    let text = "apiVersion: orlop/v1alpha1\nkind: NodeConfig\n";
    let (_, files) = job.export(&published, Some(text)).expect("exported");
    assert_eq!(digest::file(&published).expect("digest"), before, "the published disk is only read");
    let name = "orlop-metal-4096.raw.zst";
    assert_eq!(files.keys().collect::<Vec<_>>(), [name]);
    let unpacked = dir.path().join("unpacked.raw");
    said(Command::new("zstd").args(["-q", "-d"]).arg(out.join(name)).arg("-o").arg(&unpacked));

    let disk = File::open(unpacked).expect("the unpacked disk");
    let bytes = disk.metadata().expect("length").len();
    let read = |offset, length| read_exact(&disk, offset, length);
    assert!(read_table(bytes, 512, read).is_err());
    let table = read_table(bytes, 4096, read).expect("a table in sectors of 4096 bytes");
    let start = table.partitions.iter().find(|p| p.type_guid == TYPE_ESP).expect("an ESP").start;
    let esp = fat::read(|offset, length| {
        read_exact(&disk, start + offset, length).ok_or_else(|| std::io::Error::other("cut short"))
    });
    let esp = esp.expect("a sound ESP");
    assert_eq!(esp.boot[11..13], [0, 16]);
    let is_there =
        |entry: &FatEntry| matches!(entry, FatEntry::File(_, content, _) if content == text.as_bytes());
    let in_directory =
        |entry: &FatEntry| matches!(entry, FatEntry::Directory(_, all) if all.iter().any(is_there));
    assert!(esp.root.iter().any(in_directory));
}

#[test]
fn a_file_appears_when_it_is_whole() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (published, log, out) =
        (dir.path().join("orlop.raw"), dir.path().join("log"), dir.path().join("out"));
    small_disk(&published, 8 * MIB);
    // What cannot be replaced stays as it is, and no part of the disk is next to it.
    let place = out.join("orlop-vultr.raw");
    fs::create_dir_all(&place).expect("fixture");
    let (platform, sectors) = (Platform::Vultr, DiskSectors::B512);
    let job = ExportJob { platform, sectors, out: out.clone(), version: "0.1.0", log: &log };
    assert!(job.export(&published, None).is_err());
    assert_eq!(fs::read_dir(&place).expect("the directory").count(), 0);
    assert_eq!(fs::read_dir(&out).expect("the directory").count(), 1);
    fs::remove_dir(&place).expect("removed");
    job.export(&published, None).expect("exported");
    assert!(place.is_file());
}

/// Neither the refusal nor the missing image needs a disk.
#[test]
fn an_image_for_arm64_goes_to_its_platforms_alone() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = dir.path().to_str().expect("UTF-8");
    let dirs = Dirs { arch: Arch::Arm64, ..Dirs::new(PathBuf::from("/none"), Some(cache), "/none") };
    let of = |platform: Platform| {
        let args = ExportArgs {
            platform,
            profile: Profile::Release,
            sectors: DiskSectors::B512,
            out: None,
            config: None,
        };
        run(&dirs, &args).expect_err("refused").to_string()
    };
    let (vultr, metal) = (of(Platform::Vultr), of(Platform::Metal));
    assert!(vultr.starts_with("vultr takes no disk for arm64: "), "{vultr}");
    assert_eq!(metal, no_image(Arch::Arm64, Profile::Release));
    if Arch::HOST != Arch::Arm64 {
        assert!(metal.contains("image for arm64 yet") && metal.ends_with(" --arch arm64`"), "{metal}");
    }
    let own = no_image(Arch::HOST, Profile::Release);
    assert!(own.ends_with("build --profile release`") && own.contains("release image yet"), "{own}");
}

#[test]
fn every_platform_names_what_it_needs() {
    for platform in Platform::value_variants() {
        let (with, without) = (programs(*platform, true), programs(*platform, false));
        assert!(with.len() == without.len() + form::ESP_PROGRAMS.len(), "{}", platform.name());
    }
}
