//! The end of a boot that cannot go on: one line, sync, then reboot or stay as `plan::failure` says.

use super::report::Report;
use crate::plan::failure::{OtherSlot, Verdict, closing, verdict};
use crate::plan::phase::Phase;
use nix::errno::Errno;
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::sync;

/// How often a staying machine repeats its message: a person may attach a console late.
const REPEAT_S: i64 = 60;
/// Seconds between the message and a reset for another slot.
const RESET_DELAY_S: i64 = 3;

/// Never returns.
pub fn stop(report: &mut Report, phase: Phase, other: OtherSlot, why: &str) -> ! {
    let verdict = verdict(phase, other);
    let closing = closing(verdict, other);
    let line = format!("boot failed in {}: {why}; {closing}. docs/runbooks/boot.md has more", phase.name());
    report.problem(&line);
    report.flush();
    sync();
    if let Verdict::Reboot { after_s } = verdict {
        reboot_after(i64::from(after_s));
    }
    loop {
        wait(REPEAT_S);
        report.line(&line);
    }
}

/// Says why the machine starts again with another slot, and resets it. Returns only if the kernel refuses.
pub fn reset(report: &mut Report, why: &str) {
    report.problem(&format!("{why}; rebooting in {RESET_DELAY_S} s"));
    report.flush();
    reboot_after(RESET_DELAY_S);
}

/// Says a line, and again each minute: only a person can go on. Never returns.
pub fn stay(report: &mut Report, line: &str) -> ! {
    report.problem(line);
    report.flush();
    sync();
    loop {
        wait(REPEAT_S);
        report.line(line);
    }
}

/// Syncs and switches the machine off; returns only if the kernel refuses.
pub fn power_off() {
    sync();
    let _ = reboot(RebootMode::RB_POWER_OFF);
}

/// Waits, syncs and reboots; returns only if the kernel refuses.
pub fn reboot_after(seconds: i64) {
    wait(seconds);
    sync();
    let _ = reboot(RebootMode::RB_AUTOBOOT);
}

/// Waits on a timer. There is no event to wait for: this is the time a person has to read.
pub(super) fn wait(seconds: i64) {
    let Ok(timer) = TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_CLOEXEC) else { return };
    let expiration = Expiration::OneShot(TimeSpec::new(seconds, 0));
    if timer.set(expiration, TimerSetTimeFlags::empty()).is_ok() {
        while timer.wait() == Err(Errno::EINTR) {}
    }
}
