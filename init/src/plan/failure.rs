//! What a failed boot does: reboot if that can help, else stay and show why.
//!
//! A reboot helps if the cause may pass (a disk that did not appear) or the boot loader will choose another slot: it does so
//! only where it counts the tries of the entry that was booted. A slot that does not match its hash will not match it
//! after a reboot: without such a loader init stays, so that there is no boot loop and the reason stays on the screen.

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

/// The other slot, as far as init knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherSlot {
    /// It has content; false before the disk phase has looked.
    pub filled: bool,
    /// The loader counts the tries of the entry that was booted, and goes on to another when they are used up.
    pub counted: bool,
}

/// Decides.
#[must_use]
pub fn verdict(phase: Phase, other: OtherSlot) -> Verdict {
    let lasting = matches!(phase, Phase::Verity | Phase::Root);
    if lasting && !(other.filled && other.counted) {
        Verdict::Stay
    } else {
        Verdict::Reboot { after_s: REBOOT_DELAY_S }
    }
}

/// The last line a person reads.
#[must_use]
pub fn closing(verdict: Verdict, other: OtherSlot) -> String {
    match verdict {
        Verdict::Reboot { after_s } => format!("nothing was changed on disk; rebooting in {after_s} s"),
        Verdict::Stay => {
            let way = if other.filled {
                "Choose the other slot in the boot loader's menu"
            } else {
                "Boot another system and write the slot's partitions again from orlop.raw of this version"
            };
            format!(
                "nothing was changed on disk; a reboot alone will not help, so this machine stays here. {way}, then press \
                 Ctrl-Alt-Del or power-cycle"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_slot_is_not_retried_for_ever() {
        let reboot = Verdict::Reboot { after_s: REBOOT_DELAY_S };
        let (none, uncounted) = (OtherSlot::default(), OtherSlot { filled: true, counted: false });
        let counted = OtherSlot { filled: true, counted: true };
        let cases = [
            (Phase::Verity, none, Verdict::Stay),
            (Phase::Root, none, Verdict::Stay),
            // The loader would choose the same entry again, for ever.
            (Phase::Verity, uncounted, Verdict::Stay),
            (Phase::Root, OtherSlot { filled: false, ..counted }, Verdict::Stay),
            (Phase::Verity, counted, reboot),
            (Phase::Disk, none, reboot),
            (Phase::ApiFilesystems, none, reboot),
            (Phase::Handover, uncounted, reboot),
        ];
        for (phase, other, want) in cases {
            assert_eq!(verdict(phase, other), want, "{phase:?} {other:?}");
        }
        assert!(closing(Verdict::Stay, uncounted).contains("the other slot in the boot loader's menu"));
        // This image has no shell: another system has to write the disk.
        let alone = closing(Verdict::Stay, none);
        assert!(!alone.contains("other slot") && alone.contains("Boot another system"), "{alone}");
    }
}
