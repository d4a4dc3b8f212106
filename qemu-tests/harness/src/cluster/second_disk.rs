//! Additional files for a VM, on a second disk without a file system, and files back from the VM.
//!
//! ```text
//! host: files ─► second.raw ═ /dev/vdb ─► dd ─► files in the guest
//!                    ▲                             │
//!                    └──────────── dd ◄────────────┘
//! ```
//! In: programs and texts with their paths in the guest. Out: the files in the guest, and bytes of a guest's file.
//! Invariant: the disk is as long as its files; a file on the way back has to fit.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::vm::shell::Shell;

/// Disks have whole blocks, bytes.
const BLOCK: u64 = 1024 * 1024;
/// Limit of the copy of a file under TCG.
const COPY: Duration = Duration::from_secs(300);

/// The disk.
pub struct SecondDisk {
    file: PathBuf,
    /// The path of each part in the guest, its first block and its length, bytes.
    parts: Vec<(String, u64, u64)>,
    blocks: u64,
}

impl SecondDisk {
    /// Makes it as a file of `artefacts`.
    ///
    /// # Errors
    /// If a program cannot be read or the disk not written.
    pub fn make(artefacts: &Path, programs: &[(&Path, &str)], texts: &[(&str, &str)]) -> Result<SecondDisk> {
        let file = artefacts.join("second.raw");
        let disk = fs::File::create(&file).with_context(|| format!("make {}", file.display()))?;
        let (mut parts, mut blocks) = (Vec::new(), 0);
        let mut add = |to: &str, content: &[u8]| -> Result<()> {
            disk.write_all_at(content, blocks * BLOCK)?;
            let length = u64::try_from(content.len())?;
            parts.push((to.to_owned(), blocks, length));
            blocks += length.div_ceil(BLOCK);
            Ok(disk.set_len(blocks * BLOCK)?)
        };
        for (program, to) in programs {
            add(to, &fs::read(program).with_context(|| format!("read {}", program.display()))?)?;
        }
        for (text, to) in texts {
            add(to, text.as_bytes())?;
        }
        Ok(SecondDisk { file, parts, blocks })
    }

    /// Its file, for the VM.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.file.clone()
    }

    /// Copies its parts to their paths; the directories must exist.
    ///
    /// # Errors
    /// The guest's message.
    pub fn unpack(&self, shell: &mut Shell) -> Result<()> {
        for (to, first, length) in &self.parts {
            let blocks = length.div_ceil(BLOCK);
            let command = format!(
                "dd if=/dev/vdb of={to} bs={BLOCK} skip={first} count={blocks} && truncate -s {length} {to} && chmod 755 {to}"
            );
            let copied = shell.run(&command, COPY)?;
            ensure!(copied.status == 0, "the second disk cannot be copied: {}", copied.text);
        }
        Ok(())
    }

    /// Reads a file of the guest through the disk, which overwrites the disk's parts.
    ///
    /// # Errors
    /// If the guest has no such file, or the disk is too short for it.
    pub fn fetch(&self, shell: &mut Shell, from: &str) -> Result<Vec<u8>> {
        let length = shell.must(&format!("wc -c <{from}"))?;
        let length: u64 = length.trim().parse().with_context(|| format!("length of {from}: {length:?}"))?;
        ensure!(
            length <= self.blocks * BLOCK,
            "{from} has {length} bytes, the second disk {} MiB",
            self.blocks
        );
        let copied = shell.run(&format!("dd if={from} of=/dev/vdb bs={BLOCK} conv=fsync"), COPY)?;
        ensure!(copied.status == 0, "{from} cannot be copied to the second disk: {}", copied.text);
        let mut content = vec![0; usize::try_from(length)?];
        let disk = fs::File::open(&self.file).with_context(|| format!("open {}", self.file.display()))?;
        disk.read_exact_at(&mut content, 0).with_context(|| format!("read {}", self.file.display()))?;
        Ok(content)
    }
}
