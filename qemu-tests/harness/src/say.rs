//! Progress for the person who watches: lines on standard output, flushed at once.
//!
//! A closed pipe does not fail the run, so write errors are dropped here and nowhere else.

use std::io::Write;

/// Writes one line to standard output.
pub fn line(text: impl AsRef<str>) {
    if cfg!(test) {
        // Captured by the test harness, so that it is shown only with a failure.
        #[allow(clippy::print_stdout)]
        {
            println!("{}", text.as_ref());
        }
        return;
    }
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", text.as_ref());
    let _ = out.flush();
}
