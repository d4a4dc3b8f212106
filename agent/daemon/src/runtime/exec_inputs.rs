//! Drains the input of commands (exec) that have ended, so that containerd does not block on the input.
//!
//! ```text
//! a command with input ─► look once a second while it is there ─► data in its FIFO is removed
//! ```
//! In: a container in which a command with input begins. Out: FIFOs without data that no process reads. Invariants: a
//! FIFO is drained only if its command was over at two looks, a second apart; a container without such commands is not
//! polled. [`agent_linux::exec_input`] explains why containerd needs this; docs/reference/server.md.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_linux::exec_input::{self, Input};
use agent_linux::files::FilesError;
use agent_types::ids::ContainerId;

use crate::pods::pod_dirs::chain;
use crate::tasks::actor::Tasks;

/// Pause between two looks at a container with such commands.
const EVERY: Duration = Duration::from_secs(1);
/// A client has a minute to open the stream (containerd's streaming server keeps a URL that long).
const LOOKS_WITHOUT: u32 = 60;

/// Follows the commands of a container until there is none with an input.
pub(crate) async fn follow(socket: PathBuf, container: ContainerId, tasks: Tasks) {
    let (mut over, mut without) = (BTreeSet::new(), 0);
    while without < LOOKS_WITHOUT {
        let next = tasks.now().mono.after(EVERY);
        tasks.wait_until(next).await;
        let (at, of, before) = (socket.clone(), container.clone(), over.clone());
        let looked = tasks.blocking(move || look(&at, of.as_str(), &before)).await;
        match looked {
            Some(Ok(ExecInputScan { over: now, any })) => {
                // Wait for the first command; after it, stop as soon as there is none.
                without = match any {
                    true => LOOKS_WITHOUT - 1,
                    false => without + 1,
                };
                over = now;
            }
            Some(Err(error)) => {
                tracing::debug!(%container, error = %chain(&error), "inputs of commands are not looked at");
                return;
            }
            None => return,
        }
    }
}

/// Result of a look.
#[derive(Debug, PartialEq, Eq)]
struct ExecInputScan {
    /// Inputs that no process will read.
    over: BTreeSet<PathBuf>,
    /// There are inputs.
    any: bool,
}

fn look(socket: &Path, container: &str, before: &BTreeSet<PathBuf>) -> Result<ExecInputScan, FilesError> {
    let found = exec_input::of_container(socket, container)?;
    let any = !found.is_empty();
    let over: BTreeSet<PathBuf> =
        found.into_iter().filter(|i| i.is_over).map(|Input { path, .. }| path).collect();
    for path in over.intersection(before) {
        let bytes = exec_input::take(path)?;
        if bytes > 0 {
            tracing::info!(
                container,
                bytes,
                "input of a command that has ended is taken from the runtime, which waits for it"
            );
        }
    }
    Ok(ExecInputScan { over, any })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn what_is_over_at_two_looks_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let fifos = dir.path().join("io.containerd.grpc.v1.cri/containers/c/io/1");
        let bundle = dir.path().join("io.containerd.runtime.v2.task/k8s.io/c");
        for directory in [&fifos, &bundle] {
            fs::create_dir_all(directory).unwrap();
        }
        let socket = dir.path().join("containerd.sock");
        let looked = |before: &BTreeSet<PathBuf>| look(&socket, "c", before).unwrap();
        assert_eq!(looked(&BTreeSet::new()), ExecInputScan { over: BTreeSet::new(), any: false });
        let path = fifos.join("e-stdin");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        let no_wait = OFlag::O_NONBLOCK.bits();
        let _shim = OpenOptions::new().read(true).custom_flags(no_wait).open(&path).unwrap();
        let mut runtime = OpenOptions::new().write(true).custom_flags(no_wait).open(&path).unwrap();
        let mut fill = || {
            let mut bytes = 0;
            while let Ok(written) = runtime.write(&[b'y'; 4096]) {
                bytes += written;
            }
            bytes
        };
        let full = fill();
        assert_eq!(looked(&BTreeSet::new()), ExecInputScan { over: BTreeSet::new(), any: true });
        // A PID that no process can have.
        fs::write(bundle.join("e.pid"), "4194305").unwrap();
        let first = looked(&BTreeSet::new());
        assert_eq!(first.over, BTreeSet::from([path.clone()]));
        assert_eq!(fill(), 0, "once may be a moment");
        assert_eq!(looked(&first.over), first);
        assert_eq!(fill(), full, "the runtime can write on");
    }
}
