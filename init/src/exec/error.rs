//! Errors of the execution of a phase: operation, object, and remedy.

use crate::plan::cmdline::CmdlineError;
use crate::plan::verity::VerityError;
use crate::sys::dm::DmError;
use nix::errno::Errno;
use std::io;

/// A failed phase.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// A step of a plan failed.
    #[error("cannot {step}")]
    Step {
        /// From `Step::describe`.
        step: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {path}")]
    File {
        /// `read`, `write`, `open`.
        action: &'static str,
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A netlink request.
    #[error("cannot {action}")]
    Netlink {
        /// What was to be done.
        action: &'static str,
        /// Error of the kernel.
        #[source]
        source: orlop_netlink::NetlinkError,
    },
    /// Another call to the kernel.
    #[error("cannot {0}")]
    Kernel(&'static str, #[source] Errno),
    /// The command line.
    #[error(transparent)]
    Cmdline(#[from] CmdlineError),
    /// The root's partitions did not appear.
    #[error(
        "no root after {seconds} s: {why}. Check that the disk is attached, that its driver is in the initrd's module list and that this image was written to it"
    )]
    NoDisk {
        /// How long it was awaited.
        seconds: u64,
        /// What was seen instead.
        why: String,
    },
    /// The hash partition is unusable.
    #[error("hash partition {device} of this slot is refused")]
    Verity {
        /// Device of the partition.
        device: String,
        /// Reason of the refusal.
        #[source]
        source: VerityError,
    },
    /// device-mapper.
    #[error(transparent)]
    DeviceMapper(#[from] DmError),
    /// Reading through dm-verity failed.
    #[error("root slot {device} is refused: its content does not match root hash {roothash} ({what})")]
    Corrupt {
        /// The data partition.
        device: String,
        /// The hash.
        roothash: String,
        /// What was being read.
        what: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The verified root is not what it should be.
    #[error("the verified root {device} {what}; rebuild the image")]
    Root {
        /// The data partition.
        device: String,
        /// What is wrong.
        what: &'static str,
    },
    /// A program of the root failed.
    #[error("{program} failed ({status}): {said}")]
    Program {
        /// Its path.
        program: String,
        /// Exit status.
        status: String,
        /// The end of its messages.
        said: String,
    },
    /// A plan refused.
    #[error("{0}")]
    Refused(String),
}
