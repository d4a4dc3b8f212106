//! Records of a CRI log, from pieces of any size: `<RFC 3339> <stdout|stderr> <tags> <content>`; the first
//! tag is `F` for a whole line or `P` for a part that the next record continues.

use std::borrow::Cow;

/// Assembles records from the bytes of a file. Invariant: holds at most its limit and the last piece.
#[derive(Debug)]
pub struct Records {
    bytes_max: usize,
    /// Bytes of a record without its newline yet.
    pending: Vec<u8>,
    /// True while the rest of an over-long record is skipped.
    skipping: bool,
    overlong: u64,
}

impl Records {
    /// A record longer than `bytes_max` is malformed: it is left out and counted.
    #[must_use]
    pub fn new(bytes_max: usize) -> Records {
        Records { bytes_max, pending: Vec::new(), skipping: false, overlong: 0 }
    }

    /// The next whole record, without its newline, from the front of `bytes`; `None` if there is none, and
    /// the rest of `bytes` was kept for the next piece.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Cow<'a, [u8]>> {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (record, rest) = bytes.split_at(end);
            *bytes = &rest[1..];
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if self.pending.is_empty() {
                return Some(Cow::Borrowed(record));
            }
            self.pending.extend_from_slice(record);
            return Some(Cow::Owned(std::mem::take(&mut self.pending)));
        }
        self.keep(std::mem::take(bytes));
        None
    }

    /// The file ended: returns the last record without a newline. Bytes of another file may follow.
    pub fn rest(&mut self) -> Vec<u8> {
        self.skipping = false;
        std::mem::take(&mut self.pending)
    }

    /// How many records were too long.
    #[must_use]
    pub fn overlong(&self) -> u64 {
        self.overlong
    }

    /// Bytes that wait for their newline.
    #[must_use]
    pub fn held(&self) -> usize {
        self.pending.len()
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.skipping {
            return;
        }
        self.pending.extend_from_slice(bytes);
        if self.pending.len() > self.bytes_max {
            self.pending = Vec::new();
            self.overlong += 1;
            self.skipping = true;
        }
    }
}

/// One of a container's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Output {
    /// By its name in a query; `All` is none.
    #[must_use]
    pub fn of(name: &str) -> Option<Output> {
        [Output::Stdout, Output::Stderr].into_iter().find(|output| output.name() == name)
    }

    /// Its name in a query.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Output::Stdout => "Stdout",
            Output::Stderr => "Stderr",
        }
    }
}

/// Fields of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When it was written, as the runtime spells it; not looked at here.
    pub time: &'a [u8],
    /// Where it was written.
    pub output: Output,
    /// True if the next record of its stream continues the line.
    pub partial: bool,
    /// The line, or a part of it.
    pub content: &'a [u8],
}

impl Record<'_> {
    /// Parses a record; `None` if it is malformed.
    #[must_use]
    pub fn parse(record: &[u8]) -> Option<Record<'_>> {
        let mut fields = record.splitn(4, |b| *b == b' ');
        let (time, stream, tags) = (fields.next()?, fields.next()?, fields.next()?);
        let content = fields.next().unwrap_or_default();
        let output = match stream {
            b"stdout" => Output::Stdout,
            b"stderr" => Output::Stderr,
            _ => return None,
        };
        let partial = match tags.split(|b| *b == b':').next()? {
            b"F" => false,
            b"P" => true,
            _ => return None,
        };
        Some(Record { time, output, partial, content })
    }
}
