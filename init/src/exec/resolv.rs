//! `orlop-init resolv`: the name servers and the search domains that the network gave, for /etc/resolv.conf, each where the
//! configuration names none.
//!
//! Started by systemd when networkd has written its state for the first time (orlop-resolv.path); stays, and looks
//! again whenever the state changes. Of a file that init wrote with servers of the configuration the lines are kept; search
//! domains are added if it has none (`plan::resolv`).

use super::error::InitError;
use super::steps::apply;
use crate::plan::resolv;
use crate::plan::step::BootStep;
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use orlop_config::error_chain::chain;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// What /etc/resolv.conf points to.
const TARGET: &str = "/run/orlop/resolv.conf";
/// Where networkd's view of the whole network is.
const DIRECTORY: &str = "/run/systemd/netif";

/// Runs the subcommand, until the directory is gone: the path unit starts it again then.
#[must_use]
pub fn main() -> ExitCode {
    match follow(Path::new(DIRECTORY), Path::new(TARGET), None) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "orlop-init: {}", chain(&e));
            ExitCode::FAILURE
        }
    }
}

/// Fills the file in once, after it was written again.
pub(super) fn fill_in() -> Result<(), InitError> {
    update(&Path::new(DIRECTORY).join("state"), Path::new(TARGET))
}

/// Keeps `target` in step with the state in `directory`; for `changes_max` changes of the directory, if given.
fn follow(directory: &Path, target: &Path, changes_max: Option<u32>) -> Result<(), InitError> {
    let kernel = |e| InitError::Kernel("watch networkd's state", e);
    let watch = Inotify::init(InitFlags::IN_CLOEXEC).map_err(kernel)?;
    // Watched before it is read: what changes in between is an event that waits.
    let events = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ONLYDIR;
    watch.add_watch(directory, events).map_err(kernel)?;
    let mut changes = 0;
    loop {
        update(&directory.join("state"), target)?;
        if changes_max == Some(changes) {
            return Ok(());
        }
        changes += 1;
        match watch.read_events() {
            Ok(events) if events.iter().any(|e| e.mask.contains(AddWatchFlags::IN_IGNORED)) => return Ok(()),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(kernel(e)),
        }
    }
}

fn update(state: &Path, target: &Path) -> Result<(), InitError> {
    let state = fs::read_to_string(state).unwrap_or_default();
    let current = fs::read_to_string(target).unwrap_or_default();
    let Some(text) = resolv::update(&current, &state) else { return Ok(()) };
    let step =
        BootStep::WriteFile { path: target.display().to_string(), mode: 0o644, content: text.into_bytes() };
    apply(&step).map_err(|source| InitError::Step { step: step.describe(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_networkd_renames_into_place_is_taken() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (directory, target) = (dir.path().join("netif"), dir.path().join("resolv.conf"));
        fs::create_dir(&directory).expect("fixture");
        std::thread::scope(|scope| {
            let follower = scope.spawn(|| follow(&directory, &target, Some(1)));
            // The first look writes the file: from then on the directory is on watch.
            while !target.exists() {
                std::thread::yield_now();
            }
            let new = dir.path().join("new");
            fs::write(&new, "DNS=10.0.2.3\n")
                .and_then(|()| fs::rename(&new, directory.join("state")))
                .expect("state");
            follower.join().expect("thread").expect("followed");
        });
        assert!(fs::read_to_string(&target).expect("written").ends_with("nameserver 10.0.2.3\n"));
        assert!(follow(&dir.path().join("none"), &target, Some(0)).is_err());
    }
}
