//! Waits for sticks and memory cards before the boot reads configuration drives. The decision is `plan::late_media`.

use super::clock::boottime_ms;
use super::devices::Uevents;
use super::drivers::Drivers;
use crate::plan::late_media::deadline;
use std::fs;

/// Each has an entry on a machine whose media may appear after the driver: a hub of USB, a slot for memory cards.
const LATE: [&str; 2] = ["/sys/bus/usb/devices", "/sys/class/mmc_host"];

/// Waits until no device has appeared for a while. A machine without such places does not wait. What fails here ends the wait: the boot
/// goes on with the media that are there.
pub fn wait(drivers: &mut Drivers) {
    let is_late =
        LATE.iter().any(|list| fs::read_dir(list).is_ok_and(|mut entries| entries.next().is_some()));
    let Some(uevents) = is_late.then(Uevents::subscribe).and_then(Result::ok) else { return };
    let began = boottime_ms();
    // A device that came before the subscription is among these.
    while drivers.present() {}
    let mut last = boottime_ms();
    while let Some(until) = deadline(began, last, boottime_ms()) {
        match uevents.wait_device(until) {
            Ok(true) => {
                while drivers.present() {}
                last = boottime_ms();
            }
            Ok(false) => {}
            Err(_) => return,
        }
    }
}
