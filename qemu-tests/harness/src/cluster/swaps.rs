//! Changes of a node's certificate directory, from inotify.
//!
//! In: inotify events. Out: how often the current pair was replaced, and whether every replacement was one step.
//! Invariant: no polling, so no moment is missed.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// The link that names the pair in use.
pub const CURRENT: &str = "kubelet-client-current.pem";

/// Kind of a change, and the name of its file.
type Change = (AddWatchFlags, String);

/// A directory that is being watched.
pub struct Swaps {
    inotify: Inotify,
    seen: Vec<Change>,
}

impl Swaps {
    /// Watches `dir` from now on.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn follow(dir: &Path) -> Result<Swaps> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).context("inotify")?;
        let changes = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO;
        inotify.add_watch(dir, changes).with_context(|| format!("watch {}", dir.display()))?;
        Ok(Swaps { inotify, seen: Vec::new() })
    }

    fn read(&mut self) -> Result<()> {
        loop {
            match self.inotify.read_events() {
                Ok(events) => {
                    for event in events {
                        ensure!(!event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW), "events were lost");
                        let name = event.name.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                        self.seen.push((event.mask, name));
                    }
                }
                Err(Errno::EAGAIN) => return Ok(()),
                Err(e) => return Err(e).context("read inotify events"),
            }
        }
    }

    /// Number of replacements of the current pair so far, the first pair included.
    ///
    /// # Errors
    /// If events were lost.
    pub fn count(&mut self) -> Result<usize> {
        self.read()?;
        Ok(self.seen.iter().filter(|(_, name)| name == CURRENT).count())
    }

    /// Number of events so far.
    ///
    /// # Errors
    /// If events were lost.
    pub fn seen(&mut self) -> Result<usize> {
        self.read()?;
        Ok(self.seen.len())
    }

    /// Waits for a change of a name with this ending, after the first `already` events.
    ///
    /// # Errors
    /// At the deadline, with the changes so far.
    pub fn await_name(&mut self, already: usize, end: &str, limit: Duration) -> Result<()> {
        self.wait(limit, &format!("a file *{end}"), |seen| {
            seen.iter().skip(already).any(|(_, name)| name.ends_with(end))
        })
    }

    /// Waits until the current pair was replaced `count` times in all.
    ///
    /// # Errors
    /// At the deadline, with how often it was.
    pub fn await_count(&mut self, count: usize, limit: Duration) -> Result<()> {
        self.wait(limit, &format!("{count} certificates"), |seen| {
            seen.iter().filter(|(_, name)| name == CURRENT).count() >= count
        })
    }

    fn wait(&mut self, limit: Duration, what: &str, is_there: impl Fn(&[Change]) -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            self.read()?;
            if is_there(&self.seen) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("waited {} s for {what}; there were {:#?}", limit.as_secs(), self.seen);
            }
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)], timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e).context("wait for inotify events"),
            }
        }
    }

    /// Fails unless every name that a reader may open was made whole, by one rename, and was never removed.
    ///
    /// # Errors
    /// The changes.
    pub fn ensure_atomic(&self) -> Result<()> {
        judge(&self.seen)
    }
}

fn judge(seen: &[Change]) -> Result<()> {
    let pair = |name: &str| {
        let stamp = name.strip_prefix("kubelet-client-").and_then(|n| n.strip_suffix(".pem"));
        stamp.is_some_and(|s| s.starts_with(|c: char| c.is_ascii_digit()))
    };
    for (mask, name) in seen.iter().filter(|(_, name)| name == CURRENT || pair(name)) {
        ensure!(
            *mask == AddWatchFlags::IN_MOVED_TO,
            "{name} was not renamed into place: {mask:?} in {seen:#?}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_rename_is_a_swap_and_anything_else_is_found() {
        let dir = std::env::temp_dir().join(format!("orlop-swaps-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut swaps = Swaps::follow(&dir).unwrap();
        let swap = || {
            symlink("kubelet-client-1.pem", dir.join("kubelet-client-updated.pem")).unwrap();
            fs::rename(dir.join("kubelet-client-updated.pem"), dir.join(CURRENT)).unwrap();
        };
        swap();
        swap();
        swaps.await_count(2, Duration::from_secs(5)).unwrap();
        swaps.ensure_atomic().unwrap();
        let said = swaps.await_count(3, Duration::ZERO).unwrap_err().to_string();
        assert!(said.contains("for 3 certificates"), "{said}");
        swaps.await_name(0, "-updated.pem", Duration::ZERO).unwrap();
        let already = swaps.seen().unwrap();
        assert!(swaps.await_name(already, "-updated.pem", Duration::ZERO).is_err());
        fs::remove_file(dir.join(CURRENT)).unwrap();
        swaps.count().unwrap();
        assert!(swaps.ensure_atomic().unwrap_err().to_string().contains("IN_DELETE"));
        let half = [(AddWatchFlags::IN_MODIFY, "kubelet-client-2026-11-21.pem".to_owned())];
        assert!(judge(&half).is_err());
        fs::remove_dir_all(dir).unwrap();
    }
}
