//! Entry point of `orlop-image`.

use std::process::ExitCode;

fn main() -> ExitCode {
    orlop_image::cli::main()
}
