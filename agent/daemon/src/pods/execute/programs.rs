//! Programs of the node that volumes need: mount(8), mkfs and fsck of file systems, iscsiadm(8), multipath(8).
//!
//! In: a program, its arguments. Out: its end, and its output. Invariant: dropping the future kills the program.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use agent_volumes::flex::answer::ProgramExit;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// An answer is some hundred bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A program that was no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// Its exit code; `None` if it could not be started, or a signal ended it.
    pub(crate) code: Option<i32>,
    /// How it ended, or why it did not start.
    pub(crate) why: String,
    /// Its output, standard output and standard error.
    pub(crate) words: String,
    /// There is no such program.
    pub(crate) missing: bool,
}

impl Failed {
    /// The error of a program that exceeded its time limit and was killed.
    pub(crate) fn late(limit: Duration) -> Failed {
        let why = format!("killed after {} s", limit.as_secs());
        Failed { code: None, why, words: String::new(), missing: false }
    }
}

/// Runs it to its end.
pub(super) async fn run(program: &str, arguments: &[String]) -> Result<(), Failed> {
    output(program, arguments).await.map(drop)
}

/// Runs a program to its end; returns its standard output.
pub(crate) async fn output(program: &str, arguments: &[String]) -> Result<String, Failed> {
    let mut command = Command::new(program);
    // The caller reads its messages.
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
    match command.output().await {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Ok(output) => {
            let words = [output.stdout, output.stderr].concat();
            Err(Failed {
                code: output.status.code(),
                why: output.status.to_string(),
                words: String::from_utf8_lossy(&words).into_owned(),
                missing: false,
            })
        }
        Err(e) => {
            let missing = e.kind() == std::io::ErrorKind::NotFound;
            Err(Failed { code: None, why: e.to_string(), words: String::new(), missing })
        }
    }
}

/// A process group that is killed with its value, unless it was let go.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(id) = self.0
            && let Err(error) = agent_linux::process::kill_group(id)
        {
            tracing::warn!(id, %error, "a program that nobody waits for is not killed");
        }
    }
}

/// Runs a program to its end, for `limit` at most. A program that is killed is killed with all its children; children
/// of a program that ends by itself go on.
pub(crate) async fn ask(
    program: &Path,
    arguments: &[String],
    limit: Duration,
) -> Result<ProgramExit, Failed> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |e: std::io::Error| {
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        Failed { code: None, why: e.to_string(), words: String::new(), missing }
    };
    let mut child = command.process_group(0).kill_on_drop(true).spawn().map_err(failed)?;
    let mut group = Group(child.id());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let ended = async {
        let (printed, complained) = tokio::join!(text(stdout), text(stderr));
        let status = child.wait().await.map_err(failed)?;
        let (success, how) = (status.success(), status.to_string());
        Ok(ProgramExit {
            success,
            how,
            printed: printed.map_err(failed)?,
            complained: complained.map_err(failed)?,
        })
    };
    match tokio::time::timeout(limit, ended).await {
        Ok(ended) => {
            group.0 = None;
            ended
        }
        Err(_) => Err(Failed::late(limit)),
    }
}

/// The text of an output, up to the limit.
async fn text(from: Option<impl AsyncRead + Unpin>) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes).await?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn how_a_program_ended_and_what_it_said() {
        let sh = |script: &str| ["-c".to_owned(), script.to_owned()];
        assert_eq!(run("sh", &sh("exit 0")).await, Ok(()));
        let failed = run("sh", &sh("echo out; echo err >&2; exit 4")).await.unwrap_err();
        assert_eq!((failed.code, failed.words.as_str()), (Some(4), "out\nerr\n"));
        let none = run("/no/such/program", &[]).await.unwrap_err();
        assert_eq!((none.code, none.words.as_str()), (None, ""));
        assert!(!none.why.is_empty() && none.missing && !failed.missing);
        assert_eq!(output("sh", &sh("echo out; echo err >&2")).await, Ok("out\n".to_owned()));
    }

    #[tokio::test]
    async fn who_is_late_is_killed_with_all_that_he_started() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let sh = |script: &str| ["-c".to_owned(), script.to_owned()];
        let limit = Duration::from_secs(60);
        let ended = ask(Path::new("/bin/sh"), &sh("echo out; echo err >&2; exit 3"), limit).await.unwrap();
        let said = (ended.success, ended.printed.as_str(), ended.complained.as_str());
        assert_eq!(said, (false, "out\n", "err\n"));
        let none = ask(Path::new("/no/such/program"), &[], limit).await.unwrap_err();
        assert!(none.missing, "{none:?}");

        let script = format!("sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait", pid.display());
        let hangs = sh(&script);
        let asked = ask(Path::new("/bin/sh"), &hangs, Duration::from_secs(2));
        let late = asked.await.unwrap_err();
        assert_eq!(late.why, "killed after 2 s");
        let child: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        // The child may still be a zombie, but it does not run any more, or not for long.
        let runs = || {
            let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            !(state.is_empty() || state.contains(") Z ") || state.contains(") X "))
        };
        let ends = async {
            while runs() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(limit, ends).await.unwrap();
    }
}
