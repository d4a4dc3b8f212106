//! Makes a raw disk longer, with its backup partition table at the new end: firmware and tools look for it there.
//!
//! The decisions about the table are init's, which does the same on a node's disk (`init/src/plan/gpt_relocate.rs`).

use anyhow::{Context, Result, bail};
use orlop_init::plan::gpt_change::Editor;
use orlop_init::plan::gpt_relocate::relocate;
use orlop_init::plan::step::DiskWrite;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Logical sector of the image, bytes (`mkosi/disk/mkosi.conf`).
pub(super) const SECTOR: u32 = 512;

/// Lets the file be a multiple of `granule` bytes long; returns its length.
///
/// # Errors
/// It has no sound partition table, or cannot be written.
pub(super) fn to_multiple(raw: &Path, granule: u64) -> Result<u64> {
    let shown = raw.display();
    let file =
        File::options().read(true).write(true).open(raw).with_context(|| format!("opening {shown}"))?;
    let before = file.metadata()?.len();
    let least = before.next_multiple_of(granule.max(1));
    if least == before {
        return Ok(before);
    }
    let read = |offset, length| read_exact(&file, offset, length);
    // A few sectors more are not enough for both backups, the old one and the new one: then one granule more.
    let sizes = [least, least + granule];
    let grown = sizes.into_iter().find_map(|size| Some((size, relocate(size, SECTOR, read)?)));
    let Some((size, moved)) = grown else { bail!("{shown} has no sound partition table") };
    file.set_len(size).with_context(|| format!("growing {shown}"))?;
    write(&file, &moved).with_context(|| format!("moving the backup partition table of {shown}"))?;
    // Once more as a whole: the protective MBR gets the new length.
    let table = Editor::read(size, SECTOR, read).with_context(|| format!("the grown {shown}"))?;
    write(&file, &table.writes()).with_context(|| format!("writing the partition table of {shown}"))?;
    Ok(size)
}

fn write(file: &File, writes: &[DiskWrite]) -> std::io::Result<()> {
    writes.iter().try_for_each(|write| file.write_all_at(&write.bytes, write.offset))
}

/// Reads exactly so many bytes, or nothing.
pub(super) fn read_exact(file: &File, offset: u64, length: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0; length];
    file.read_exact_at(&mut buffer, offset).ok()?;
    Some(buffer)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use orlop_init::plan::gpt::{Copy, GptError, Table, read_table};
    use std::process::Command;

    const MIB: u64 = 1 << 20;

    /// A small disk of `bytes` with two partitions, an ESP the first, made by another tool.
    pub(crate) fn small_disk(path: &Path, bytes: u64) {
        File::create(path).and_then(|file| file.set_len(bytes)).expect("sparse file");
        let script = path.with_extension("script");
        std::fs::write(&script, "label: gpt\nstart=2048, size=4096, type=U\nstart=6144, size=4096\n")
            .expect("script");
        let mut sfdisk = Command::new("sfdisk");
        sfdisk.arg("--quiet").arg(path).stdin(File::open(&script).expect("script"));
        assert!(sfdisk.status().expect("sfdisk").success());
        std::fs::remove_file(script).expect("removed");
        let file = File::options().write(true).open(path).expect("disk");
        file.write_all_at(b"content", 3 * MIB).expect("written");
    }

    fn table(path: &Path) -> Result<Table, GptError> {
        let file = File::open(path).expect("disk");
        let bytes = file.metadata().expect("length").len();
        read_table(bytes, SECTOR, |offset, length| read_exact(&file, offset, length))
    }

    #[test]
    fn the_backup_goes_along_to_the_new_end() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("disk.raw");
        // The second length leaves less behind it than a table needs: it becomes one granule longer.
        for (bytes, granule, want) in
            [(8 * MIB, 16 * MIB, 16 * MIB), (8 * MIB - 4096, MIB, 9 * MIB), (8 * MIB, MIB, 8 * MIB)]
        {
            small_disk(&path, bytes);
            let before = table(&path).expect("sound");
            assert_eq!(to_multiple(&path, granule).expect("grown"), want);
            assert_eq!(std::fs::metadata(&path).expect("length").len(), want);
            let after = table(&path).expect("sound");
            assert_eq!((after.copy, &after.partitions), (Copy::Primary, &before.partitions));
            let checked = Command::new("sfdisk").arg("--verify").arg(&path).output().expect("sfdisk");
            let said = String::from_utf8_lossy(&checked.stderr).into_owned();
            assert!(
                checked.status.success() && !said.contains("PMBR") && !said.contains("corrupt"),
                "{said}"
            );
            // The backup alone leads to the same partitions.
            let file = File::options().write(true).open(&path).expect("disk");
            file.write_all_at(&[0; 512], 512).expect("damaged");
            let backup = table(&path).expect("the backup");
            assert_eq!((backup.copy, backup.partitions), (Copy::Backup, before.partitions));
        }
    }

    #[test]
    fn a_disk_without_a_table_is_not_grown() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("disk.raw");
        File::create(&path).and_then(|file| file.set_len(MIB + 512)).expect("sparse file");
        assert!(
            to_multiple(&path, MIB).expect_err("no table").to_string().contains("no sound partition table")
        );
        assert_eq!(std::fs::metadata(&path).expect("length").len(), MIB + 512);
    }
}
