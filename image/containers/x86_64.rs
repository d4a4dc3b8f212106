//! System calls of x86-64.

use core::arch::{asm, naked_asm};

pub const WRITE: u64 = 1;
pub const RT_SIGPROCMASK: u64 = 14;
pub const GETPID: u64 = 39;
pub const WAIT4: u64 = 61;
pub const UNAME: u64 = 63;
pub const RT_SIGTIMEDWAIT: u64 = 128;
pub const EXIT_GROUP: u64 = 231;

/// Entry point: the kernel jumps here with a stack that is not aligned as functions expect it.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!("xor ebp, ebp", "and rsp, -16", "call {enter}", "ud2", enter = sym super::enter)
}

/// Raw system call.
///
/// # Safety
/// The arguments must be what the call's manual page asks for; pointers must be valid for the call.
pub unsafe fn call(number: u64, args: [u64; 4]) -> i64 {
    let result: i64;
    // SAFETY: the x86-64 system call convention: number in rax, arguments in rdi, rsi, rdx, r10; rcx and r11
    // are overwritten; nothing else changes. The caller answers for the arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as i64 => result, in("rdi") args[0], in("rsi") args[1],
            in("rdx") args[2], in("r10") args[3], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// The compiler calls these by name where no C library provides them.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // SAFETY: `rep movsb` copies n bytes; the caller promises both ranges.
    unsafe { asm!("rep movsb", inout("rcx") n => _, inout("rdi") to => _, inout("rsi") from => _) };
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, n: usize) -> *mut u8 {
    // SAFETY: `rep stosb` fills n bytes; the caller promises the range.
    unsafe { asm!("rep stosb", inout("rcx") n => _, inout("rdi") to => _, in("al") value as u8) };
    to
}
