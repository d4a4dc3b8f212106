//! kubectl as an interactive command: at a terminal of a known size.
//!
//! ```text
//! input ─► script ─► pseudo terminal ─► kubectl exec -it ─► API server ─► node ─► runtime ─► terminal in the container
//! ```
//! In: kubectl's arguments, the input. Out: the terminal's output, and kubectl's exit code.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::Guarded;
use crate::run::Run;

/// Rows and columns in the format of `stty size`: values that no terminal has by default.
pub const SIZE: &str = "33 97";

/// Shell command that prints the terminal's size when it has one. The size takes another way through the runtime than
/// the input, so the input may arrive first; until then the terminal has no size, or 0 by 0.
pub const ASK_SIZE: &str =
    "until case \"$(stty size 2>/dev/null)\" in \"\"|\"0 0\") false;; esac; do sleep 1; done; stty size";

/// Runs `kubectl` (from [`kubectl_command`](super::plane::Cluster::kubectl_command)) at a terminal of [`SIZE`] with the
/// input `typed`; returns its exit code and all output. Files are made in `dir`.
///
/// # Errors
/// It cannot be started, or does not end within `limit`.
pub fn run(
    run: &Arc<Run>,
    dir: &Path,
    kubectl: &Command,
    typed: &str,
    limit: Duration,
) -> Result<(Option<i32>, String)> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let (stdin, stdout) = (dir.join("typed"), dir.join("shown"));
    fs::write(&stdin, typed).context("write what is typed")?;
    let words = [kubectl.get_program()].into_iter().chain(kubectl.get_args());
    let line: Vec<String> = words.map(|word| quoted(&word.to_string_lossy())).collect();
    let (rows, columns) = SIZE.split_once(' ').unwrap_or_default();
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command"]);
    command.arg(format!("stty rows {rows} cols {columns}; exec {}", line.join(" "))).arg("/dev/null");
    for (name, value) in kubectl.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("SHELL", "/bin/sh").env("TERM", "dumb");
    command
        .stdin(File::open(&stdin)?)
        .stdout(File::create(&stdout)?)
        .stderr(File::create(dir.join("stderr"))?);
    let mut guarded = Guarded::spawn(run, &mut command)?;
    let ended = guarded.wait(limit)?;
    let shown = String::from_utf8_lossy(&fs::read(&stdout)?).into_owned();
    let Some(status) = ended else { bail!("kubectl at a terminal does not end; it showed {shown:.500}") };
    Ok((status.code(), shown))
}

/// One word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_words() {
        for word in ["", "a b", "$HOME", "it's", "'\"'", "a\nb"] {
            let script = format!("printf %s {}", quoted(word));
            let said = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout), word);
        }
    }
}
