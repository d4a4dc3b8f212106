//! A shim that containerd does not know, like one whose start was cancelled at the wrong moment.
//!
//! In: a node. Out: a process of containerd's own shim, whose bundle is gone. Invariant: only the agent ends it, or the
//! end of the node.

use std::fs::{self, OpenOptions};

use anyhow::{Context, Result, ensure};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::held::shims;
use super::node::NativeNode;

const PROGRAM: &str = "lost-shim";
const BUNDLE: &str = "/run/e2e/lost";
/// containerd's command to start a shim; it ends and leaves the shim running.
const START: &str = "cd /run/e2e/lost && exec containerd-shim-runc-v2 -namespace k8s.io -id lost \
                     -address /run/containerd/containerd.sock start < /dev/null";

impl NativeNode {
    /// Starts the shim and removes its bundle.
    ///
    /// # Errors
    /// If it does not start.
    pub fn forget_a_shim(&mut self) -> Result<()> {
        let (bundle, before) = (self.inside(BUNDLE), shims(self)?);
        fs::create_dir(&bundle).with_context(|| format!("make {}", bundle.display()))?;
        fs::write(bundle.join("config.json"), r#"{"ociVersion":"1.2.0"}"#)?;
        let log = bundle.join("log");
        mkfifo(&log, Mode::S_IRUSR | Mode::S_IWUSR).context("make the pipe of its log")?;
        // containerd reads it; without a reader the shim waits.
        let _reader = OpenOptions::new().read(true).write(true).open(&log)?;
        let argv = ["/bin/sh", "-c", START].map(str::to_owned);
        let events = ("TTRPC_ADDRESS", "/run/containerd/containerd.sock.ttrpc");
        self.supervised()?.start_program(PROGRAM, &argv, &[events])?;
        let status = self.supervised()?.await_exit(PROGRAM)?;
        ensure!(status == 0, "a shim to be forgotten does not start: status {status}, see {PROGRAM}.log");
        // The log is the last file of its bundle that the shim opens.
        let has_log = |pid: &i32| {
            fs::read_link(format!("/proc/{pid}/fd/2")).is_ok_and(|of| of.ends_with("run/e2e/lost/log"))
        };
        self.wait(10, "the shim to have its log", |_| {
            shims(self).ok()?.iter().filter(|pid| !before.contains(pid)).any(has_log).then_some(())
        })?;
        fs::remove_dir_all(&bundle).with_context(|| format!("remove {}", bundle.display()))
    }
}
