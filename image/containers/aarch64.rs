//! System calls of 64-bit ARM.

use core::arch::{asm, naked_asm};

pub const WRITE: u64 = 64;
pub const EXIT_GROUP: u64 = 94;
pub const RT_SIGPROCMASK: u64 = 135;
pub const RT_SIGTIMEDWAIT: u64 = 137;
pub const UNAME: u64 = 160;
pub const GETPID: u64 = 172;
pub const WAIT4: u64 = 260;

/// Entry point: no frame and no caller; the kernel has aligned the stack.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!("mov x29, xzr", "mov x30, xzr", "b {enter}", enter = sym super::enter)
}

/// Raw system call.
///
/// # Safety
/// The arguments must be what the call's manual page asks for; pointers must be valid for the call.
pub unsafe fn call(number: u64, args: [u64; 4]) -> i64 {
    let result: i64;
    // SAFETY: the system call convention of 64-bit ARM: number in x8, arguments in x0 to x3, the result in x0; nothing
    // else changes. The caller answers for the arguments.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0] as i64 => result, in("x1") args[1],
            in("x2") args[2], in("x3") args[3], options(nostack));
    }
    result
}

/// The compiler calls these by name where no C library provides them. A loop of Rust would become a call of them.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // SAFETY: the loop copies n bytes; the caller promises both ranges.
    unsafe {
        asm!("2:", "cbz {n}, 3f", "ldrb {byte:w}, [{from}], #1", "strb {byte:w}, [{to}], #1", "sub {n}, {n}, #1",
            "b 2b", "3:", n = inout(reg) n => _, from = inout(reg) from => _, to = inout(reg) to => _,
            byte = out(reg) _, options(nostack));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, n: usize) -> *mut u8 {
    // SAFETY: the loop fills n bytes; the caller promises the range.
    unsafe {
        asm!("2:", "cbz {n}, 3f", "strb {byte:w}, [{to}], #1", "sub {n}, {n}, #1", "b 2b", "3:",
            n = inout(reg) n => _, to = inout(reg) to => _, byte = in(reg) value, options(nostack));
    }
    to
}
