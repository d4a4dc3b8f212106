//! For tests: runs an operation on files again and again. Each time another of its calls that change a file system
//! fails, or that call and all after it, as in a process that dies there.
//!
//! In: a directory, a closure that does it. Out: which calls were refused; a panic with the call that it does not survive; or all
//! that was written and synced ([`recording`]).
//! The kernel itself refuses, by a seccomp filter of the thread (and of those it starts) whose listener is this crate:
//! every write counts, from any library. See seccomp_unotify(2).
//!
//! Unsafe code lives in `seccomp.rs` alone.
#![deny(unsafe_code)]

mod calls;
pub mod mounted;
mod recorded;
mod seccomp;
mod tree;

use std::error::Error;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, ScopedJoinHandle};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use orlop_config::error_chain::chain;

pub use crate::recorded::{DiskEvent, recording};
use crate::seccomp::Notification;

/// More calls than anything does that is tried with each of them refused.
const CALLS_MAX: usize = 400;
/// How often it is looked whether the closure is over, ms.
const LOOK_MS: u16 = 20;

/// A call that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Of the system call.
    pub name: &'static str,
    /// What it would have changed, below the directory.
    pub path: PathBuf,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name, self.path.display())
    }
}

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// One call, with this error; it may be tried again.
    One(Errno),
    /// One call and all after it: what is on disk then is what a process leaves that dies there.
    FromThenOn,
}

impl Refusal {
    fn errno(self) -> Errno {
        match self {
            Refusal::One(errno) => errno,
            Refusal::FromThenOn => Errno::EROFS,
        }
    }
}

/// Runs `act` while its call number `nth` (from 0) that changes something below `root` is refused; answers which that was,
/// if it makes so many.
///
/// # Panics
/// If `act` does, or this kernel or sandbox does not let a process listen to a filter.
pub fn refusing<T: Send>(
    root: &Path,
    nth: usize,
    refusal: Refusal,
    act: impl FnOnce() -> T + Send,
) -> (T, Option<Call>) {
    let mut seen = 0;
    let mut refused = None;
    let result = listened(act, |notification| {
        let call = below(notification, root)?;
        let is_it = seen == nth || (seen > nth && refusal == Refusal::FromThenOn);
        seen += 1;
        is_it.then(|| {
            refused.get_or_insert(call);
            refusal.errno()
        })
    });
    (result, refused)
}

/// Runs `act` in a thread each of whose calls that may change something waits for `decide`: it fails with that error, or goes on.
fn listened<T: Send>(
    act: impl FnOnce() -> T + Send,
    mut decide: impl FnMut(&Notification) -> Option<Errno>,
) -> T {
    let (listener, listeners) = mpsc::channel::<nix::Result<OwnedFd>>();
    thread::scope(|scope| {
        let worker = scope.spawn(move || {
            // A thread that cannot be listened to does nothing: the error is handled below.
            listener.send(seccomp::listen(calls::NUMBERS)).ok()?;
            Some(act())
        });
        let listener = listeners.recv().expect("the thread begins with it");
        let listener = listener.expect("the kernel lets a filter of one's own be listened to");
        serve(&listener, &worker, &mut decide);
        match worker.join() {
            Ok(result) => result.expect("it was listened to"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn serve<T>(
    listener: &OwnedFd,
    worker: &ScopedJoinHandle<'_, T>,
    decide: &mut impl FnMut(&Notification) -> Option<Errno>,
) {
    while !worker.is_finished() {
        let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::from(LOOK_MS)) {
            Ok(0) | Err(Errno::EINTR) => continue,
            told => told.expect("a listener can be waited for"),
        };
        // A thread may be gone by now; there is nothing to answer then.
        let Some(notification) = seccomp::receive(listener) else { continue };
        seccomp::answer(listener, &notification, decide(&notification));
    }
}

/// The call, if it changes something below `root`.
fn below(notification: &Notification, root: &Path) -> Option<Call> {
    let (name, path) = calls::changes(notification)?;
    let path = path.strip_prefix(root).ok()?.to_owned();
    Some(Call { name, path })
}

/// An operation on files below a directory.
pub struct FileOperation<'a, T, E> {
    /// Makes what is there before.
    pub prepare: &'a dyn Fn(&Path),
    /// Does it. Done again, it ends as if it had been done once.
    pub act: &'a (dyn Fn(&Path) -> Result<T, E> + Sync),
    /// Looks at the files after a refusal, as a reader or a new start of the process would: panics if something is
    /// lost.
    pub look: &'a dyn Fn(&Path),
}

/// Does the deed with each of its calls refused in each way: with ENOSPC, with EIO, and as a process that dies. It must say
/// what failed, keep what is there, and once it is done again leave exactly what it leaves otherwise. Answers the calls.
///
/// # Panics
/// If it does not, with the call; or if nothing was refused at all.
pub fn survives<T: Send, E: Error + Send>(deed: &FileOperation<'_, T, E>) -> Vec<Call> {
    survives_as(deed, tree::read)
}

/// As [`survives`], for a deed that may leave this or that: `view` is what must be the same.
///
/// # Panics
/// As [`survives`].
pub fn survives_as<T: Send, E: Error + Send, V: PartialEq + fmt::Debug>(
    deed: &FileOperation<'_, T, E>,
    view: impl Fn(&Path) -> V,
) -> Vec<Call> {
    let clean = Scene::of(deed);
    if let Err(error) = (deed.act)(clean.root()) {
        panic!("refused without reason: {}", chain(&error));
    }
    (deed.look)(clean.root());
    let wanted = view(clean.root());
    let mut calls = Vec::new();
    for refusal in [Refusal::One(Errno::ENOSPC), Refusal::One(Errno::EIO), Refusal::FromThenOn] {
        for nth in 0..CALLS_MAX {
            let scene = Scene::of(deed);
            let root = scene.root();
            let (result, refused) = refusing(root, nth, refusal, || (deed.act)(root));
            let Some(call) = refused else {
                assert!(nth > 0, "it changes nothing");
                break;
            };
            let which = format!("{refusal:?}, call {nth}, {call}");
            let naming = Naming(&which);
            if let Err(error) = &result {
                let said = chain(error);
                let words = std::io::Error::from(refusal.errno()).to_string();
                assert!(said.contains(&words), "{which}: {said:?} does not say why ({words})");
            }
            (deed.look)(root);
            if let Err(error) = (deed.act)(root) {
                panic!("{which}: refused the next time, too: {}", chain(&error));
            }
            assert_eq!(view(root), wanted, "{which}: something else is left");
            drop(naming);
            if refusal == Refusal::One(Errno::ENOSPC) {
                calls.push(call);
            }
        }
    }
    calls
}

/// Says which call it was, if an assertion about what it left fails.
struct Naming<'a>(&'a str);

impl Drop for Naming<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("after {}:", self.0);
        }
    }
}

