//! A TPM of a VM, by swtpm, and what its PCRs must hold.
//!
//! The values are those of `systemd-measure calculate`: what systemd's stub measures of a UKI, then the phases of the boot
//! (systemd-pcrphase). Pure, but for [`SoftTpm`].

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use orlop_image::host::tools;
use sha2::{Digest, Sha256};

use super::machine::socket_dir;
use crate::case::skip;
use crate::process::Guarded;
use crate::run::Run;

/// Its program and package.
const SWTPM: &[(&str, &str)] = &[("/usr/bin/swtpm", "swtpm")];
/// Its start, on a slow machine.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Looks at whether its socket is there.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Sections of a UKI in the order in which the stub measures them (systemd 257, `UnifiedSection`); `.pcrsig` is not measured.
const SECTIONS: [&str; 13] = [
    ".linux", ".osrel", ".cmdline", ".initrd", ".ucode", ".splash", ".dtb", ".uname", ".sbat", ".pcrpkey",
    ".profile", ".dtbauto", ".hwids",
];

/// A TPM 2.0 without a history. It ends with the QEMU that uses it.
pub struct SoftTpm {
    socket: PathBuf,
    _swtpm: Guarded,
}

impl SoftTpm {
    /// Starts one; its state is below `dir`.
    ///
    /// # Errors
    /// If it does not start. A machine without swtpm skips the case.
    pub fn start(run: &Arc<Run>, dir: &Path) -> Result<SoftTpm> {
        if let Err(e) = tools::ensure(SWTPM, &dir.join("packages.log")) {
            return skip(format!("there is no swtpm: {e:#}"));
        }
        let state = dir.join("tpm");
        std::fs::create_dir_all(&state).with_context(|| format!("make {}", state.display()))?;
        let socket = socket_dir(run)?.join("tpm");
        let mut command = Command::new("swtpm");
        command.args(["socket", "--tpm2", "--tpmstate"]).arg(format!("dir={}", state.display()));
        command.arg("--ctrl").arg(format!("type=unixio,path={}", socket.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut swtpm = Guarded::spawn(run, &mut command)?;
        let mut waited = Duration::ZERO;
        while !socket.exists() {
            let ended = swtpm.wait(LOOK_EVERY)?;
            ensure!(ended.is_none(), "swtpm has ended: {ended:?}");
            waited += LOOK_EVERY;
            ensure!(waited < START_LIMIT, "swtpm has made no socket within {} s", START_LIMIT.as_secs());
        }
        Ok(SoftTpm { socket, _swtpm: swtpm })
    }

    /// Its socket, for QEMU.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

/// The value of a PCR in the bank of SHA-256.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PcrValue([u8; 32]);

impl PcrValue {
    /// After an event.
    #[must_use]
    pub fn extended(self, event: &[u8]) -> PcrValue {
        let digest: [u8; 32] = Sha256::digest(event).into();
        PcrValue(Sha256::digest([self.0, digest].concat()).into())
    }

    /// PCR 11 after the stub of this UKI.
    ///
    /// # Errors
    /// If it is no PE file.
    pub fn of_uki(uki: &[u8]) -> Result<PcrValue> {
        let sections = sections(uki).context("the UKI is no PE file")?;
        let mut value = PcrValue::default();
        for name in SECTIONS {
            if let Some((_, content)) = sections.iter().find(|(found, _)| found == name) {
                value = value.extended(&[name.as_bytes(), b"\0"].concat()).extended(content);
            }
        }
        Ok(value)
    }

    /// As sysfs shows it: hexadecimal digits.
    #[must_use]
    pub fn hex(self) -> String {
        hex::encode(self.0)
    }
}

/// Names and contents of a PE file's sections, as they are in memory.
fn sections(pe: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let field = pe.get(at..at.checked_add(bytes)?)?;
        Some(field.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    let header = number(0x3c, 4)?;
    let table = header.checked_add(24)?.checked_add(number(header + 20, 2)?)?;
    let mut found = Vec::new();
    for n in 0..number(header + 6, 2)? {
        let entry = table + n * 40;
        let name = pe.get(entry..entry + 8)?;
        let name = String::from_utf8_lossy(name).trim_end_matches('\0').to_owned();
        let (virtual_size, size, at) =
            (number(entry + 8, 4)?, number(entry + 16, 4)?, number(entry + 20, 4)?);
        let mut content = pe.get(at..at.checked_add(size.min(virtual_size))?)?.to_vec();
        content.resize(virtual_size, 0);
        found.push((name, content));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PE file with two sections, the first of which is longer in memory than in the file.
    fn pe() -> Vec<u8> {
        let mut pe = vec![0; 512];
        pe[0x3c] = 0x40;
        (pe[0x40 + 6], pe[0x40 + 20]) = (2, 16);
        for (n, (name, virtual_size, at)) in
            [(b".cmdline", 6_u32, 300_u32), (b".linux\0\0", 3, 310)].into_iter().enumerate()
        {
            let entry = 0x40 + 24 + 16 + n * 40;
            pe[entry..entry + 8].copy_from_slice(name);
            for (place, field) in [(8, virtual_size), (16, 4), (20, at)] {
                pe[entry + place..entry + place + 4].copy_from_slice(&field.to_le_bytes());
            }
        }
        pe[300..304].copy_from_slice(b"args");
        pe[310..314].copy_from_slice(b"abcd");
        pe
    }

    #[test]
    fn the_stub_measures_names_and_contents_in_its_own_order() {
        let found = sections(&pe()).expect("a PE file");
        assert_eq!(found[0], (".cmdline".to_owned(), b"args\0\0".to_vec()));
        let want = [&b".linux\0"[..], b"abc", b".cmdline\0", b"args\0\0"]
            .into_iter()
            .fold(PcrValue::default(), PcrValue::extended);
        assert_eq!(PcrValue::of_uki(&pe()).expect("a PE file"), want);
        assert!(PcrValue::of_uki(&pe()[..200]).is_err());
    }

    /// SHA-256 of 32 zeros and the digest of the word, by sha256sum.
    #[test]
    fn an_event_extends_by_its_digest() {
        assert_eq!(
            PcrValue::default().extended(b"enter-initrd").hex(),
            "d15b0e8e244e65c40f024e95773f2347ce4ef3ffe6b597c9a14b50bbab6df319"
        );
        assert_eq!(PcrValue::default().hex(), "0".repeat(64));
    }
}
