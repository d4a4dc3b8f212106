//! A CSI driver as a program of its own, in a VM: its files are real mounts there, and a power cut takes them away.
//!
//! ```text
//! case ── shell ──► orlop-e2e csi-driver ◄── CSI ── agent
//!                       │ /run/csi-driver/state      what it holds and was asked for
//!                       ▼ /run/csi-driver/hangs/…    calls that it never answers
//! ```
//! What comes in: a name. What goes out: a driver until the process ends. Invariant: what it holds is not remembered, as
//! nothing of a driver's mounts is after a boot.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::csi_driver::{CsiDriver, DriverInfo, socket};

/// Name of its verb.
pub const VERB: &str = "csi-driver";
/// How many volumes are staged and published, made larger, and were asked for wrongly.
pub const STATE: &str = "/run/csi-driver/state";
/// A file here of a call's name: the call is done and never answered.
pub const HANGS: &str = "/run/csi-driver/hangs";

/// What [`STATE`] says. Pure.
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
    // What a power cut has left; nobody listens there.
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
            // Whole or not at all: somebody looks at it all the time.
            let next = format!("{STATE}.next");
            fs::write(&next, format!("{now}\n{}\n", staged.wrong.join("\n")))
                .and_then(|()| fs::rename(&next, STATE))?;
            changes.next().await?;
        }
    })
}
