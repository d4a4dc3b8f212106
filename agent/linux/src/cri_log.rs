//! The log format that CRI runtimes write, one file for each container attempt:
//! `<RFC 3339 nanoseconds> <stdout|stderr> <tags> <content>`, first tag `F` (whole line) or `P` (part of a
//! line that the runtime split). Pure. In: bytes as they are read, cut anywhere. Out: whole lines.
//!
//! Invariant: memory is bounded for every output of a container; malformed lines are dropped and counted.

use agent_kubelet_api::logs::{Record, Records};

/// Longer lines are given in pieces of this size, bytes.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// Puts one log file's bytes together to lines.
#[derive(Debug)]
pub struct LineAssembler {
    records: Records,
    /// Contents of `P` records waiting for their `F`.
    line: Vec<u8>,
    malformed: u64,
}

impl Default for LineAssembler {
    fn default() -> LineAssembler {
        // A runtime splits at 16 KiB; a record longer than twice that is none of a runtime.
        LineAssembler { records: Records::new(2 * LINE_BYTES_MAX), line: Vec::new(), malformed: 0 }
    }
}

impl LineAssembler {
    /// Absorbs what was read next; each whole line goes to `out` without its newline.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<String>) {
        while let Some(record) = self.records.next(&mut bytes) {
            self.record(&record, out);
        }
    }

    /// How many records were not understood.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed + self.records.overlong()
    }

    fn record(&mut self, record: &[u8], out: &mut Vec<String>) {
        let dated = |r: &Record<'_>| r.time.first().is_some_and(u8::is_ascii_digit);
        let Some(Record { partial, content, .. }) = Record::parse(record).filter(dated) else {
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
            assert!(assembler.records.held() <= 2 * LINE_BYTES_MAX);
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
