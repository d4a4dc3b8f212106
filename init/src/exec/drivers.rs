//! Loads what the machine has devices for, and what a phase asks for by name. The decision is `plan::modules`.

use super::error::InitError;
use super::steps::load_modules;
use crate::plan::modules::{self, Modules};
use crate::plan::step::BootStep;
use crate::sys::child::{self, Alongside};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const LIST: &str = "/etc/orlop/modules";
/// Niceness of what is loaded before it is needed.
const BEHIND: i32 = 5;
/// The buses on which what the initrd drives is found. Modules of devices of the bus `platform` are asked for by name.
const BUSES: [&str; 8] = ["pci", "virtio", "scsi", "usb", "acpi", "vmbus", "xen", "mmc"];

/// The initrd's modules.
#[derive(Debug, Default)]
pub struct Drivers {
    modules: Modules,
    loaded: usize,
    missing: Vec<String>,
    beside: Vec<BackgroundModules>,
}

/// Modules that a child process loads while the boot goes on.
#[derive(Debug)]
struct BackgroundModules {
    /// What they were asked for as; devices' drivers have no name.
    name: Option<String>,
    steps: Vec<BootStep>,
    child: Alongside,
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

    /// Loads what is always needed. What the devices call for that are there now, and what will be needed under a name
    /// of `soon`, is loaded by child processes meanwhile, if there is a second processor: checking a module's signature
    /// takes a processor longer than anything else about it, and a disk controller's driver is not loaded before all of
    /// its ports have answered or not. Who needs any of it says so ([`Drivers::need`], [`Drivers::settle`]).
    pub fn start(&mut self, soon: &[&str]) {
        let (always, devices) = self.modules.take(&modaliases(Path::new("/sys/bus")));
        let second = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
        if !second {
            self.load(&always);
            return self.load(&devices);
        }
        self.aside(None, devices, 0);
        for name in soon {
            let (_, steps) = self.modules.take(&[(*name).to_string()]);
            self.aside(Some((*name).to_string()), steps, BEHIND);
        }
        self.load(&always);
    }

    /// Loads what the devices call for that have appeared since; true if there was anything to load.
    pub fn present(&mut self) -> bool {
        let called = self.modules.take(&modaliases(Path::new("/sys/bus")));
        self.take(called)
    }

    /// What is called for under a name, for example `fs-vfat`, is loaded when this returns.
    pub fn need(&mut self, name: &str) {
        while let Some(i) = self.beside.iter().position(|b| b.name.as_deref() == Some(name)) {
            let beside = self.beside.remove(i);
            self.join(beside);
        }
        let called = self.modules.take(&[name.to_string()]);
        self.take(called);
    }

    /// The same without a wait for what is being loaded: nothing of that is what these modules need, and a driver that hangs there does not
    /// stop this.
    pub fn need_apart(&mut self, name: &str) {
        let (always, called) = self.modules.take(&[name.to_string()]);
        self.load(&always);
        self.load(&called);
    }

    /// Waits for all that is being loaded.
    pub fn settle(&mut self) {
        while !self.beside.is_empty() {
            let beside = self.beside.remove(0);
            self.join(beside);
        }
    }

    fn take(&mut self, (always, called): (Vec<BootStep>, Vec<BootStep>)) -> bool {
        let any = always.len() + called.len() > 0;
        if any {
            // What these depend on may be among it.
            self.settle();
            self.load(&always);
            self.load(&called);
        }
        any
    }

    fn aside(&mut self, name: Option<String>, steps: Vec<BootStep>, nice: i32) {
        if steps.is_empty() {
            return;
        }
        match child::alongside(nice, || drop(load_modules(&steps))) {
            Ok(child) => self.beside.push(BackgroundModules { name, steps, child }),
            Err(_) => self.load(&steps),
        }
    }

    /// Only who was not loaded by the child is left, and says here why.
    fn join(&mut self, beside: BackgroundModules) {
        drop(beside.child);
        let loaded =
            |step: &BootStep| matches!(step, BootStep::LoadModule { path, .. } if is_live(Path::new(path)));
        let (live, left): (Vec<BootStep>, Vec<BootStep>) = beside.steps.into_iter().partition(loaded);
        self.loaded += live.len();
        if !left.is_empty() {
            // What these depend on may be with another child.
            self.settle();
            self.load(&left);
        }
    }

    fn load(&mut self, steps: &[BootStep]) {
        let (loaded, missing) = load_modules(steps);
        self.loaded += loaded;
        self.missing.extend(missing);
    }

    /// What could not be loaded so far, each with its reason.
    #[must_use]
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// For the ledger.
    #[must_use]
    pub fn detail(&self) -> String {
        let without = match self.missing.as_slice() {
            [] => String::new(),
            missing => format!(", without {}", missing.join(", ")),
        };
        let beside: usize = self.beside.iter().map(|b| b.steps.len()).sum();
        format!(
            "{} loaded, {beside} being loaded, {} not called for{without}",
            self.loaded,
            self.modules.waiting()
        )
    }
}

/// True if the module of that file is loaded.
#[must_use]
pub fn is_live(module: &Path) -> bool {
    let name = modules::name(&module.to_string_lossy()).replace('-', "_");
    fs::read_to_string(format!("/sys/module/{name}/initstate")).is_ok_and(|state| state.trim_end() == "live")
}

fn modaliases(buses: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for bus in BUSES {
        let Ok(devices) = fs::read_dir(buses.join(bus).join("devices")) else { continue };
        found.extend(devices.flatten().filter_map(|device| modalias(bus, &device.path())));
    }
    found
}

/// What a device calls for. Memory cards have it in their uevent alone.
fn modalias(bus: &str, device: &Path) -> Option<String> {
    if bus == "mmc" {
        let uevent = fs::read_to_string(device.join("uevent")).ok()?;
        return uevent.lines().find_map(|line| line.strip_prefix("MODALIAS=")).map(str::to_string);
    }
    fs::read_to_string(device.join("modalias")).ok().map(|text| text.trim_end().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modaliases_of_all_buses() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for (file, text) in [
            ("pci/devices/0/modalias", "pci:a\n"),
            ("scsi/devices/1/modalias", "scsi:t-0x00\n"),
            ("xen/devices/vbd-51712/modalias", "xen:vbd\n"),
            ("mmc/devices/mmc0:4567/uevent", "DRIVER=mmcblk\nMMC_TYPE=SD\nMODALIAS=mmc:block\n"),
            ("usb/devices/usb1/uevent", "DEVTYPE=usb_device\n"),
        ] {
            let file = dir.path().join(file);
            let parent = file.parent().expect("parent");
            fs::create_dir_all(parent).and_then(|()| fs::write(&file, text)).expect("fixture");
        }
        let want = ["pci:a", "scsi:t-0x00", "xen:vbd", "mmc:block"];
        assert_eq!(modaliases(dir.path()), want);
    }
}
