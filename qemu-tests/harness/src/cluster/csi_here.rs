//! A CSI driver as a program of its own, in a VM: its volumes are real mounts, which a power cut removes.
//!
//! ```text
//! case ── shell ──► orlop-e2e csi-driver ◄── CSI ── agent
//!                       │ /run/csi-driver/state      its volumes and calls
//!                       ▼ /run/csi-driver/hangs/…    calls that it never answers
//! ```
//! In: a name. Out: a driver until the process ends. Invariant: its state is in memory only, as a driver's mounts do
//! not survive a boot.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::csi_driver::{CsiDriver, DriverInfo, socket};

/// Name of its verb.
pub const VERB: &str = "csi-driver";
/// Numbers of staged, published and expanded volumes, and of wrong calls.
pub const STATE: &str = "/run/csi-driver/state";
/// A file here of a call's name: the call is done and never answered.
pub const HANGS: &str = "/run/csi-driver/hangs";

/// The text of [`STATE`]. Pure.
#[must_use]
pub fn state(staged: usize, published: usize, grown: usize, wrong: usize) -> String {
    format!("staged={staged} published={published} grown={grown} wrong={wrong}")
}

/// Serves until it is killed.
///
/// # Errors
/// If it cannot.
pub fn serve(name: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    fs::create_dir_all(HANGS).with_context(|| format!("make {HANGS}"))?;
    let says = DriverInfo {
        name: name.to_owned(),
        node_id: "here".to_owned(),
        stages: true,
        hangs_in: Some(HANGS.into()),
        ..DriverInfo::default()
    };
    // The socket of a driver that a power cut ended.
    let left = socket(Path::new("/"), name);
    if left.exists() {
        fs::remove_file(&left).with_context(|| format!("remove {}", left.display()))?;
    }
    let driver = CsiDriver::start(runtime.handle(), Path::new("/"), says)?;
    let mut changes = driver.changes();
    runtime.block_on(async {
        loop {
            let (staged, published) = (driver.staged(), driver.published());
            let now = state(staged.now.len(), published.len(), staged.grown.len(), staged.wrong.len());
            // Written atomically: a case reads it all the time.
            let next = format!("{STATE}.next");
            fs::write(&next, format!("{now}\n{}\n", staged.wrong.join("\n")))
                .and_then(|()| fs::rename(&next, STATE))?;
            changes.next().await?;
        }
    })
}
