//! Rule about remedies: a message of the node asks for no command of a shell, because this image has no shell.
//!
//! In: the Rust files of the programs that `messages` lists. Out: a finding for each text that asks for a program of a shell
//! (`systemctl`, `journalctl`, `vi`): as a command in backticks, or as a word where a request begins. A sentence about such a program
//! (`modprobe does not start`) is fine. What to say in its place: `orlopctl …`, `kubectl …`, a key of the NodeConfig.

use crate::Finding;
use crate::messages::crate_of;
use crate::tokens::{Token, product, tokens};
use crate::tree::SourceFile;

/// Runs on the machine of a person, which has a shell.
const HAS_SHELL: &str = "agent/ctl/";

/// Programs whose name is no other word.
const PROGRAMS: &[&str] = &[
    "apt",
    "apt-get",
    "bash",
    "cat",
    "chmod",
    "chown",
    "crictl",
    "ctr",
    "curl",
    "dig",
    "dmesg",
    "dnf",
    "docker",
    "efibootmgr",
    "ethtool",
    "fsck",
    "grep",
    "ifconfig",
    "iptables",
    "journalctl",
    "ls",
    "lsblk",
    "mkdir",
    "modprobe",
    "mv",
    "nano",
    "netstat",
    "networkctl",
    "nft",
    "nsenter",
    "ps",
    "resolvectl",
    "rm",
    "rmmod",
    "sed",
    "ssh",
    "strace",
    "sudo",
    "sysctl",
    "systemctl",
    "tcpdump",
    "timedatectl",
    "umount",
    "vi",
    "vim",
    "wget",
    "wipefs",
];

/// Programs with the name of a word: only as a command in backticks, with an argument.
const WORDS: &[&str] =
    &["cp", "dd", "df", "du", "ip", "kill", "less", "mount", "ping", "reboot", "su", "tail", "top", "touch"];

/// Words behind which a request begins.
const LEADS: &[&str] =
    &["and", "by", "call", "do", "or", "run", "see", "start", "then", "try", "type", "use", "with"];

/// Words that make a sentence about the program at the start of a text.
const FACTS: &[&str] = &[
    "cannot", "did", "does", "ended", "exited", "failed", "found", "gave", "had", "has", "is", "needs",
    "not", "said", "was", "would",
];

/// Texts that are no request: file, text, reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("init/src/exec/configure.rs", "systemctl {verb} {unit}", "names the program that init itself has run"),
    (
        "init/src/exec/settings.rs",
        "sysctl {} of the {whose} is not {}: {e}",
        "names a parameter of the kernel that init itself has set",
    ),
];

/// No message asks for a command that this image does not have.
#[must_use]
pub fn commands_for_a_shell(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() && crate_of(&file.path).is_some()) {
        if file.path.starts_with(HAS_SHELL) {
            continue;
        }
        let all = product(&tokens(file.text.as_deref().unwrap_or_default()));
        let texts: Vec<&str> = all.iter().filter_map(Token::text).collect();
        let allowed: Vec<&str> =
            ALLOWED.iter().filter(|(path, ..)| *path == file.path).map(|(_, text, _)| *text).collect();
        for text in &texts {
            let Some(program) = asked(text).filter(|_| !allowed.contains(text)) else { continue };
            let message = format!(
                "the text {text:?} asks for `{program}`, which this image does not have: name `orlopctl …`, \
                 `kubectl …` or a key of the NodeConfig"
            );
            findings.push(Finding::new(&file.path, 0, message));
        }
        for text in allowed.iter().filter(|text| !texts.contains(text)) {
            let message = format!(
                "no text is {text:?} any more: take it out of the list of agent/tidy/src/remedies.rs"
            );
            findings.push(Finding::new(&file.path, 0, message));
        }
    }
    findings
}

/// The program that the text asks for.
fn asked(text: &str) -> Option<&str> {
    let in_backticks = text.split('`').skip(1).step_by(2).find_map(|command| {
        let mut words = command.split_whitespace();
        let program = words.next()?;
        let is_one = PROGRAMS.contains(&program) || WORDS.contains(&program) && words.next().is_some();
        is_one.then_some(program)
    });
    in_backticks.or_else(|| in_prose(text))
}

/// The same without backticks. A text of two words is an argument of a program, or its name.
fn in_prose(text: &str) -> Option<&str> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.len() < 3 {
        return None;
    }
    words.iter().enumerate().find_map(|(at, word)| {
        let program = word.trim_matches(['`', '(', ')', ',', ';', ':', '.', '\'', '"']);
        let is_asked = match at.checked_sub(1).map(|before| words[before]) {
            Some(before) => {
                before.ends_with([';', ':', ',', '.']) || LEADS.contains(&before.to_lowercase().as_str())
            }
            None => !FACTS.contains(&words[1]),
        };
        (is_asked && PROGRAMS.contains(&program)).then_some(program)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<Finding> {
        let code = format!(
            "fn a() {{ b({text:?}); }}\n#[cfg(test)]\nmod tests {{ const T: &str = \"rm the file x\"; }}\n"
        );
        commands_for_a_shell(&[SourceFile::of(path, &code)])
    }

    #[test]
    fn requests_for_a_shell_are_found() {
        for (text, program) in [
            ("containerd does not answer: {why}. See `journalctl -u containerd`", "journalctl"),
            ("look at `dmesg`", "dmesg"),
            ("the disk is full: `df -h` shows where", "df"),
            ("it is no executable file; chmod it 0755", "chmod"),
            ("set these with sysctl, or set it to false", "sysctl"),
            ("Run systemctl restart containerd", "systemctl"),
            ("rm the file {path} first", "rm"),
        ] {
            for path in ["agent/daemon/src/a.rs", "init/src/exec/a.rs", "config/src/a.rs"] {
                let findings = found(path, text);
                assert_eq!(findings.len(), 1, "{text}: {findings:?}");
                assert!(
                    findings[0].fails && findings[0].message.contains(&format!("`{program}`")),
                    "{findings:?}"
                );
            }
        }
    }

    #[test]
    fn sentences_about_programs_and_other_remedies_are_not_found() {
        for text in [
            "modprobe does not start: {e}",
            "'fsck' found errors on device {source}",
            "(a message that journalctl does not print: it is longer than 4096 bytes)",
            "/usr/bin/systemctl",
            "systemctl",
            "ls-files",
            "see `orlopctl logs containerd` and `kubectl get node`",
            "make one with: kubeadm token create",
            "removing the mount of the volume, or its top directory",
            "the program `mount` has failed for {volume}",
        ] {
            assert_eq!(found("agent/daemon/src/a.rs", text), [], "{text}");
        }
        for path in
            ["agent/ctl/src/a.rs", "agent/tidy/src/a.rs", "agent/daemon/src/a/tests.rs", "image/src/a.rs"]
        {
            assert_eq!(found(path, "look at `dmesg` of the node"), [], "{path}");
        }
    }

    #[test]
    fn an_exception_that_nothing_needs_is_found() {
        let (path, text, _) = ALLOWED[0];
        assert_eq!(found(path, text), []);
        let findings = found(path, "another text");
        assert!(findings.len() == 1 && findings[0].message.contains("any more"), "{findings:?}");
    }
}
