//! `bundle`: all that a node says, in one archive, for people who look for the cause of a problem.
//!
//! ```text
//! node ─► gather ─► redact ─► parts ─► archive ─► FILE
//! ```
//! In: a way to a node. Out: a tar in gzip, whose `manifest.json` lists what came, and what did not and why. `redact`, `parts` and
//! `archive` are pure; `gather` asks. Invariant: the archive is made of what came, whatever is dead on the node.
//! docs/reference/node-api.md.

mod archive;
mod gather;
mod parts;
mod redact;

use std::fs::OpenOptions;
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use crate::cli::OutputForm;
use crate::commands::{Verdict, show};
use crate::failure::CtlError;
use crate::render::amounts::bytes;
use crate::render::plain;
use crate::target::Target;

use archive::{archive, file_name};
use gather::{GatheredBundle, gather};
use parts::{Bundle, MANIFEST};

/// The file name that means standard output.
const STDOUT: &str = "-";

/// What is made.
#[derive(Debug, Args)]
pub(crate) struct BundleArgs {
    /// The archive, a new file; -: standard output; without it: orlop-bundle-NODE-TIME.tar.gz
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Longest time for all of it, seconds; what has not come by then is missing
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=3600))]
    within: u64,
}

/// Makes the archive.
pub(crate) async fn run(
    target: &Target,
    limit: Duration,
    form: OutputForm,
    args: &BundleArgs,
) -> Result<Verdict, CtlError> {
    if let Some(file) = args.file.as_deref().filter(|file| *file != Path::new(STDOUT) && file.exists()) {
        return Err(CtlError::Usage(format!("{} is there already", file.display())));
    }
    if args.file.as_deref() == Some(Path::new(STDOUT)) && io::stdout().is_terminal() {
        return Err(CtlError::Usage("an archive is nothing for a terminal: name a file".to_owned()));
    }
    let now = Timestamp::now();
    let GatheredBundle { bundle, node, boot_id } =
        gather(target, limit, Duration::from_secs(args.within)).await?;
    let known = if node.is_empty() { "unknown" } else { node.as_str() };
    let directory = format!("orlop-bundle-{}-{}", file_name(known), now.strftime("%Y%m%dT%H%M%SZ"));
    let manifest = bundle.manifest(&node, &boot_id, env!("CARGO_PKG_VERSION"), &now.to_string());
    let verdict = verdict(&bundle);
    let lines = missing_lines(&bundle);
    let count = bundle.parts();
    let seconds = u64::try_from(now.as_second()).unwrap_or(0);
    let packed = archive(&directory, seconds, &bundle.into_files(&manifest))?;
    let file = args.file.clone().unwrap_or_else(|| PathBuf::from(format!("{directory}.tar.gz")));
    if file == Path::new(STDOUT) {
        let mut out = io::stdout().lock();
        out.write_all(&packed)?;
        out.flush()?;
        return Ok(verdict);
    }
    keep(&file, &packed)?;
    let size = bytes(u64::try_from(packed.len()).unwrap_or(u64::MAX));
    let text = format!("{}: {count} parts, {size}; {MANIFEST} lists them\n{lines}", file.display());
    show(form, &manifest, || text)?;
    Ok(verdict)
}

/// What a healthy node has came.
fn verdict(bundle: &Bundle) -> Verdict {
    if bundle.missing().iter().all(|part| part.is_optional) { Verdict::Fine } else { Verdict::Problems }
}

/// What is missing, for people.
fn missing_lines(bundle: &Bundle) -> String {
    let missing = bundle.missing().iter().filter(|part| !part.is_optional);
    let line =
        |part: &parts::MissingPart| format!("missing: {}: {} ({})", part.path, part.message, part.reason);
    missing.map(|part| plain(&line(part)) + "\n").collect()
}

/// Writes a new file, for its owner alone: logs are not for everybody.
fn keep(file: &Path, packed: &[u8]) -> Result<(), CtlError> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map_err(named)?;
    if let Err(error) = opened.write_all(packed) {
        // Half an archive is of no use.
        let _ = std::fs::remove_file(file);
        return Err(named(error).into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_healthy_node_may_lack_is_no_problem() {
        let mut bundle = Bundle::default();
        bundle.miss("journal/boot-1.log", "PART_DOWN", "no such boot".to_owned(), true);
        assert_eq!((verdict(&bundle), missing_lines(&bundle)), (Verdict::Fine, String::new()));
        bundle.miss("objects/boot.json", "PART_DOWN", "no ledger\u{1b}".to_owned(), false);
        assert_eq!(verdict(&bundle), Verdict::Problems);
        assert_eq!(missing_lines(&bundle), "missing: objects/boot.json: no ledger? (PART_DOWN)\n");
    }

    #[test]
    fn a_file_that_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("b.tar.gz");
        keep(&file, b"one").unwrap();
        let error = keep(&file, b"two").unwrap_err();
        assert!(error.to_string().contains("b.tar.gz"), "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), b"one");
    }
}
