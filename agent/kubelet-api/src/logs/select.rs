//! Selects the records of a log that a client gets.

use std::str::FromStr;

use agent_types::time::Wall;
use k8s_openapi::jiff::Timestamp;

use super::{LogOptions, Output, Record, Records};

/// A runtime splits at 16 KiB; a record much longer than that is none of a runtime.
const RECORD_BYTES_MAX: usize = 256 * 1024;

/// Translates a file's bytes to the reply's bytes.
#[derive(Debug)]
pub struct Selector {
    timestamps: bool,
    since: Option<Wall>,
    stream: Option<Output>,
    /// Bytes that may still be sent.
    bytes_left: Option<u64>,
    /// Records that may still be sent: with `tail` and without `follow`, later records are not sent.
    records_left: Option<u64>,
    records: Records,
    /// What is sent next begins a line, so that a time belongs before it.
    at_line_start: bool,
    malformed: u64,
}

impl Selector {
    /// Nothing read yet.
    #[must_use]
    pub fn new(options: &LogOptions) -> Selector {
        Selector {
            timestamps: options.timestamps,
            since: options.since,
            stream: options.stream,
            bytes_left: options.limit_bytes,
            records_left: options.tail.filter(|_| !options.follow),
            records: Records::new(RECORD_BYTES_MAX),
            at_line_start: true,
            malformed: 0,
        }
    }

    /// True if nothing more will be sent.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.bytes_left == Some(0) || self.records_left == Some(0)
    }

    /// How many records were not understood.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed + self.records.overlong()
    }

    /// Takes the next piece of the file; appends the bytes to send to `out`.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !self.is_done() {
            let Some(record) = self.records.next(&mut bytes) else { return };
            self.record(&record, out);
        }
    }

    /// The file ended: sends the last record even without a newline. A new file may follow; the rest of this
    /// one has no continuation.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let record = self.records.rest();
        if !record.is_empty() && !self.is_done() {
            self.record(&record, out);
        }
    }

    fn record(&mut self, record: &[u8], out: &mut Vec<u8>) {
        let Some((Record { output, partial, content, .. }, time, at)) = parse(record) else {
            self.malformed += 1;
            return;
        };
        if self.stream.is_some_and(|stream| stream != output) {
            return;
        }
        if let Some(left) = &mut self.records_left {
            *left -= 1;
        }
        if self.since.is_some_and(|since| at < since) {
            self.at_line_start = !partial;
            return;
        }
        if self.timestamps && self.at_line_start {
            self.send(fixed(time).as_bytes(), out);
            self.send(b" ", out);
        }
        self.send(content, out);
        if !partial {
            self.send(b"\n", out);
        }
        self.at_line_start = !partial;
    }

    fn send(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let take = match &mut self.bytes_left {
            None => bytes.len(),
            Some(left) => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= take as u64;
                take
            }
        };
        out.extend_from_slice(&bytes[..take]);
    }
}

/// A record with its time, as text and as a time.
fn parse(record: &[u8]) -> Option<(Record<'_>, &str, Wall)> {
    let record = Record::parse(record)?;
    let time = std::str::from_utf8(record.time).ok()?;
    let nanos = Timestamp::from_str(time).ok()?.as_nanosecond();
    let at = Wall(i64::try_from(nanos.clamp(i128::from(i64::MIN), i128::from(i64::MAX))).unwrap_or_default());
    Some((record, time, at))
}

/// The time with nine digits of its second, as upstream prints it (RFC3339NanoFixed): all times have the same
/// width.
fn fixed(time: &str) -> String {
    let of_day = time.find('T').map_or(0, |t| t + 1);
    let zone = time[of_day..].find(['Z', 'z', '+', '-']).map_or(time.len(), |zone| of_day + zone);
    let (clock, zone) = time.split_at(zone);
    let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    format!("{seconds}.{fraction:0<9.9}{zone}")
}
