//! `completion`: a script that completes this command line in a shell. It asks no node.

use clap::{Args, CommandFactory as _, ValueEnum};
use clap_complete::{Shell, generate};

use crate::cli::Cli;
use crate::commands::{Verdict, write};
use crate::failure::CtlError;

/// The program's name in a shell.
const PROGRAM: &str = "orlopctl";

/// For which shell.
#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// Shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: CompletionShell,
}

/// Shells with a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompletionShell {
    /// `source <(orlopctl completion bash)`
    Bash,
    /// A file _orlopctl in a directory of $fpath
    Zsh,
    /// ~/.config/fish/completions/orlopctl.fish
    Fish,
}

/// Prints the script.
pub(crate) fn run(args: &CompletionArgs) -> Result<Verdict, CtlError> {
    write(&script(args.shell))?;
    Ok(Verdict::Fine)
}

fn script(shell: CompletionShell) -> String {
    let shell = match shell {
        CompletionShell::Bash => Shell::Bash,
        CompletionShell::Zsh => Shell::Zsh,
        CompletionShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), PROGRAM, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_has_a_script_with_the_verbs() {
        for shell in [CompletionShell::Bash, CompletionShell::Zsh, CompletionShell::Fish] {
            let script = script(shell);
            for word in ["orlopctl", "capture", "vsock-socket", "controlplane"] {
                assert!(script.contains(word), "{shell:?}: {word}");
            }
        }
    }
}
