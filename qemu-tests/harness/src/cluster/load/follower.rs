//! A follower of the log that the writer writes, byte by byte.
//!
//! In: chunks. Out: the number of bytes, and the first wrong one. Invariant: the expected log is computed here, not
//! copied from the received one.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt};

use super::Stream;

/// Lines of a round.
pub(super) const LINES: usize = 1000;
/// Bytes of a line, its end included.
pub(super) const LINE: usize = 1000;
/// A round begins with its number.
const HEAD: usize = "round 000000\n".len();
const ROUND: usize = HEAD + LINES * LINE;
const READY: &str = "ready\n";

/// A log that is being followed, in chunks of HTTP/1.1.
pub(super) struct Log {
    stream: Stream,
}

impl Log {
    /// Behind the answer's head.
    pub(super) fn new(stream: Stream) -> Log {
        Log { stream }
    }

    /// Reads the log to its end; returns the number of bytes, and the first error.
    pub(super) async fn compare(mut self, rounds: usize) -> (usize, Option<String>) {
        let mut expected = Expected::new();
        let read = self.read(&mut expected).await;
        let wanted = READY.len() + rounds * ROUND;
        let problem = match read {
            Err(error) => Some(format!("{error:#}")),
            Ok(()) if expected.place != wanted => {
                Some(format!("{} of {wanted} bytes of the log", expected.place))
            }
            Ok(()) => None,
        };
        (expected.place, problem)
    }

    async fn read(&mut self, expected: &mut Expected) -> Result<()> {
        let mut chunk = Vec::new();
        loop {
            let mut head = String::new();
            self.stream.read_line(&mut head).await?;
            let length = usize::from_str_radix(head.trim(), 16);
            let length =
                length.with_context(|| format!("a chunk's head {head:?} after {} bytes", expected.place))?;
            if length == 0 {
                return Ok(());
            }
            chunk.resize(length + 2, 0);
            self.stream.read_exact(&mut chunk).await?;
            expected.take(&chunk[..length])?;
        }
    }
}

/// The expected log, from its beginning.
struct Expected {
    block: Arc<Vec<u8>>,
    place: usize,
}

impl Expected {
    fn new() -> Expected {
        static BLOCK: std::sync::OnceLock<Arc<Vec<u8>>> = std::sync::OnceLock::new();
        Expected { block: BLOCK.get_or_init(|| Arc::new(block())).clone(), place: 0 }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let place = self.place;
            let head;
            let expected: &[u8] = match place.checked_sub(READY.len()) {
                None => &READY.as_bytes()[place..],
                Some(place) if place % ROUND < HEAD => {
                    head = format!("round {:06}\n", place / ROUND);
                    &head.as_bytes()[place % ROUND..]
                }
                Some(place) => &self.block[place % ROUND - HEAD..],
            };
            let length = expected.len().min(bytes.len());
            ensure!(bytes[..length] == expected[..length], "the log is another one after {place} bytes");
            bytes = &bytes[length..];
            self.place += length;
        }
        Ok(())
    }
}

/// The lines of a round, as the writer's awk makes them.
fn block() -> Vec<u8> {
    let letters = "0123456789abcdefghijklmnopqrstuvwxyz ";
    let line = |n: usize| {
        let mut line = format!("{n:04} ");
        while line.len() < LINE - 1 {
            line.push_str(letters);
        }
        line.truncate(LINE - 1);
        line + "\n"
    };
    (0..LINES).map(line).collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_missing_is_found() {
        let mut whole = READY.as_bytes().to_vec();
        for n in 0..2 {
            whole.extend(format!("round {n:06}\n").into_bytes());
            whole.extend(block());
        }
        for cut in [1, 7, 1000, 4096, whole.len()] {
            let mut expected = Expected::new();
            whole.chunks(cut).try_for_each(|piece| expected.take(piece)).unwrap();
            assert_eq!(expected.place, READY.len() + 2 * ROUND);
        }
        for gone in [0, 6, 20, 5000, ROUND + 10, 2 * ROUND - 500] {
            let mut holed = whole.clone();
            holed.remove(gone);
            assert!(Expected::new().take(&holed).is_err(), "byte {gone}");
        }
    }
}
