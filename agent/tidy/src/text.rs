//! Rules about words in files: what code may not say, and what must not leak into the repository.
//!
//! The needles are put together with `concat!`, so that this file does not contain what it looks for.

use crate::Finding;
use crate::tree::SourceFile;

/// Macros that leave work for later.
const UNFINISHED: &[&str] = &[concat!("to", "do!("), concat!("unimple", "mented!(")];

/// Absolute paths of a developer's machine. They count at the start of a path only.
const DEVELOPER_PATHS: &[&str] = &[concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/ho", "me/")];

/// Hosts of package registries: the ordinary clients know them.
const REGISTRY_HOSTS: &[&str] = &[
    concat!("deb.de", "bian.org"),
    concat!("archive.ub", "untu.com"),
    concat!("index.cra", "tes.io"),
    concat!("static.cra", "tes.io"),
    concat!("https://cra", "tes.io"),
    concat!("proxy.go", "lang.org"),
    concat!("files.python", "hosted.org"),
];

/// Ways to sleep. The actor's one timer is `sleep_until`.
const SLEEPS: &[&str] = &[concat!("time::sle", "ep("), concat!("thread::sle", "ep("), concat!(" sle", "ep(")];

/// Ways to start a task outside a tracker.
const SPAWNS: &[&str] =
    &[concat!("tokio::sp", "awn("), concat!("task::sp", "awn("), concat!("thread::sp", "awn(")];

/// Crates whose asynchronous tasks all belong to an owner, and the module that starts them.
const SPAWNING_CRATES: &[&str] =
    &["agent/core/", "agent/cri/src/", "agent/linux/src/", "agent/server/src/", "agent/daemon/src/"];

/// Crates that may have unsafe code, in named modules.
const UNSAFE_CRATES: &[&str] = &["agent/linux/", "agent/faults/", "init/"];

/// Words that say "later" or name what must not be named.
#[must_use]
pub fn forbidden(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| !f.path.ends_with(".lock")) {
        for (number, line) in file.lines() {
            for needle in UNFINISHED.iter().filter(|n| file.is_rust() && line.contains(**n)) {
                let message = format!("`{needle}`: what cannot be done yet fails with a clear error");
                findings.push(Finding::new(&file.path, number, message));
            }
            for needle in DEVELOPER_PATHS.iter().filter(|n| has_absolute(line, n)) {
                let message = format!("`{needle}` is a path of one machine; derive it at run time");
                findings.push(Finding::new(&file.path, number, message));
            }
            for needle in REGISTRY_HOSTS.iter().filter(|n| line.contains(**n)) {
                let message =
                    format!("`{needle}`: registries are reached through their clients' own settings");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// A test that is ignored says why.
#[must_use]
pub fn ignored_tests(files: &[SourceFile]) -> Vec<Finding> {
    let bare = concat!("#[ign", "ore]");
    on_rust_lines(files, |_, line| {
        line.trim_start().starts_with(bare).then(|| "an ignored test says why: #[ignore = \"…\"]".to_owned())
    })
}

/// Nothing sleeps: wait for the event, with a deadline.
#[must_use]
pub fn sleeps(files: &[SourceFile]) -> Vec<Finding> {
    on_rust_lines(files, |_, line| {
        let found = SLEEPS.iter().find(|n| code(line).contains(**n))?;
        Some(format!("`{}`: wait for the event itself, with a deadline", found.trim()))
    })
}

/// Tasks are started by their owner's module only, so that stopping finds them all.
#[must_use]
pub fn spawns(files: &[SourceFile]) -> Vec<Finding> {
    on_rust_lines(files, |file, line| {
        if !SPAWNING_CRATES.iter().any(|c| file.path.starts_with(c)) || is_test_file(&file.path) {
            return None;
        }
        let found = SPAWNS.iter().find(|n| code(line).contains(**n))?;
        Some(format!("`{found}…)`: tasks are started through the TaskTracker of agent/daemon/src/actor"))
    })
}

/// Every library and binary forbids unsafe code, unless it is one that may have it in named modules.
#[must_use]
pub fn forbids_unsafe(files: &[SourceFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| f.path.ends_with("src/lib.rs") || f.path.ends_with("src/main.rs")) {
        if UNSAFE_CRATES.iter().any(|c| file.path.starts_with(c)) {
            continue;
        }
        if !file.lines().any(|(_, line)| line.trim() == "#![forbid(unsafe_code)]") {
            findings.push(Finding::new(&file.path, 0, "lacks `#![forbid(unsafe_code)]`"));
        }
    }
    let allowed = on_rust_lines(files, |file, line| {
        let allows = line.contains(concat!("allow(unsafe", "_code)"));
        (allows && !UNSAFE_CRATES.iter().any(|c| file.path.starts_with(c)))
            .then(|| format!("unsafe code lives only in {}", UNSAFE_CRATES.join(" and ")))
    });
    findings.extend(allowed);
    findings
}

fn on_rust_lines(files: &[SourceFile], rule: impl Fn(&SourceFile, &str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|f| f.is_rust()) {
        for (number, line) in file.lines() {
            if let Some(message) = rule(file, line) {
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// The line without its comment; good enough for code that rustfmt has been over.
fn code(line: &str) -> &str {
    if line.trim_start().starts_with("//") { "" } else { line.split(" // ").next().unwrap_or(line) }
}

pub(crate) fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

/// True if `needle` starts a path in `line`, not if it is the middle of a longer one.
fn has_absolute(line: &str, needle: &str) -> bool {
    line.match_indices(needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}' | ')' | '*' | '>'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(path: &str, text: &str) -> [SourceFile; 1] {
        [SourceFile::of(path, text)]
    }

    #[test]
    fn forbidden_words_are_found_with_their_line() {
        for needle in UNFINISHED {
            assert_eq!(forbidden(&one("a.rs", &format!("\n    {needle})\n")))[0].line, 2);
        }
        for needle in DEVELOPER_PATHS {
            for text in
                [format!("\"{needle}x\""), format!("see {needle}"), needle.to_string(), format!("={needle}")]
            {
                assert_eq!(forbidden(&one("docs/a.md", &text)).len(), 1, "{text}");
            }
            for text in [
                format!("/var{needle}x"),
                format!("${{HOME}}{needle}x"),
                needle.trim_end_matches('/').to_owned(),
            ] {
                assert!(forbidden(&one("docs/a.md", &text)).is_empty(), "{text}");
            }
        }
        for needle in REGISTRY_HOSTS {
            assert_eq!(
                forbidden(&one("mkosi/mkosi.conf", &format!("Mirror={needle}/x"))).len(),
                1,
                "{needle}"
            );
        }
        assert!(forbidden(&one("Cargo.lock", REGISTRY_HOSTS[2])).is_empty());
    }

    #[test]
    fn a_bare_ignore_is_found() {
        let bare = concat!("    #[ign", "ore]\n");
        assert_eq!(ignored_tests(&one("a.rs", bare)).len(), 1);
        assert!(ignored_tests(&one("a.rs", "#[ignore = \"needs a GPU\"]\n")).is_empty());
    }

    #[test]
    fn sleeps_are_found_but_not_the_timer_nor_comments() {
        for needle in SLEEPS {
            assert_eq!(sleeps(&one("a.rs", &format!("    x;{needle}1)\n"))).len(), 1, "{needle}");
            assert!(sleeps(&one("a.rs", &format!("    // {needle}1)\n"))).is_empty(), "{needle}");
        }
        assert!(sleeps(&one("a.rs", "tokio::time::sleep_until(deadline)\n")).is_empty());
    }

    #[test]
    fn spawns_are_found_in_the_agent_only() {
        for needle in SPAWNS {
            let text = format!("    {needle}x)\n");
            assert_eq!(spawns(&one("agent/daemon/src/node.rs", &text)).len(), 1, "{needle}");
            assert!(spawns(&one("agent/daemon/tests/restart.rs", &text)).is_empty(), "{needle}");
            assert!(spawns(&one("qemu-tests/harness/src/vm.rs", &text)).is_empty(), "{needle}");
        }
        assert!(spawns(&one("agent/daemon/src/actor.rs", "tracker.spawn(task)\n")).is_empty());
    }

    #[test]
    fn missing_forbid_and_stray_allow_are_found() {
        assert_eq!(forbids_unsafe(&one("agent/core/src/lib.rs", "//! Core.\n")).len(), 1);
        assert!(
            forbids_unsafe(&one("agent/core/src/lib.rs", "//! Core.\n#![forbid(unsafe_code)]\n")).is_empty()
        );
        assert!(forbids_unsafe(&one("init/src/main.rs", "//! Init.\n")).is_empty());
        let allow = concat!("#![allow(unsafe", "_code)]\n");
        assert_eq!(forbids_unsafe(&one("agent/cri/src/client.rs", allow)).len(), 1);
        assert!(forbids_unsafe(&one("agent/linux/src/ioctl.rs", allow)).is_empty());
    }
}
