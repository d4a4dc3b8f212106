//! Programs next to the agent in a native node: drivers and plugins of others, in the node's root and network, without a pod.
//!
//! In: a program of the host, its arguments. Out: a running program whose log is `<name>.log` in the node's /var/log. Invariant: the
//! program ends with the node at the latest.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::node::NativeNode;

impl NativeNode {
    /// Copies a static program of the host into the node, once; returns its path in the node.
    ///
    /// # Errors
    /// If it cannot be copied.
    pub fn bring(&self, program: &Path) -> Result<String> {
        let name = program.file_name().context("a program without a name")?.to_string_lossy().into_owned();
        let path = format!("/run/e2e/{name}");
        let inside = self.inside(&path);
        if !inside.exists() {
            fs::copy(program, &inside)
                .with_context(|| format!("copy {} into the node", program.display()))?;
        }
        Ok(path)
    }

    /// Starts a program of the node; does not wait for anything.
    ///
    /// # Errors
    /// If it cannot be started, or a program of this name runs.
    pub fn start_beside(&mut self, name: &str, argv: &[String], environment: &[(&str, &str)]) -> Result<()> {
        self.supervised()?.start_program(name, argv, environment)
    }

    /// Ends a program by a signal and waits for its end; returns its status.
    ///
    /// # Errors
    /// If it does not end.
    pub fn end_beside(&mut self, name: &str, signal: i32) -> Result<i32> {
        self.supervised()?.signal(name, signal)?;
        self.supervised()?.await_exit(name)
    }
}
