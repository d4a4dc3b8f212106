//! Waits for sticks and memory cards before the boot reads configuration drives. The decision is `plan::late_media`.

use super::clock::boottime_ms;
use super::devices::Uevents;
use super::drivers::Drivers;
use crate::plan::late_media::deadline;
use std::fs;
use std::path::Path;

/// Each has an entry on a machine whose media may appear after the driver: a hub of USB, a slot for memory cards.
const LATE: [&str; 2] = ["bus/usb/devices", "class/mmc_host"];

/// Waits until no device has appeared for a while. A machine without such places does not wait. What fails here ends the wait: the boot
/// goes on with the media that are there.
pub fn wait(drivers: &mut Drivers) {
    if !has_late_media(Path::new("/sys")) {
        return;
    }
    let Ok(uevents) = Uevents::subscribe() else { return };
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

fn has_late_media(sys: &Path) -> bool {
    LATE.iter().any(|list| fs::read_dir(sys.join(list)).is_ok_and(|mut entries| entries.next().is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_a_hub_or_a_slot_waits() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let sys = dir.path();
        let make = |path: &str| fs::create_dir_all(sys.join(path)).expect("fixture");
        assert!(!has_late_media(sys));
        // The bus is there with its module, and has no hub.
        make("bus/usb/devices");
        make("class/mmc_host");
        assert!(!has_late_media(sys));
        make("class/mmc_host/mmc0");
        assert!(has_late_media(sys));
        fs::remove_dir(sys.join("class/mmc_host/mmc0")).expect("fixture");
        make("bus/usb/devices/usb1");
        assert!(has_late_media(sys));
    }
}
