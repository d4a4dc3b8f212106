//! Entry point of orlop-initrd, PID 1 of the initrd.
//!
//! There is no Rust start-up code: it insists on three open descriptors or aborts, and an abort of PID 1 is a
//! kernel panic. On a machine whose console cannot be opened PID 1 starts with none, and must boot all the same.
#![no_main]
#![allow(unsafe_code)]

use std::process::ExitCode;

/// Called by the C start-up code.
// SAFETY: the only `main` of this binary, with the signature that the C start-up code calls; the arguments
// are read through std::env, which glibc fills before main.
#[unsafe(no_mangle)]
pub extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
    let code = orlop_init::exec::initrd_main(&std::env::args_os().collect::<Vec<_>>());
    i32::from(code != ExitCode::SUCCESS)
}
