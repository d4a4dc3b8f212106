//! `capture`: packets of an interface of the node, as a file of pcap.
//!
//! Invariants: what has come is in the file, also after Ctrl-C or a lost connection; a file that is there stays; a capture ends a while
//! after its time, whatever the node does.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use orlop_proto::node_api::v1alpha1::captures_client::CapturesClient;
use orlop_proto::node_api::v1alpha1::{CaptureEnd, CaptureRequest};
use tokio::time::{Instant, timeout_at};

use crate::commands::{Verdict, within};
use crate::failure::CtlError;
use crate::render::plain;
use crate::target::Target;

/// The name of standard output.
const STDOUT: &str = "-";

/// What is captured.
#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    /// Interface of the node (`orlopctl get links`)
    #[arg(value_name = "INTERFACE")]
    interface: String,
    /// The file, a new one; -: standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Ends after this time, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Ends after so many packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    packets: Option<u64>,
    /// Ends before the file is larger, MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
    size: u64,
    /// Bytes of each packet
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65535))]
    snaplen: u32,
    /// Only packets from or to this IP address
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    host: String,
    /// Only packets of TCP, UDP or SCTP from or to this port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Only packets of this protocol: tcp, udp, sctp, icmp, icmp6, arp
    #[arg(long, value_name = "NAME", default_value = "")]
    protocol: String,
}

impl CaptureArgs {
    fn request(&self) -> CaptureRequest {
        CaptureRequest {
            interface: self.interface.clone(),
            seconds: self.seconds,
            bytes: self.size << 20,
            packets: self.packets.unwrap_or(0),
            snap_bytes: self.snaplen,
            host: self.host.clone(),
            port: self.port.map_or(0, u32::from),
            protocol: self.protocol.clone(),
        }
    }
}

/// Writes the file until the capture ends.
pub(crate) async fn run(target: &Target, limit: Duration, args: &CaptureArgs) -> Result<Verdict, CtlError> {
    let is_stdout = args.file == Path::new(STDOUT);
    if is_stdout && io::stdout().is_terminal() {
        return Err(CtlError::Usage("a capture is nothing for a terminal: name a file".to_owned()));
    }
    if !is_stdout && args.file.exists() {
        return Err(CtlError::Usage(format!("{} is there already: name another file", args.file.display())));
    }
    let mut client = CapturesClient::new(target.connect(limit).await?);
    let deadline = Instant::now() + Duration::from_secs(u64::from(args.seconds)) + limit;
    let mut pieces = within(limit, "the node", client.capture(args.request())).await?;
    // The node has agreed: only now there is something to keep.
    let mut file: Box<dyn Write> =
        if is_stdout { Box::new(io::stdout()) } else { Box::new(new(&args.file)?) };
    let (mut bytes, mut end) = (0, None);
    while end.is_none() {
        let piece = match timeout_at(deadline, pieces.message()).await {
            Ok(Ok(Some(piece))) => piece,
            Ok(Ok(None)) => break,
            Ok(Err(status)) => return Err(CtlError::Refused(status)),
            Err(_) => return Err(CtlError::TimedOut { what: "the end of the capture".to_owned(), limit }),
        };
        file.write_all(&piece.data)?;
        file.flush()?;
        bytes += piece.data.len();
        end = piece.end;
    }
    let Some(end) = end else {
        let why = "the capture has no end; the packets that came are in the file".to_owned();
        return Err(CtlError::Unreachable { target: target.to_string(), why });
    };
    // If stderr is gone, there is no other place for it.
    let _ = writeln!(io::stderr(), "{}", summary(&end, bytes));
    Ok(Verdict::Fine)
}

/// How the capture ended, for people.
fn summary(end: &CaptureEnd, bytes: usize) -> String {
    let lost = match end.lost_packets {
        0 => String::new(),
        lost => format!("; {lost} packets were lost: this client reads more slowly than they come"),
    };
    format!("{} packets, {bytes} bytes; ended by: {}{lost}", end.packets, plain(&end.reason))
}

/// A new file, for its owner alone: packets are not for everybody.
fn new(file: &Path) -> Result<File, CtlError> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    Ok(OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map_err(named)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_says_what_was_lost() {
        let end = CaptureEnd { reason: "time".to_owned(), packets: 3, lost_packets: 0 };
        assert_eq!(summary(&end, 99), "3 packets, 99 bytes; ended by: time");
        let slow = CaptureEnd { lost_packets: 5, ..end };
        assert!(summary(&slow, 99).contains("; 5 packets were lost"), "{}", summary(&slow, 99));
    }

    #[test]
    fn a_file_that_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pcap");
        new(&path).unwrap().write_all(b"one").unwrap();
        assert!(new(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
    }
}
