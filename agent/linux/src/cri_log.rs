//! The log format that CRI runtimes write, one file for each container attempt:
//! `<RFC 3339 nanoseconds> <stdout|stderr> <tags> <content>`, first tag `F` (whole line) or `P` (part of a
//! line that the runtime split). Pure. In: bytes as they are read, cut anywhere. Out: whole lines.
//!
//! Invariant: memory is bounded whatever a container prints; malformed lines are dropped and counted.

/// Longer lines are given in pieces of this size, bytes.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// Puts one log file's bytes together to lines.
#[derive(Debug, Default)]
pub struct LineAssembler {
    /// Bytes of a record whose newline has not come.
    pending: Vec<u8>,
    /// Contents of `P` records waiting for their `F`.
    line: Vec<u8>,
    /// True while the rest of an over-long record is skipped.
    skipping: bool,
    malformed: u64,
}

impl LineAssembler {
    /// Absorbs what was read next; each whole line goes to `out` without its newline.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<String>) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
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
        if !self.skipping {
            self.pending.extend_from_slice(bytes);
            // A runtime splits at 16 KiB; a record longer than twice that is none of a runtime.
            if self.pending.len() > 2 * LINE_BYTES_MAX {
                self.pending.clear();
                self.malformed += 1;
                self.skipping = true;
            }
        }
    }

    /// How many records were not understood.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    fn record(&mut self, record: &[u8], out: &mut Vec<String>) {
        let Some((partial, content)) = parse(record) else {
            self.malformed += 1;
            return;
        };
        self.line.extend_from_slice(content);
        if !partial || self.line.len() >= LINE_BYTES_MAX {
            out.push(String::from_utf8_lossy(&self.line).into_owned());
            self.line.clear();
        }
    }
}

/// (true if part of a line, content) of one record without its newline.
fn parse(record: &[u8]) -> Option<(bool, &[u8])> {
    let mut fields = record.splitn(4, |b| *b == b' ');
    let time = fields.next()?;
    let stream = fields.next()?;
    let tags = fields.next()?;
    let content = fields.next().unwrap_or_default();
    if !time.first()?.is_ascii_digit() || !matches!(stream, b"stdout" | b"stderr") {
        return None;
    }
    match tags.split(|b| *b == b':').next()? {
        b"F" => Some((false, content)),
        b"P" => Some((true, content)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &[u8] = b"2026-11-21T04:00:00.123456789Z stdout F hello world\n\
        2026-11-21T04:00:00.2Z stderr P one \n\
        2026-11-21T04:00:00.3Z stderr F line\n\
        2026-11-21T04:00:00.4Z stdout F:tag \n\
        2026-11-21T04:00:00.5Z stdout F\n";

    #[test]
    fn lines_come_whole_wherever_the_bytes_are_cut() {
        for cut in 1..LOG.len() {
            let mut assembler = LineAssembler::default();
            let mut lines = Vec::new();
            for piece in LOG.chunks(cut) {
                assembler.push(piece, &mut lines);
            }
            assert_eq!(lines, ["hello world", "one line", "", ""], "cut at {cut}");
            assert_eq!(assembler.malformed(), 0);
        }
    }

    #[test]
    fn nonsense_is_counted_not_printed() {
        let mut assembler = LineAssembler::default();
        let mut lines = Vec::new();
        assembler.push(b"\nhello\n2026 stdin F x\n2026 stdout X x\n2026 stdout F ok\n", &mut lines);
        assert_eq!(lines, ["ok"]);
        assert_eq!(assembler.malformed(), 4);
    }

    #[test]
    fn memory_is_bounded() {
        let mut assembler = LineAssembler::default();
        let mut lines = Vec::new();
        let endless = vec![b'x'; 10_000];
        for _ in 0..100 {
            assembler.push(&endless, &mut lines);
            assert!(assembler.pending.len() <= 2 * LINE_BYTES_MAX);
        }
        assembler.push(b"\n2026 stdout F after\n", &mut lines);
        assert_eq!(lines, ["after"]);
        assert_eq!(assembler.malformed(), 1);
        for _ in 0..100 {
            assembler.push(b"2026 stdout P ", &mut lines);
            assembler.push(&endless[..1000], &mut lines);
            assembler.push(b"\n", &mut lines);
            assert!(assembler.line.len() < LINE_BYTES_MAX + 1000);
        }
    }
}
