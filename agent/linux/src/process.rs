//! The agent's own process: limits, OOM score, resource use; and the identity of this boot.
//!
//! Out: numbers from /proc and getrusage, in bytes and nanoseconds. The parsers of texts are in `orlop_config::procfs`.

use std::io;
use std::path::Path;
use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, rlim_t, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use orlop_config::procfs::kilobytes;

use crate::files::FilesError;

/// Sets soft and hard RLIMIT_NOFILE to `files` (configuration: maxOpenFiles).
///
/// # Errors
/// The kernel's reason: raising the hard limit needs CAP_SYS_RESOURCE.
pub fn set_open_files_limit(files: u64) -> Result<(), io::Error> {
    setrlimit(Resource::RLIMIT_NOFILE, rlim_t::from(files), rlim_t::from(files)).map_err(io::Error::from)
}

/// Writes the agent's own OOM score adjustment, -1000 to 1000 (configuration: oomScoreAdj).
///
/// # Errors
/// The write's; lowering needs CAP_SYS_RESOURCE.
pub fn set_oom_score_adj(adjustment: i32) -> Result<(), FilesError> {
    let path = Path::new("/proc/self/oom_score_adj");
    std::fs::write(path, adjustment.to_string()).map_err(FilesError::at("write", path))
}

/// Unblocks the signals that end the agent or report the end of children. The parent process may have left
/// them blocked, and the mask is inherited: the agent could then not be stopped. Call it before there is a
/// second thread.
///
/// # Errors
/// The kernel's refusal, which only a defect can cause.
pub fn unblock_signals() -> Result<(), io::Error> {
    let signals: SigSet =
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD].into_iter().collect();
    signals.thread_unblock().map_err(io::Error::from)
}

/// Kills a program and what it has started, if they are a process group of their own (`id` is its first process'). A group
/// that is gone is a success.
///
/// # Errors
/// The kernel's refusal.
pub fn kill_group(id: u32) -> Result<(), io::Error> {
    let group = i32::try_from(id).ok().filter(|id| *id > 1).ok_or(io::ErrorKind::InvalidInput)?;
    match nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group), Signal::SIGKILL) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// True if the effective user is root.
#[must_use]
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The node's host name as the kernel has it.
///
/// # Errors
/// `gethostname`'s, or a name that is not UTF-8.
pub fn hostname() -> Result<String, io::Error> {
    nix::unistd::gethostname()?.into_string().map_err(|name| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{} is not UTF-8", name.display()))
    })
}

/// The kernel's random id of this boot: equal ids mean that no reboot lies between.
///
/// # Errors
/// The read's.
pub fn boot_id() -> Result<String, FilesError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path).map_err(FilesError::at("read", path))?;
    Ok(text.trim().to_owned())
}

/// What this process has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory, bytes, shared pages included.
    pub resident_bytes: u64,
    /// Resident memory that is not file-backed, bytes.
    pub anonymous_bytes: u64,
    /// Address space, bytes.
    pub virtual_bytes: u64,
    /// User and system time together, of all threads.
    pub cpu: Duration,
}

/// Reads the process's own use.
///
/// # Errors
/// Reading or understanding /proc/self/status, or getrusage.
pub fn usage() -> Result<Usage, FilesError> {
    let path = Path::new("/proc/self/status");
    let status = std::fs::read_to_string(path).map_err(FilesError::at("read", path))?;
    let field = |name: &str| {
        kilobytes(&status, name).ok_or_else(|| {
            FilesError::at("parse", path)(io::Error::new(io::ErrorKind::InvalidData, format!("no {name}")))
        })
    };
    let usage = getrusage(UsageWho::RUSAGE_SELF)
        .map_err(|e| FilesError::at("getrusage", Path::new("self"))(e.into()))?;
    let of = |t: nix::sys::time::TimeVal| {
        Duration::new(
            u64::try_from(t.tv_sec()).unwrap_or(0),
            u32::try_from(t.tv_usec()).unwrap_or(0).saturating_mul(1000),
        )
    };
    Ok(Usage {
        resident_bytes: field("VmRSS")?,
        anonymous_bytes: field("RssAnon")?,
        virtual_bytes: field("VmSize")?,
        cpu: of(usage.user_time()) + of(usage.system_time()),
    })
}

/// How many files this process has open, and may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open now, the one that counts them included.
    pub open_files: u64,
    /// Soft RLIMIT_NOFILE.
    pub open_files_max: u64,
}

/// Counts the process's open files.
///
/// # Errors
/// Reading /proc/self/fd, or getrlimit.
pub fn limits() -> Result<Limits, FilesError> {
    let path = Path::new("/proc/self/fd");
    let open = std::fs::read_dir(path).map_err(FilesError::at("read", path))?.count();
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)
        .map_err(|e| FilesError::at("getrlimit", Path::new("self"))(e.into()))?;
    Ok(Limits { open_files: u64::try_from(open).unwrap_or(u64::MAX), open_files_max: soft })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_use_is_plausible() {
        let use_ = usage().unwrap();
        assert!(use_.resident_bytes > 500_000 && use_.resident_bytes < 1 << 34, "{use_:?}");
        assert!(use_.anonymous_bytes <= use_.resident_bytes, "{use_:?}");
        assert!(use_.resident_bytes <= use_.virtual_bytes, "{use_:?}");
    }

    #[test]
    fn open_files_are_counted() {
        let before = limits().unwrap();
        let files: Vec<std::fs::File> =
            (0..20).map(|_| std::fs::File::open("/proc/self/status").unwrap()).collect();
        let after = limits().unwrap();
        // Other tests of this process open and close files meanwhile.
        assert!(after.open_files >= 20 && before.open_files > 0 && after.open_files <= after.open_files_max);
        drop(files);
    }

    #[test]
    fn inherited_blocks_are_undone() {
        let term: SigSet = [Signal::SIGTERM].into_iter().collect();
        term.thread_block().unwrap();
        assert!(SigSet::thread_get_mask().unwrap().contains(Signal::SIGTERM));
        unblock_signals().unwrap();
        assert!(!SigSet::thread_get_mask().unwrap().contains(Signal::SIGTERM));
    }

    #[test]
    fn boot_id_is_a_uuid_and_stays() {
        let id = boot_id().unwrap();
        assert_eq!(id.len(), 36, "{id}");
        assert_eq!(boot_id().unwrap(), id);
    }
}
