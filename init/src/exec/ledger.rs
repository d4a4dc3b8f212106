//! Writes the boot ledger `/run/orlop/boot.json`: read, append, rename under a lock.
//!
//! Entries stamped before /run is mounted wait in memory. A ledger that cannot be written never stops a boot.

use nix::fcntl::{Flock, FlockArg};
use orlop_config::ledger::{Ledger, LedgerEntry};
use orlop_files::Durability;
use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The ledger of this boot in a directory (`/run/orlop`).
#[derive(Debug)]
pub struct LedgerFile {
    dir: PathBuf,
    pending: Vec<LedgerEntry>,
}

impl LedgerFile {
    /// A ledger in `dir`, which need not exist yet.
    #[must_use]
    pub fn new(dir: &Path) -> LedgerFile {
        LedgerFile { dir: dir.to_path_buf(), pending: Vec::new() }
    }

    /// Stamps an entry; it is written now if the directory is there.
    ///
    /// # Errors
    /// The file could not be written; the entry is kept for the next attempt.
    pub fn stamp(&mut self, entry: LedgerEntry) -> io::Result<()> {
        self.pending.push(entry);
        if !self.dir.is_dir() {
            return Ok(());
        }
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(self.dir.join("boot.lock"))?;
        // Each program that stamps holds it for a few milliseconds; released when dropped.
        let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, e)| io::Error::from(e))?;
        let path = self.dir.join("boot.json");
        let mut ledger = read(&path)?;
        ledger.entries.extend(self.pending.iter().cloned());
        orlop_files::replace(&path, ledger.render().as_bytes(), 0o644, Durability::Rebuildable)
            .map_err(|error| error.source)?;
        self.pending.clear();
        Ok(())
    }
}

/// Reads a ledger; a missing file is a new ledger of this boot.
///
/// # Errors
/// The file cannot be read or is not a ledger.
pub fn read(path: &Path) -> io::Result<Ledger> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ledger::parse(&text).map_err(io::Error::other),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            Ok(Ledger { boot_id: boot_id.trim_end().to_string(), entries: Vec::new() })
        }
        Err(e) => Err(e),
    }
}

/// Prints the ledger of this boot as a table.
#[must_use]
pub fn print() -> ExitCode {
    let shown =
        read(Path::new("/run/orlop/boot.json")).and_then(|l| io::stdout().write_all(table(&l).as_bytes()));
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(io::stderr(), "orlop-init: cannot show /run/orlop/boot.json: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The ledger for a person: end of each phase, how long it took, what it was.
#[must_use]
pub fn table(ledger: &Ledger) -> String {
    let mut out = String::from("      at     took  phase\n");
    for e in &ledger.entries {
        let took = e.took_ms.map_or(String::new(), |ms| format!("{:.3}", Seconds(ms)));
        let mark = if e.ok { "" } else { "  FAILED" };
        let _ = writeln!(out, "{:8.3} {took:>8}  {}{mark}  {}", Seconds(e.at_ms), e.phase, e.detail);
    }
    out
}

/// Milliseconds shown as seconds with three digits.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or(0).saturating_sub(4);
        write!(f, "{:width$}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(phase: &str) -> LedgerEntry {
        LedgerEntry { phase: phase.into(), at_ms: 1, took_ms: None, detail: String::new(), ok: true }
    }

    #[test]
    fn early_entries_wait_and_two_writers_append() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let run = dir.path().join("orlop");
        let mut init = LedgerFile::new(&run);
        init.stamp(entry("kernel")).expect("kept");
        assert!(!run.exists());
        std::fs::create_dir(&run).expect("run");
        init.stamp(entry("init.modules")).expect("written");
        LedgerFile::new(&run).stamp(entry("agent.ready")).expect("written");
        init.stamp(entry("late")).expect("written");
        let ledger = read(&run.join("boot.json")).expect("ledger");
        let phases: Vec<_> = ledger.entries.iter().map(|e| e.phase.as_str()).collect();
        assert_eq!(phases, ["kernel", "init.modules", "agent.ready", "late"]);
        assert!(!ledger.boot_id.is_empty());
    }

    #[test]
    fn table_for_people() {
        let mut failed = entry("init.state");
        (failed.at_ms, failed.took_ms, failed.ok) = (12_034, Some(5), false);
        failed.detail = "no ext4".into();
        let text = table(&Ledger { boot_id: String::new(), entries: vec![entry("kernel"), failed] });
        let want = "      at     took  phase\n   0.001           kernel  \n  12.034    0.005  init.state  FAILED  no ext4\n";
        assert_eq!(text, want);
    }
}
