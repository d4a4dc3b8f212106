//! The asking side, for programs without a runtime: the timer, a drive that appears, a person.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::protocol::{UpdateReport, UpdateRequest};

/// Asks, and shows each report as it comes; the last one is returned.
///
/// # Errors
/// The updater is not there, or goes away before its last report. What runs then goes on at the next request.
pub fn ask(
    socket: &Path,
    request: &UpdateRequest,
    mut show: impl FnMut(&UpdateReport),
) -> io::Result<UpdateReport> {
    let mut stream = UnixStream::connect(socket)?;
    let mut line = serde_json::to_vec(request).map_err(io::Error::other)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    for line in BufReader::new(stream).lines() {
        let report: UpdateReport = serde_json::from_str(&line?).map_err(io::Error::other)?;
        show(&report);
        if report.is_last() {
            return Ok(report);
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the updater has ended before its last report"))
}
