//! The asking side: for programs without a runtime (the timer, a drive that appears, a person), and for tasks of one.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

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

/// The same for a task; the last report is returned only.
///
/// # Errors
/// The updater is not there, or goes away before its last report ([`io::ErrorKind::UnexpectedEof`]). What runs then goes on.
pub async fn ask_from_task(
    socket: &Path,
    request: &UpdateRequest,
    mut show: impl FnMut(&UpdateReport),
) -> io::Result<UpdateReport> {
    let mut stream = tokio::net::UnixStream::connect(socket).await?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    let mut lines = tokio::io::BufReader::new(stream).lines();
    while let Some(line) = lines.next_line().await? {
        let report: UpdateReport = serde_json::from_str(&line)?;
        if report.is_last() {
            return Ok(report);
        }
        show(&report);
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended before its last report"))
}
