//! Entry point of orlop-init, which units of the running system call with a subcommand, and containerd as its shim.
//!
//! There is no Rust start-up code, as in orlop-initrd: what both programs use is written for a program without it.
#![no_main]
#![allow(unsafe_code)]

use std::process::ExitCode;

/// Called by the C start-up code.
// SAFETY: the only `main` of this binary, with the signature that the C start-up code calls; the arguments
// are read through std::env, which glibc fills before main.
#[unsafe(no_mangle)]
pub extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
    let code = orlop_init::exec::main(&std::env::args_os().collect::<Vec<_>>());
    i32::from(code != ExitCode::SUCCESS)
}
