//! Entry point: the name that it is called by says which plugin is meant.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let called = std::env::args_os().next();
    let name = called.as_deref().and_then(|path| Path::new(path).file_name()).and_then(OsStr::to_str);
    orlop_cni::plugin::main(name.unwrap_or_default())
}
