//! The files that a change touches: from the last commit that passed on this machine to the present checkout.
//!
//! The file `$ORLOP_CACHE/passed-commit` has that commit; a selftest that passes writes it. On a machine that does not
//! know the commit, or does not have it in the checkout's history, the change is the work of the last hours before the
//! newest commit. A checkout without git, or with less history than that, counts as changed in every file.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::run::cache_dir;

/// The work that belongs to one change, if the machine knows no commit that passed: so many seconds before the newest commit.
const CHANGE_S: u64 = 6 * 3600;

/// File of the last commit that passed.
#[must_use]
pub fn file() -> PathBuf {
    cache_dir().join("passed-commit")
}

/// Paths of changed files, relative to the checkout's root; `None` if git cannot say.
#[must_use]
pub fn paths(checkout: &Path, passed: &Path) -> Option<Vec<String>> {
    let base = base(checkout, passed).ok()?;
    let committed = git(checkout, &["diff", "--name-only", "--no-renames", &base]).ok()?;
    let new = git(checkout, &["ls-files", "--others", "--exclude-standard"]).ok()?;
    Some(committed.lines().chain(new.lines()).map(str::to_owned).collect())
}

/// Records that the checkout's commit passed. A checkout with uncommitted changes is not recorded.
///
/// # Errors
/// If git fails, or the file cannot be written.
pub fn note_passed(checkout: &Path, passed: &Path) -> Result<()> {
    if !git(checkout, &["status", "--porcelain"])?.is_empty() {
        return Ok(());
    }
    let commit = git(checkout, &["rev-parse", "HEAD"])?;
    std::fs::write(passed, commit).with_context(|| format!("write {}", passed.display()))
}

fn base(checkout: &Path, passed: &Path) -> Result<String> {
    let noted = std::fs::read_to_string(passed).unwrap_or_default().trim().to_owned();
    let is_ancestor = |commit: &str| git(checkout, &["merge-base", "--is-ancestor", commit, "HEAD"]).is_ok();
    if !noted.is_empty() && is_ancestor(&noted) {
        return Ok(noted);
    }
    let newest: u64 =
        git(checkout, &["log", "-1", "--format=%ct"])?.trim().parse().context("time of a commit")?;
    let before = format!("--before={}", newest.saturating_sub(CHANGE_S));
    let commit = git(checkout, &["rev-list", "-1", &before, "HEAD"])?.trim().to_owned();
    ensure!(!commit.is_empty(), "the history of {} has no older commit", checkout.display());
    Ok(commit)
}

fn git(checkout: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").arg("-C").arg(checkout).args(arguments).output().context("start git")?;
    ensure!(
        output.status.success(),
        "git {} in {}: {}",
        arguments.join(" "),
        checkout.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commits all files of the checkout, at this time (seconds since 1970).
    fn commit(checkout: &Path, at: u64) {
        git(checkout, &["add", "--all"]).unwrap();
        let date = format!("{at} +0000");
        let mut command = Command::new("git");
        command.arg("-C").arg(checkout).args([
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@t",
            "commit",
            "-q",
            "-m",
            "t",
        ]);
        assert!(
            command
                .env("GIT_AUTHOR_DATE", &date)
                .env("GIT_COMMITTER_DATE", &date)
                .status()
                .unwrap()
                .success()
        );
    }

    #[test]
    fn a_change_is_what_came_after_the_commit_that_passed_or_the_last_hours() {
        let dir = tempfile::tempdir().unwrap();
        let (checkout, passed) = (dir.path().join("checkout"), dir.path().join("passed-commit"));
        std::fs::create_dir(&checkout).unwrap();
        assert_eq!(paths(&checkout, &passed), None, "no git");
        git(&checkout, &["init", "--quiet"]).unwrap();
        let write = |name: &str| std::fs::write(checkout.join(name), name).unwrap();
        let day = 1_800_000_000;
        for (name, at) in [("old", day), ("a", day + CHANGE_S + 1), ("b", day + CHANGE_S + 2)] {
            write(name);
            commit(&checkout, at);
        }
        assert_eq!(paths(&checkout, &passed).unwrap(), ["a", "b"]);
        note_passed(&checkout, &passed).unwrap();
        assert!(paths(&checkout, &passed).unwrap().is_empty());
        write("c");
        std::fs::write(checkout.join("a"), "other").unwrap();
        assert_eq!(paths(&checkout, &passed).unwrap(), ["a", "c"]);
        // A checkout with uncommitted changes is not a commit: the record stays.
        note_passed(&checkout, &passed).unwrap();
        assert_eq!(paths(&checkout, &passed).unwrap(), ["a", "c"]);
        commit(&checkout, day + CHANGE_S + 3);
        assert_eq!(paths(&checkout, &passed).unwrap(), ["a", "c"]);
        // A commit of another history is ignored.
        std::fs::write(&passed, "0123456789012345678901234567890123456789").unwrap();
        assert_eq!(paths(&checkout, &passed).unwrap(), ["a", "b", "c"]);
    }

    #[test]
    fn without_older_history_git_cannot_say() {
        let dir = tempfile::tempdir().unwrap();
        git(dir.path(), &["init", "--quiet"]).unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        commit(dir.path(), 1_800_000_000);
        assert_eq!(paths(dir.path(), &dir.path().join("none")), None);
    }
}
