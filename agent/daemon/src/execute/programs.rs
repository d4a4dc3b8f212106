//! Programs of the node that volumes need: mount(8), mkfs and fsck of file systems, iscsiadm(8), multipath(8).
//!
//! In: a program, its arguments. Out: how it ended, and what it said. Invariant: it is killed when nobody waits for it any more.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// A program that was no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// Its exit code; `None` if it could not be started, or a signal ended it.
    pub(crate) code: Option<i32>,
    /// How it ended, or why it did not start.
    pub(crate) why: String,
    /// What it said.
    pub(crate) words: String,
    /// There is no such program.
    pub(crate) missing: bool,
}

impl Failed {
    /// It was killed because it took longer than this.
    pub(crate) fn late(limit: Duration) -> Failed {
        let why = format!("killed after {} s", limit.as_secs());
        Failed { code: None, why, words: String::new(), missing: false }
    }
}

/// Runs it to its end.
pub(super) async fn run(program: &str, arguments: &[String]) -> Result<(), Failed> {
    output(program, arguments).await.map(drop)
}

/// Runs it to its end. The answer is what it printed.
pub(crate) async fn output(program: &str, arguments: &[String]) -> Result<String, Failed> {
    let mut command = Command::new(program);
    // Its words are looked at.
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
}
