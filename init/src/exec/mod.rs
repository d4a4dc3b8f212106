//! The executor: fetches facts for `plan`, carries out its steps, stamps each phase in the ledger.
//!
//! Thin on purpose: what it decides by itself is only how long to wait for the kernel.

pub mod agent_memory;
pub mod apparmor;
pub mod bringup;
pub mod carried;
pub mod change;
pub mod clock;
pub mod coldplug;
pub mod configuration;
pub mod configure;
pub mod console;
pub mod devices;
pub mod disk_copy;
pub mod drivers;
pub mod error;
pub mod files;
pub mod go_memory;
pub mod guard;
pub mod handover;
pub mod host_channel;
pub mod initrd;
pub mod install;
pub mod kept;
pub mod late_media;
pub mod ledger;
pub mod loader;
pub mod machine_id;
pub mod notify;
pub mod platform;
pub mod pod_network;
pub mod prefetch;
pub mod report;
pub mod reserve;
pub mod reset;
pub mod reset_order;
pub mod resolv;
pub mod runtime;
pub mod seed;
pub mod settings;
pub mod shim;
pub mod slot;
pub mod sources;
mod stand_in;
pub mod state;
pub mod steps;
pub mod stop;
pub mod swap;
pub mod tpm;
pub mod tree;
pub mod verity;
pub mod watchdog;

use crate::plan::program::{self, Subcommand};
use console::{Console, Level};
use report::Report;
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Written by init if /var is volatile in this boot: the reason, one line.
pub const DEGRADED: &str = "/run/orlop/degraded";

/// Stamps `systemd.started` at the first of our units that runs, whichever it is.
fn systemd_started(report: &mut Report) {
    let stamped = ledger::read(Path::new("/run/orlop/boot.json"))
        .is_ok_and(|l| l.entries.iter().any(|e| e.phase == "systemd.started"));
    if !stamped {
        report.stamp("systemd.started", None, "first unit of the node", true);
    }
}

/// What orlop-initrd does, given its arguments, its own name first. It returns only when it is not PID 1 of an initramfs. As PID 1
/// it takes no argument: the kernel hands on words of its command line that it does not know.
#[must_use]
pub fn initrd_main(args: &[OsString]) -> ExitCode {
    if nix::unistd::getpid().as_raw() == 1 && handover::root_is_initramfs() {
        panic_reboots();
        initrd::run();
    }
    refuse(&program::refused_by_initrd(argument(args).as_deref()))
}

/// What orlop-init does, given its arguments, its own name first.
#[must_use]
pub fn main(args: &[OsString]) -> ExitCode {
    let name = args.first().and_then(|name| Path::new(name).file_name()).and_then(OsStr::to_str);
    if name == Some(shim::NAME) {
        return shim::main(&args[1..]);
    }
    let word = argument(args);
    match word.as_deref().and_then(Subcommand::of) {
        Some(Subcommand::Bringup) => bringup::main(),
        Some(Subcommand::Configure) => configure::main(),
        Some(Subcommand::Change) => change::main(),
        Some(Subcommand::Resolv) => resolv::main(),
        Some(Subcommand::Clock) => clock::main(),
        Some(Subcommand::Guard) => guard::main(),
        Some(Subcommand::Reset) => reset_order::main(),
        Some(Subcommand::Ledger) => ledger::print(),
        None => refuse(&program::refused_by_init(word.as_deref())),
    }
}

fn argument(args: &[OsString]) -> Option<Cow<'_, str>> {
    args.get(1).map(|word| word.to_string_lossy())
}

fn refuse(line: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "{line}");
    ExitCode::from(2)
}

/// To standard output, to the last byte: no code flushes it at the end of a program without Rust's start-up code.
fn print(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout();
    out.write_all(bytes)?;
    out.flush()
}

/// A panic of PID 1 is a defect; it must not look like a hang. The kernel's own panic would follow from the
/// abort, but without `panic=` on the command line (a kernel that was handed over without it) it would wait for ever.
fn panic_reboots() {
    std::panic::set_hook(Box::new(|info| {
        let text = format!("defect in init: {info}; nothing was changed on disk; rebooting in 10 s");
        Console::open("orlop-init").say(Level::Error, &text);
        stop::reboot_after(10);
    }));
}
