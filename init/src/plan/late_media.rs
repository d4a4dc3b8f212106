//! How long a boot that reads drives waits for media that announce themselves after the driver of their controller is loaded.
//!
//! A controller of SATA, SCSI or NVMe has all of its disks when its driver is loaded. A hub of USB finds a stick later, the stick shows
//! its disk a second after that, and a memory card needs a moment, too: the root's disk is often faster.

/// A stick is found in a few hundred milliseconds, and its disk appears one second later (`usb_storage.delay_use`), milliseconds.
pub const QUIET_MS: u64 = 2_000;
/// The longest wait: a device that comes and goes does not hold a boot up, milliseconds.
pub const LONGEST_MS: u64 = 10_000;

/// Until when init waits for the next device; `None`: the wait is over. In: when the wait began, when the last device appeared, and now,
/// all in milliseconds of one clock.
#[must_use]
pub fn deadline(began: u64, last: u64, now: u64) -> Option<u64> {
    let until = (last + QUIET_MS).min(began + LONGEST_MS);
    (now < until).then_some(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_quiet_seconds_end_the_wait() {
        assert_eq!(deadline(5_000, 5_000, 5_000), Some(7_000));
        assert_eq!(deadline(5_000, 5_000, 6_999), Some(7_000));
        assert_eq!(deadline(5_000, 5_000, 7_000), None);
    }

    #[test]
    fn each_device_starts_the_two_seconds_again() {
        assert_eq!(deadline(5_000, 6_500, 7_000), Some(8_500));
        assert_eq!(deadline(5_000, 6_500, 8_500), None);
    }

    #[test]
    fn devices_without_end_hold_up_no_boot() {
        assert_eq!(deadline(5_000, 14_900, 14_950), Some(15_000));
        assert_eq!(deadline(5_000, 15_000, 15_000), None);
    }
}
