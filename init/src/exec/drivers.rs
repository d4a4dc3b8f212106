//! Loads what the machine has devices for, and what a phase asks for by name. The decision is `plan::modules`.

use super::error::InitError;
use super::steps::load_modules;
use crate::plan::modules::{self, Modules};
use crate::plan::step::Step;
use crate::sys::child;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const LIST: &str = "/etc/orlop/modules";
/// The buses on which what the initrd drives is found.
const BUSES: [&str; 5] = ["pci", "virtio", "scsi", "usb", "acpi"];

/// The initrd's modules.
#[derive(Debug, Default)]
pub struct Drivers {
    modules: Modules,
    loaded: usize,
    missing: Vec<String>,
}

impl Drivers {
    /// Reads the list; an initrd without one has everything built in.
    ///
    /// # Errors
    /// The list is there but cannot be read.
    pub fn read() -> Result<Drivers, InitError> {
        let list = match fs::read_to_string(LIST) {
            Err(e) if e.kind() == ErrorKind::NotFound => String::new(),
            other => other.map_err(|source| InitError::File { action: "read", path: LIST.into(), source })?,
        };
        Ok(Drivers { modules: Modules::parse(&list), ..Drivers::default() })
    }

    /// Loads what the devices call for that are there now; true if there was anything to load.
    pub fn present(&mut self) -> bool {
        self.load(&modaliases(Path::new("/sys/bus")))
    }

    /// Loads what is called for under a name, for example `fs-vfat`.
    pub fn need(&mut self, name: &str) {
        self.load(&[name.to_string()]);
    }

    fn load(&mut self, names: &[String]) -> bool {
        let (always, called) = self.modules.take(names);
        // Checking a module's signature takes a processor longer than anything else about it.
        let second = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
        let beside = (second && !always.is_empty() && !called.is_empty())
            .then(|| child::alongside(|| drop(load_modules(&called))))
            .and_then(Result::ok);
        let (mut loaded, mut missing) = load_modules(&always);
        drop(beside);
        // Only who was not loaded by the child is left, and says here why.
        let loaded_beside =
            |step: &Step| matches!(step, Step::LoadModule { path, .. } if is_live(Path::new(path)));
        let (live, left): (Vec<Step>, Vec<Step>) = called.into_iter().partition(loaded_beside);
        let (more, without) = load_modules(&left);
        loaded += live.len() + more;
        missing.extend(without);
        let any = loaded + missing.len() > 0;
        self.loaded += loaded;
        self.missing.extend(missing);
        any
    }

    /// For the ledger.
    #[must_use]
    pub fn detail(&self) -> String {
        let without = match self.missing.as_slice() {
            [] => String::new(),
            missing => format!(", without {}", missing.join(", ")),
        };
        format!("{} loaded, {} not called for{without}", self.loaded, self.modules.waiting())
    }
}

/// True if the module of that file is loaded.
#[must_use]
pub fn is_live(module: &Path) -> bool {
    let name = modules::name(&module.to_string_lossy()).replace('-', "_");
    fs::read_to_string(format!("/sys/module/{name}/initstate")).is_ok_and(|state| state.trim_end() == "live")
}

fn modaliases(buses: &Path) -> Vec<String> {
    let devices = BUSES.iter().filter_map(|bus| fs::read_dir(buses.join(bus).join("devices")).ok()).flatten();
    devices
        .flatten()
        .filter_map(|device| fs::read_to_string(device.path().join("modalias")).ok())
        .map(|text| text.trim_end().to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modaliases_of_all_buses() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (device, alias) in [("pci/devices/0", "pci:a\n"), ("scsi/devices/1", "scsi:t-0x00\n")] {
            let at = dir.path().join(device);
            fs::create_dir_all(&at).and_then(|()| fs::write(at.join("modalias"), alias)).expect("fixture");
        }
        fs::create_dir_all(dir.path().join("usb/devices/no-alias")).expect("fixture");
        assert_eq!(modaliases(dir.path()), ["pci:a", "scsi:t-0x00"]);
    }
}
