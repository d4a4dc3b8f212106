//! Follows a path inside of a volume, one name and one link at a time.
//!
//! In: a volume's directory, a path in it. Out: a descriptor of the file or directory that the path leads to. Invariants:
//! each name is opened relative to the descriptor of its directory, and the kernel follows no link, so a container that
//! swaps directories for links meanwhile does not lead the agent out of its volume. The kernel is never given `..`, so
//! no rename on the machine makes it refuse a step (`EAGAIN`). Links and names are counted: each walk ends. Upstream:
//! pkg/volume/util/subpath/subpath_linux.go, which resolves the path first and then opens the result the same way.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, mkdirat};

/// Links that one path may lead through, as in the kernel.
const LINKS_MAX: usize = 40;
/// Names that one path may lead through, those in its links included.
const NAMES_MAX: usize = 1024;

/// Why a path leads nowhere.
#[derive(Debug, thiserror::Error)]
pub(super) enum WalkError {
    /// Its end is not in the volume.
    #[error("it leads out of the volume")]
    Leaves,
    /// More names than [`NAMES_MAX`].
    #[error("it leads through more than {NAMES_MAX} names")]
    Long,
    /// A step failed, or there are more links than [`LINKS_MAX`].
    #[error("{}", io::Error::from(*.0))]
    Step(Errno),
    /// A directory could not be made.
    #[error("{}", io::Error::from(*.0))]
    Make(Errno),
}

/// What an absolute link and `..` at the top of the volume lead to.
enum Outside {
    /// The top again, as if the volume were the root of the file system.
    Top,
    /// What the host has there: something of the volume, if the path goes on by the volume's own path. The first of these is
    /// the real path of the volume; the other one may lead through links of the host.
    Host([Vec<OsString>; 2]),
}

/// A volume's directory, and how paths in it are understood.
pub(super) struct Volume {
    top: OwnedFd,
    outside: Outside,
}

/// A name that the walk has not taken yet.
struct Name {
    name: OsString,
    /// It was asked for, and is not from a link.
    own: bool,
}

/// Where a walk is.
enum WalkPosition {
    /// In the volume, with the names from its top; a descriptor unless it has to be opened again.
    Inside(Vec<OsString>, Option<OwnedFd>),
    /// On the way to the volume, with the names from the host's root.
    Outside(Vec<OsString>),
}

/// One walk.
struct Walk<'v> {
    volume: &'v Volume,
    left: VecDeque<Name>,
    links: usize,
    place: WalkPosition,
    /// The mode of directories that are made where they are missing.
    make: Option<Mode>,
}

impl Volume {
    /// Opens the directory. Links are resolved as the host sees them.
    ///
    /// # Errors
    /// The step that failed.
    pub(super) fn of_host(path: &Path) -> Result<Volume, Errno> {
        let top = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        let real = fs::read_link(by_descriptor(&top)).map_err(|e| errno(&e))?;
        Ok(Volume { top, outside: Outside::Host([names(&real), names(path)]) })
    }

    /// Opens the directory. Links are resolved as if it were the root of the file system.
    ///
    /// # Errors
    /// The step that failed.
    pub(super) fn as_root(path: &Path) -> Result<Volume, Errno> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Volume { top: open(path, flags, Mode::empty())?, outside: Outside::Top })
    }

    /// The top's status.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(super) fn stat(&self) -> Result<FileStat, Errno> {
        fstat(&self.top)
    }

    /// Opens (`O_PATH`) the file or directory that `path` leads to; an empty path is the volume itself. With `make`, names of
    /// the path itself that are missing become directories of that mode.
    ///
    /// # Errors
    /// See [`WalkError`].
    pub(super) fn find(&self, path: &Path, make: Option<Mode>) -> Result<OwnedFd, WalkError> {
        let place = WalkPosition::Inside(Vec::new(), None);
        let mut walk = Walk { volume: self, left: VecDeque::new(), links: 0, place, make };
        walk.add(path, true);
        let mut taken = 0;
        while let Some(next) = walk.left.pop_front() {
            taken += 1;
            if taken > NAMES_MAX {
                return Err(WalkError::Long);
            }
            walk.step(next)?;
        }
        match walk.place {
            WalkPosition::Inside(_, Some(found)) => Ok(found),
            WalkPosition::Inside(names, None) => self.reopen(&names),
            WalkPosition::Outside(_) => Err(WalkError::Leaves),
        }
    }

    /// Opens a directory of the volume again by its names, none of which was a link.
    fn reopen(&self, names: &[OsString]) -> Result<OwnedFd, WalkError> {
        let failed = |e: io::Error| WalkError::Step(errno(&e));
        let mut at = self.top.try_clone().map_err(failed)?;
        for name in names {
            at = open_below(at.as_fd(), name)?;
        }
        Ok(at)
    }
}

