//! `kubectl attach -i` to a container that answers each line and ends with its input ([`SCRIPT`]).
//!
//! ```text
//! lines ─► kubectl ─► API server ─► node ─► runtime ─► the container's input
//! what it answers ◄────────────────────────────────── and its log
//! ```
//! In: the cluster and the container. Out: nothing. The runtime may pass the first lines on before it has added the
//! client to the readers of the container's output (docs/reference/server.md): a line is typed again until there is an answer,
//! and from then on no answer may be missing.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::plane::Cluster;
use crate::process::Guarded;
use crate::run::Run;

/// The script of the container's shell; `stdin` and `stdinOnce` are true.
pub const SCRIPT: &str = "while read line; do echo got $line; done";
/// Between two lines that are typed.
const AGAIN: Duration = Duration::from_secs(1);

/// The container to attach to.
#[derive(Clone, Copy, Debug)]
pub struct Listener<'a> {
    /// A pod of the default namespace.
    pub pod: &'a str,
    /// Its container that runs [`SCRIPT`].
    pub container: &'a str,
    /// kubectl's environment.
    pub variables: &'a [(&'a str, &'a str)],
}

/// Runs `kubectl attach -i`. It must succeed and end with the container, and its output must be the end of the
/// container's log. Files are made in `dir`.
///
/// # Errors
/// It cannot be started, fails or does not end within `limit`, or answers are missing.
pub fn converse(
    run: &Arc<Run>,
    dir: &Path,
    cluster: &Cluster,
    who: Listener<'_>,
    limit: Duration,
) -> Result<()> {
    let mut kubectl = cluster.kubectl_command(&["attach", "-i", who.pod, "-c", who.container]);
    kubectl.envs(who.variables.iter().copied());
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let shown = dir.join("attach");
    kubectl.stdin(Stdio::piped()).stdout(File::create(&shown)?);
    kubectl.stderr(File::create(dir.join("attach.stderr"))?);
    let mut guarded = Guarded::spawn(run, &mut kubectl)?;
    let mut stdin = guarded.child.stdin.take().context("kubectl has no input")?;
    let deadline = Instant::now() + limit;
    while !fs::read_to_string(&shown)?.contains("got one\n") {
        ensure!(Instant::now() < deadline, "nobody answers to kubectl attach after {} s", limit.as_secs());
        stdin.write_all(b"one\n").context("type a line")?;
        if let Some(status) = guarded.wait(AGAIN)? {
            bail!("kubectl attach ended before its input did: {status}");
        }
    }
    stdin.write_all(b"two\n").context("type the last line")?;
    drop(stdin);
    let Some(status) = guarded.wait(limit)? else { bail!("kubectl attach does not end") };
    let shown = fs::read_to_string(&shown)?;
    let whole = shown.ends_with("got one\ngot two\n");
    ensure!(status.success() && whole, "attach: {shown:?}, {status}");
    let log = cluster.kubectl(&["logs", who.pod, "-c", who.container])?;
    ensure!(log.ends_with(shown.trim_end()), "attach showed {shown:?} of the log {log:?}");
    Ok(())
}
