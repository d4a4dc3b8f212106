//! The parsers against what the real tools write: veritysetup, sgdisk, mkfs.vfat.
//! A tool that is not installed skips its test and says so (`.ci/run` installs them).

use orlop_init::plan::cmdline::RootHash;
use orlop_init::plan::gpt::{self, Copy};
use orlop_init::plan::guid::{Guid, TYPE_ROOT, TYPE_VAR};
use orlop_init::plan::verity::{self, Superblock};
use orlop_init::plan::{gpt_relocate, volume};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a tool; `None` if it is not installed.
fn tool(program: &str, args: &[&str]) -> Option<String> {
    let found =
        ["/usr/sbin", "/usr/bin", "/sbin"].iter().map(|d| Path::new(d).join(program)).find(|p| p.exists());
    let Some(path) = found else {
        eprintln!("skipped: {program} is not installed");
        return None;
    };
    let output = Command::new(path).args(args).output().expect("tool runs");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn sparse(dir: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = dir.join(name);
    File::create(&path).and_then(|f| f.set_len(bytes)).expect("sparse file");
    path
}

/// Value of `Key:   value` in veritysetup's answer.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let line = text.lines().find(|l| l.starts_with(key)).unwrap_or_else(|| panic!("no {key} in {text}"));
    line.split_once(':').expect("key and value").1.trim()
}

#[test]
fn veritysetup_s_superblock() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (data, hash) = (sparse(dir.path(), "data", 3 << 20), sparse(dir.path(), "hash", 0));
    let paths = [data.to_str().expect("path"), hash.to_str().expect("path")];
    for extra in
        [vec![], vec!["--salt=-"], vec!["--salt=00ff10", "--data-block-size=1024", "--hash-block-size=1024"]]
    {
        let args: Vec<&str> = ["format"].into_iter().chain(extra).chain(paths).collect();
        let Some(said) = tool("veritysetup", &args) else { return };
        let superblock = Superblock::parse(&fs::read(&hash).expect("hash device")).expect("superblock");
        let salt: String = superblock.salt.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(value(&said, "Salt").trim_end_matches('-'), salt);
        assert_eq!(value(&said, "Data blocks"), superblock.data_blocks.to_string());
        assert_eq!(
            value(&said, "Data block size").split(' ').next(),
            Some(superblock.data_block.to_string().as_str())
        );
        let uuid = Guid::parse(value(&said, "UUID")).expect("UUID");
        assert_eq!(superblock.uuid, uuid.0);
        let roothash = RootHash::parse(value(&said, "Root hash")).expect("root hash");
        let table = verity::table(&superblock, &roothash, (7, 0), (7, 1), 3 << 20).expect("table");
        assert_eq!(table.sectors, (3 << 20) / 512);
        assert!(table.params.starts_with("1 7:0 7:1 "), "{}", table.params);
    }
}

fn read_table(disk: &Path) -> Result<gpt::Table, gpt::GptError> {
    let bytes = fs::read(disk).expect("disk");
    gpt::read_table(bytes.len() as u64, 512, |offset, length| {
        let start = usize::try_from(offset).ok()?;
        bytes.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
    })
}

#[test]
fn sgdisk_s_table() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let disk = sparse(dir.path(), "disk", 16 << 20);
    let path = disk.to_str().expect("path");
    let partuuid = "01234567-89ab-cdef-0123-456789abcdef";
    let u2 = format!("-u2:{partuuid}");
    let args =
        ["-n2:2048:+4M", "-t2:8304", &u2, "-c2:orlop_1", "-n6:0:0", "-t6:8310", "-c6:orlop-state", path];
    if tool("sgdisk", &args).is_none() {
        return;
    }
    let table = read_table(&disk).expect("table");
    let root = &table.partitions[0];
    assert_eq!((root.number, root.type_guid, root.label.as_str()), (2, TYPE_ROOT, "orlop_1"));
    assert_eq!((root.start, root.length, root.partuuid.to_string().as_str()), (1 << 20, 4 << 20, partuuid));
    assert_eq!((table.partitions[1].number, table.partitions[1].type_guid), (6, TYPE_VAR));
    // The same from the backup, once the primary is gone.
    let mut bytes = fs::read(&disk).expect("disk");
    bytes[512..1024].fill(0);
    fs::write(&disk, bytes).expect("disk");
    let backup = read_table(&disk).expect("backup");
    assert_eq!((backup.copy, backup.partitions), (Copy::Backup, table.partitions));
}

#[test]
fn sgdisk_finds_a_relocated_table_sound() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let disk = sparse(dir.path(), "disk", 16 << 20);
    let path = disk.to_str().expect("path");
    if tool("sgdisk", &["-n1:2048:+4M", "-t1:8304", path]).is_none() {
        return;
    }
    let mut bytes = fs::read(&disk).expect("disk");
    bytes.resize(64 << 20, 0);
    let source = bytes.clone();
    let writes = gpt_relocate::relocate(64 << 20, 512, |offset, length| {
        let start = usize::try_from(offset).ok()?;
        source.get(start..start.checked_add(length)?).map(<[u8]>::to_vec)
    });
    for write in writes.expect("relocated") {
        let at = usize::try_from(write.offset).expect("small");
        bytes[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }
    fs::write(&disk, bytes).expect("disk");
    let said = tool("sgdisk", &["-v", path]).expect("installed");
    assert!(said.contains("No problems found"), "{said}");
}

#[test]
fn mkfs_vfat_s_label() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for (bits, bytes) in [("12", 1 << 20), ("16", 16 << 20), ("32", 64 << 20)] {
        let disk = sparse(dir.path(), bits, bytes);
        if tool("mkfs.vfat", &["-F", bits, "-n", "CIDATA", disk.to_str().expect("path")]).is_none() {
            return;
        }
        let mut start = fs::read(&disk).expect("disk");
        start.truncate(volume::PROBE_BYTES);
        let found = volume::probe(&start).expect("a volume");
        assert_eq!((found.fstype, found.label.as_str()), ("vfat", "CIDATA"), "FAT{bits}");
    }
}
