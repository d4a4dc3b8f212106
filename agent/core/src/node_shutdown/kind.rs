//! Kinds of stop, and their differences.
//!
//! In: logind's name of the kind. Out: the longest wait for the API server, and the conclusions of the next
//! boot. Pods end in the same way for every kind, and the API shows the same: upstream makes no difference.
//! Table: docs/shutdown.md, "A plan for each kind".

use std::time::Duration;

/// How long the API server is waited for, beyond the pods, where the next boot tells the rest by itself: one call that gets
/// no answer (10 s) and another one after it.
const TELL_SOON: Duration = Duration::from_secs(15);

/// `type` of logind's `PrepareForShutdownWithMetadata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The machine starts anew, with its firmware.
    Reboot,
    /// Another kernel, without the firmware; what it starts with is a boot of its own (another boot id).
    Kexec,
    /// Another userspace on the same kernel: the boot goes on.
    SoftReboot,
    /// The power goes; somebody has to switch the machine on.
    Poweroff,
    /// The kernel stands still, the power stays; somebody has to reset the machine.
    Halt,
    /// logind does not say it (systemd before 255), or says something newer than this.
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

    /// The machine is back within a minute or so, and nobody has to do anything for it.
    #[must_use]
    pub fn comes_back(self) -> bool {
        matches!(self, Kind::Reboot | Kind::Kexec | Kind::SoftReboot)
    }

    /// The longest that the API server is waited for once the pods have ended; `None`: what is left of the budget. A
    /// machine that comes back tells the rest itself, and waiting longer only keeps it away; one that does not may stay
    /// away for ever, and this is its last chance.
    #[must_use]
    pub fn tell_max(self) -> Option<Duration> {
        self.comes_back().then_some(TELL_SOON)
    }
}