/// A directory with what was there before.
struct Scene(tempfile::TempDir);

impl Drop for Scene {
    /// Ends mounts that are still there first, so that nothing is removed through them.
    fn drop(&mut self) {
        for path in mounted::below(self.root()).into_iter().rev() {
            if let Err(error) = umount2(&path, MntFlags::MNT_DETACH) {
                // The mount stays: removing the directory would remove the files of the mounted file system.
                eprintln!("{} stays mounted: {error}", path.display());
                self.0.disable_cleanup(true);
            }
        }
    }
}

impl Scene {
    fn of<T, E>(deed: &FileOperation<'_, T, E>) -> Scene {
        let scene = Scene(tempfile::tempdir().expect("a temporary directory"));
        (deed.prepare)(scene.root());
        scene
    }

    fn root(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;

    use super::*;

    fn names(calls: &[Call]) -> Vec<String> {
        calls.iter().map(ToString::to_string).collect()
    }

    fn replace(root: &Path) -> io::Result<()> {
        fs::write(root.join("new"), "second")?;
        fs::File::open(root.join("new"))?.sync_all()?;
        fs::rename(root.join("new"), root.join("file"))
    }

    #[test]
    fn each_call_is_refused_and_nothing_of_it_is_done() {
        let calls = survives(&FileOperation {
            prepare: &|root| fs::write(root.join("file"), "first").expect("written"),
            act: &replace,
            look: &|root| {
                let text = fs::read_to_string(root.join("file")).expect("it is there");
                assert!(["first", "second"].contains(&text.as_str()), "{text}");
            },
        });
        assert_eq!(names(&calls), ["openat of new", "write of new", "fsync of new", "rename of file"]);
    }

    #[test]
    #[should_panic(expected = "it is lost")]
    fn what_writes_in_place_loses_what_was_there() {
        survives(&FileOperation {
            prepare: &|root| fs::write(root.join("file"), "first").expect("written"),
            act: &|root| fs::write(root.join("file"), "second"),
            look: &|root| assert_ne!(fs::read_to_string(root.join("file")).expect("there"), "", "it is lost"),
        });
    }

    #[test]
    #[should_panic(expected = "something else is left")]
    fn what_is_left_behind_is_found() {
        let count = std::sync::atomic::AtomicU32::new(0);
        survives(&FileOperation {
            prepare: &|_| (),
            act: &|root| {
                let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let beside = root.join(format!("new-{n}"));
                fs::write(&beside, "x")?;
                fs::rename(beside, root.join("file"))
            },
            look: &|_| (),
        });
    }

    #[test]
    fn others_and_elsewhere_are_left_alone() {
        let (here, there) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
        let (result, refused) = refusing(here.path(), 0, Refusal::One(Errno::EIO), || {
            fs::write(there.path().join("x"), "x")?;
            fs::read_dir(here.path()).map(Iterator::count)
        });
        assert_eq!((result.expect("nothing is refused"), refused), (0, None));
        // A thread that was started under the filter is under it, too.
        let (result, refused) = refusing(here.path(), 1, Refusal::FromThenOn, || {
            thread::scope(|s| s.spawn(|| fs::write(here.path().join("x"), "x")).join().expect("no panic"))
        });
        assert_eq!(result.map_err(|e| e.raw_os_error()), Err(Some(Errno::EROFS as i32)));
        assert_eq!(refused.map(|call| call.to_string()).as_deref(), Some("write of x"));
        fs::write(here.path().join("y"), "y").expect("this thread is under no filter");
    }
}
