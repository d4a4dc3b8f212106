//! What of a log's records a client gets: `<RFC 3339> <stdout|stderr> <tags> <content>`, the first tag `F` for a whole
//! line or `P` for a part that the next record goes on with.

use std::str::FromStr;

use k8s_openapi::jiff::Timestamp;

use super::LogOptions;
use crate::time::Wall;

/// A runtime splits at 16 KiB; a record much longer than that is none of a runtime.
const RECORD_BYTES_MAX: usize = 256 * 1024;

/// Turns a file's bytes into what is sent.
#[derive(Debug)]
pub struct Selector {
    timestamps: bool,
    since: Option<Wall>,
    /// Bytes that may still be sent.
    bytes_left: Option<u64>,
    /// Records that may still be sent: with `tail` and without `follow` what is written meanwhile is not.
    records_left: Option<u64>,
    /// Bytes of a record whose newline has not come.
    pending: Vec<u8>,
    /// True while the rest of an over-long record is skipped.
    skipping: bool,
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
            bytes_left: options.limit_bytes,
            records_left: options.tail.filter(|_| !options.follow),
            pending: Vec::new(),
            skipping: false,
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
        self.malformed
    }

    /// Absorbs what was read next; appends to `out` what is to be sent.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !self.is_done() {
            let Some(end) = bytes.iter().position(|b| *b == b'\n') else { break };
            let (record, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if self.pending.is_empty() {
                self.record(record, out);
            } else {
                let mut whole = std::mem::take(&mut self.pending);
                whole.extend_from_slice(record);
                self.record(&whole, out);
            }
        }
        if self.is_done() || self.skipping {
            return;
        }
        self.pending.extend_from_slice(bytes);
        if self.pending.len() > RECORD_BYTES_MAX {
            self.pending = Vec::new();
            self.malformed += 1;
            self.skipping = true;
        }
    }

    /// The file ended, and nothing will be added to it: a record without newline is as good as it gets.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let record = std::mem::take(&mut self.pending);
        if !record.is_empty() && !self.is_done() && !std::mem::take(&mut self.skipping) {
            self.record(&record, out);
        }
    }

    /// Reading goes on in a new file: what is left of the old one has no continuation.
    pub fn next_file(&mut self, out: &mut Vec<u8>) {
        self.finish(out);
        self.skipping = false;
    }

    fn record(&mut self, record: &[u8], out: &mut Vec<u8>) {
        let Some(Record { time, at, partial, content }) = parse(record) else {
            self.malformed += 1;
            return;
        };
        if let Some(left) = &mut self.records_left {
            *left -= 1;
        }
        if self.since.is_some_and(|since| at < since) {
            self.at_line_start = !partial;
            return;
        }
        if self.timestamps && self.at_line_start {
            self.send(trimmed(time).as_bytes(), out);
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

struct Record<'a> {
    time: &'a str,
    at: Wall,
    partial: bool,
    content: &'a [u8],
}

fn parse(record: &[u8]) -> Option<Record<'_>> {
    let mut fields = record.splitn(4, |b| *b == b' ');
    let time = std::str::from_utf8(fields.next()?).ok()?;
    let stream = fields.next()?;
    let tags = fields.next()?;
    let content = fields.next().unwrap_or_default();
    if !matches!(stream, b"stdout" | b"stderr") {
        return None;
    }
    let partial = match tags.split(|b| *b == b':').next()? {
        b"F" => false,
        b"P" => true,
        _ => return None,
    };
    let nanos = Timestamp::from_str(time).ok()?.as_nanosecond();
    let at = Wall(i64::try_from(nanos.clamp(i128::from(i64::MIN), i128::from(i64::MAX))).unwrap_or_default());
    Some(Record { time, at, partial, content })
}

/// The time without zeros at the end of its fraction, as upstream prints it.
fn trimmed(time: &str) -> String {
    let Some((seconds, rest)) = time.split_once('.') else { return time.to_owned() };
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (fraction, zone) = rest.split_at(end);
    match fraction.trim_end_matches('0') {
        "" => format!("{seconds}{zone}"),
        fraction => format!("{seconds}.{fraction}{zone}"),
    }
}
