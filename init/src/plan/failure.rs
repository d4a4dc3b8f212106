//! What a failed boot does: reboot if that can help, else stay and show why.
//!
//! A reboot helps if the cause may pass (a disk that did not appear) or another slot has content for the boot
//! loader to try. A slot that does not match its hash will not match it after a reboot: with no other slot
//! init stays, so that there is no boot loop and the reason stays on the screen.

use super::phase::Phase;

/// Seconds between the message and the reboot: long enough to read it.
pub const REBOOT_DELAY_S: u32 = 10;

/// How a failed boot ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Sync, wait, reboot.
    Reboot {
        /// Seconds to wait.
        after_s: u32,
    },
    /// Sync and stay; Ctrl-Alt-Del or a power cycle tries again.
    Stay,
}

/// Decides. `other_slot` is what the disk phase found, `None` before it has found anything.
#[must_use]
pub fn verdict(phase: Phase, other_slot: Option<bool>) -> Verdict {
    let lasting = matches!(phase, Phase::Verity | Phase::Root);
    if lasting && other_slot != Some(true) {
        Verdict::Stay
    } else {
        Verdict::Reboot { after_s: REBOOT_DELAY_S }
    }
}

/// The last line a person reads.
#[must_use]
pub fn closing(verdict: Verdict) -> String {
    match verdict {
        Verdict::Reboot { after_s } => format!("nothing was changed on disk; rebooting in {after_s} s"),
        Verdict::Stay => {
            "nothing was changed on disk; a reboot alone will not help, so this machine stays here. Write the slot \
             anew, then press Ctrl-Alt-Del or power-cycle"
                .into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_slot_is_not_retried_for_ever() {
        let reboot = Verdict::Reboot { after_s: REBOOT_DELAY_S };
        let cases = [
            (Phase::Verity, Some(false), Verdict::Stay),
            (Phase::Root, Some(false), Verdict::Stay),
            (Phase::Verity, Some(true), reboot),
            (Phase::Disk, None, reboot),
            (Phase::ApiFilesystems, None, reboot),
            (Phase::Handover, Some(false), reboot),
        ];
        for (phase, other, want) in cases {
            assert_eq!(verdict(phase, other), want, "{phase:?} {other:?}");
        }
    }
}
