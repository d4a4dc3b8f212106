//! The few Linux system calls that the baked-in containers need, without a C library. What the architecture decides is
//! in a file of its own.
//!
//! These programs are compiled by `rustc` itself, `no_std` and static, so that an image is one file of a few kB.

#![allow(dead_code)]

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod machine;

use machine::{EXIT_GROUP, GETPID, RT_SIGPROCMASK, RT_SIGTIMEDWAIT, UNAME, WAIT4, WRITE, call};

pub const SIGINT: u64 = 2;
pub const SIGTERM: u64 = 15;
pub const SIGCHLD: u64 = 17;

unsafe extern "Rust" {
    /// Defined by each program.
    safe fn run() -> !;
}

extern "C" fn enter() -> ! {
    run()
}

/// Writes all of `data` to standard output, as far as it is taken.
pub fn print(mut data: &[u8]) {
    while !data.is_empty() {
        // SAFETY: write(1, pointer, length) reads `length` bytes of a live slice.
        let n = unsafe { call(WRITE, [1, data.as_ptr() as u64, data.len() as u64, 0]) };
        if n <= 0 {
            return;
        }
        // Slicing that cannot panic: panic machinery would need an unwinder.
        data = data.get(n as usize..).unwrap_or(&[]);
    }
}

/// Ends the process.
pub fn exit(code: u64) -> ! {
    loop {
        // SAFETY: exit_group(code) takes a number.
        unsafe { call(EXIT_GROUP, [code, 0, 0, 0]) };
    }
}

fn bit(signal: u64) -> u64 {
    1 << (signal - 1)
}

/// Blocks SIGINT, SIGTERM and SIGCHLD, so that [`wait_signal`] gets them.
pub fn block_signals() {
    let set: u64 = bit(SIGINT) | bit(SIGTERM) | bit(SIGCHLD);
    // SAFETY: rt_sigprocmask(SIG_BLOCK, &set, null, 8) reads eight bytes.
    unsafe { call(RT_SIGPROCMASK, [0, &raw const set as u64, 0, 8]) };
}

/// Waits for one of the blocked signals; `seconds` 0 waits for ever. `None` when the time is over.
pub fn wait_signal(seconds: u64) -> Option<u64> {
    let set: u64 = bit(SIGINT) | bit(SIGTERM) | bit(SIGCHLD);
    let time: [u64; 2] = [seconds, 0];
    let time_at = if seconds == 0 { 0 } else { &raw const time as u64 };
    // SAFETY: rt_sigtimedwait(&set, null, &time or null, 8) reads both for the length of the call.
    let signal = unsafe { call(RT_SIGTIMEDWAIT, [&raw const set as u64, 0, time_at, 8]) };
    u64::try_from(signal).ok()
}

/// Reaps every child that has ended: PID 1 of a pod inherits orphans.
pub fn reap() {
    const WNOHANG: u64 = 1;
    loop {
        // SAFETY: wait4(-1, null, WNOHANG, null) writes nothing.
        if unsafe { call(WAIT4, [u64::MAX, 0, WNOHANG, 0]) } <= 0 {
            return;
        }
    }
}

/// `uname(2)`: six fields of 65 bytes.
pub fn uname() -> [u8; 390] {
    let mut buffer = [0u8; 390];
    // SAFETY: uname(&buffer) writes a struct of 6 x 65 bytes.
    unsafe { call(UNAME, [buffer.as_mut_ptr() as u64, 0, 0, 0]) };
    buffer
}

/// Own process id.
pub fn getpid() -> u64 {
    // SAFETY: getpid takes no arguments.
    unsafe { call(GETPID, [0; 4]) as u64 }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}
