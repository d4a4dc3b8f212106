//! Kinds of stop, and their differences.
//!
//! In: logind's name of the kind. Out: the longest wait for the API server, and the conclusions of the next
//! boot. Pods end in the same way for every kind, and the API shows the same: upstream makes no difference.
//! Table: docs/reference/shutdown.md, "A plan for each kind".

use std::time::Duration;

/// Longest wait for the API server after the pods, if the next boot reports the rest: one call without an
/// answer (10 s) and another one after it.
const TELL_SOON: Duration = Duration::from_secs(15);

/// `type` of logind's `PrepareForShutdownWithMetadata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The machine restarts, with its firmware.
    Reboot,
    /// Another kernel, without the firmware; it is a boot of its own (another boot id).
    Kexec,
    /// Another userspace on the same kernel: the boot goes on.
    SoftReboot,
    /// The power goes off; the machine stays off.
    Poweroff,
    /// The kernel stops, the power stays on; the machine needs a reset.
    Halt,
    /// logind does not report it (systemd before 255), or reports an unknown one.
    Unknown,
}

impl Kind {
    /// Of logind's word, as the receipt has it.
    #[must_use]
    pub fn of(word: &str) -> Kind {
        match word {
            "reboot" => Kind::Reboot,
            "kexec" => Kind::Kexec,
            "soft-reboot" => Kind::SoftReboot,
            "poweroff" => Kind::Poweroff,
            "halt" => Kind::Halt,
            _ => Kind::Unknown,
        }
    }

    /// True if the machine is back within a minute or so, by itself.
    #[must_use]
    pub fn comes_back(self) -> bool {
        matches!(self, Kind::Reboot | Kind::Kexec | Kind::SoftReboot)
    }

    /// Longest wait for the API server once the pods have ended; `None`: the rest of the budget. A machine
    /// that comes back reports the rest itself, and a longer wait only delays it; another one may stay away
    /// for ever, and this is its last chance.
    #[must_use]
    pub fn tell_max(self) -> Option<Duration> {
        self.comes_back().then_some(TELL_SOON)
    }
}
