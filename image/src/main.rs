//! Entry point of `orlop-image`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    orlop_image::cli::main()
}
