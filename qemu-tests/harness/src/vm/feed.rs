//! A growing list of lines from a socket, which a case can wait on.
//!
//! In: bytes from QEMU's chardevs. Out: lines, in order. Invariant: a waiter sees every line since the start,
//! so nothing can be missed between two waits.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

#[derive(Default)]
struct FeedState {
    lines: Vec<String>,
    ended: bool,
}

/// Lines in the order of their arrival.
#[derive(Clone, Default)]
pub struct Feed {
    shared: Arc<(Mutex<FeedState>, Condvar)>,
}

impl Feed {
    /// Reads `source` to its end in a thread of its own, copies every byte to `log` and shows every line to `look`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn read(
        name: &str,
        source: impl Read + Send + 'static,
        mut log: impl Write + Send + 'static,
        mut look: impl FnMut(&str) + Send + 'static,
    ) -> Result<Feed> {
        let feed = Feed::default();
        let writer = feed.clone();
        let read = move || {
            let mut source = BufReader::new(source);
            let mut line = Vec::new();
            while source.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let _ = log.write_all(&line);
                let text = clean(&line);
                look(&text);
                writer.push(text);
                line.clear();
            }
            writer.end();
        };
        std::thread::Builder::new().name(name.into()).spawn(read).context("start a thread")?;
        Ok(feed)
    }

    fn change(&self, change: impl FnOnce(&mut FeedState)) {
        let (state, changed) = &*self.shared;
        change(&mut state.lock().unwrap_or_else(PoisonError::into_inner));
        changed.notify_all();
    }

    /// Appends a line.
    pub fn push(&self, line: String) {
        self.change(|s| s.lines.push(line));
    }

    /// Ends the feed: no more lines will arrive.
    pub fn end(&self) {
        self.change(|s| s.ended = true);
    }

    /// How many lines there are: where a later wait may start.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).lines.len()
    }

    /// True if nothing came yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All lines from `from` on.
    #[must_use]
    pub fn since(&self, from: usize) -> Vec<String> {
        let state = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.lines.get(from..).unwrap_or_default().to_vec()
    }

    /// The first line from `from` on for which `pick` returns a value, with its position.
    ///
    /// # Errors
    /// At the deadline or the end of the source: the expectation, and the last lines.
    pub fn wait<T>(
        &self,
        from: usize,
        limit: Duration,
        what: &str,
        mut pick: impl FnMut(&str) -> Option<T>,
    ) -> Result<(usize, T)> {
        let deadline = Instant::now() + limit;
        let (state, changed) = &*self.shared;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = from;
        loop {
            while let Some(line) = state.lines.get(next) {
                if let Some(found) = pick(line) {
                    return Ok((next, found));
                }
                next += 1;
            }
            let tail = state.lines[state.lines.len().saturating_sub(15)..].join("\n");
            if state.ended {
                bail!("it ended while waiting for {what}; last lines:\n{tail}");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("waited {} s for {what}; last lines:\n{tail}", limit.as_secs());
            }
            state = changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A console line as text: no carriage returns, no escape sequences.
fn clean(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => skip_escape(&mut chars),
            '\r' | '\n' => {}
            c => out.push(c),
        }
    }
    out
}

/// CSI sequences end in a letter, others are one character (or `]…BEL`).
fn skip_escape(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    match chars.next() {
        Some('[') => {
            for c in chars.by_ref() {
                if c.is_ascii_alphabetic() || c == '~' {
                    return;
                }
            }
        }
        Some(']') => {
            for c in chars.by_ref() {
                if c == '\u{7}' || c == '\\' {
                    return;
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[test]
    fn lines_are_cleaned_and_found_in_order() {
        let feed =
            Feed::read("t", &b"\x1b[1;31mred\x1b[0m\r\ntwo\nthree"[..], std::io::sink(), |_| ()).unwrap();
        let (at, ()) = feed.wait(0, SOON, "three", |l| (l == "three").then_some(())).unwrap();
        assert_eq!(at, 2);
        assert_eq!(feed.since(0), ["red", "two", "three"]);
        assert_eq!(feed.since(9), Vec::<String>::new());
    }

    #[test]
    fn the_end_of_the_source_ends_a_wait() {
        let feed = Feed::read("t", &b"only\n"[..], std::io::sink(), |_| ()).unwrap();
        let error = feed.wait(0, SOON, "another", |l| (l == "another").then_some(())).unwrap_err();
        assert!(error.to_string().contains("ended while waiting for another"), "{error}");
        assert!(error.to_string().contains("only"), "{error}");
    }

    #[test]
    fn a_wait_is_woken_by_a_later_line() {
        let feed = Feed::default();
        let writer = feed.clone();
        let thread = std::thread::spawn(move || writer.push("late".into()));
        feed.wait(0, SOON, "late", |l| (l == "late").then_some(())).unwrap();
        thread.join().unwrap();
    }
}
