//! Lines of a container's log, from the bytes of its file. Pure.
//!
//! In: pieces of a file in the form that CRI runtimes write, cut anywhere. Out: whole lines with time and output. Invariants: memory is
//! bounded for each output, whatever a container writes; a record that is none is left out; a line whose parts are of one output is not
//! mixed with one of the other.

use std::collections::VecDeque;

use agent_kubelet_api::logs::{Output, Record, Records};
use jiff::Timestamp;
use orlop_proto::node_api::v1alpha1::LogLine;

/// Longer lines come in pieces, bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// A runtime splits at 16 KiB: a record much longer than that is none, bytes.
const RECORD_BYTES_MAX: usize = 64 << 10;
/// Priority of a line of the journal that is nothing special.
const PRIORITY: u32 = 6;

/// Parts of a line that wait for its end.
#[derive(Debug, Default)]
struct OpenLine {
    time_us: u64,
    text: Vec<u8>,
}

/// Puts one log's bytes together to lines.
#[derive(Debug)]
pub(crate) struct PodLogLines {
    since_us: u64,
    records: Records,
    stdout: OpenLine,
    stderr: OpenLine,
}

impl PodLogLines {
    /// Lines from this time on, microseconds since 1970.
    pub(crate) fn new(since_us: u64) -> PodLogLines {
        let records = Records::new(RECORD_BYTES_MAX);
        PodLogLines { since_us, records, stdout: OpenLine::default(), stderr: OpenLine::default() }
    }

    /// Takes the next piece; whole lines go to `out`.
    pub(crate) fn push(&mut self, mut bytes: &[u8], out: &mut VecDeque<LogLine>) {
        while let Some(record) = self.records.next(&mut bytes) {
            self.record(&record, out);
        }
    }

    /// The file has ended, and another one may follow: what is there without an end is a line.
    pub(crate) fn finish(&mut self, out: &mut VecDeque<LogLine>) {
        let rest = self.records.rest();
        self.record(&rest, out);
        for output in [Output::Stdout, Output::Stderr] {
            if !self.open(output).text.is_empty() {
                self.end(output, out);
            }
        }
    }

    fn record(&mut self, record: &[u8], out: &mut VecDeque<LogLine>) {
        let Some(Record { time, output, partial, content }) = Record::parse(record) else { return };
        let Some(time_us) = micros(time) else { return };
        let line = self.open(output);
        if line.text.is_empty() {
            line.time_us = time_us;
        }
        line.text.extend_from_slice(content);
        if !partial || line.text.len() >= LINE_BYTES_MAX {
            self.end(output, out);
        }
    }

    fn open(&mut self, output: Output) -> &mut OpenLine {
        match output {
            Output::Stdout => &mut self.stdout,
            Output::Stderr => &mut self.stderr,
        }
    }

    fn end(&mut self, output: Output, out: &mut VecDeque<LogLine>) {
        let OpenLine { time_us, text } = std::mem::take(self.open(output));
        if time_us < self.since_us {
            return;
        }
        let source = match output {
            Output::Stdout => "stdout",
            Output::Stderr => "stderr",
        };
        let message = String::from_utf8_lossy(&text).into_owned();
        let (source, cursor) = (source.to_owned(), String::new());
        out.push_back(LogLine { cursor, time_us, source, priority: PRIORITY, message });
    }
}

/// A time of a record, microseconds since 1970.
fn micros(time: &[u8]) -> Option<u64> {
    let time: Timestamp = str::from_utf8(time).ok()?.parse().ok()?;
    u64::try_from(time.as_microsecond()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: &[u8] = b"2026-11-21T04:00:00.123456789Z stdout F hello world\n\
        2026-11-21T04:00:00.2Z stdout P one \n\
        2026-11-21T04:00:00.3Z stderr F oops\n\
        no record\n\
        2026-11-21T04:00:00.4Z stdout F line\n\
        2026-11-21T04:00:00.5Z stderr F";

    fn lines(since_us: u64, pieces: impl Iterator<Item = &'static [u8]>) -> Vec<(String, String)> {
        let (mut lines, mut out) = (PodLogLines::new(since_us), VecDeque::new());
        for piece in pieces {
            lines.push(piece, &mut out);
        }
        lines.finish(&mut out);
        out.into_iter().map(|line| (line.source, line.message)).collect()
    }

    #[test]
    fn outputs_are_not_mixed_wherever_the_bytes_are_cut() {
        let of = |source: &str, message: &str| (source.to_owned(), message.to_owned());
        let expected =
            [of("stdout", "hello world"), of("stderr", "oops"), of("stdout", "one line"), of("stderr", "")];
        for cut in 1..LOG.len() {
            assert_eq!(lines(0, LOG.chunks(cut)), expected, "cut at {cut}");
        }
        // 04:00:00.25: the line whose first part is older is left out.
        let since = micros(b"2026-11-21T04:00:00.25Z").unwrap();
        assert_eq!(lines(since, LOG.chunks(9)), [of("stderr", "oops"), of("stderr", "")]);
    }

    #[test]
    fn times_are_those_of_the_first_part() {
        let (mut lines, mut out) = (PodLogLines::new(0), VecDeque::new());
        lines.push(LOG, &mut out);
        let times: Vec<u64> = out.iter().map(|line| line.time_us % 1_000_000).collect();
        assert_eq!(times, [123_456, 300_000, 200_000]);
    }

    #[test]
    fn memory_is_bounded() {
        let (mut lines, mut out) = (PodLogLines::new(0), VecDeque::new());
        let endless = vec![b'x'; 10_000];
        for _ in 0..100 {
            lines.push(&endless, &mut out);
            assert!(lines.records.held() <= RECORD_BYTES_MAX);
        }
        lines.push(b"\n", &mut out);
        for _ in 0..100 {
            lines.push(b"2026-11-21T04:00:00Z stdout P ", &mut out);
            lines.push(&endless, &mut out);
            lines.push(b"\n", &mut out);
            assert!(lines.stdout.text.len() < LINE_BYTES_MAX);
        }
        assert!(out.iter().all(|line| line.message.len() < LINE_BYTES_MAX + 10_001), "a line is too long");
        assert_eq!(
            out.iter().map(|line| line.message.len()).sum::<usize>(),
            100 * 10_000 - lines.stdout.text.len()
        );
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..2000), since in any::<u64>()) {
            let (mut lines, mut out) = (PodLogLines::new(since), VecDeque::new());
            lines.push(&bytes, &mut out);
            lines.finish(&mut out);
            prop_assert!(out.iter().all(|line| line.time_us >= since));
        }
    }
}