impl Walk<'_> {
    /// Puts the names of a path before all others.
    fn add(&mut self, path: &Path, own: bool) {
        for part in path.components().rev() {
            match part {
                Component::Normal(name) => self.left.push_front(Name { name: name.to_owned(), own }),
                Component::ParentDir => self.left.push_front(Name { name: "..".into(), own }),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
    }

    fn step(&mut self, next: Name) -> Result<(), WalkError> {
        let is_up = next.name == "..";
        match &mut self.place {
            WalkPosition::Inside(names, held) if is_up => {
                if names.pop().is_some() {
                    *held = None;
                } else if let Outside::Host([real, _]) = &self.volume.outside
                    && let Some((_, above)) = real.split_last()
                {
                    self.place = WalkPosition::Outside(above.to_vec());
                }
                Ok(())
            }
            WalkPosition::Inside(..) => self.enter(next),
            WalkPosition::Outside(_) => self.approach(next.name),
        }
    }

    /// A step outside of the volume: no directory is looked into there, so only the volume's own path can be followed.
    fn approach(&mut self, name: OsString) -> Result<(), WalkError> {
        let Outside::Host(paths) = &self.volume.outside else { return Err(WalkError::Leaves) };
        let WalkPosition::Outside(at) = &mut self.place else { return Ok(()) };
        if name == ".." {
            // Of the other path a name may be a link, whose parent is elsewhere.
            if !paths[0].starts_with(at) {
                return Err(WalkError::Leaves);
            }
            at.pop();
            return Ok(());
        }
        at.push(name);
        if paths.contains(at) {
            self.place = WalkPosition::Inside(Vec::new(), None);
        } else if !paths.iter().any(|path| path.starts_with(at)) {
            return Err(WalkError::Leaves);
        }
        Ok(())
    }

    /// A step into something of the volume.
    fn enter(&mut self, next: Name) -> Result<(), WalkError> {
        let WalkPosition::Inside(names, held) = &mut self.place else { return Ok(()) };
        let parent = match held.take() {
            Some(parent) => parent,
            None => self.volume.reopen(names)?,
        };
        let found = match (open_below(parent.as_fd(), &next.name), self.make) {
            (Err(WalkError::Step(Errno::ENOENT)), Some(mode)) if next.own => {
                make_one(parent.as_fd(), &next.name, mode).map_err(WalkError::Make)?
            }
            (found, _) => found?,
        };
        if kind(&fstat(&found).map_err(WalkError::Step)?) != SFlag::S_IFLNK {
            names.push(next.name);
            *held = Some(found);
            return Ok(());
        }
        *held = Some(parent);
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(WalkError::Step(Errno::ELOOP));
        }
        let target = readlinkat(&found, "").map_err(WalkError::Step)?;
        let target = Path::new(&target);
        if target.is_absolute() {
            self.place = match &self.volume.outside {
                Outside::Host(paths) if !paths.iter().any(Vec::is_empty) => WalkPosition::Outside(Vec::new()),
                Outside::Host(_) | Outside::Top => WalkPosition::Inside(Vec::new(), None),
            };
        }
        self.add(target, false);
        Ok(())
    }
}

/// Opens one name; a link is opened itself.
fn open_below(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, WalkError> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    // First as a directory: the kernel mounts what an automounter keeps there for nothing less.
    let opened = match openat(parent, name, flags | OFlag::O_DIRECTORY, Mode::empty()) {
        Err(Errno::ENOTDIR | Errno::ELOOP) => openat(parent, name, flags, Mode::empty()),
        opened => opened,
    };
    opened.map_err(WalkError::Step)
}

fn make_one(parent: BorrowedFd<'_>, name: &OsStr, mode: Mode) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, mode) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(e) => return Err(e),
    }
    // A link that a container put there meanwhile is not followed.
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let made = openat(parent, name, flags, Mode::empty())?;
    fchmod(&made, mode)?; // The umask does not matter.
    Ok(made)
}

/// The names of an absolute path from the root; nothing can be reached by a path that has others.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().filter(|part| *part != Component::RootDir);
    names.map(|part| part.as_os_str().to_owned()).collect()
}

fn errno(e: &io::Error) -> Errno {
    Errno::from_raw(e.raw_os_error().unwrap_or_default())
}

/// What kind of file it is.
pub(super) fn kind(found: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits())
}

/// The path by which this process finds what a descriptor is of.
pub(super) fn by_descriptor(of: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", of.as_raw_fd())
}

#[cfg(test)]
mod tests;
