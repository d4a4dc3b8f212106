//! `bench size`: sizes of the build output, uncompressed and compressed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result};
use orlop_harness::process::Guarded;
use orlop_harness::run::{Run, cache_dir};
use orlop_harness::say;

/// Files of a build output that a person downloads or a machine stores.
const FILES: [&str; 5] = ["orlop.raw", "orlop.efi", "vmlinuz", "initrd", "root.erofs"];

/// Prints apparent, stored and zstd-compressed sizes for each profile that was built.
///
/// # Errors
/// If no profile was built, or zstd is not installed.
pub fn run(run: &Arc<Run>) -> Result<()> {
    orlop_harness::prepare::bench()?;
    let mut any = false;
    for profile in ["release", "test"] {
        let dir = cache_dir().join("image").join(profile);
        for file in FILES {
            let path = dir.join(file);
            let Ok(meta) = fs::metadata(&path) else { continue };
            any = true;
            let compressed = compressed_size(run, &path)?;
            say::line(format!(
                "{profile:<8} {file:<11} {:>8.1} MB, {:>7.1} MB on disk, {:>7.1} MB with zstd -19",
                meta.len() as f64 / 1e6,
                (meta.blocks() * 512) as f64 / 1e6,
                compressed as f64 / 1e6
            ));
        }
    }
    anyhow::ensure!(any, "nothing was built: `cargo run --bin orlop-image -- build`");
    Ok(())
}

fn compressed_size(run: &Arc<Run>, path: &std::path::Path) -> Result<u64> {
    let mut command = Command::new("zstd");
    command.args(["-19", "-T0", "--stdout", "--quiet"]).arg(path).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut zstd = Guarded::spawn(run, &mut command).context("zstd (package zstd)")?;
    let mut output = zstd.child.stdout.take().context("zstd has no output")?;
    let size = std::io::copy(&mut output, &mut std::io::sink()).context("read zstd's output")?;
    let status = zstd.child.wait()?;
    anyhow::ensure!(status.success(), "zstd: {status}");
    Ok(size)
}
